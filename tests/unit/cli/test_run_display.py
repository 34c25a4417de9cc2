"""What `paribus run` shows, in a terminal and elsewhere."""

import io
from dataclasses import replace

import pytest
from rich.console import Console
from rich.live import Live

from paribus.cli.console import report_width
from paribus.cli.live import LiveDisplay, PlainDisplay, counts_line
from paribus.cli.run import closing_lines, exit_status, warn
from paribus.home import DATABASE_URL
from paribus.monitor.progress import Follower, Preparing
from paribus.run_folder.folder import MetricLine, RunFolder
from paribus.scheduler.scheduler import Ending
from paribus.scheduler.serve import Summary
from paribus.store.states import RunState
from paribus.store.store import Store
from paribus.study.plan import PlanWarning
from paribus.text import duration
from support.plans import small_plan


@pytest.fixture
def view(tmp_path):
    """A study with one run in progress, one that failed, and two that wait."""
    with Store.open(tmp_path) as store:
        study = store.add_study(small_plan())
        for _ in range(2):
            bad = store.claim(study.id, engine="test", worker="here")
            store.start(bad.run_id, bad.token)
            store.fail(bad.run_id, bad.token, "program", "ValueError")
        good = store.claim(study.id, engine="test", worker="here")
        folder = RunFolder.of(tmp_path, good.fingerprint, good.token)
        folder.path.mkdir(parents=True)
        follower = Follower(store, study)
        follower.view(0.0)
        for step in (1, 2):
            before = follower.view(60.0)
            values = {"reward/mean": 0.25 * step, "policy/entropy": 1.5, "response/length_mean": 20.0}
            folder.append_metrics(MetricLine(step=step, time_ms=0, values=values))
        assert before.left_s is None
        yield follower.view(70.0)


def made_folder(home, run):
    """Return the folder of an attempt."""
    folder = RunFolder.of(home, run.fingerprint, run.token)
    folder.path.mkdir(parents=True)
    return folder


def summary(**values):
    """Return how a session ended."""
    known = {"ending": Ending.COMPLETE, "trained": True, "paused": "", "mirror": "", "seconds": 61.0}

    class Named:
        name = "ladder"

    return Summary(**{**known, "study": Named(), "counts": {RunState.SUCCEEDED: 3}, **values})


def test_progress_counts_steps_and_tells_the_time_left(view):
    """A run that has ended counts whole, one in progress by its steps: 4 + 2 of 16; the rest at the pace so far."""
    assert view.done == 6 / 16
    assert view.left_s == (16 - 6) * 10.0 / 1
    assert counts_line(view) == "1 of 4 runs done, 1 running, 1 quarantined"


def test_the_live_view_shows_the_runs_in_progress(view):
    """Arm, seed, step, reward, entropy, length and a status."""
    screen = io.StringIO()
    with Live(console=Console(file=screen, force_terminal=True, width=100), auto_refresh=False) as live:
        display = LiveDisplay(live)
        display.say("something happened")
        display.show(view)
        live.refresh()
    shown = screen.getvalue()
    for text in ("something happened", "1 of 4 runs done", "38% of the steps", "arm 1", "2/4", "0.5", "1.5", "20", "●"):
        assert text in shown
    assert "1:40 left" in shown


def test_without_a_terminal_there_is_one_line_an_event(view, capsys):
    """The counts come when a run has ended, not at every look."""
    display = PlainDisplay()
    display.say("arm 1, seed 0: attempt 1")
    display.show(view)
    display.show(view)
    assert capsys.readouterr().out.splitlines() == [
        "arm 1, seed 0: attempt 1",
        "small: 1 of 4 runs done, 1 running, 1 quarantined, 38% of the steps, about 1:40 left",
    ]


def test_the_time_before_the_first_step_says_nothing_of_the_pace(tmp_path):
    """A minute of preparation, then a step a second: four of sixteen steps are trained, and twelve seconds are left."""
    with Store.open(tmp_path) as store:
        study = store.add_study(small_plan())
        follower = Follower(store, study)
        assert follower.view(0.0).left_s is None
        run = store.claim(study.id, engine="test", worker="here")
        folder = made_folder(tmp_path, run)
        for second in range(4):
            folder.append_metrics(MetricLine(step=second + 1, time_ms=0, values={}))
            view = follower.view(60.0 + second)
        assert (view.done, view.left_s) == (4 / 16, 12.0)
        assert follower.view(63.9).left_s == 12.0  # between two steps
        assert follower.view(67.0).left_s == 12 * 7 / 4  # the next one is overdue


def test_an_interruption_takes_no_step_from_the_progress(tmp_path):
    """A run that is put back into the queue keeps its steps: in this session, in the next one, and when it goes on."""
    with Store.open(tmp_path) as store:
        study = store.add_study(small_plan())
        follower = Follower(store, study)
        run = store.claim(study.id, engine="test", worker="here")
        folder = made_folder(tmp_path, run)
        for step in (1, 2, 3):
            folder.append_metrics(MetricLine(step=step, time_ms=0, values={}))
        assert follower.view(1.0).done == 3 / 16
        store.release(run.run_id, run.token, "interrupted")
        assert follower.view(2.0).done == 3 / 16
        later = Follower(store, study)
        assert later.view(3.0).done == 3 / 16
        again = store.claim(study.id, engine="test", worker="here")
        assert (again.run_id, again.token) == (run.run_id, run.token + 1)
        assert follower.view(4.0).done == later.view(4.0).done == 3 / 16
        made_folder(tmp_path, again).append_metrics(MetricLine(step=4, time_ms=0, values={}))
        assert later.view(5.0).done == 4 / 16


def test_preparation_is_shown_while_it_lasts(view, capsys):
    """What is prepared, for how long, and what the runner printed last: below the bar, and in the lines elsewhere."""
    preparing = (Preparing(about="tiny for search", seconds=23.4, line="step 40 of 200"),)
    screen = io.StringIO()
    with Live(console=Console(file=screen, force_terminal=True, width=100), auto_refresh=False) as live:
        LiveDisplay(live).show(replace(view, preparing=preparing))
        live.refresh()
    assert "preparing tiny for search, 0:23 so far: step 40 of 200" in screen.getvalue()
    PlainDisplay().show(replace(view, preparing=preparing))
    assert "preparing tiny for search, 0:23 so far" in capsys.readouterr().out


@pytest.mark.parametrize(("columns", "width"), [(None, 100), (40, 80), (80, 80), (120, 120)])
def test_a_report_is_as_wide_as_the_terminal(columns, width, monkeypatch):
    """At least 80 columns, so that tables can be read; a fixed width where there is no terminal."""
    if columns is not None:
        monkeypatch.setenv("FORCE_COLOR", "1")
        monkeypatch.setenv("COLUMNS", str(columns))
    assert report_width() == width


@pytest.mark.parametrize(
    ("values", "status", "said"),
    [
        ({}, 0, "ladder: 3 succeeded in 1:01"),
        ({"trained": False}, 0, "nothing to train"),
        ({"ending": Ending.INTERRUPTED}, 130, "Type the same command to continue"),
        ({"ending": Ending.BUDGET}, 1, "the budget does not allow another run (paribus status ladder"),
        (
            {"ending": Ending.PAUSED, "paused": "3 arms failed"},
            1,
            "Paused: 3 arms failed\nFix it, then `paribus retry",
        ),
        ({"counts": {RunState.FAILED: 1}}, 1, "paribus status ladder"),
        ({"counts": {RunState.QUARANTINED: 1, RunState.SUCCEEDED: 2}}, 1, "1 quarantined, 2 succeeded"),
        ({"mirror": "MLflow does not have everything yet"}, 0, "MLflow does not have everything yet"),
    ],
)
def test_the_end_is_told_with_what_to_do_next(values, status, said, tmp_path):
    """The exit status says the same as the words."""
    ended = summary(**values)
    assert exit_status(ended) == status
    assert said in "\n".join(closing_lines(ended, tmp_path))


def test_durations_are_read_as_on_a_clock():
    """Hours only where there are some."""
    assert [duration(s) for s in (0.4, 59.6, 3661)] == ["0:00", "1:00", "1:01:01"]


def test_warnings_are_printed_while_the_database_is_away(monkeypatch, tmp_path, capsys):
    """The start waits for the server, so the warnings must not end it."""
    monkeypatch.setenv(DATABASE_URL, "postgresql+psycopg://nobody@127.0.0.1:9/none")
    warn(replace(small_plan(), warnings=(PlanWarning(code="seeds", message="only one seed"),)), tmp_path)
    assert "only one seed" in capsys.readouterr().out
