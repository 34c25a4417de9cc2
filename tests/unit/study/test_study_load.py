"""Study files: what is wrong is told all at once, with places and remedies."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from paribus.errors import StudyFileError
from paribus.store.models import PLAN
from paribus.study.expand import make_plan
from paribus.study.load import LoadedStudy, load_study
from paribus.study.rules import read_rule
from paribus.testing.fake_runner import FakeRunner

Read = Callable[[str], LoadedStudy]
HEAD = "study: s\nbase: {preset: grpo, set: {kl: off}}\n"
ONE = "designs: {d: {kind: list, arms: {a: {}}}}\n"


def lines(read: Read, content: str) -> list[str]:
    """Return the messages of a refused study, without the folder of the file."""
    with pytest.raises(StudyFileError) as caught:
        read(content)
    folder = f"{Path(caught.value.file).parent}/"
    return [line.removeprefix(folder) for line in str(caught.value).splitlines()]


def test_a_learning_rate_is_the_models_own(read: Read) -> None:
    """A tiny model has a default; for another one the study states it, and the message has the published values."""
    [message] = lines(read, "study: s\nbase: {preset: grpo, set: {kl: off, model: org/real}}\n" + ONE)
    assert "rloo 1e-6" in message
    stated = read("study: s\nbase: {preset: grpo, set: {model: org/real, optimizer: {learning_rate: 1.0e-6}}}\n" + ONE)
    assert stated.base.optimizer.learning_rate == 1e-6
    assert read(HEAD + "tricks: {a: {model: tiny_moe}}\n" + ONE).base.optimizer.learning_rate == 5e-4


@pytest.mark.parametrize(
    ("content", "line"),
    [
        ("study: s\nbase:\n  preset: grpo\n  set: {kl: off, model: org/real}\n" + ONE,
         "study.yaml:4:25: base.set.model: `optimizer.learning_rate` is missing: its default belongs to the tiny"),
        (HEAD + "tricks: {a: {model: org/real}}\n" + ONE,
         "study.yaml:3:21: tricks.a.model: `optimizer.learning_rate` is missing: its default belongs to the tiny"),
        (HEAD + "tricks: {a: {schedule.group_size: 1}}\n" + ONE,
         "study.yaml:3:35: tricks.a.schedule.group_size: `schedule.group_size: 1` under `baseline: group_mean` trains"),
        (HEAD + ONE + "questoin: x\n",
         "study.yaml:4:1: questoin: unknown key `questoin`. Did you mean `question`? Allowed: `study`,"),
        (HEAD + "designs: {d: {kind: list, arms: {a: {trick: [x]}}}}\n",
         "study.yaml:3:38: designs.d.arms.a.trick: unknown key `trick`. Did you mean `tricks`? Allowed: `preset`,"),
        (HEAD + ONE + "health: {webhook: 'https://example.org/secret'}\n",
         "study.yaml:4:19: health.webhook: must name an environment variable that holds the address,"),
        (HEAD + ONE + "health: {command: notify}\n", "study.yaml:4:19: health.command: expects a list"),
        (HEAD + ONE + "mirror: [mlflow, aim]\n",
         "study.yaml:4:18: mirror.2: `aim` is not allowed. Allowed: `mlflow`, `tensorboard`, `wandb`."),
        (HEAD + ONE + "health: {profile: mine}\n",
         "study.yaml:4:19: health.profile: `mine` is not allowed. Allowed: `base_model`, `default`, `moe`."),
        (HEAD + ONE + "seeds: {n: three}\n", "study.yaml:4:12: seeds.n: expects a whole number, and `three` is not"),
        (HEAD + ONE + "seeds: {n: 0}\n", "study.yaml:4:12: seeds.n: must be >= 1, and 0 is not"),
        (HEAD + ONE + "seeds: {n: 3.0}\n", "study.yaml:4:12: seeds.n: expects a whole number, and 3.0 is not: write 3"),
        (HEAD + ONE + "seeds: {paired: no}\n",
         "study.yaml:4:17: seeds.paired: expects true or false, and `no` is not: write false"),
        (HEAD + ONE + "seeds: [1, 2]\n", "study.yaml:4:8: seeds: expects a mapping, and a list is not"),
        (HEAD + ONE + "budget: {gpu_hours: '400'}\n",
         "study.yaml:4:21: budget.gpu_hours: expects a number, and `400` is not: write it without quotes"),
        (HEAD + ONE + "seeds: {n: 1e1}\n",
         "study.yaml:4:12: seeds.n: expects a whole number, and 10.0 is not: write 10"),
        (HEAD + ONE + "seeds: 2\n", "study.yaml:4:8: seeds: expects a mapping, and 2 is not: write {n: 2}"),
        (HEAD + ONE + "resources: 1\n", "study.yaml:4:12: resources: expects a mapping, and 1 is not: write {gpus: 1}"),
        ("study: s\nbase: grpo\n" + ONE,
         "study.yaml:2:7: base: expects a mapping, and `grpo` is not: write {preset: grpo}"),
        (HEAD + "designs: {d: {kind: ladder, order: [a]}}\n",
         "study.yaml:3:21: designs.d.kind: `ladder` is not allowed. Did you mean `cumulative`? Allowed: cumulative, "),
        (HEAD + "designs: {d: {kind: leave-one-out}}\n",
         "study.yaml:3:21: designs.d.kind: `leave-one-out` is not allowed. Did you mean `leave_one_out`?"),
        (HEAD + "tricks: {a: {num_generations: 8}}\ndesigns: {d: {kind: add_one}}\n",
         "study.yaml:3:14: tricks.a.num_generations: `num_generations` is TRL's name; here: `schedule.group_size`"),
        (HEAD + ONE + "num_generations: 8\n",
         "study.yaml:4:1: num_generations: `num_generations` is TRL's name; here: `schedule.group_size`"),
        ("study: s\nbase: {preset: grpo, epsilon: 0.1}\n" + ONE,
         "study.yaml:2:22: base.epsilon: `epsilon` is TRL's name; here: `clip: {low: 0.1, high: 0.1}`"),
        (HEAD + "tricks: {a: {loss_type: dr_grpo}}\ndesigns: {d: {kind: add_one}}\n",
         "study.yaml:3:14: tricks.a.loss_type: `loss_type` is TRL's name; here: `aggregation: const`"),
        (HEAD + "tricks: {a: {scale_rewards: false}}\ndesigns: {d: {kind: add_one}}\n",
         "study.yaml:3:14: tricks.a.scale_rewards: `scale_rewards` is TRL's name; here: `scale: none`"),
        (HEAD + "tricks: {a: {min_p: 0.9}}\ndesigns: {d: {kind: add_one}}\n",
         "study.yaml:3:14: tricks.a.min_p: `min_p` is of TRL, and nothing here does that (responses are sampled"),
        (HEAD + "tricks: {a: {top_p: 0.9}}\ndesigns: {d: {kind: add_one}}\n",
         "study.yaml:3:14: tricks.a.top_p: `top_p` is TRL's name; here: `schedule.top_p` (here the learner takes"),
        (HEAD + "tricks: {a: {actor_rollout_ref: {actor: {clip_ratio_high: 0.28, foo: 1}}}}\n"
         "designs: {d: {kind: add_one}}\n",
         "study.yaml:3:42: tricks.a.actor_rollout_ref.actor.clip_ratio_high: "
         "`actor_rollout_ref.actor.clip_ratio_high` is verl's name; here: `clip.high`"),
        (HEAD + "tricks: {a: {rollout.n: 8}}\ndesigns: {d: {kind: add_one}}\n",
         "study.yaml:3:14: tricks.a.rollout.n: `rollout.n` is verl's name; here: `schedule.group_size`"),
        (HEAD + "tricks: {a: {aggregation: token-mean}}\ndesigns: {d: {kind: add_one}}\n",
         "study.yaml:3:27: tricks.a.aggregation: `token-mean` is verl's name; here: `aggregation: token_batch`"),
        (HEAD + "designs: {d: {kind: grid, over: {clip.epsilon_high: [0.2]}}}\n",
         "study.yaml:3:34: designs.d.over.clip.epsilon_high: `clip.epsilon_high` is TRL's name; here: `clip.high`"),
        (HEAD + ONE + "resources: {gpus: 1.5}\n",
         "study.yaml:4:19: resources.gpus: 1.5 GPUs are not possible: write 0, a part of one from 0.01 on, or a"),
        (HEAD + ONE + "resources: {gpus: 1, gpu_memory_gib: 20}\n",
         "study.yaml:4:22: resources.gpu_memory_gib: write a fraction of a GPU instead, e.g. "),
        (HEAD + ONE + "resources: {gpus: 15, nodes: 2}\n",
         "study.yaml:4:19: resources.gpus: 15 GPUs cannot be dealt out equally to 2 nodes: `gpus` and `cpus` are"),
        (HEAD + ONE + "resources: {gpu: 1}\n",
         "study.yaml:4:13: resources.gpu: unknown key `gpu`. Did you mean `gpus`? Allowed: `gpus`, `cpus`, `nodes`."),
        (HEAD + ONE + "checkpoint: 20\n",
         "study.yaml:4:13: checkpoint: expects a mapping, and 20 is not: write {every: 20}"),
        (HEAD + ONE + "checkpoint: {every: 0, keep: 2}\n",
         "study.yaml:4:21: checkpoint.every: must be >= 1, and 0 is not"),
        (HEAD + ONE + "checkpoint: {keep: 2, evry: 5}\n",
         "study.yaml:4:23: checkpoint.evry: unknown key `evry`. Did you mean `every`?"),
        (HEAD + ONE + "checkpoint: final\n",
         "study.yaml:4:13: checkpoint: expects a mapping, and `final` is not: write `evaluate: {checkpoint: final}`"),
        (HEAD + ONE + "evaluate: {checkpoint: {every: 20}}\n",
         "study.yaml:4:24: evaluate.checkpoint: a mapping is not allowed. Allowed: `final`, `mean_of_last_3`. When "),
        (HEAD + ONE + "resources: {cpus: 0}\n", "study.yaml:4:19: resources.cpus: must be >= 1, and 0 is not"),
        (HEAD + ONE + "health: {stop_on: [nans]}\n",
         "study.yaml:4:20: health.stop_on.1: `nans` is not allowed. Did you mean `nan`? Allowed: `nan`, `data_bug`,"),
        (HEAD + ONE + "evaluate: {samples: 8, primary: eval/heldout/avg_at_4}\n",
         "study.yaml:4:33: evaluate.primary: `eval/heldout/avg_at_4` is not measured with `samples: 8`."),
        (HEAD + ONE + "allow: [clips]\n", "study.yaml:4:9: allow.1: `clips` is not allowed."),
        (HEAD, "study.yaml:1:1: `designs` is missing"),
        (HEAD + "designs: {}\n", "study.yaml:3:10: designs: needs at least 1 entry"),
        (HEAD + "designs: {d: {order: [a]}}\n", "study.yaml:3:11: designs.d: a design needs a `kind`: cumulative,"),
        (HEAD + "designs: {d: {kind: cumulativ, order: [a]}}\n",
         "study.yaml:3:21: designs.d.kind: `cumulativ` is not allowed. Did you mean `cumulative`?"),
        (HEAD + "tricks: {a: {clip.high: 0.3}}\ndesigns: {d: {kind: cumulative, order: [a, aa]}}\n",
         "study.yaml:4:44: designs.d.order.2: there is no trick `aa`. Did you mean `a`? Tricks of this study: a."),
        (HEAD + "tricks: {a: {clip.high: 0.3}}\ndesigns: {d: {kind: cumulative, order: [a, a]}}\n",
         "study.yaml:4:44: designs.d.order.2: the trick `a` appears twice"),
        (HEAD + "designs: {d: {kind: add_one}}\n",
         "study.yaml:3:14: designs.d: `add_one` needs tricks: define some under `tricks`"),
        (HEAD + "tricks: {a: {clip.c: 3.0}}\ndesigns: {d: {kind: add_one}}\n",
         "study.yaml:3:14: tricks.a.clip.c: the level `ppo_min` of `clip` has no parameter `c`"),
        (HEAD + "tricks: {a: {optimizer.learning_rate: fast}}\ndesigns: {d: {kind: add_one}}\n",
         "study.yaml:3:39: tricks.a.optimizer.learning_rate: expects a number, and `fast` is not"),
        (HEAD + "tricks: {a: {length.count_masked_rows: no}}\ndesigns: {d: {kind: add_one}}\n",
         "study.yaml:3:40: tricks.a.length.count_masked_rows: expects true or false, and `no` is not: write false"),
        (HEAD + "tricks: {a: {length: {rule: soft_overlong}}}\ndesigns: {d: {kind: add_one}}\n",
         "study.yaml:3:29: tricks.a.length.rule: needs `hard_cap`"),
        (HEAD + "tricks: {a: {schedule.minibatches: 99}}\ndesigns: {d: {kind: add_one}}\n",
         "study.yaml:3:36: tricks.a.schedule.minibatches: schedule.minibatches (99) is larger than"),
        (HEAD + "tricks: {a: {clip.high: -1}}\ndesigns: {d: {kind: add_one}}\n",
         "study.yaml:3:25: tricks.a.clip.high: must be >= 0.0, and -1 is not"),
        (HEAD + "tricks: {a: {optimizer.learning_rate: .inf}}\ndesigns: {d: {kind: add_one}}\n",
         "study.yaml:3:39: tricks.a.optimizer.learning_rate: expects a finite number, and inf is not"),
        (HEAD + "tricks: {a: {baseline: critic_gae}}\ndesigns: {d: {kind: add_one}}\n",
         "study.yaml:3:24: tricks.a.baseline: `baseline: critic_gae` and `auxiliary.value` go together"),
        (HEAD + "designs: {d: {kind: grid, over: {clip.high: [0.2, x]}}}\n",
         "study.yaml:3:51: designs.d.over.clip.high.2: expects a number, and `x` is not"),
        (HEAD + "designs: {d: {kind: grid, over: {clip.hihg: [0.2]}}}\n",
         "study.yaml:3:34: designs.d.over.clip.hihg: no level of `clip` has a parameter `hihg`. Did you mean `high`?"),
        (HEAD + "designs: {d: {kind: grid, over: {clip.high: [0.2, 0.20]}}}\n",
         "study.yaml:3:51: designs.d.over.clip.high.2: the value 0.2 appears twice"),
        (HEAD + "designs: {d: {kind: list, arms: {base: {}}}}\n",
         "study.yaml:3:34: designs.d.arms.base: the first row of every list is `base`: give this arm another name"),
        (HEAD + "designs: {d: {kind: list, arms: {a: {preset: cisco}}}}\n",
         "study.yaml:3:46: designs.d.arms.a.preset: `cisco` is not a preset: no paper of this name was found."),
        ("study: s\nbase: {preset: grpp}\n" + ONE, "study.yaml:2:16: base.preset: there is no preset `grpp`. Did you"),
        ("study: s\nbase: {preset: dapo, set: {schedule.max_new_tokens: 37}}\n" + ONE,
         "study.yaml:2:53: base.set.schedule.max_new_tokens: length.rule.soft_start (16384) is never passed"),
        ("study: S/../x\nbase: {preset: grpo}\n" + ONE,
         "study.yaml:1:8: study: `S/../x` is not a name: a name here has lower-case letters"),
        (HEAD + "designs: {d e: {kind: list, arms: {a: {}}}}\n",
         "study.yaml:3:11: designs.d e: `d e` is not a name: a name here has letters, digits, `_` and `-`"),
        (HEAD + "designs: {d: {kind: list, arms: {'a|b': {}}}}\n",
         "study.yaml:3:34: designs.d.arms.a|b: `a|b` is not a"),
        (f"study: {'s' * 65}\nbase: {{preset: grpo}}\n" + ONE, "study.yaml:1:8: study: has more than 64 characters"),
        ("just text\n", "study.yaml:1:1: a study is a mapping that begins with `study: <name>`"),
        ("- a\n- b\n", "study.yaml:1:1: a study is a mapping that begins with `study: <name>`"),
    ],
)  # fmt: skip
def test_each_problem_has_place_path_and_remedy(read: Read, content: str, line: str) -> None:
    """The message begins with file:line:column and the path, and says what is allowed."""
    found = lines(read, content)
    assert any(message.startswith(line) for message in found), found


def test_all_problems_of_a_file_are_told_at_once(read: Read) -> None:
    """Wrong syntax in one part does not hide what is wrong in the meaning of another."""
    found = lines(
        read,
        "study: s\nbase: {preset: grpo, set: {kl: off, clip.hihg: 1.0}}\n"
        "tricks:\n  a: {clip.c: 3.0}\n  b: {aggregation: tokn}\n  c: {optimizer.learning_rate: fast}\n"
        "designs:\n  x: {kind: cumulative, order: [a, zz]}\n  y: {kind: nope}\n"
        "seeds: {n: 0, paired: yes}\nevaluate: {every: x}\n",
    )
    assert [line.split(": ")[0] for line in found] == [
        f"study.yaml:{place}" for place in ("2:37", "4:7", "5:20", "6:32", "8:36", "9:13", "10:12", "10:23", "11:19")
    ]


BROKEN_BASE = "set: {kl: off, scale: goup_std, schedule.minibatches: 99}"


@pytest.mark.parametrize(
    ("base", "own"),
    [
        (f"{{preset: grpo, {BROKEN_BASE}}}", ["2:44", "2:76"]),
        (f"{{preset: grpp, {BROKEN_BASE}}}", ["2:16", "2:44"]),
        (f"{{preset: grpo, sett: 1, {BROKEN_BASE}}}", ["2:22", "2:53", "2:85"]),
        (f"{{{BROKEN_BASE}}}", ["2:1", "2:30"]),
        ("{preset: grpo, set: 5}", ["2:27"]),
        ("grpo", ["2:7"]),
    ],
)
def test_a_mistake_in_the_base_hides_no_other(read: Read, base: str, own: list[str]) -> None:
    """What is wrong in tricks, grids and arms is reported beside it, also where the preset is unknown or missing."""
    found = lines(
        read,
        f"study: s\nbase: {base}\n"
        "tricks: {a: {clip.high: 0.28}, b: {clip.low: 2}}\ndesigns:\n"
        "  g: {kind: grid, over: {clip.high: [0.2, -1]}}\n"
        "  l: {kind: list, arms: {x: {set: {agregation: token_batch}}, y: {tricks: [a, zz], set: {clip.low: 7}}}}\n"
        "  m: {kind: list, arms: {x: {preset: nope, set: {clip.high: x}}, y: {tricks: [b], set: {clip.low: x}}}}\n",
    )
    others = ["3:46", "5:43", "6:36", "6:79", "6:100", "7:38", "7:61", "7:99"]
    assert [":".join(line.split(":")[1:3]) for line in found] == [*own, *others]


@pytest.mark.parametrize(
    ("entry", "trick"),
    [
        ("clip: {kind: ppo_dul, c: 3.0}", "{clip.c: 10.0}"),
        ("clip: {kind: ppo_dul, c: 3.0}", "{clip.delta: 2.0}"),
        ("clipp: {kind: ppo_dual}", "{clip.c: 10.0}"),
        ("loss_type: cispo", "{clip.cap: 2.0}"),
        ("schedule.max_new_tokns: 100", "{length.rule: {kind: soft_overlong, soft_start: 80, hard_cap: 100}}"),
        ("baseline: critic_gea", "{auxiliary.value: {clip: 0.5}}"),
    ],
)
def test_what_may_follow_from_a_mistake_in_the_base_is_not_reported(read: Read, entry: str, trick: str) -> None:
    """A trick that fits the base that is meant is not called wrong."""
    content = f"study: s\nbase: {{preset: grpo, set: {{{entry}}}}}\ntricks: {{a: {trick}}}\n"
    found = lines(read, content + "designs: {d: {kind: add_one}}\n")
    assert [line.split(":")[1] for line in found] == ["2"]


def test_1e_4_is_a_number_where_a_number_is_expected(read: Read) -> None:
    """In patches, grids, ranges and sections; a revision is text, and stays as it is written."""
    content = (
        "study: s\nbase: {preset: grpo, set: {kl: off, model: {name: m, revision: 7e12345}, "
        "optimizer: {eps: LOW, learning_rate: LOW}}}\n"
        "tricks: {a: {optimizer.learning_rate: LOW, clip: {kind: two_sided, delta: 1.5}}}\ndesigns:\n"
        "  g: {kind: grid, over: {optimizer.learning_rate: [LOW, HIGH], model.revision: [7e12345]}}\n"
        "  s: {kind: search, trials: 2, over: {optimizer.learning_rate: {low: LOW, high: HIGH, log: true}}}\n"
        "seeds: {n: 3}\nmargin: HIGH\nbudget: {gpu_hours: 1e2, prior: {low: 1e-1, expected: 1e0, high: 2E+0}}\n"
    )
    short = read(content.replace("LOW", "1e-4").replace("HIGH", "1E-2"))
    long = read(content.replace("LOW", "1.0e-4").replace("HIGH", "0.01"))
    assert short.base == long.base
    assert [(draft.label, recipe) for draft, recipe in short.rows] == [
        (draft.label, recipe) for draft, recipe in long.rows
    ]
    assert (short.spec.designs, short.spec.margin) == (long.spec.designs, 0.01)
    assert short.spec.budget.gpu_hours == 100.0
    assert short.base.model.revision == "7e12345"


@pytest.mark.parametrize("value", [".nan", ".inf", "1.5"])
def test_what_is_no_whole_number_gets_no_remedy_for_text(read: Read, value: str) -> None:
    """A point and a sign, as `1e-4` needs them in YAML, change nothing here."""
    with pytest.raises(StudyFileError) as caught:
        read(HEAD + ONE + f"seeds: {{n: {value}}}\n")
    assert str(caught.value).endswith(f"seeds.n: expects a whole number, and {value.removeprefix('.')} is not")


def test_a_problem_that_many_arms_share_is_told_once(read: Read) -> None:
    """A wrong value in a grid is one problem, however many rows it stands in."""
    over = "{clip.high: [0.2, 0.24, -1], scale: [none, group_std], aggregation: [seq_mean, token_batch]}"
    assert len(lines(read, HEAD + f"designs: {{d: {{kind: grid, over: {over}}}}}\n")) == 1


def test_only_the_combination_of_right_tricks_is_wrong(read: Read) -> None:
    """An arm that has no meaning is found although each of its tricks is right by itself."""
    content = (
        HEAD + "tricks:\n  soft: {length.rule: {kind: soft_overlong, soft_start: 30, hard_cap: 37}}\n"
        "  short: {schedule.max_new_tokens: 20}\ndesigns:\n  d: {kind: leave_one_out}\n"
    )
    assert lines(read, content) == [
        "study.yaml:5:36: tricks.short.schedule.max_new_tokens: length.rule.soft_start (30) is never passed: "
        "generation stops at schedule.max_new_tokens (20). Lower length.rule.soft_start and length.rule.hard_cap, or "
        "raise schedule.max_new_tokens"
    ]


def test_too_many_rows_are_refused_before_they_are_made(read: Read) -> None:
    """A factorial of forty tricks ends in a message, not in memory."""
    tricks = "\n".join(f"  t{k}: {{clip.high: {k / 100 + 0.01}}}" for k in range(40))
    found = lines(read, HEAD + f"tricks:\n{tricks}\ndesigns:\n  d: {{kind: factorial}}\n")
    assert found == ["study.yaml:45:6: designs.d: makes 1,099,511,627,776 rows; at most 4,096 are allowed"]


def test_messages_hold_no_escapes_of_the_file(read: Read) -> None:
    """A key with a terminal's escape code or a line break is shown without it, on one line."""
    assert lines(read, HEAD + ONE + '"a\\e[31mb\\nc": 1\n')[0].startswith(
        "study.yaml:4:1: a?[31mb?c: unknown key `a?[31mb?c`."
    )


def test_words_of_yaml_are_names_of_levels(read: Read) -> None:
    """`kl: off` and `correction: off` name levels."""
    study = read("study: s\nbase: {preset: grpo, set: {kl: off, correction: off, filter: none}}\n" + ONE)
    assert study.spec.base.set == {"kl": "off", "correction": "off", "filter": "none"}


def test_a_whole_number_is_a_number(read: Read) -> None:
    """1 and 1.0 are the same temperature; true is neither."""
    assert read(HEAD + ONE + "evaluate: {temperature: 1}\n").spec.evaluate.temperature == 1.0
    assert lines(read, HEAD + ONE + "evaluate: {temperature: true}\n")


NAMES = st.sampled_from(
    ["study", "base", "tricks", "designs", "seeds", "evaluate", "health", "budget", "allow", "preset", "set", "kind",
     "order", "arms", "over", "n", "clip.high", "clip", "grpo", "cumulative", "list", "grid", "a", "b", "base", "x"]
)  # fmt: skip
TREES = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 5) | st.floats() | NAMES,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=4),
    max_leaves=20,
)


def as_yaml(value: object) -> str:
    """Return a value in YAML's flow style."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key}: {as_yaml(inner)}" for key, inner in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(as_yaml, value)) + "]"
    if value is None:
        return "~"
    return str(value).lower()


def study_or_problems(path: Path) -> bool:
    """Tell whether the file is a study; if not it must have problems."""
    try:
        return isinstance(load_study(path), LoadedStudy)
    except StudyFileError as error:
        return bool(error.problems)


@given(content=st.binary(max_size=300))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
def test_any_bytes_are_a_study_or_are_refused(tmp_path: Path, content: bytes) -> None:
    """No file leads to another exception than StudyFileError."""
    path = tmp_path / "study.yaml"
    path.write_bytes(content)
    assert study_or_problems(path)


@pytest.mark.slow
@given(tree=st.dictionaries(NAMES, TREES, max_size=6), patch=TREES)
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
def test_any_tree_is_a_study_or_is_refused(tmp_path: Path, tree: dict[str, object], patch: object) -> None:
    """No arrangement of the language's own words leads to another exception than StudyFileError."""
    path = tmp_path / "study.yaml"
    frame: dict[str, object] = {"study": "s", "base": {"preset": "grpo", "set": patch}, "tricks": {"a": patch}}
    frame["designs"] = {"d": {"kind": "add_one"}, "e": {"kind": "grid", "over": {"clip": [patch]}}}
    path.write_text(as_yaml({**frame, **tree}))
    assert study_or_problems(path)


def test_keys_that_stand_twice_and_wrong_values_are_told_together(read):
    """A duplicate key does not hide what else is wrong, and a mistake of the base is not told again for each trick."""
    content = (
        "study: s\nbase: {preset: grpo, set: {kl: off, optimizer.learning_rate: fast}}\n"
        "tricks: {a: {clip.high: x}}\ndesigns:\n  l: {kind: add_one}\n  l: {kind: grid}\nseed: {n: 3}\n"
    )
    found = lines(read, content)
    assert [line.split(":")[1:3] for line in found] == [["2", "62"], ["3", "25"], ["6", "3"], ["7", "1"]]


def test_a_task_that_lacks_one_source_gets_one_message(read: Read) -> None:
    """The check of the rest of the study takes the wrong entry out; what it then lacks is no mistake of the user."""
    task = "task: {kind: dataset, heldout: h.jsonl}"
    content = f"study: s\nbase: {{preset: grpo, set: {{model: m, optimizer.learning_rate: 1.0e-6, {task}}}}}\n"
    found = lines(read, content + "tricks: {a: {task.system: Think.}}\n" + ONE)
    assert [line.split(": ", 1)[1] for line in found] == ["base.set.task.heldout: needs `train`"]


RULE = "name: long\nmetric: response/length_mean\ntest: {kind: above, limit: 30}\nlevel: warn\n"


def test_rules_beside_the_study_are_read_whole(read: Read, tmp_path: Path) -> None:
    """The plan holds them, also after its way through the store; its meaning is that of the study without them."""
    (tmp_path / "long.yaml").write_text(RULE)
    study = read(HEAD + ONE + "health: {rules: [long.yaml]}\n")
    plan = make_plan(study, FakeRunner())
    assert PLAN.validate_json(PLAN.dump_json(plan)).rules == plan.rules == (read_rule(tmp_path / "long.yaml"),)
    assert plan.fingerprint == make_plan(read(HEAD + ONE), FakeRunner()).fingerprint


def test_what_is_wrong_with_rules_is_listed_with_the_rest(read: Read, tmp_path: Path) -> None:
    """Each mistake of a rule file at its own place in that file, beside those of the study."""
    (tmp_path / "long.yaml").write_text(RULE)
    (tmp_path / "bad.yaml").write_text(RULE.replace("length_mean", "lenght").replace("warn", "red"))
    said = lines(
        read, HEAD + ONE + "seeds: {n: 0}\nhealth: {rules: [long.yaml, bad.yaml, long.yaml, away.yaml, mine]}\n"
    )
    in_study, in_rules = ("4:12", "5:39", "5:50", "5:61"), ("2:9", "4:8")
    assert [line.split(": ")[0] for line in said] == [
        *(f"study.yaml:{x}" for x in in_study), *(f"bad.yaml:{x}" for x in in_rules),
    ]  # fmt: skip
    words = ("must be >= 1", "`long` is the name of another", "away.yaml: cannot be", "no package brings a detector")
    for line, word in zip(said, (*words, "metric: ", "level: "), strict=True):
        assert word in line
