"""The verdict while a run trains: equal to the one on the whole run, over attempts, and harmless when it fails."""

import json
import random

import pytest

from paribus.attempt.supervisor import HealthMonitor
from paribus.contract import Evaluate, Job
from paribus.contract.rule import HealthRule
from paribus.health import judge as judge_module
from paribus.health.finding import plain, read_health
from paribus.health.judge import LiveJudge, judge_run, read_attempts, saved_diagnosis
from paribus.health.own_rules import own_detectors
from paribus.health.profile import load_profile
from paribus.recipe.factors import Schedule
from paribus.recipe.recipe import Recipe
from paribus.run_folder.folder import Evaluation, MetricLine, RunFolder, read_json, write_json

STEPS = 60


@pytest.fixture
def attempt(tmp_path):
    """Make the folder and the job of an attempt."""

    def make(token=1, stop_on=()):
        folder = RunFolder(tmp_path / f"a{token}")
        folder.path.mkdir()
        recipe = Recipe(schedule=Schedule(steps=STEPS))
        known = {"run": "f" * 64, "study": "s", "arm": "a", "runner": "fake", "seed": 0, "recipe": recipe}
        return folder, Job(**known, token=token, evaluate=Evaluate(samples=2), cache="cache", stop_on=stop_on)

    return make


def record(folder, first, last, seed=0):
    """Record steps whose responses are cut off from step 20 on, with an evaluation and a sample at each tenth."""
    noise = random.Random(seed)
    lines = []
    for step in range(first, last + 1):
        values = {
            "reward/correct_frac": 0.3 + noise.uniform(-0.05, 0.05),
            "response/truncated_frac": 0.0 if step < 20 else 0.6,
        }
        if step % 10 == 0:
            right = tuple(noise.choice((0, 1, 2)) for _ in range(10))
            folder.write_evaluation(evaluation(step, right))
            with folder.samples.open("a") as file:
                file.write(json.dumps({"step": step, "response": "x y z w " * 400}) + "\n")
            values["eval/heldout/avg_at_2"] = sum(right) / 20
        lines.append(MetricLine(step=step, time_ms=step, values=values))
        folder.append_metrics(lines[-1])
    return lines


def evaluation(step, right):
    """Return an evaluation of ten problems."""
    none = (0,) * len(right)
    return Evaluation(
        step=step, set="heldout", samples=2, problems=tuple("abcdefghij"), correct=right, truncated=none, tokens=none,
        tokens_correct=none, answers=({},) * len(right),
    )  # fmt: skip


def whole(folders, job):
    """Return the diagnosis of `paribus health`."""
    primary = job.evaluate.primary_metric
    return judge_run(load_profile("default"), read_attempts(folders), recipe=job.recipe, primary=primary)


@pytest.mark.parametrize("size", [1, 7, 100])
def test_the_verdict_while_it_trains_is_that_of_the_whole_run(attempt, size):
    """In chunks of any size, with evaluations and samples; a critical finding is returned once."""
    folder, job = attempt()
    judge, found = LiveJudge(folder, job), []
    lines = record(folder, 0, STEPS)
    for start in range(0, len(lines), size):
        found += judge.take(lines[start : start + size])
    known, later = read_json(folder.health), whole([folder], job)
    assert known["findings"] == json.loads(json.dumps([plain(f) for f in later.raised])) != []
    assert (known["status"], known["sentence"], known["step"]) == (later.status, later.sentence, STEPS)
    critical = [f.detector for f in later.raised if f.state == "critical"]
    assert sorted(f.detector for f in found) == sorted(critical)
    assert known["detector"] == critical[0]
    read = read_health(folder)
    assert (read.step, read.raised) == (STEPS, later.raised)
    assert [(f.detector, f.state) for f in saved_diagnosis(read).findings] == [
        (f.detector, f.state) for f in later.findings
    ]


def test_a_verdict_that_does_not_tell_of_every_detector_is_not_taken(attempt):
    """Of an older version, torn, or none: then the records are judged."""
    folder, job = attempt()
    assert read_health(folder) is None
    LiveJudge(folder, job).take(record(folder, 0, 20))
    known = read_json(folder.health)
    write_json(folder.health, {**known, "others": known["others"][1:]})
    assert saved_diagnosis(read_health(folder)) is None
    for broken in ({**known, "findings": [1]}, [], {}):
        write_json(folder.health, broken)
        assert read_health(folder) is None


def test_an_attempt_goes_on_from_what_the_one_before_recorded(attempt):
    """Killed after step 44, resumed after the checkpoint of step 39: the verdict of both, and no finding twice."""
    first, job = attempt()
    assert "truncation" in [f.detector for f in LiveJudge(first, job).take(record(first, 0, 44))]
    second, job = attempt(token=2)
    found = LiveJudge(second, job).take(record(second, 40, STEPS, seed=1))
    assert "truncation" not in [f.detector for f in found]
    later = whole([first, second], job)
    assert read_json(second.health)["findings"] == json.loads(json.dumps([plain(f) for f in later.raised]))


def test_a_short_run_is_looked_at_when_it_has_ended(attempt):
    """Not while it trains, unless a detector may stop it; its verdict is that of `paribus health` all the same."""
    folder, job = attempt(stop_on=("nan",))
    lines = record(folder, 0, 40)
    monitor = HealthMonitor(folder, job, lambda: 0.0)
    assert monitor.look(lines[:20]) == []
    assert not folder.health.exists()
    assert "truncation" in [f.detector for f in monitor.look(lines[20:], ended=True)]
    assert read_health(folder).status == whole([folder], job).status
    patient = job.model_copy(update={"stop_on": ("truncation",)})
    assert "truncation" in [f.detector for f in HealthMonitor(folder, patient, lambda: 0.0).look(lines)]


def test_a_detector_that_fails_ends_the_looking_alone(attempt, capsys):
    """The reason is printed into the run's log, and the next look finds nothing."""
    folder, job = attempt(stop_on=("truncation",))
    lines = record(folder, 0, 40)
    folder.evaluation("heldout", 20).write_text("{")
    monitor = HealthMonitor(folder, job, lambda: 0.0)
    assert monitor.look(lines, ended=True) == monitor.look(lines, ended=True) == []
    assert "RunFolderError" in capsys.readouterr().err


def test_rules_of_ones_own_judge_while_it_trains(attempt):
    """Their findings are in the file as those of Paribus, and become critical once."""
    folder, job = attempt()
    test = {"kind": "above", "limit": 0.3}
    rule = HealthRule(name="cut", metric="response/truncated_frac", test=test, window=5, level="critical")
    job = job.model_copy(update={"rules": (rule,)})
    said = LiveJudge(folder, Job.model_validate_json(job.model_dump_json())).take(record(folder, 0, STEPS))
    assert [f.detector for f in said].count("cut") == 1
    known = read_health(folder)
    [cut] = [f for f in known.raised if f.detector == "cut"]
    assert (cut.state, cut.step_onset) == ("critical", 20)
    own = own_detectors(job.rules)
    assert saved_diagnosis(known, own).first is not None
    assert saved_diagnosis(known) is None
    assert known.profile == f"{load_profile('default').identity}, cut ({own[0].version})"


def test_a_disk_that_is_full_for_a_moment_stops_no_detector(attempt, monkeypatch):
    """What is found is returned all the same, and the file is there after the next lines."""
    folder, job = attempt()
    judge, lines, found = LiveJudge(folder, job), record(folder, 0, STEPS), []

    def full(*_):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(judge_module, "write_json", full)
        found += judge.take(lines[:-1])
    assert not folder.health.exists()
    found += judge.take(lines[-1:])
    assert found
    assert read_health(folder).step == STEPS
