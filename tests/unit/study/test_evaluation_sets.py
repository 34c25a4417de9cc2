"""Evaluation sets of a study: what may be written, what it means, what is refused, and what a plan says of it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from paribus.contract import Evaluate, EvaluationSet, Hashes, Options
from paribus.errors import ParibusError, StudyFileError
from paribus.evaluate import reachable
from paribus.recipe.recipe import ChainTask, DatasetTask, JsonlTask, Recipe, SearchTask, Source
from paribus.store.control import PLAN
from paribus.study.evaluation import arm_hashes, evaluation_share, set_sizes
from paribus.study.expand import draft_plan, make_plan
from paribus.study.fingerprint import fingerprints
from paribus.study.load import LoadedStudy
from paribus.study.pilot import cost_of, pilot_times
from paribus.testing.fake_runner import FakeRunner
from paribus_runners.native.runner import NativeRunner

Read = Callable[[str], LoadedStudy]
HEAD = "study: s\nbase: {preset: grpo}\ndesigns: {solo: {kind: list, arms: {x: {}}}}\n"
"""Three lines; the section `evaluate` begins on the fourth."""


def test_a_set_takes_from_the_section_what_it_does_not_say(read: Read) -> None:
    """Written out or not, it is the same evaluation; files need no training problems, a task no mapping."""
    short = read(HEAD + "evaluate: {every: 5, samples: 4, sets: {a: {samples: 8}, b: {task: chain, top_p: 0.9}}}\n")
    sets = short.spec.evaluate.sets
    assert sets["a"] == EvaluationSet(every=5, problems=1000, samples=8, temperature=1.0)
    assert sets["b"] == EvaluationSet(every=5, problems=1000, samples=4, task=ChainTask(), top_p=0.9)
    full = "a: {samples: 8, every: 5, problems: 1000, temperature: 1}, b: {task: {kind: chain}, samples: 4, top_p: 0.9}"
    assert read(HEAD + f"evaluate: {{every: 5, samples: 4, sets: {{{full}}}}}\n").spec.evaluate == short.spec.evaluate
    filed = read(HEAD + "evaluate: {sets: {aime: {task: {kind: jsonl, heldout: x.jsonl, verifier: boxed}}}}\n")
    assert filed.spec.evaluate.sets["aime"].task == JsonlTask(train="x.jsonl", heldout="x.jsonl", verifier="boxed")


def test_a_dataset_can_be_a_set(read: Read, tmp_path: Path) -> None:
    """A path or a split of the hub, without rows to train on; what is missing is said once, of `heldout`."""
    line = HEAD + "evaluate: {sets: {a: {task: {kind: dataset, heldout: %s}}}}\n"
    task = read(line % "x.parquet").spec.evaluate.sets["a"].task
    assert isinstance(task, DatasetTask)
    assert task.train == task.heldout == Source(path="x.parquet")
    math = read(line % "{name: HuggingFaceH4/MATH-500, split: test}").spec.evaluate.sets["a"]
    assert math.problems_text == "dataset HuggingFaceH4/MATH-500 test"
    with pytest.raises(StudyFileError) as caught:
        read(line % "{name: x/y}")
    assert "evaluate.sets.a.task: `task.heldout` needs `split`" in str(caught.value)
    assert "train`" not in str(caught.value).replace("split: train`", "")
    made = HEAD.replace("preset: grpo", f"preset: grpo, set: {{model: {tmp_path}, optimizer.learning_rate: 1.0e-6}}")
    with pytest.raises(StudyFileError, match=r"evaluate\.sets\.a\.task: `task\.heldout`: there is no"):
        make_plan(read(line.replace(HEAD, made) % "not/there.parquet"), NativeRunner())


def test_a_set_of_the_arms_own_problems_is_not_blamed_for_them(read: Read, tmp_path: Path) -> None:
    """Where files of the base's task are not there, the plan says so of the task, and shows what it can."""
    task = f"task: {{kind: dataset, train: {tmp_path}/a.jsonl, heldout: {tmp_path}/b.jsonl}}"
    settings = f"preset: grpo, set: {{model: {tmp_path}, optimizer.learning_rate: 1.0e-6, {task}}}"
    line = HEAD.replace("preset: grpo", settings) + "evaluate: {sets: {a: {temperature: 0.5}}}\n"

    def unread() -> list[str]:
        found = draft_plan(read(line), NativeRunner()).unread
        return sorted(text.partition(":")[0] for text in found if text.startswith("`task"))

    assert unread() == ["`task.heldout`", "`task.train`"]
    (tmp_path / "b.jsonl").write_text('{"prompt": "1+1", "answer": "2"}\n')
    assert unread() == ["`task.train`"]


def test_sets_that_were_made_in_python_take_the_same(read: Read) -> None:
    """Studies that come from no file mean what files mean."""
    made = Evaluate(every=5, samples=4, sets={"a": EvaluationSet(samples=8)})
    assert made == read(HEAD + "evaluate: {every: 5, samples: 4, sets: {a: {samples: 8}}}\n").spec.evaluate


def test_an_evaluation_survives_the_store() -> None:
    """As JSON and back it is the same; without sets, its JSON is that of versions that knew none."""
    made = Evaluate(every=5, sets={"a": EvaluationSet(task=SearchTask(), top_p=0.9, max_new_tokens=50)})
    assert Evaluate.model_validate_json(made.model_dump_json()) == made
    assert Evaluate().model_dump(mode="json") == {
        "every": 10, "problems": 1000, "samples": 1, "temperature": 1.0, "primary": "", "checkpoint": "mean_of_last_3",
    }  # fmt: skip


@pytest.mark.parametrize(
    "changes",
    [{"samples": 8}, {"temperature": 0.5}, {"top_p": 0.9}, {"max_new_tokens": 9}, {"every": 3}, {"problems": 7},
     {"task": ChainTask()}],
)  # fmt: skip
def test_every_setting_of_a_set_is_part_of_the_fingerprint(changes: dict[str, object]) -> None:
    """Only runs with equal evaluations are the same run; the order of sets means nothing."""

    def of(evaluate: Evaluate) -> str:
        return fingerprints(recipe=Recipe(), evaluate=evaluate, hashes=Hashes(code="c", data="d", model="m"))(0)

    plain, other = EvaluationSet(), EvaluationSet().model_copy(update=changes)
    assert len({of(Evaluate()), of(Evaluate(sets={"a": plain})), of(Evaluate(sets={"a": other}))}) == 3
    assert of(Evaluate(sets={"a": plain, "b": other})) == of(Evaluate(sets={"b": other, "a": plain}))


def test_a_set_is_due_at_its_own_steps() -> None:
    """Step 0 and the last belong to all sets, the others to those whose `every` divides them."""
    evaluate = Evaluate(every=2, sets={"a": EvaluationSet(every=3)})
    due = {step: [*evaluate.due(step, 7)] for step in range(8)}
    assert due == {
        0: ["heldout", "a"], 1: [], 2: ["heldout"], 3: ["a"], 4: ["heldout"], 5: [], 6: ["heldout", "a"],
        7: ["heldout", "a"],
    }  # fmt: skip


@pytest.mark.parametrize(("samples", "ks"), [(1, (1,)), (2, (1, 2)), (6, (1, 2, 4, 6)), (32, (1, 2, 4, 8, 16, 32))])
def test_pass_rates_are_measured_up_to_the_responses(samples: int, ks: tuple[int, ...]) -> None:
    """Powers of two, and k itself."""
    assert reachable(samples) == ks


MISTAKES = """\
evaluate:
  samples: 2
  primary: eval/aime24/pass_at_64
  sets:
    aime24: {task: {kind: jsonl, heldout: a.jsonl}, samples: 8}
    a/b: {samples: 2}
    AIME24: {task: {kind: jsonl, heldout: b.jsonl, train: c.jsonl}}
    heldout: {samples: 4}
    gen: {task: {kind: search, problems: 50}}
    wide: {top_p: 1.5}
    bare: {task: {kind: jsonl}}
    nameless: {task: {heldout: q}}
    other: {task: {kind: jsonnl, heldout: q}}
    odd: {sample: 3}
    aime24: {samples: 2}
    three: 3
"""
FOUND = (
    "6:12: evaluate.primary: `eval/aime24/pass_at_64` is not measured with `samples: 8`. Did you mean",
    "9:5: evaluate.sets.a/b: `a/b` is not a name: a name here has letters, digits, `_` and `-`",
    "10:5: evaluate.sets.AIME24: `AIME24` and `aime24` differ in capitals alone",
    "10:52: evaluate.sets.AIME24.task.train: a set is not trained on: remove `train`",
    "11:5: evaluate.sets.heldout: `heldout` is a set that every run has",
    "12:17: evaluate.sets.gen.task: a set is not trained on: write `task: search` alone; `problems` beside it",
    "13:19: evaluate.sets.wide.top_p: must be <= 1.0, and 1.5 is not",
    "14:12: evaluate.sets.bare.task: `heldout` is missing",
    "15:22: evaluate.sets.nameless.task: needs a `kind`",
    "16:19: evaluate.sets.other.task: `jsonnl` is not allowed. Did you mean `jsonl`?",
    "17:11: evaluate.sets.odd.sample: unknown key `sample`. Did you mean `samples`?",
    "18:5: the key `aime24` appears twice, first on line 8: keep one",
    "19:12: evaluate.sets.three: expects a mapping, and 3 is not",
)


def test_all_mistakes_in_sets_are_listed_with_their_places(read: Read) -> None:
    """One reading of the file finds them all."""
    with pytest.raises(StudyFileError) as caught:
        read(HEAD + MISTAKES)
    lines = [line.split("study.yaml:")[-1] for line in str(caught.value).splitlines() if ".yaml:" in line]
    assert len(lines) == len(FOUND)
    for line, start in zip(lines, FOUND, strict=True):
        assert line.startswith(start), (line, start)


def test_a_primary_metric_on_a_set_that_is_not_there_is_refused(read: Read) -> None:
    """The message names the sets; one that is wrong itself does not count as missing."""
    with pytest.raises(StudyFileError, match=r"4:21: evaluate.primary: .* there is no set `b`.* Sets: heldout, a"):
        read(HEAD + "evaluate: {primary: eval/b/avg_at_1, sets: {a: {samples: 2}}}\n")
    with pytest.raises(StudyFileError) as caught:
        read(HEAD + "evaluate: {primary: eval/a/avg_at_1, sets: {a: {samples: 0}}}\n")
    assert "no set" not in str(caught.value)
    chosen = read(HEAD + "evaluate: {primary: eval/a/pass_at_4, sets: {a: {samples: 8}}}\n").spec.evaluate
    assert (chosen.primary_set, chosen.primary_metric) == ("a", "eval/a/pass_at_4")


def test_a_search_may_follow_a_set(read: Read) -> None:
    """Its metric must be one of which more is better, of any set."""
    search = HEAD.replace(
        "kind: list, arms: {x: {}}", "kind: search, over: {clip.high: {low: 0.1, high: 0.3}}, trials: 2"
    )
    search = search.replace("designs:", "tricks: {t: {kl: off}}\ndesigns:")
    read(search + "evaluate: {primary: eval/a/maj_at_4, sets: {a: {samples: 4}}}\n")
    with pytest.raises(StudyFileError, match="a search needs a metric of which more is better"):
        read(search + "evaluate: {primary: eval/a/length_mean, sets: {a: {samples: 4}}}\n")


def test_a_file_that_is_missing_or_damaged_has_its_place(read: Read, tmp_path: Path) -> None:
    """The plan names set, file and line; the same for a task that the model cannot read."""
    there = tmp_path / "problems.jsonl"
    task = f"base: {{preset: grpo, set: {{model: {tmp_path}, task: {{kind: jsonl, train: {there}, heldout: {there}}}, "
    head = HEAD.replace("base: {preset: grpo}", task + "optimizer.learning_rate: 1.0e-6}}")
    there.write_text('{"prompt": "1+1=", "answer": "2"}\n')
    gone = tmp_path / "gone.jsonl"
    text = head + f"evaluate:\n  sets:\n    a: {{task: {{kind: jsonl, heldout: {gone}}}}}\n"
    with pytest.raises(StudyFileError, match=r"6:15: evaluate.sets.a.task: `task.heldout`: cannot read .*gone.jsonl"):
        make_plan(read(text), NativeRunner())
    gone.write_text('{"prompt": "1+1="}\n')
    with pytest.raises(StudyFileError, match=r"6:15: evaluate.sets.a.task: .*gone.jsonl:1: `answer` is missing"):
        make_plan(read(text), NativeRunner())
    gone.write_text(there.read_text())
    assert draft_plan(read(text), NativeRunner()).plan.evaluate.sets["a"].problems == 1000
    other = HEAD + "evaluate: {sets: {a: {task: chain}}}\n"
    with pytest.raises(StudyFileError, match=r"4:29: evaluate.sets.a.task: `model.name: tiny` knows the task"):
        make_plan(read(other), NativeRunner())


@pytest.mark.parametrize(
    ("task", "message"),
    [("{kind: dataset, train: a.jsonl, heldout: b.jsonl}", "task.train: a set is not trained on: remove `train`"),
     ("{kind: jsonl, train: 4, heldout: b.jsonl}", "task.train: a set is not trained on: remove `train`"),
     ("dataset", "`heldout` is missing"),
     ("{kind: jsonl, heldout: b, foo: 3}", "unknown key `foo`. Allowed: `kind`, ")],
)  # fmt: skip
def test_what_is_wrong_with_the_task_of_a_set_is_said(read: Read, task: str, message: str) -> None:
    """In words about what the study says, and never without a word."""
    with pytest.raises(StudyFileError) as caught:
        read(HEAD + f"evaluate: {{sets: {{a: {{task: {task}}}}}}}\n")
    assert message in str(caught.value)
    assert "`train` is missing" not in str(caught.value)


def test_a_runner_that_evaluates_no_sets_is_refused(read: Read) -> None:
    """Its runs would lack the numbers that the study is about."""
    with pytest.raises(StudyFileError, match=r"4:22: evaluate.sets.a: the runner `fake` evaluates `heldout` alone"):
        make_plan(read(HEAD + "evaluate: {sets: {a: {samples: 2}}}\n"), FakeRunner(evaluates_sets=False))


def test_the_files_of_a_set_are_part_of_the_data(tmp_path: Path) -> None:
    """Another problem is another run; without sets the data have the hash that they always had."""
    file, runner = tmp_path / "a.jsonl", NativeRunner()
    recipe = Recipe.model_validate(
        {"model": {"name": str(tmp_path)}, "task": {"kind": "jsonl", "train": str(file), "heldout": str(file)}}
    )
    chosen = Evaluate(sets={"a": EvaluationSet(task=JsonlTask(train=str(tmp_path / "b"), heldout=str(tmp_path / "b")))})
    file.write_text('{"prompt": "p", "answer": "1"}\n')
    with pytest.raises(ParibusError, match="cannot read"):
        arm_hashes(runner, recipe, Options(), chosen)
    found = []
    for answer in "12":
        (tmp_path / "b").write_text(f'{{"prompt": "q", "answer": "{answer}"}}\n')
        found.append(arm_hashes(runner, recipe, Options(), chosen).data)
    assert len(set(found)) == 2
    assert arm_hashes(runner, recipe, Options(), Evaluate()) == runner.hashes(recipe, Options())


def test_a_plan_with_sets_survives_the_store(read: Read) -> None:
    """What is stored is what was planned."""
    plan = make_plan(read(HEAD + "evaluate: {sets: {a: {samples: 2, top_p: 0.5}}}\n"), FakeRunner())
    assert PLAN.validate_json(PLAN.dump_json(plan)) == plan


def test_the_size_of_an_evaluation_is_counted(tmp_path: Path) -> None:
    """Problems that a file holds, responses, evaluations with step 0, and the set's own limit."""
    (tmp_path / "a").write_text("{}\n\n{}\n{}\n")
    schedule = {"steps": 10, "prompts_per_step": 4, "group_size": 5, "max_new_tokens": 100}
    recipe = Recipe.model_validate({"schedule": schedule})
    filed = EvaluationSet(
        task=JsonlTask(train=str(tmp_path / "a"), heldout=str(tmp_path / "a")), samples=7, max_new_tokens=300, every=4
    )
    evaluate = Evaluate(every=5, problems=20, samples=2, sets={"a": filed})
    heldout, a = set_sizes(evaluate, recipe)
    assert (heldout.responses, heldout.evaluations, heldout.limit, heldout.tokens) == (40, 3, 100, 12_000)
    assert (a.problems, a.responses, a.evaluations, a.limit, a.tokens) == (3, 21, 4, 300, 25_200)
    assert evaluation_share((heldout, a), recipe) == 37_200 / (37_200 + 10 * 4 * 5 * 100)


@pytest.mark.parametrize(
    ("heldout", "problems", "counted", "shown"),
    [
        ({"path": "a.jsonl"}, 3, True, "3"),
        ({"path": "a.NDJSON"}, 3, True, "3"),
        ({"path": "gone.jsonl"}, 1000, False, "up to 1,000"),
        ({"path": "a.parquet"}, 1000, False, "up to 1,000"),
        ({"path": "folder", "split": "test"}, 1000, False, "up to 1,000"),
        ({"name": "me/mine", "split": "test"}, 1000, False, "up to 1,000"),
    ],
)
def test_problems_that_are_not_counted_are_a_limit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, heldout: dict[str, str], problems: int, counted: bool, shown: str
) -> None:
    """Lines are counted; a table, a folder or a dataset of the hub may hold fewer than the study says."""
    monkeypatch.chdir(tmp_path)
    for name in ("a.jsonl", "a.NDJSON", "a.parquet"):
        (tmp_path / name).write_text("{}\n\n{}\n{}\n")
    task = DatasetTask.model_validate({"train": heldout, "heldout": heldout})
    own, size = set_sizes(Evaluate(sets={"a": EvaluationSet(task=task, samples=2)}), Recipe())
    assert (own.counted, own.text(own.problems)) == (True, "1,000")
    assert (size.problems, size.counted, size.responses, size.text(size.problems)) == (
        problems, counted, 2 * problems, shown,
    )  # fmt: skip


def test_a_plan_warns_of_an_evaluation_that_costs_more_than_the_training(read: Read) -> None:
    """Only where a study has sets, with the largest of them."""
    small = HEAD.replace(
        "preset: grpo", "preset: grpo, set: {schedule: {steps: 4, prompts_per_step: 2, group_size: 2}}"
    )
    with_set = small + "evaluate: {problems: 20, sets: {a: {samples: 64}}}\n"
    (warning,) = [w for w in make_plan(read(with_set), FakeRunner()).warnings if w.code == "evaluation_cost"]
    assert "most of them into `a` (1,280 responses, 2 times)" in warning.message
    for text in (small + "evaluate: {problems: 900}\n", HEAD + "evaluate: {problems: 20, sets: {a: {samples: 2}}}\n"):
        assert "evaluation_cost" not in {w.code for w in make_plan(read(text), FakeRunner()).warnings}


def test_a_set_that_is_due_less_often_costs_less() -> None:
    """A pilot run times one evaluation of all sets; a run has fewer of some."""
    times = pilot_times((1.0, 2.0, 3.0, 104.0), evaluation=100.0)
    recipe = Recipe.model_validate({"schedule": {"steps": 40}})
    often = Evaluate(every=10, sets={"a": EvaluationSet(every=10)})
    seldom = Evaluate(every=10, sets={"a": EvaluationSet(every=40)})
    hours = [cost_of(times, recipe, each).low for each in (Evaluate(every=10), often, seldom)]
    assert hours[0] == hours[1]
    assert hours[1] - hours[2] == pytest.approx(1.5 * 100 / 3600)  # 4 evaluations, and 2.5: the mean of 4 and 1
