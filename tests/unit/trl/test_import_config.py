"""`paribus import-config trl`: a study whose base does what TRL does with a script's options."""

from typing import Any

import pytest
from click.testing import CliRunner

from paribus.cli import paribus
from paribus.errors import ParibusError
from paribus.recipe.patch import apply
from paribus.recipe.presets import load_preset
from paribus.recipe.recipe import Recipe, difference
from paribus.study.load import load_study
from paribus_runners.capabilities import matrix_for
from paribus_runners.import_config.command import read_settings
from paribus_runners.import_config.trl import DEFAULTS, Translated, translate
from paribus_runners.trl.options import TrlOptions, options_of

CAPABILITIES = matrix_for("trl", "1.16.0").capabilities
OURS = ("task", "model", "reward", "rollout")
"""Parts that TRL's options do not decide."""


def translated(given: dict[str, Any], processes: int = 1) -> Translated:
    """Return what becomes of options."""
    return translate(given, CAPABILITIES, processes)


def recipe_of(patch: dict[str, Any]) -> Recipe:
    """Return the recipe of a study whose base is GRPO with this patch."""
    done = apply(load_preset("grpo").recipe.model_dump(mode="json"), patch)
    assert not done.faults, done.faults
    return Recipe.model_validate(done.values)


VARIANTS = {
    "grpo": {},
    "clip_higher": {"clip": {"kind": "ppo_min", "low": 0.2, "high": 0.28}},
    "two_sided": {"clip": {"kind": "two_sided", "low": 0.1, "high": 0.3, "delta": 4.0}},
    "cispo": {"clip": {"kind": "is_cap_sg", "cap": 5.0, "floor": 0.0}, "aggregation": "token_batch"},
    "sapo": {"clip": {"kind": "soft_gate", "tau_positive": 1.1, "tau_negative": 1.2}},
    "token_level": {"aggregation": "token_batch", "auxiliary.entropy": 0.01},
    "dr_grpo": {"aggregation": "const", "scale": "none"},
    "luspo": {"aggregation": "seq_sum", "scale": {"kind": "batch_std_raw", "eps": 1e-4}},
    "gspo": {"ratio": "seq_geo", "schedule": {"minibatches": 4, "epochs": 2}},
    "kl": {"kl": {"kind": "loss", "beta": 0.02}},
    "kl_isw": {
        "kl": {"kind": "loss_isw", "beta": 0.02},
        "schedule": {"steps": 7, "prompts_per_step": 6, "group_size": 4},
    },
    "masked": {"length": {"truncated": "mask_loss", "count_masked_rows": True}},
    "top_entropy": {"token_weight": {"kind": "top_entropy", "fraction": 0.3}},
    "adam": {"optimizer": {"beta1": 0.8, "beta2": 0.95, "eps": 1e-7, "weight_decay": 0.1, "max_grad_norm": 0.5}},
    "vespo": {
        "ratio": "seq_product",
        "aggregation": "token_batch",
        "clip": {"kind": "vespo", "k_positive": 1.5, "lambda_positive": 2.0, "k_negative": 2.5, "lambda_negative": 3.0},
    },
    "off_policy": {"correction": {"kind": "off_policy_mask", "delta": 0.3}},
    "unclipped": {"optimizer": {"max_grad_norm": None, "warmup_steps": 3}},
}


@pytest.mark.parametrize("name", VARIANTS)
def test_what_the_trl_runner_sets_is_read_back_as_the_same_recipe(name):
    """The options of a run, which another module makes from a recipe, are this recipe again."""
    recipe = recipe_of({"kl": "off", "scale": {"kind": "group_std", "eps": 1e-4}} | VARIANTS[name])
    options = options_of(CAPABILITIES, recipe, {}, TrlOptions())
    found = translated(options)
    again = recipe_of(found.recipe)
    changed = {path: values for path, values in difference(recipe, again).items() if not path.startswith(OURS)}
    assert not changed
    assert not [text for text in found.lost.values() if "no option" in text]


def test_options_that_are_not_given_are_at_trls_defaults():
    """TRL's GRPO is not the paper's: token-level loss, no KL, 1e-6."""
    found = recipe_of(translated({}).recipe)
    assert (found.aggregation.kind, found.kl.kind, found.optimizer.learning_rate) == ("token_batch", "off", 1e-6)
    assert (found.schedule.prompts_per_step, found.schedule.group_size, found.schedule.minibatches) == (1, 8, 1)
    assert set(translated(dict(DEFAULTS)).lost) == {"lr_scheduler_type", "num_train_epochs"}


def test_batches_are_counted_as_trl_counts_them():
    """Responses of a device and a process there, prompts of a rollout batch here."""
    given = {"per_device_train_batch_size": 4, "gradient_accumulation_steps": 2, "steps_per_generation": 8}
    schedule = translated(given | {"num_generations": 16, "max_steps": 40, "num_iterations": 2}, processes=8)
    assert schedule.recipe["schedule"]["prompts_per_step"] == 4 * 8 * 8 // 16
    assert schedule.recipe["schedule"]["minibatches"] == 4
    assert schedule.recipe["schedule"]["steps"] == 5
    whole = translated({"generation_batch_size": 64, "per_device_train_batch_size": 16})
    assert (whole.recipe["schedule"]["prompts_per_step"], whole.recipe["schedule"]["minibatches"]) == (8, 4)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"loss_type": "ppo"}, r"`loss_type: ppo`: this loss is not read\. Of TRL's these are: bnpo, "),
        ({"num_generations": 6}, r"8 responses of a rollout batch: .*--processes N"),
        ({"steps_per_generation": 2, "generation_batch_size": 16}, "not both"),
        ({"learning_rate": "fast"}, "`learning_rate: fast` is no number"),
        ({"learning_rate": 10**400}, r"`learning_rate: 10000.*\.\.\.` is no number"),
        ({"max_steps": float("inf")}, "`max_steps: inf` is not a number below 1e\\+15"),
        ({"eval_steps": float("nan")}, "`eval_steps: nan` is not a number below 1e\\+15"),
        ({"num_generations": 0}, "batches, groups and iterations of 1 or more"),
        ({"num_iterations": 0}, "batches, groups and iterations of 1 or more"),
        ({"importance_sampling_level": "word\x1b"}, r"`importance_sampling_level: word\?`: TRL has token and sequence"),
    ],
)
def test_what_cannot_be_read_is_refused(given, message):
    """A loss that no recipe has, sizes that TRL refuses, and text for a number are errors that say what is allowed."""
    with pytest.raises(ParibusError, match=message):
        translated(given)


def test_what_has_no_place_is_named_and_a_misspelt_option_is_found():
    """Nothing is dropped silently, nor are options that TRL itself would ignore."""
    lost = translated({"epsilon_hihg": 0.3, "top_p": 0.9, "logging_steps": 10, "vllm_mode": "colocate", "seed": 3}).lost
    assert lost["epsilon_hihg"] == (
        "TRL has no option `epsilon_hihg`, and ignores it in a file. Did you mean `epsilon_high`?"
    )
    assert "TRL takes the whole vocabulary" in lost["top_p"]
    assert {"logging_steps", "vllm_mode", "lr_scheduler_type", "num_train_epochs"} <= lost.keys()
    assert "seed" not in lost


def test_options_of_the_command_line_replace_those_of_the_file(tmp_path):
    """In the forms that TRL's scripts take; a bare name is a truth value."""
    file = tmp_path / "c.yaml"
    file.write_text("beta: 0.1\nlearning_rate: 1e-5\n")
    found = read_settings(["--beta=0.2", str(file), "--bf16", "--max-steps", "12", "epsilon=0.3"])
    assert found == {"beta": 0.2, "learning_rate": "1e-5", "bf16": True, "max_steps": 12, "epsilon": 0.3}


@pytest.mark.parametrize("end", ["\\n", "\\N", "\\L", "\\P", "\\r"])
def test_no_name_of_an_option_adds_a_line_to_the_study(tmp_path, end):
    """What is lost stands in comments; YAML has more ends of a line than a text, and a study may name a command."""
    file, written = tmp_path / "c.yaml", tmp_path / "study.yaml"
    file.write_text(f'"x{end}health: {{command: [touch, y]}}{end}#": 1\nlr_scheduler_type: "a{end}seeds: 1{end}#"\n')
    shown = CliRunner().invoke(paribus, ["import-config", "trl", str(file), "--to", str(written)])
    assert shown.exit_code == 0, shown.output
    assert not load_study(written).spec.health.command
    assert "#   x health: {command: [touch, y]} #: " in written.read_text()


def test_the_study_that_is_written_is_one(tmp_path, monkeypatch):
    """It loads, has the values and what is lost as comments, and an existing file stays."""
    monkeypatch.chdir(tmp_path)
    file = tmp_path / "c.yaml"
    file.write_text("model_name_or_path: some/model\ndataset_name: some/data\nbeta: 0.04\nlogging_steps: 5\n")
    shown = CliRunner().invoke(
        paribus, ["import-config", "trl", "c.yaml", "--scale_rewards", "none", "--to", "My Study.yaml"]
    )
    assert shown.exit_code == 0, shown.output
    study = load_study(tmp_path / "My Study.yaml")
    assert study.spec.study == "my-study"
    assert (study.base.kl.kind, study.base.kl.beta, study.base.scale.kind) == ("loss_isw", 0.04, "none")
    assert "#   logging_steps: every step is recorded" in (tmp_path / "My Study.yaml").read_text()
    assert "Next: paribus plan My Study.yaml" in shown.output or "Next: paribus plan 'My Study.yaml'" in shown.output
    again = CliRunner().invoke(paribus, ["import-config", "trl", "c.yaml", "--to", "My Study.yaml"])
    assert isinstance(again.exception, ParibusError)
    assert study.root is not None
