"""`paribus import-config verl`: a study whose base does what verl's PPO trainer does with these options."""

import re
from contextlib import suppress
from typing import Any

import pytest
from click.testing import CliRunner
from hypothesis import given as drawn
from hypothesis import strategies as st

from paribus.cli import paribus
from paribus.errors import ParibusError
from paribus.recipe.patch import apply
from paribus.recipe.presets import load_preset
from paribus.recipe.recipe import Recipe, difference
from paribus.recipe.resolve import resolve_base
from paribus.study.load import load_study
from paribus_runners.capabilities import matrix_for
from paribus_runners.import_config.hydra import options_of_file, options_of_script, options_of_words, value_of
from paribus_runners.import_config.shell import commands
from paribus_runners.import_config.verl import translate
from paribus_runners.verl.options import VerlOptions, arguments
from paribus_runners.verl.overrides import written
from paribus_runners.verl.sizes import CORRECTION

CAPABILITIES = matrix_for("verl", "0.9.1").capabilities
ACTOR = "actor_rollout_ref.actor."
OURS = ("task", "reward")
"""Parts that verl's options do not decide."""

WHITENED = {"kind": "batch_whiten", "unit": "token", "eps": 0.0}
LAMBDA = {"policy_lambda": {"kind": "fixed", "value": 0.95}, "critic_lambda": 0.95}
VARIANTS: dict[str, dict[str, Any]] = {
    "grpo": {},
    "dr_grpo": {"aggregation": "const", "scale": "none"},
    "const_64": {"aggregation": {"kind": "const", "length": 64}},
    "clip_higher": {"clip.high": 0.28},
    "dual": {"clip": {"kind": "ppo_dual", "low": 0.1, "high": 0.3, "c": 10.0}},
    "unclipped": {"clip": "none", "optimizer.max_grad_norm": None, "optimizer.warmup_steps": 3},
    "cispo": {"clip": {"kind": "is_cap_sg", "cap": 1.28, "floor": 0.0}, "aggregation": "token_batch"},
    "sapo": {"clip": {"kind": "soft_gate", "tau_positive": 1.1, "tau_negative": 1.2}},
    "dppo_tv": {"clip": {"kind": "dppo_tv", "low": 0.1, "high": 0.2, "cap": 4.0}},
    "dppo_kl": {"clip": {"kind": "dppo_kl", "low": 0.02, "high": 0.05, "cap": 5.0}},
    "clip_cov": {"clip": {"kind": "clip_cov", "fraction": 0.001, "cov_low": 0.5, "cov_high": 4.0}},
    "kl_cov": {"clip": {"kind": "kl_cov", "fraction": 0.01, "beta": 0.5}},
    "gspo": {"ratio": "seq_geo", "schedule.minibatches": 4, "schedule.epochs": 2},
    "gmpo": {"ratio": "geo_clipped", "clip": {"kind": "log_clip", "low": 0.4, "high": 0.4}},
    "reinforce": {"ratio": "none", "clip": "none", "aggregation": "seq_sum"},
    "rloo": {"baseline": "group_loo", "scale": "none", "kl": {"kind": "reward", "beta": 0.05}},
    "opo": {"baseline": "group_length_weighted", "scale": "none"},
    "alone": {"baseline": "none", "scale": "none", "schedule.group_size": 1},
    "reinforce++": {
        "baseline": "batch_mean",
        "scale": WHITENED,
        "kl": {"kind": "reward", "unit": "token", "beta": 0.01},
    },
    "ppo": {
        "baseline": {"kind": "critic_gae", "gamma": 0.99, **LAMBDA},
        "scale": WHITENED,
        "auxiliary.value": {"learning_rate": 2e-5, "clip": None, "pretrain_steps": 5},
    },
    "kl": {"kl": {"kind": "loss", "estimator": "k2", "beta": 0.02}},
    "dapo": {
        "aggregation": "token_batch",
        "length.rule": {"kind": "soft_overlong", "soft_start": 24, "hard_cap": 37, "factor": 0.5},
        "filter": {"kind": "refill", "metric": "reward_std"},
    },
    "refill_correct": {"filter": {"kind": "refill", "metric": "correct"}, "auxiliary.entropy": 0.01},
    "token_truncate": {"correction": {"kind": "token_truncate", "cap": 3.0}},
    "token_mask": {"correction": {"kind": "token_mask", "low": 0.5, "high": 5.0}},
    "seq_truncate": {"correction": {"kind": "seq_truncate", "cap": 2.5}},
    "seq_mask": {"correction": {"kind": "seq_mask", "low": 0.0, "high": 4.0}},
    "geo_mask": {"correction": {"kind": "geo_mask", "low": 0.8, "high": 1.25}},
    "chain": {
        "correction": {
            "kind": "chain",
            "mask": {"kind": "geo_mask", "low": 0.8, "high": 1.25},
            "weight": {"kind": "token_truncate", "cap": 3.0},
        }
    },
    "geo_mask_open": {"correction": {"kind": "geo_mask", "low": 0.0, "high": 1.5}},
    "adam": {"optimizer": {"beta1": 0.8, "beta2": 0.95, "eps": 1e-7, "weight_decay": 0.1, "max_grad_norm": 0.5}},
    "sizes": {
        "schedule": {"steps": 7, "prompts_per_step": 6, "group_size": 4, "max_new_tokens": 99, "temperature": 0.7}
    },
    "bfloat16": {"model.dtype": "bfloat16", "rollout.dtype": "float32", "rollout.sequences": 64},
}


def recipe(patch: dict[str, Any]) -> Recipe:
    """Return a recipe of GRPO without KL for verl, patched."""
    plain = {"kl": "off", "model.name": "org/model", "rollout.engine": "vllm", "optimizer.learning_rate": 1e-6}
    found = resolve_base("grpo", {**plain, "task": "chain", **patch})
    assert found.recipe is not None, found.faults
    return found.recipe


def read_back(patch: dict[str, Any]) -> Recipe:
    """Return the recipe of a study whose base is GRPO with this patch."""
    done = apply(load_preset("grpo").recipe.model_dump(mode="json"), patch)
    assert not done.faults, done.faults
    return Recipe.model_validate(done.values)


@pytest.mark.parametrize("name", VARIANTS)
def test_what_the_verl_runner_plans_is_read_back_as_the_same_recipe(name):
    """The arguments of a run, which another module writes from a recipe, are this recipe again."""
    asked = recipe(VARIANTS[name])
    said = arguments(CAPABILITIES, asked, {}, VerlOptions(), seed=3, gpus=1, more={})
    found = translate(options_of_words(said), CAPABILITIES)
    changed = difference(asked, read_back(found.recipe))
    assert not {path: values for path, values in changed.items() if not path.startswith(OURS)}
    assert not [text for text in found.lost.values() if "no part" in text]


def test_options_that_are_not_given_are_at_verls_defaults():
    """PPO of verl is not the paper's: GAE with whitening over tokens, a token-level loss and a dual clip."""
    found = translate({"data.train_batch_size": 256}, CAPABILITIES)
    base = read_back(found.recipe)
    assert (base.baseline.kind, base.scale.kind, base.aggregation.kind) == ("critic_gae", "batch_whiten", "token_batch")
    assert (base.clip.kind, base.clip.c, base.optimizer.weight_decay) == ("ppo_dual", 3.0, 0.01)
    assert (base.schedule.prompts_per_step, base.schedule.group_size, base.schedule.minibatches) == (256, 1, 1)
    assert found.lost.keys() == {"trainer.total_epochs", "model.dtype"}


SCRIPT = r"""#!/usr/bin/env bash
set -xeuo pipefail
export VLLM_USE_V1=1     # a comment with an ' in it
batch=64; group=8
low=0.2 high=0.28
MODEL=${MODEL:-"/models/small"}
LENGTH=$((1024 * 2)); CACHE=$((LENGTH / 4))
if [ -z "$1" ]; then agg="token-mean"; fi
DATA=(
    data.train_files="$HOME/data/train.parquet"   # the shell's own variable stays
    data.val_files="['$HOME/data/test.parquet']"
    data.train_batch_size=${batch}
)
DATA+=(data.max_response_length=$LENGTH)
python3 -m verl.trainer.main_ppo --config-name=ppo_trainer.yaml \
    "${DATA[@]}" \
    algorithm.adv_estimator=grpo \
    actor_rollout_ref.model.path=$MODEL \
    actor_rollout_ref.actor.clip_ratio_low=${low} actor_rollout_ref.actor.clip_ratio_high=$high \
    actor_rollout_ref.actor.loss_agg_mode="${agg}" \
    actor_rollout_ref.actor.ppo_mini_batch_size=16 \
    actor_rollout_ref.rollout.n=$group \
    'actor_rollout_ref.actor.optim.betas=[0.9, 0.95]' \
    reward_model.reward_manager=dapo \
    +reward_model.reward_kwargs.overlong_buffer_cfg.enable=True \
    +reward_model.reward_kwargs.overlong_buffer_cfg.len=$CACHE \
    +reward_model.reward_kwargs.max_resp_len=$LENGTH \
    actor_rollout_ref.rollout.gpu_memory_utilization=0.6 \
    trainer.total_training_steps=200 trainer.logger='["console"]' $@
"""


def test_a_shell_script_is_read_without_running_it(tmp_path, monkeypatch):
    """Its variables, arrays, sums and older names; an option behind it goes first; the study that comes of it loads."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", "/home/me")
    (tmp_path / "run.sh").write_text(SCRIPT)
    shown = CliRunner().invoke(paribus, ["import-config", "verl", "run.sh", f"{ACTOR}ppo_epochs=2"])
    assert shown.exit_code == 0, shown.output
    base = load_study(tmp_path / "study.yaml").base
    assert (base.model.name, base.clip.low, base.clip.high, base.aggregation.kind) == (
        "/models/small",
        0.2,
        0.28,
        "token_batch",
    )
    assert (base.schedule.prompts_per_step, base.schedule.group_size, base.schedule.minibatches) == (64, 8, 4)
    assert (base.schedule.epochs, base.schedule.steps, base.optimizer.beta2) == (2, 200, 0.95)
    assert (base.length.rule.soft_start, base.length.rule.hard_cap) == (1536, 2048)
    assert base.task.train.path == "/home/me/data/train.parquet"
    assert base.task.heldout.path == "/home/me/data/test.parquet"
    assert "conditions of the script: not decided" in shown.output
    assert "memory and speed: actor_rollout_ref.rollout.gpu_memory_utilization. With `runner: verl`" in shown.output
    assert "#   trainer.logger: here: `paribus run` records metrics" in (tmp_path / "study.yaml").read_text()


def test_files_of_hydra_are_read(tmp_path):
    """A composed configuration with references, a part of one, and the list of overrides."""
    whole = {
        "actor_rollout_ref": {"rollout": {"n": 4, "response_length": "${oc.select:data.max_response_length,512}"}},
        "data": {"max_response_length": 64, "_target_": "x", "seed": "${oc.env:SEED}"},
        "trainer": {"project_name": "${.name}", "experiment_name": "${oc.select:a.b,null}"},
    }
    found = options_of_file(whole, "config.yaml")
    assert found["actor_rollout_ref.rollout.response_length"] == 64
    assert found["trainer.experiment_name"] is None
    assert "data._target_" not in found
    assert options_of_file(["data.seed=3", "+a.b='x'"], "overrides.yaml") == {"data.seed": 3, "a.b": "x"}
    with pytest.raises(ParibusError, match=r"config\.yaml: expects sections"):
        options_of_file("text", "config.yaml")


@pytest.mark.parametrize("text", ["study: mine\nbase: {preset: grpo}\n", "[actor.clip=0.2]"])
def test_a_file_that_is_for_another_program_is_refused(text, tmp_path, monkeypatch):
    """Else verl's own defaults would be written, and every line of the file listed as lost."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.yaml").write_text(text)
    error = CliRunner().invoke(paribus, ["import-config", "verl", "mine.yaml", "data.seed=3"]).exception
    assert re.match(r"mine\.yaml: this is no configuration of verl: it has (study, base|actor)\. Sections", str(error))
    assert (error.exit_code, (tmp_path / "study.yaml").exists()) == (2, False)


def test_a_file_without_options_is_one_of_verl(tmp_path, monkeypatch):
    """Hydra writes an empty list for a training at the defaults."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "overrides.yaml").write_text("[]")
    assert CliRunner().invoke(paribus, ["import-config", "verl", "overrides.yaml"]).exit_code == 0


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"algorithm.adv_estimator": "remax"}, r"no recipe has it\. Of verl's there are here: gae, grpo, "),
        ({f"{ACTOR}policy_loss.loss_mode": "gpg"}, r"this loss is not read\. .*cispo, clip_cov, dppo_kl"),
        ({f"{ACTOR}loss_agg_mode": "token-sum"}, "no recipe has it"),
        ({"data.train_batch_size": 100}, r"`data.train_batch_size: 100` and .*256 unless it is set"),
        ({f"{ACTOR}optim.lr": "fast"}, "is no number"),
        (
            {f"{ACTOR}optim.lr": "${LR}"},
            r"a variable that the script does not set\. Write `actor.*lr=\.\.\.` behind it",
        ),
        ({f"{ACTOR}use_kl_loss": True, f"{ACTOR}kl_loss_type": "abs"}, "`actor_rollout_ref.actor.kl_loss_type: abs`"),
        ({f"{ACTOR}fsdp_config.dtype": "float16"}, "here are bfloat16"),
    ],
)
def test_what_no_recipe_has_is_refused(given, message):
    """Estimators, losses, sizes that verl refuses, and text for a number are errors that say what is allowed."""
    with pytest.raises(ParibusError, match=message):
        translate({"data.train_batch_size": 256, **given}, CAPABILITIES)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["data.seed"], r"`data\.seed` is no option: write `name=value`"),
        (["~data.seed=1"], "Deletions have no counterpart"),
        (["--config-name", "ppo_megatron_trainer"], r"its defaults are unknown here.*\.hydra/config\.yaml"),
    ],
)
def test_words_that_are_no_overrides_are_refused(words, message):
    """With what to write instead."""
    with pytest.raises(ParibusError, match=message):
        options_of_words(words)


def test_what_has_no_place_is_named():
    """Nothing is dropped silently; hundreds of options of a whole configuration are one line."""
    given = {
        f"{ACTOR}clip_ratio_hihg": 0.3, "actor_rollout_ref.rollout.top_p": 0.9, "trainer.logger": ["console"],
        "data.seed": 3, f"{ACTOR}clip_ratio": 0.1, "actor_rollout_ref.model.lora_rank": 32,
        "reward.custom_reward_function.path": "my.py", "actor_rollout_ref.rollout.ignore_eos": False,
    }  # fmt: skip
    lost = translate({"data.train_batch_size": 256, **given}, CAPABILITIES).lost
    assert lost[f"{ACTOR}clip_ratio_hihg"] == "no part of a recipe. Did you mean `clip_ratio_high`?"
    assert "verl takes the whole vocabulary" in lost["actor_rollout_ref.rollout.top_p"]
    assert "`32`: no recipe has it" in lost["actor_rollout_ref.model.lora_rank"]
    assert {"trainer.logger", f"{ACTOR}clip_ratio", "reward.custom_reward_function.path"} <= lost.keys()
    assert not {"data.seed", "actor_rollout_ref.rollout.ignore_eos"} & lost.keys()
    many = {f"global_profiler.x{n}": n for n in range(100)}
    assert "100 more options" in translate({"data.train_batch_size": 256, **many}, CAPABILITIES).lost


PLAIN = st.none() | st.booleans() | st.integers(-999, 999) | st.floats(allow_nan=False, allow_infinity=False, width=32)
TEXT = st.text(st.characters(codec="ascii", min_codepoint=32, exclude_characters="$")).filter(lambda t: t == t.strip())
NESTED = st.recursive(
    PLAIN | TEXT,
    lambda v: st.lists(v, max_size=3) | st.dictionaries(st.text("abc", min_size=1), v, max_size=3),
    max_leaves=6,
)


@drawn(NESTED)
def test_values_that_are_written_as_overrides_are_read_back(value):
    """Whatever the writer of overrides makes of a value, reading gives the value."""
    assert value_of(written(value)) == value


def test_a_script_that_calls_something_else_or_does_not_end_is_refused():
    """With the file, and what is missing in it."""
    with pytest.raises(ParibusError, match=r"x\.sh: no call of `verl\.trainer\.main_ppo`"):
        options_of_script("python train.py a=1\n", "x.sh")
    for text in ("a='x", 'a="x', "A=(b c"):
        with pytest.raises(ParibusError, match=r"x\.sh: .* not closed"):
            list(commands(text, "x.sh"))


@drawn(st.text())
def test_any_text_is_read_as_a_script_or_refused(text):
    """No input makes the reader fail otherwise, or go on for ever."""
    with suppress(ParibusError):
        assert all(words for words in commands(text, "x.sh"))


CALL = "python -m verl.trainer.main_ppo "


@pytest.mark.timeout(60)
@pytest.mark.parametrize(
    ("script", "message"),
    [
        ("a=xx\n" + "a=$a$a\n" * 40 + CALL + "data.x=$a", "for more than 1,000,000 characters"),
        ("a=(x y)\n" + 'a+=("${a[@]}" "${a[@]}")\n' * 40 + CALL + "${a[@]}", "for more than 1,000,000 characters"),
        (CALL + "data.x=" + "${a:-" * 5000, "stand too deep in each other"),
        ("a=(b (c & d)\n" + CALL + "data.train_batch_size=_", "`data.train_batch_size: _` is no number"),
        ("$((" * 20_000, "no call of `verl.trainer.main_ppo` found"),
        *((f"{CALL} data.train_batch_size={n}", "is no number") for n in ("1__2", "e5", "[" * 3000, "{a:" * 3000)),
        *((f"{CALL} data.train_batch_size={n}", "is not a number below") for n in ("1e999", "9" * 5000)),
        (CALL + "x\x1b=1", r"`x?=1` is no option"),
        (CALL + "actor_rollout_ref.actor.optim.lr_warmup_steps_ratio=nan", "is no share of the steps"),
    ],
    ids=lambda text: text[:20],
)  # fmt: skip
def test_a_script_that_is_no_training_is_refused_soon(script: str, message: str) -> None:
    """Values that double with each line, brackets without an end, and what is no number."""
    with pytest.raises(ParibusError, match=re.escape(message)) as caught:
        translate(options_of_script(script, "run.sh")[0], CAPABILITIES)
    assert str(caught.value).isprintable()
    assert len(str(caught.value)) < 1000


def test_a_sum_that_is_none_stays_as_it_stands() -> None:
    """Also one that is too deep for Python's parser."""
    words = list(commands(f"run $((1 + 2)) $(({'-' * 9000}1)) $((1 / 0))", "run.sh"))
    assert words == [["run", "3", f"$(({'-' * 9000}1))", "$((1 / 0))"]]


def test_references_may_lead_round_in_a_circle() -> None:
    """Such a value is left out, as one that leads elsewhere; a default counts."""
    circle = {"data": {"a": "${data.b}", "b": "${data.c}", "c": "${data.a}", "d": "${data.d,5}", "e": 1}}
    assert options_of_file(circle, "x.yaml") == {"data.d": 5, "data.e": 1}


def test_bounds_of_which_there_is_no_inverse_are_refused() -> None:
    """A mask has bounds on the inverse ratio."""
    rejection = f"{CORRECTION}rollout_rs"
    words = [f"{rejection}=seq_mean_k1", f"{rejection}_threshold=0.0_2.0"]
    with pytest.raises(ParibusError, match="a bound is more than 0"):
        translate(options_of_words(words), CAPABILITIES)
