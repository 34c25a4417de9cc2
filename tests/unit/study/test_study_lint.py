"""Notes of a plan: what is pointless, what the seeds can resolve, and how to silence it."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest
from huggingface_hub import constants
from scipy import stats

from paribus.contract import Evaluate, Examination, Options, Resources, load_runner
from paribus.errors import ParibusError, UnsupportedRecipe
from paribus.home import data_root
from paribus.recipe.analysis import magnitudes, untrainable
from paribus.recipe.presets import load_preset, preset_names
from paribus.recipe.recipe import Recipe
from paribus.study.expand import draft_plan, make_plan
from paribus.study.lint import detectable_effect, seed_warning, smallest_p
from paribus.study.load import LoadedStudy, load_study
from paribus.study.plan import Plan
from paribus.study.spec import Seeds
from paribus.testing.fake_runner import FakeRunner
from paribus_runners.native import runner as native

Read = Callable[[str], LoadedStudy]


def notes(plan: Plan) -> dict[str, list[str]]:
    """Return the messages of a plan by code."""
    found: dict[str, list[str]] = {}
    for note in plan.warnings:
        found.setdefault(note.code, []).append(note.message)
    return found


def test_a_sound_study_has_only_the_note_on_seeds(read: Read, text: str) -> None:
    """Nothing is said that is not certain; a grid may hold the base's own value."""
    unclipped = text.replace("kl: off,", "kl: off, optimizer.max_grad_norm: null,")
    assert set(notes(make_plan(read(unclipped), FakeRunner()))) == {"seeds"}


def test_a_reason_is_told_once_for_all_its_rows(plan: Plan) -> None:
    """All that meets the clipped norm stands in one note, each reason with the first four of its rows."""
    (confounded,) = notes(plan)["confounded"]
    assert confounded.startswith("optimizer.max_grad_norm may clip one of two recipes more than the other")
    assert (
        "`seq_mean` and `token_batch` weigh long responses differently (ladder: `+ token_level`, "
        "solo: `+ token_level`, knockout: `- token_level`, all: `+ token_level` and 2 more); " in confounded
    )
    assert "under `scale: group_std`" in confounded
    assert confounded.endswith(" (named: `dr_grpo`)")


def test_each_pointless_thing_is_told(read: Read) -> None:
    """A trick without effect, equal rows, inert clips, tricks that meet, and mere rescaling are each told."""
    study = read(
        "study: s\nbase: {preset: dr_grpo}\ntricks:\n  nothing: {scale: none}\n  again: {kl: off}\n"
        "  clip: {clip.high: 0.28}\n  loo: {baseline: group_loo}\n"
        "  both: {length: {truncated: mask_loss, rule: {kind: soft_overlong, soft_start: 30, hard_cap: 37}}}\n"
        "  wide: {ratio: seq_geo, clip.low: 0.3}\n"
        "designs:\n  d: {kind: add_one}\n  e: {kind: list, arms: {x: {tricks: [loo]}, y: {tricks: [nothing, loo]}}}\n"
    )
    found = notes(make_plan(study, FakeRunner()))
    assert found["no_change"] == [
        "d: `+ nothing` is the same recipe as `base`",
        "d: `+ again` is the same recipe as `base`",
    ]
    assert any(message.startswith("d: `+ clip`") for message in found["inert"])
    assert any("d: `+ loo`, e: `x`, e: `y`: the leave-one-out baseline" in message for message in found["rescaled"])
    assert found["length_weighted"][0].startswith("`+ wide`: `ratio: seq_geo` gives a response one value")
    assert found["identical_rows"] == ["e: `y` and `x` are the same recipe"]
    assert found["same_responses"][0].startswith("`+ both`: ")
    assert found["never_clips"][0].startswith("`+ wide`: ")


def test_notes_that_are_allowed_are_silent(read: Read, text: str) -> None:
    """`allow` takes a code out of the plan."""
    assert make_plan(read(text + "allow: [seeds, confounded]\n"), FakeRunner()).warnings == ()


COSTLY = (
    "study: s\nbase: {preset: grpo, set: {kl: off, schedule.minibatches: 4}}\ntricks:\n"
    "  tis: {correction: token_truncate}\n  pull: {kl: loss}\n  refill: {filter: refill}\n  drop: {filter: drop}\n"
    "  meansum: {aggregation: seq_meansum}\n"
    "designs:\n  d: {kind: add_one}\n  e: {kind: factorial, tricks: [tis, refill]}\n"
)


def test_costs_stand_with_the_rows_and_arms_that_have_them(read: Read) -> None:
    """What a row adds to its parent is told of the row; what refill samples is told of the arms that refill."""
    found = notes(make_plan(read(COSTLY), FakeRunner()))
    added, refill = found["cost"]
    assert "old log-probabilities, one more forward pass over the sampled tokens (d: `+ tis`, e: `+ tis`" in added
    assert "a reference model, with one more forward pass over the sampled tokens (d: `+ pull`)" in added
    assert refill.startswith("`+ refill` (and 1 more): `filter: refill` samples 1.8, 1.0 and 1.8 groups")
    declared = notes(make_plan(read(COSTLY + "budget: {pass_rates: [0.0, 0.5]}\n"), FakeRunner()))
    assert "samples 2.0 groups of 8" in declared["cost"][-1]


def test_only_a_runner_that_samples_itself_makes_a_correction_idle(read: Read) -> None:
    """Another runner may sample with other kernels than it trains with."""
    (idle,) = notes(make_plan(read(COSTLY), FakeRunner()))["inert"]
    assert idle.startswith("d: `+ tis`, e: `+ tis`: sampler and learner are the same")
    assert "inert" not in notes(make_plan(read(COSTLY), FakeRunner(samples_with_training_code=False)))


def test_what_only_rescales_is_not_told_to_be_confounded(read: Read) -> None:
    """One note a change of the loss's scale: the stronger."""
    found = notes(make_plan(read(COSTLY), FakeRunner()))
    assert [message.split(":")[1] for message in found["rescaled"]] == [" `+ drop`", " `+ meansum`"]
    assert "confounded" not in found


@pytest.mark.parametrize("n", range(2, 40))
def test_detectable_effects_are_those_of_the_noncentral_t(n: int) -> None:
    """At the stated difference a two-sided t test at 0.05 has power 0.8, within a hundredth or two."""
    for paired in (True, False):
        df, root = (n - 1, n**0.5) if paired else (2 * n - 2, (n / 2) ** 0.5)
        critical = stats.t.ppf(0.975, df)
        power = stats.nct.sf(critical, df, detectable_effect(n, paired=paired) * root)
        assert abs(power - 0.8) < 0.02, (n, paired, power)


def test_the_smallest_p_of_few_seeds_is_large() -> None:
    """Three paired seeds cannot give a p below one quarter, six are the first to pass 0.05."""
    assert [smallest_p(n) for n in (2, 3, 5)] == [0.5, 0.25, 0.0625]
    assert smallest_p(6) < 0.05 < smallest_p(5)
    assert "0.25" in seed_warning(Seeds(n=3)).message
    assert seed_warning(Seeds(n=1)).message.startswith("one seed: no difference can be separated")
    assert seed_warning(Seeds(n=2)).message.startswith("2 seeds: no difference can be separated")


@pytest.mark.parametrize(
    ("patch", "code", "said"),
    [
        ("length: {rule: {kind: soft_overlong, soft_start: 30, hard_cap: 64}}", "limit",
         "no response is punished with more than 0.21"),
        ("schedule.minibatches: 3", "limit", "16 prompts a step are no multiple of `schedule.minibatches: 3`"),
        ("schedule.temperature: 50.0", "magnitude", "usual is 0.6 to 1.2"),
        ("optimizer.learning_rate: 0.5", "magnitude", "usual is 1e-4 to 1e-3 for the tiny models"),
        ("clip.high: 28.0", "magnitude", "for 28% write 0.28"),
        ("kl: {kind: loss, beta: 100.0}", "magnitude", "drowns the reward in the KL term"),
    ],
)  # fmt: skip
def test_a_value_far_from_what_is_usual_is_named(read: Read, patch: str, code: str, said: str) -> None:
    """Each value that acts less than it says, or is orders of magnitude off, is a warning that names a usual one."""
    head = "study: s\nbase: {preset: dr_grpo, set: {%s}}\ndesigns: {d: {kind: list, arms: {a: {preset: rloo}}}}\n"
    plain = notes(make_plan(read(head % "schedule.steps: 9"), FakeRunner()))
    found = notes(make_plan(read(head % patch), FakeRunner()))
    assert not {"limit", "magnitude"} & plain.keys()
    assert any(said in message for message in found[code])


TOKENS = """\
study: s
base: {preset: dr_grpo, set: {schedule: {steps: 100, tokens: 100000}}}
tricks: {more: {schedule.group_size: 16}, whole: {schedule.tokens: null}, small: {schedule.steps: 22}}
designs: {same: {kind: add_one, tricks: [more]}, mixed: {kind: add_one, tricks: [whole, small]}}
"""


def test_a_budget_of_tokens_is_an_equal_budget_and_mixed_horizons_are_named(read: Read) -> None:
    """Arms of one budget need no equal number of responses; one without it, or one that may not spend it, is named."""
    found = notes(make_plan(read(TOKENS), FakeRunner()))
    assert [message.split(":")[0] for message in found["unequal_budget"]] == ["mixed"]
    assert "`base` 100,000 generated tokens (at most 100 steps), `+ whole` 100 steps" in found["unequal_budget"][0]
    assert ["`+ small`: 22 steps" in m or "mean_of_last_3" in m for m in found["token_budget"]] == [True, True]
    final = notes(make_plan(read(TOKENS + "evaluate: {checkpoint: final}\n"), FakeRunner()))
    assert len(final["token_budget"]) == 1


def test_a_budget_that_is_never_spent_and_a_runner_without_budgets_are_refused(read: Read) -> None:
    """What the longest responses cannot spend is a mistake in the file; a runner that ignores budgets is refused."""
    with pytest.raises(
        ParibusError, match=r"schedule.tokens \(100,000,000\) is never spent: 100 steps generate at most"
    ):
        read(TOKENS.replace("100000", "100000000"))
    with pytest.raises(
        ParibusError, match=r"does not end a run by `schedule.tokens`.*\(arms: `base`, `\+ more`, `\+ small`\)"
    ):
        make_plan(read(TOKENS), FakeRunner(ends_by_tokens=False))
    prompts = TOKENS.replace("tokens: 100000", "prompts: 300").replace(
        "schedule.tokens: null", "schedule.prompts: null"
    )
    with pytest.raises(ParibusError, match=r"does not end a run by `schedule.prompts`"):
        make_plan(read(prompts), FakeRunner(ends_by_prompts=False))
    found = notes(make_plan(read(prompts), FakeRunner()))
    assert "`base` 300 sampled prompts (at most 100 steps), `+ whole` 100 steps" in found["unequal_budget"][0]
    with pytest.raises(
        ParibusError, match=r"schedule.prompts \(9,999\) is never spent: 100 steps sample at most 1,600"
    ):
        read(prompts.replace("prompts: 300", "prompts: 9999"))


def test_arms_of_unequal_budgets_and_tricks_that_are_undone_are_named(read: Read) -> None:
    """A design whose arms sample different numbers of responses, and a ladder that goes back where it came from."""
    study = read(
        "study: s\nbase: {preset: dr_grpo}\ntricks:\n  more: {schedule.group_size: 16}\n"
        "  up: {schedule.minibatches: 2, clip.high: 0.28}\n  down: {clip.high: 0.2, schedule.minibatches: 1}\n"
        "  same: {schedule.group_size: 16, schedule.prompts_per_step: 8}\n"
        "designs:\n  d: {kind: add_one, tricks: [more]}\n  e: {kind: add_one, tricks: [same]}\n"
        "  up: {kind: cumulative, order: [up, down]}\n  fine: {kind: cumulative, order: [up, more, down]}\n"
        "evaluate: {temperature: 9.0}\n"
    )
    found = notes(make_plan(study, FakeRunner()))
    assert [message.split(":")[0] for message in found["unequal_budget"]] == ["d", "fine"]
    assert "`base` 40 x 16 x 8, `+ more` 40 x 16 x 16" in found["unequal_budget"][0]
    assert [message.split(" sets ")[0] for message in found["undone"]] == ["up: `+ down`"]
    assert ["evaluate.temperature: 9" in message for message in found["magnitude"]] == [True]


@pytest.mark.parametrize(
    ("every", "checkpoint", "said"),
    [
        (50, "mean_of_last_3", "is the mean of one evaluation, as step 0 does not count. Evaluate every 4"),
        (6, "mean_of_last_3", "is the mean of 2 evaluations"),
        (5, "mean_of_last_3", ""),
        (50, "final", ""),
    ],
)
def test_a_mean_of_three_evaluations_that_a_run_does_not_have(
    read: Read, every: int, checkpoint: str, said: str
) -> None:
    """Fewer evaluations than the score's rule names are a warning, of the shortest arm."""
    study = read(
        "study: s\nbase: {preset: dr_grpo, set: {schedule.steps: 30}}\ntricks: {short: {schedule.steps: 12}}\n"
        f"designs: {{d: {{kind: add_one}}}}\nevaluate: {{every: {every}, checkpoint: {checkpoint}}}\n"
    )
    found = notes(make_plan(study, FakeRunner())).get("few_evaluations", [])
    assert len(found) == bool(said)
    assert all(text.startswith("`+ short`: with 12 steps") and said in text for text in found)


def test_problem_files_are_looked_at(read: Read, tmp_path: Path) -> None:
    """Fewer held-out problems than asked for are a warning, a line without a prompt is an error, told before a run."""
    train, heldout = tmp_path / "train.jsonl", tmp_path / "heldout.jsonl"
    good = '{"prompt": "1+1=", "answer": "2"}\n'
    train.write_text(good * 3)
    heldout.write_text(good * 7)
    study = read(
        "study: s\nbase:\n  preset: dr_grpo\n  set:\n    model: org/real\n    optimizer.learning_rate: 1.0e-6\n"
        f"    task: {{kind: jsonl, train: {train}, heldout: {heldout}}}\n"
        "designs: {d: {kind: list, arms: {a: {}}}}\nevaluate: {problems: 50}\n"
    )
    assert f"{heldout} holds 7" in notes(draft_plan(study, native).plan)["few_problems"][0]
    for path, content, said in (
        (train, good * 2 + '{"question": "1+1="}\n', f"{train}:3: `prompt` is missing"),
        (heldout, '{"prompt": "x"}\n' + good, f"{heldout}:1: `answer` is missing"),
        (heldout, "", f"{heldout} holds no problems"),
        (heldout, "[" * 3000, "not an object"),
    ):
        path.write_text(content)
        with pytest.raises(UnsupportedRecipe, match=re.escape(said)):
            make_plan(study, native)
        path.write_text(good)


GRID = "designs: {d: {kind: grid, over: {schedule.prompts_per_step: [8, 10, 11, 2000]}}}\n"


def test_a_step_with_more_prompts_than_problems_is_a_warning(read: Read) -> None:
    """Of the arms alone that repeat problems; the runner looks at the data once for all numbers of prompts."""

    class Counting(FakeRunner):
        looks = 0

        def examine(self, recipe: Recipe, evaluate: Evaluate, options: Options) -> Examination:
            self.looks += 1
            return Examination(problems=known)

    study = read("study: s\nbase: {preset: dr_grpo, set: {schedule.minibatches: 1}}\n" + GRID)
    for number, said in ((None, []), (2000, []), (10, [16, 11, 2000])):
        known, runner = number, Counting()
        found = notes(make_plan(study, runner)).get("repeated_problems", [])
        assert [text.partition(", but the task has 10 training problems")[0].rpartition(" ")[2] for text in found] == [
            f"{number}`" for number in said
        ]
        assert runner.looks == 1


def test_the_native_runner_counts_training_problems(read: Read, tmp_path: Path) -> None:
    """Those that a generated task states, and those of a file; a task with new ones without end has no number."""
    lines = [f'{{"prompt": "{k}+1=", "answer": "{k + 1}"}}\n' for k in range(9)]
    (tmp_path / "nine.jsonl").write_text("".join(lines))
    (tmp_path / "other.jsonl").write_text('{"prompt": "What else?", "answer": "0"}\n')
    files = f"{{kind: jsonl, train: {tmp_path}/nine.jsonl, heldout: {tmp_path}/other.jsonl}}"
    for task, model, known in (
        ("search", "tiny", False), ("{kind: search, problems: 9}", "tiny", True), (files, "org/real", True),
    ):  # fmt: skip
        base = f"{{model: {model}, optimizer.learning_rate: 1.0e-6, task: {task}, schedule.minibatches: 1}}"
        plan = draft_plan(read(f"study: s\nbase: {{preset: dr_grpo, set: {base}}}\n" + GRID), native).plan
        found = [text.split(",")[0] for text in notes(plan).get("repeated_problems", [])]
        said = [("base", 16), ("schedule.prompts_per_step=10", 10), ("schedule.prompts_per_step=11", 11)]
        said.append(("schedule.prompts_per_step=2000", 2000))
        assert found == [f"`{arm}`: `schedule.prompts_per_step: {number}`" for arm, number in said if known]


def test_gpus_that_the_runner_cannot_use_are_refused(read: Read) -> None:
    """`native` takes any number, one process each; with processes for a CPU it takes none."""
    text = "study: s\nbase: {preset: dr_grpo}\ndesigns: {d: {kind: list, arms: {a: {}}}}\nresources: {gpus: 8}\n"
    assert make_plan(read(text), native).resources.gpus == 8
    study = read(text + "runner: {kind: native, processes: 8}\n")
    with pytest.raises(UnsupportedRecipe, match="trains on CPUs alone"):
        make_plan(study, native)


def test_fewer_cores_than_processes_are_refused(read: Read) -> None:
    """Where the study states cores; the plan shows how many processes there are."""
    text = "study: s\nbase: {preset: dr_grpo}\ndesigns: {d: {kind: list, arms: {a: {}}}}\n"
    text += "runner: {kind: native, processes: 3}\nresources: {cpus: %d}\n"
    assert make_plan(read(text % 4), native).resources == Resources(gpus=0.0, cpus=4)
    assert draft_plan(read(text % 3), native).facts == ("processes: 3 a run, on CPUs",)
    with pytest.raises(UnsupportedRecipe, match=r"needs 3 CPU cores or more, and `resources.cpus` is 2"):
        make_plan(read(text % 2), native)


@pytest.mark.parametrize(
    ("more", "held"),
    [
        ("runner: {kind: native, processes: 3}\n", Resources(gpus=0.0, cpus=3)),
        ("runner: {kind: native, processes: 1}\n", Resources(gpus=0.0)),
        ("runner: {kind: native}\n", Resources()),
        ("resources: {gpus: 2}\n", Resources(gpus=2.0)),
    ],
)
def test_a_run_on_a_cpu_holds_a_core_for_each_process(read: Read, more: str, held: Resources) -> None:
    """Without a word on `resources`; and no GPU of an engine that would give it one."""
    text = "study: s\nbase: {preset: dr_grpo}\ndesigns: {d: {kind: list, arms: {a: {}}}}\n"
    assert make_plan(read(text + more), native).resources == held


def test_presets_and_shipped_studies_have_no_new_warnings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """None of the presets is called unusual at its own values, nor is a shipped study; nothing is downloaded."""
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    for name in preset_names():
        recipe = load_preset(name).recipe
        assert [*magnitudes(recipe), untrainable(recipe)] == [""], name
    for path in (data_root("ablations") / "studies").glob("*.yaml"):
        study = load_study(path)
        there = all(each.task is None for each in study.spec.evaluate.sets.values())  # sets must be readable for a plan
        own = load_runner(study.spec.runner.kind)  # the native one would read the tasks of sets
        found = notes(draft_plan(study, own if there else FakeRunner()).plan)
        assert (
            not {"limit", "magnitude", "undone", "unequal_budget", "few_problems", "few_evaluations"} & found.keys()
        ), path.name


def test_arms_that_are_evaluated_on_other_problems_are_named(read: Read, tmp_path: Path) -> None:
    """Their scores are of another test; a trick that changes the training problems alone compares two trainings."""
    for name in ("a", "b"):
        (tmp_path / f"{name}.jsonl").write_text('{"prompt": "p", "answer": "1"}\n')
    task = f"{{kind: jsonl, train: {tmp_path}/a.jsonl, heldout: {tmp_path}/a.jsonl}}"
    study = read(
        f"study: s\nbase: {{preset: dr_grpo, set: {{model: m, optimizer.learning_rate: 1.0e-6, task: {task}}}}}\n"
        f"tricks:\n  other: {{task.heldout: {tmp_path}/b.jsonl}}\n  strict: {{task.verifier: exact}}\n"
        f"  more: {{task.train: {tmp_path}/b.jsonl}}\n  clip: {{clip.high: 0.28}}\n"
        "designs: {solo: {kind: add_one}}\n"
    )
    (message,) = notes(draft_plan(study, FakeRunner()).plan)["other_heldout"]
    assert message.startswith("`+ other`, `+ strict`: the held-out problems, or how they are verified, are not those")
