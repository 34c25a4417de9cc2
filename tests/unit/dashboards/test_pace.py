"""How fast runs go, and when they will be done."""

from __future__ import annotations

import time

import pytest

from paribus.run_folder.folder import MetricLine, RunFolder
from paribus_dashboards.data.home import Home
from paribus_dashboards.data.pace import pace_of, speed, study_pace
from paribus_dashboards.data.run_now import read_now

STEPS = 40


@pytest.fixture
def live(new_folder):
    """Write lines of the live run, half a second a step, the last one now; return the home and the run."""
    home = Home(new_folder())
    (run,) = [r for r in home.study("made-up").runs if r.state == "RUNNING"]
    now = time.time()

    def write(last, *, ago=0.0, step_s=0.5):
        folder = RunFolder.of(home.folder, run.fingerprint, run.token)
        first = home.now(run).step + 1
        for step in range(first, last + 1):
            at = now - ago - (last - step) * step_s
            folder.append_metrics(MetricLine(step=step, time_ms=int(1000 * at), values={"reward/mean": 0.5}))
        return now

    yield home, run, write
    home.close()


def test_a_live_run_says_its_pace_and_when_it_will_be_done(live):
    """From its newest lines only: what it did long ago does not count."""
    home, run, write = live
    now = write(30)
    found = pace_of(run, home.now(run), STEPS, now)
    assert found.speed == "2 steps/s"
    assert found.since_ms == pytest.approx(1000 * now, abs=2)
    assert found.until_ms == pytest.approx(1000 * (now + 5), abs=300)
    assert not found.silent


def test_a_run_that_has_fallen_silent_promises_nothing(live):
    """Only the age of its newest line is shown then."""
    home, run, write = live
    now = write(30, ago=100)
    found = pace_of(run, home.now(run), STEPS, now)
    assert (found.speed, found.until_ms, found.silent) == ("", None, True)


def test_a_slow_step_is_no_silence(live):
    """A run that takes a minute a step is silent after ten of them."""
    home, run, write = live
    now = write(30, ago=120, step_s=60)
    found = pace_of(run, home.now(run), STEPS, now)
    assert (found.speed, found.silent) == ("1 step/min", False)


def test_nothing_is_said_of_runs_that_have_ended_or_not_begun(home):
    """Nor of one with a single line, whose pace is unknown."""
    study = home.study("made-up")
    for run in study.runs:
        if run.state != "RUNNING":
            assert pace_of(run, home.now(run), STEPS, study.at) is None


def test_a_single_line_has_an_age_and_no_pace(tmp_path):
    """Two lines make a pace."""
    folder = RunFolder(tmp_path)
    folder.append_metrics(MetricLine(step=0, time_ms=1000, values={"reward/mean": 0.5}))
    assert (read_now(folder).time_ms, read_now(folder).per_s) == (1000, 0.0)
    folder.append_metrics(MetricLine(step=1, time_ms=5000, values={"reward/mean": 0.5}))
    assert read_now(folder).per_s == 0.25
    folder.append_metrics(MetricLine(step=2, time_ms=4000, values={"reward/mean": 0.5}))  # the clock was set back
    assert read_now(folder).per_s == pytest.approx(2 / 3)


def test_a_study_is_done_when_all_its_steps_are(live):
    """At the pace of its live runs together; runs that wait count in full."""
    home, _, write = live
    now = write(30)
    study = home.study("made-up")
    found = study_pace(study, {r.fingerprint: home.now(r) for r in study.runs})
    assert found.speed == "2 steps/s"
    assert found.until_ms == pytest.approx(1000 * (now + 0.5 * (10 + STEPS)), abs=300)
    assert study_pace(study, {}) is None


def test_chips_are_on_the_page_of_a_live_run_and_of_its_study_only(client, home):
    """Absolute times, which the page's script counts from: an unchanged page stays unchanged."""
    runs = {r.state: r for r in home.study("made-up").runs}
    page = "/study/made-up/health?run="
    assert "data-since" in client.get(page + runs["RUNNING"].fingerprint).text
    assert "data-since" in client.get("/study/made-up").text
    for state in ("SUCCEEDED", "QUEUED"):
        assert "data-since" not in client.get(page + runs[state].fingerprint).text


@pytest.mark.parametrize(
    ("per_s", "text"),
    [
        (0, ""),
        (2.5, "2.5 steps/s"),
        (250, "250 steps/s"),
        (99.4, "99 steps/s"),
        (99.99, "100 steps/s"),
        (1234.5, "1,234 steps/s"),
        (0.05, "3 steps/min"),
        (1e-4, "0.36 steps/h"),
    ],
)
def test_a_pace_has_the_unit_that_suits_it(per_s, text):
    """Seconds, minutes or hours."""
    assert speed(per_s) == text
