"""What `paribus run` shows, in a terminal and elsewhere."""

import io

import pytest
from rich.console import Console
from rich.live import Live

from paribus.cli.console import duration
from paribus.cli.live import LiveDisplay, PlainDisplay, counts_line
from paribus.cli.run import closing_lines, exit_status
from paribus.monitor.progress import Follower
from paribus.run_folder.folder import MetricLine, RunFolder
from paribus.scheduler.scheduler import Ending
from paribus.scheduler.serve import Summary
from paribus.store.states import RunState
from paribus.store.store import Store
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
            values = {"reward/mean": 0.25 * step, "policy/entropy": 1.5, "response/length_mean": 20.0}
            folder.append_metrics(MetricLine(step=step, time_ms=0, values=values))
        yield follower.view(10.0)


def summary(**values):
    """Return how a session ended."""
    known = {"ending": Ending.COMPLETE, "trained": True, "paused": "", "mirror": "", "seconds": 61.0}

    class Named:
        name = "ladder"

    return Summary(**{**known, "study": Named(), "counts": {RunState.SUCCEEDED: 3}, **values})


def test_progress_counts_steps_and_tells_the_time_left(view):
    """A run that has ended counts whole, one in progress by its steps: 4 + 2 of 16; the rest at the pace so far."""
    assert view.done == 6 / 16
    assert view.left_s == (16 - 6) * 10.0 / 2
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
    assert "0:50 left" in shown


def test_without_a_terminal_there_is_one_line_an_event(view, capsys):
    """The counts come when a run has ended, not at every look."""
    display = PlainDisplay()
    display.say("arm 1, seed 0: attempt 1")
    display.show(view)
    display.show(view)
    assert capsys.readouterr().out.splitlines() == [
        "arm 1, seed 0: attempt 1",
        "small: 1 of 4 runs done, 1 running, 1 quarantined, 38% of the steps, about 0:50 left",
    ]


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
