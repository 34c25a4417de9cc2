"""A home folder as pages see it."""

from __future__ import annotations

import errno
import threading
import time
from dataclasses import replace

import pytest

from paribus.run_folder.folder import MetricLine, RunFolder
from paribus.store.database import FILE, Unreachable
from paribus.store.states import RunState
from paribus.store.store import Store
from paribus_dashboards.data import home as home_module
from paribus_dashboards.data import reports as reports_module
from paribus_dashboards.data.cache import Cache
from paribus_dashboards.data.home import Home, NotFound
from paribus_dashboards.data.reports import Built, Reports
from paribus_dashboards.data.run_now import RunNow, read_now


def test_a_value_is_made_once_for_all_who_wait_and_again_when_its_stamp_changes():
    """Fifty readers at once cost one reading; the cache stays as small as it was asked to be."""
    made, kept = [], Cache(2)
    gate = threading.Barrier(8)

    def ask():
        gate.wait()
        assert kept.get("a", 1, lambda: made.append(1) or len(made)) == 1

    threads = [threading.Thread(target=ask) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert made == [1]
    assert kept.get("a", 2, lambda: "new") == "new"
    kept.get("b", 1, lambda: "b")
    kept.get("c", 1, lambda: "c")
    assert kept.get("a", 2, lambda: "again") == "again"


def test_a_value_that_cannot_be_made_is_not_kept():
    """A store that was away for a moment is asked again."""
    kept = Cache(2)
    with pytest.raises(OSError, match="away"):
        kept.get("a", 1, lambda: (_ for _ in ()).throw(OSError("away")))
    assert kept.get("a", 1, lambda: "back") == "back"


def test_a_study_is_seen_as_it_changes(new_folder):
    """Within a second nothing is read again; after it, states, steps, series and costs are those of now."""
    folder = new_folder()
    seconds = [0.0]
    home = Home(folder, clock=lambda: seconds[0])
    before = home.study("made-up")
    live = next(r for r in before.runs if r.state is RunState.RUNNING)
    assert home.now(live).step == 4
    assert len(home.series(live).series("policy/entropy")) == 4
    assert home.points(live, "eval/heldout/avg_at_1", least=32)[-1][0] == 4
    home.run_folder(live).append_metrics(MetricLine(step=5, time_ms=1, values={"policy/entropy": 0.5}))
    assert home.now(live).step == 5
    assert home.series(live).series("policy/entropy").steps[-1] == 5
    with Store.open(folder) as store:
        store.finish(live.id, live.token, {"status": "succeeded"})
    assert home.study("made-up") is before
    seconds[0] += 1
    after = home.study("made-up")
    assert after.counts == {RunState.SUCCEEDED: 8, RunState.QUEUED: 1}
    assert after.ended != before.ended
    assert after.seconds(live) > 0
    home.close()


def test_a_home_folder_may_come_later(tmp_path, new_folder):
    """The dashboard can be started before the first study, and shows it once it is there."""
    seconds = [0.0]
    home = Home(tmp_path / "home", clock=lambda: seconds[0])
    assert home.empty
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / FILE).touch()  # a first study is about to make the tables
    assert home.empty
    new_folder()
    assert not home.empty
    assert [e.name for e in home.studies()] == ["made-up"]
    home.close()


def test_what_is_not_there_is_named(home):
    """Unknown studies and runs, and digits that could be several, are distinguished from faults."""
    with pytest.raises(NotFound, match="made-up"):
        home.study("other")
    study = home.study("made-up")
    run = study.runs[0]
    assert home.find_run(study, run.fingerprint[:12]) == run
    for digits in ("", run.fingerprint[:3], "zzzzzzzz", "../../etc"):
        with pytest.raises(NotFound):
            home.find_run(study, digits)


def test_a_verdict_is_read_with_its_findings(home):
    """The status of a run is that of its `health.json`, and unknown without one."""
    sick, well = home.study("made-up").runs[:2]
    assert (home.now(sick).status, home.now(sick).detector) == ("critical", "entropy_collapse")
    assert home.now(well).status == "unknown"


def test_reports_are_built_beside_and_again_when_results_come(folder):
    """A page gets the last report at once, and the next one after it is done; trouble is reported and retried."""
    made = []

    def make(where, study):
        made.append((where, study))
        return Built(model=None, spreads=())  # type: ignore[arg-type]

    reports = Reports(folder, make)
    assert reports.of("s", 1, None).current
    assert reports.of("s", 1).current
    assert len(made) == 1
    assert reports.of("s", 2, None).current
    assert len(made) == 2


def test_a_run_that_was_looked_at_before_its_first_line_is_followed(new_folder):
    """Also an attempt after another one: what it records replaces the end of what was read."""
    home = Home(new_folder())
    (live,) = [r for r in home.study("made-up").runs if r.state == "RUNNING"]
    again = replace(live, token=live.token + 1)
    before = home.series(again).span
    assert before is not None
    folder = home.run_folder(again)
    folder.path.mkdir(parents=True)
    for run, first in ((again, 4), (replace(live, fingerprint="f" * 64), 0)):
        home.series(run)
        folder = home.run_folder(run)
        folder.path.mkdir(parents=True, exist_ok=True)
        for step in range(first, 7):
            folder.append_metrics(MetricLine(step=step, time_ms=step, values={"reward/mean": 0.25}))
        assert home.series(run).span[1] == 6
        assert home.series(run).series("reward/mean").at(6) == 0.25
    home.close()


@pytest.mark.parametrize(
    ("error", "trouble"), [(Unreachable("the database is away"), "the database is away"), (OSError(11, "busy"), "busy")]
)
def test_a_report_that_could_not_be_built_is_tried_again(folder, monkeypatch, error, trouble):
    """After a while, not with each request; until then the page says what was wrong."""
    monkeypatch.setattr(reports_module, "AGAIN_S", 0.2)
    made = []

    def make(where, study):
        made.append(study)
        if len(made) == 1:
            raise error
        return Built(model=None, spreads=())  # type: ignore[arg-type]

    reports = Reports(folder, make)
    first = reports.of("s", 1, None)
    assert trouble in first.trouble
    assert (first.built, first.current) == (None, False)
    time.sleep(0.3)
    assert reports.of("s", 1, None).current
    assert reports.of("s", 1).trouble == ""
    assert len(made) == 2


def test_a_run_that_could_not_be_read_for_a_moment_is_read_again(home, monkeypatch):
    """Also one that has ended: its files are the same, and a state without a step would stay."""
    study, read = home.study("made-up"), home_module.read_now

    def away(folder):
        raise OSError(errno.ESTALE, "Stale file handle")

    beside = Home(home.folder)
    with monkeypatch.context() as patch:
        patch.setattr(home_module, "read_now", away)
        assert beside.now(study.runs[0]) == RunNow()
    assert beside.states(study)[0][study.runs[0].fingerprint] == read(home.run_folder(study.runs[0]))
    beside.close()


def test_metric_lines_that_cannot_be_read_now_are_no_run_without_lines(tmp_path):
    """What is cached for good must have been read."""
    folder = RunFolder(tmp_path)
    assert read_now(folder) == RunNow()
    folder.metrics.mkdir()
    with pytest.raises(IsADirectoryError):
        read_now(folder)
