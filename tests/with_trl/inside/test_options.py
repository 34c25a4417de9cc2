"""The capability file and TRL's own configuration agree."""

import dataclasses
from importlib.metadata import version

import pytest
from trl import GRPOConfig
from trl.scripts.utils import TrlParser

from paribus.contract import Options
from paribus_runners.capabilities import matrix_for
from paribus_runners.trl import runner

PRESETS = ("grpo", "dr_grpo", "gspo", "cispo", "sapo", "lite_ppo")


def test_the_file_lists_the_fields_of_the_configuration():
    """No option of TRL is unknown here, and none is listed that TRL does not have."""
    fields = {field.name for field in dataclasses.fields(GRPOConfig)}
    assert matrix_for("trl", version("trl")).capabilities.names == fields


def test_a_misspelt_option_is_ignored_by_trl_and_refused_here(tmp_path):
    """TRL's script takes a configuration with `epsilonn` as if it were not there; a study with it is an error."""
    file = tmp_path / "run.yaml"
    file.write_text(f"output_dir: {tmp_path}\nuse_cpu: true\nbf16: false\nepsilonn: 0.4\n")
    parser = TrlParser((GRPOConfig,))
    config, *_ = parser.parse_args_and_config(["--config", str(file)], fail_with_unknown_args=False)
    assert config.epsilon == 0.2
    (problem,) = runner.check_options(Options(passthrough={"epsilonn": 0.4}))
    assert problem.message == "trl has no option `epsilonn`. Did you mean `epsilon`?"


@pytest.mark.parametrize("preset", PRESETS)
def test_trl_accepts_the_options_of_a_preset(preset, session):
    """What a plan shows is what TRL's configuration holds."""
    trainer = session(preset)._make(0)
    options = session(preset)
    shown = runner.native_options(options._recipe, Options())
    held = {name: getattr(trainer.args, name) for name in shown}
    differing = {k for k in shown if held[k] != shown[k] and not isinstance(held[k], dict | list)}
    assert {k for k in differing if str(getattr(held[k], "value", held[k])) != str(shown[k])} == set()
