"""The MLflow sync: at least once is exactly once, trouble is waited out, repeated steps are not doubled."""

import math

import pytest

from paribus.audit.doctor import mlflow_names
from paribus.mlflow_sync import offsets
from paribus.mlflow_sync.client import REFUSALS, Digest
from paribus.mlflow_sync.offsets import Offsets, dead_letters, replay, unsynced
from paribus.run_folder import series_file
from paribus.run_folder.folder import SHORT, MetricLine, write_json
from paribus.store.states import RunState
from support.mlflow_case import Case, write


class Answer(Exception):
    """What a server answers."""

    error_code = "BAD_REQUEST"


REFUSED, BUSY = Answer("the parameter is too long"), Answer("QueuePool limit of size 5 overflow 10 reached")


class FakeMlflow:
    """Keeps what MLflow would keep: a set of points by primary key. Fails when it is told to."""

    def __init__(self):
        self.points = {}
        self.tags = {}
        self.files = {}
        self.status = {}
        self.groups = {}
        self.calls_until_failure = math.inf
        self.forget = 0

    def _call(self):
        self.calls_until_failure -= 1
        if self.calls_until_failure < 0:
            raise ConnectionError("MLflow is down")

    replaced = False

    def mark(self, study):
        """Return the mark of the only experiment."""
        self._call()
        return "mark"

    destination = mark

    def identities(self, study):
        """Return the runs of the only experiment."""
        return frozenset(self.points)

    def own(self, identity, card, token, newest=0):
        """Keep the newest attempt."""
        self._call()
        self.tags[identity]["paribus.token"] = str(token)
        return max(token, newest)

    def open_run(self, card):
        """Make a run."""
        self._call()
        self.points.setdefault(card.fingerprint, set())
        self.tags.setdefault(card.fingerprint, {})
        return card.fingerprint

    def describe(self, identity, card):
        """Keep the tags."""
        self._call()
        self.tags[identity] |= card.tags

    def log(self, identity, lines):
        """Keep the points, unless they are to be forgotten; a failure comes after the first half was kept."""
        points = [(k, line.step, line.time_ms, v) for line in lines for k, v in line.values.items()]
        if self.forget:
            self.forget -= 1
            return frozenset()
        self.points[identity].update(points[: len(points) // 2])
        self._call()
        self.points[identity].update(points)
        return frozenset()

    def open_group(self, card):
        """Make a group."""
        self._call()
        self.groups[card.study, card.arm] = card.above
        return card.key

    def show_group(self, identity, end_ms):
        """Do nothing but answer."""
        self._call()

    def tag(self, identity, key, value):
        """Keep a tag."""
        self._call()
        self.tags.setdefault(identity, {})[key] = value

    def attach(self, identity, files):
        """Keep the names of files."""
        self._call()
        self.files[identity] = {f"{folder}/{file.name}".lstrip("/") for file, folder in files}

    def close_run(self, identity, *, succeeded, end_ms):
        """Keep the status."""
        self._call()
        self.status[identity] = succeeded

    def digests(self, identity, keys):
        """Return what is there of each metric."""
        self._call()
        return {k: Digest.of((step, v) for key, step, _, v in self.points[identity] if key == k) for k in keys}


class FakeCase(Case):
    """A case with the fake MLflow."""

    def __init__(self, home):
        self.mlflow = FakeMlflow()
        super().__init__(home, lambda _: self.mlflow)

    def steps_held(self):
        """Return the metric's points as sorted pairs of step and value."""
        return sorted((step, v) for key, step, _, v in self.mlflow.points[self.run] if key == "reward/mean")


@pytest.fixture
def case(tmp_path, monkeypatch):
    """A case."""
    monkeypatch.setattr(offsets, "marks_in", lambda _: frozenset({"mark"}))
    made = FakeCase(tmp_path)
    yield made
    made.close()


def test_series_are_packed_while_mlflow_is_down(case, monkeypatch):
    """Large blocks while the run goes on, the rest at its end; a reader then needs no metric line."""
    monkeypatch.setattr(series_file, "BLOCK", 1000)
    folder, sync = case.attempt(), case.sync()
    case.mlflow.calls_until_failure = 0
    write(folder, range(100))
    sync.turn()
    packed = folder.series.stat().st_size
    write(folder, range(100, 105))
    case.finish()
    sync.turn()
    assert folder.series.stat().st_size > packed
    whole = folder.metrics.stat().st_size
    folder.metrics.write_bytes(b"x" * (whole - 1) + b"\n")
    assert series_file.RunSeries(case.home, case.run, 1).series("reward/mean").last.tolist() == list(range(105))


def test_lines_are_sent_as_they_come_and_the_run_is_closed_at_its_end(case):
    """Steps, parameters, tags, files and the end are in MLflow, and then nothing is left to send."""
    folder, sync = case.attempt(), case.sync()
    write(folder, range(3))
    assert sync.turn() == 0
    assert case.steps_held() == [(0, 0.0), (1, 1.0), (2, 2.0)]
    write(folder, range(3, 5))
    folder.result.write_text("{}")
    case.finish()
    assert unsynced(case.home, {case.run: 1}) == {case.run}
    assert sync.turn() == 0
    assert len(case.steps_held()) == 5
    assert case.mlflow.status == {case.run: True}
    assert case.mlflow.files[case.run] == {"job.json", "result.json"}
    assert case.mlflow.tags[case.run]["paribus.arm"] == "arm 0"
    assert unsynced(case.home, {case.run: 1}) == frozenset()
    assert unsynced(case.home, {case.run: 2}) == {case.run}


def test_a_sync_that_dies_anywhere_doubles_nothing(case):
    """Whatever call it dies in, a new one ends with each point once."""
    folder = case.attempt()
    write(folder, range(6))
    case.finish()
    for calls in range(16):
        case.mlflow.calls_until_failure = calls
        case.sync().turn()
    case.mlflow.calls_until_failure = math.inf
    case.sync().turn()
    assert case.steps_held() == [(i, float(i)) for i in range(6)]
    assert case.mlflow.status == {case.run: True}


def test_steps_that_are_trained_again_are_not_sent_again(case):
    """The first attempt to reach a step counts; a second one that differs is told by a tag."""
    first = case.attempt()
    write(first, range(4))
    case.sync().turn()
    case.give_back()
    second = case.attempt()
    write(second, range(6), time_ms=9000, value=lambda step: step + 0.5)
    case.finish()
    case.sync().turn()
    assert case.steps_held() == [(0, 0.0), (1, 1.0), (2, 2.0), (3, 3.0), (4, 4.5), (5, 5.5)]
    assert "paribus.superseded" in case.mlflow.tags[case.run]


def test_the_same_values_again_and_other_times_are_no_difference(case):
    """A deterministic run that is trained again differs only in its timings; NaN is equal to NaN."""
    for start in (1000, 5000):
        folder = case.attempt()
        values = {"reward/mean": math.nan, "perf/time_gen_s": float(start)}
        folder.append_metrics(MetricLine(step=1, time_ms=start, values=values))
        if start == 1000:
            case.give_back()
    case.finish()
    case.sync().turn()
    assert "paribus.superseded" not in case.mlflow.tags[case.run]


def test_trouble_is_told_and_waited_out(case):
    """While MLflow is down each try waits longer; afterwards everything is there."""
    write(case.attempt(), range(3))
    case.finish()
    sync = case.sync()
    case.mlflow.calls_until_failure = 0
    assert sync.turn() == 1
    assert sync.trouble == "ConnectionError: MLflow is down"
    case.mlflow.calls_until_failure = math.inf
    assert sync.turn() == 1
    case.now += 2.0
    assert sync.turn() == 0
    assert len(case.steps_held()) == 3
    assert sync.turn() == 0
    assert sync.trouble == ""


def test_points_that_mlflow_lost_are_sent_again(case):
    """At the end the steps are counted; what is missing is sent once more, and else the run stays open."""
    write(case.attempt(), range(3))
    case.mlflow.forget = 1
    case.sync().turn()
    case.finish()
    assert case.sync().turn() == 0
    assert len(case.steps_held()) == 3


def test_an_mlflow_that_keeps_losing_is_not_believed(case):
    """The run is not closed."""
    write(case.attempt(), range(3))
    case.finish()
    case.mlflow.forget = 100
    sync = case.sync()
    assert sync.turn() == 1
    assert "IncompleteCopy: MLflow has other points of run" in sync.trouble
    assert case.mlflow.status == {}
    for _ in range(REFUSALS):
        case.now += 100
        behind = sync.turn()
    assert (behind, list(dead_letters(case.home))) == (0, [case.run])
    case.mlflow.forget = 0
    assert replay(case.home) == 1
    assert sync.turn() == 0
    assert len(case.steps_held()) == 3
    assert case.mlflow.status == {case.run: True}


def test_other_values_under_the_same_steps_are_noticed(case):
    """A count of steps alone would be content."""
    write(case.attempt(), range(3))
    sync = case.sync()
    sync.turn()
    case.mlflow.points[case.run] = {
        (key, step, at, v + (step == 1)) for key, step, at, v in case.mlflow.points[case.run]
    }
    case.finish()
    assert sync.turn() == 1
    assert "other points" in sync.trouble


def test_a_refused_run_does_not_keep_the_others_waiting_and_a_busy_server_buries_none(case):
    """Three refusals in a row make a dead letter; a busy server counts from the beginning again."""
    write(case.attempt(), range(3))
    case.finish()
    sync, said = case.sync(), [REFUSED, REFUSED, BUSY, REFUSED, REFUSED, BUSY]

    def describe(identity, card):
        if said:
            raise said.pop(0)

    case.mlflow.describe = describe
    while said:
        case.now += 100
        assert sync.turn() == 1
        assert not dead_letters(case.home)
    said += [REFUSED] * REFUSALS
    while said:
        case.now += 100
        sync.turn()
    assert list(dead_letters(case.home).values()) == ["Answer: the parameter is too long"]
    assert case.sync().turn() == 0
    assert case.mlflow.status == {}


def test_dead_letters_of_another_address_are_found_and_replayed(case):
    """Beside `paribus up`, a shell knows nothing of the address of its MLflow."""
    up = Offsets(case.home, "http://127.0.0.1:5000")
    up.bury(case.run, 1, "too long")
    assert dead_letters(case.home) == {case.run: "too long"}
    assert dead_letters(case.home, "http://127.0.0.1:5001") == {}
    assert dead_letters(case.home, "http://127.0.0.1:5000/") == {case.run: "too long"}
    assert [check.message for check in mlflow_names(case.home)] == [
        f"1 run is not completely in MLflow, which refuses a part: run {case.run[:SHORT]}: too long"
    ]
    before = up.replays()
    assert replay(case.home) == 1
    assert (up.dead(), up.replays() - before, dead_letters(case.home)) == ({}, 1, {})
    up.close()


def test_a_line_that_cannot_be_read_is_told_and_the_run_is_closed(case):
    """What comes before it is sent."""
    folder = case.attempt()
    write(folder, range(2))
    sync = case.sync()
    sync.turn()
    with folder.metrics.open("a") as file:
        file.write("loss: 3\n")
    case.store.fail(case.claim.run_id, case.claim.token, "program", "x")
    second = case.attempt()
    write(second, range(2))
    case.store.fail(case.claim.run_id, case.claim.token, "program", "x")
    assert case.store.runs_of(case.study.id)[0].state is RunState.QUARANTINED
    assert sync.turn() == 0
    assert "not a metric line" in case.mlflow.tags[case.run]["paribus.unreadable"]
    assert case.mlflow.status == {case.run: False}


def test_a_run_that_is_tried_again_after_its_end_is_sent_again(case):
    """What the new attempts add is in MLflow, and the status is the new one."""
    for _ in range(2):
        write(case.attempt(), range(2))
        case.store.fail(case.claim.run_id, case.claim.token, "program", "x")
    sync = case.sync()
    assert sync.turn() == 0
    assert case.mlflow.status == {case.run: False}
    case.store.retry("small", author="ada", reason="mended")
    assert sync.turn() == 0
    write(case.attempt(), range(4))
    case.finish()
    assert unsynced(case.home, {case.run: 3}) == {case.run}
    assert sync.turn() == 0
    assert case.steps_held() == [(i, float(i)) for i in range(4)]
    assert case.mlflow.status == {case.run: True}
    assert unsynced(case.home, {case.run: 3}) == frozenset()


def test_the_health_is_sent_when_it_changes(case):
    """Status and worst detector as tags, the numbers of findings as metrics at the step of the change."""
    folder = case.attempt()
    sync = case.sync()
    raised = [
        {"detector": "truncation", "state": "warn", "step_onset": 2},
        {"detector": "entropy_collapse", "state": "critical", "step_onset": 5},
    ]
    for step, status, found in ((3, "ok", []), (4, "ok", []), (9, "critical", raised)):
        known = {"status": status, "profile": "default 1", "step": step, "time_ms": 10 * step}
        write_json(folder.health, {**known, "findings": found})
        sync.turn()
    tags = case.mlflow.tags[case.run]
    assert (tags["paribus.health"], tags["paribus.health.detector"]) == ("critical", "entropy_collapse")
    points = {p for p in case.mlflow.points[case.run] if p[0].startswith("health/")}
    assert points == {("health/critical", 3, 30, 0.0), ("health/warn", 3, 30, 0.0), ("health/critical", 9, 90, 1.0),
                      ("health/warn", 9, 90, 1.0)}  # fmt: skip


def test_a_restart_and_a_repeated_step_double_no_health_point(case):
    """A new process sends the noted point again; the same step of a later attempt gets no second one."""
    raised = [{"detector": "truncation", "state": "warn", "step_onset": 2}]
    first = case.attempt()
    known = {"status": "warn", "profile": "default 1", "findings": raised}
    write_json(first.health, {**known, "step": 3, "time_ms": 30})
    case.sync().turn()
    write_json(first.health, {**known, "step": 4, "time_ms": 40})
    case.sync().turn()
    case.give_back()
    second = case.attempt()
    write_json(second.health, {**known, "status": "ok", "findings": [], "step": 3, "time_ms": 90})
    case.sync().turn()
    write_json(second.health, {**known, "status": "ok", "findings": [], "step": 4, "time_ms": 95})
    case.sync().turn()
    points = sorted(p for p in case.mlflow.points[case.run] if p[0] == "health/warn")
    assert points == [("health/warn", 3, 30, 1.0), ("health/warn", 4, 95, 0.0)]
    assert case.mlflow.tags[case.run]["paribus.health"] == "ok"
