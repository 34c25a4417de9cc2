"""`paribus run` from end to end with the fake runner: whatever is killed, one result a run and each step once."""

import json
import os
import signal
import sqlite3
import time
from collections import Counter
from contextlib import closing, suppress
from pathlib import Path

import pytest

from paribus.engines.process import Identity
from paribus.errors import RunFolderError
from paribus.run_folder.folder import RunFolder, read_json
from support.processes import family
from support.site import PATIENCE_S, Site, until


class MirroredSite(Site):
    """A site with one study, `paribus run` in it, and MLflow."""

    def __init__(self, path):
        super().__init__(path, {k: v for k, v in os.environ.items() if not k.startswith(("MLFLOW_", "PARIBUS_"))})
        self.study()

    def start(self, *arguments, **orders):
        """Start `paribus run`."""
        return super().start("run", "faked.yaml", "--no-report", "--slots", "2", *arguments, **orders)

    def run(self, *arguments, **orders):
        """Run `paribus run` to its end; return its exit status and output."""
        return self.ended(self.start(*arguments, **orders))

    def command(self, *arguments):
        """Run another command and return its output."""
        status, output = self.ended(super().start(*arguments))
        assert status == 0, output
        return output

    def processes(self):
        """Return the process ids of all supervisors and runners that any attempt has named and that are alive."""
        identities = []
        for file in (self.home / "runs").glob("*/a*/attempt.json"):
            with suppress(RunFolderError):  # killed while it wrote its first word
                here = read_json(file)
                identities += [Identity.read(here[k]) for k in ("supervisor", "runner") if k in here]
        return [i.pid for i in identities if i.alive()]

    def check(self):
        """Every run has one result; MLflow has each recorded step of each metric once, and verdicts on them."""
        runs = self.runs()
        with closing(sqlite3.connect(self.home / "paribus.db")) as store:
            assert store.execute("SELECT COUNT(*), COUNT(DISTINCT run_id) FROM result").fetchone() == (4, 4)
        with closing(sqlite3.connect(self.home / "mlflow.db")) as mlflow:
            tagged = dict(mlflow.execute("SELECT value, run_uuid FROM tags WHERE key = 'paribus.run'").fetchall())
            assert mlflow.execute("SELECT COUNT(*) FROM tags WHERE key = 'paribus.run'").fetchone() == (4,)
            assert mlflow.execute("SELECT COUNT(*) FROM runs").fetchone() == (7,)  # the study, two arms
            assert {r.fingerprint for r in runs} == set(tagged)
            for run in runs:
                query = "SELECT key, step FROM metrics WHERE run_uuid = ?"
                held = Counter(mlflow.execute(query, (tagged[run.fingerprint],)).fetchall())
                folders = [RunFolder.of(self.home, run.fingerprint, t) for t in range(1, run.token + 1)]
                spooled = {(k, line.step) for f in folders for line in f.read_metrics() for k in line.values}
                verdicts = {point for point in held if point[0].startswith("health/")}
                assert set(held) - verdicts == spooled
                assert {step for _, step in verdicts} <= {step for _, step in spooled}
                assert {count for point, count in held.items() if point not in verdicts} == {1}
            assert {s for (s,) in mlflow.execute("SELECT status FROM runs")} == {"FINISHED"}
        assert self.processes() == []
        super().check("faked")


@pytest.fixture
def site(tmp_path):
    """A site; what a test leaves running is ended."""
    made = MirroredSite(tmp_path)
    yield made
    made.close()


def test_a_study_is_trained_once(site):
    """The first command trains, the second finds nothing to do and starts neither attempt nor MLflow sync.

    What the plan warns of stands before the first attempt.
    """
    status, output = site.run()
    assert status == 0, output
    assert "4 succeeded" in output
    assert "[seeds]" in output.partition("attempt 1")[0]
    site.check()

    def written():
        return {p: p.stat().st_mtime_ns for kind in ("shipper*", "mlflow_sync*") for p in site.home.glob(kind)}

    before = written()
    status, output = site.run()
    assert status == 0, output
    assert "nothing to train" in output
    assert "[seeds]" not in output
    assert len(site.attempts()) == 4
    assert before == written()


@pytest.mark.slow
def test_kill_9_of_everything_loses_and_doubles_nothing(site):
    """Scheduler, shipper, server, supervisors and runners are killed at once; the same command goes on and finishes."""
    process = site.start(step_s=0.1)
    until(site.training)
    for pid in family(process.pid):
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            continue
    process.communicate()
    until(lambda: site.processes() == [])
    status, output = site.run()
    assert status == 0, output
    site.check()
    assert len(site.attempts()) > 4


@pytest.mark.slow
def test_kill_9_of_the_scheduler_alone_leaves_no_orphan(site):
    """Server, supervisors and runners die with it."""
    process = site.start(rules=[site.held()])
    until(site.training)
    descendants = [Identity.of(p) for p in family(process.pid)[1:]]
    process.kill()
    process.communicate()
    until(lambda: site.processes() == [])
    until(lambda: not any(d.alive() for d in descendants))
    status, output = site.run()
    assert status == 0, output
    site.check()


@pytest.mark.slow
@pytest.mark.parametrize("victim", ["runner", "supervisor"])
def test_kill_9_of_one_process_costs_one_attempt(site, victim):
    """The run is tried again; the others do not notice."""
    process = site.start(rules=[site.held()])
    folder = until(site.training)[0]
    os.kill(read_json(folder.attempt)[victim]["pid"], signal.SIGKILL)
    site.release()
    output, _ = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 0, output
    site.check()
    assert Counter(a.outcome for a in site.attempts()) == {"succeed": 4, "retry": 1}


@pytest.mark.slow
def test_kill_9_of_the_shipper_doubles_nothing(site):
    """It is started again, and goes on where MLflow is."""
    process = site.start(rules=[site.held()])

    def shipper():
        for pid in family(process.pid):
            with suppress(OSError):  # it has ended meanwhile
                called = Path(f"/proc/{pid}/cmdline").read_text()
                if "paribus.mlflow_sync.sync" in called and (site.home / "shipper.db").exists():
                    return pid
        return None

    victim = until(lambda: site.training() and shipper())
    os.kill(victim, signal.SIGKILL)
    site.release()
    output, _ = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 0, output
    site.check()


@pytest.mark.slow
def test_ctrl_c_stops_with_checkpoints_and_the_same_command_goes_on(site):
    """The runs are given back, nothing is counted against them, and they go on after their last step."""
    process = site.start(rules=[site.held()])
    until(site.training)
    process.send_signal(signal.SIGINT)
    output, _ = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 130, output
    assert "Type the same command to continue" in output
    stopped = [a for a in site.attempts() if a.outcome == "release"]
    assert stopped
    assert {str(r.state) for r in site.runs()} <= {"QUEUED", "SUCCEEDED"}
    status, output = site.run()
    assert status == 0, output
    site.check()
    assert all(r.program_failures == r.infrastructure_failures == 0 for r in site.runs())
    first = RunFolder.of(site.home, stopped[0].fingerprint, 1)
    second = RunFolder.of(site.home, stopped[0].fingerprint, 2)
    trained = list(first.read_metrics())
    assert list(second.read_metrics())[: len(trained)] == trained


@pytest.mark.slow
def test_a_second_ctrl_c_does_not_wait(site):
    """Runners that do not hear are ended by force, and the run is still there to go on with."""
    process = site.start(rules=[{"do": "deaf", "at": 3}])
    until(lambda: [f for f in site.training() if len(list(f.read_metrics())) == 3])
    process.send_signal(signal.SIGINT)
    time.sleep(0.5)
    process.send_signal(signal.SIGINT)
    output, _ = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 130, output
    assert site.processes() == []
    assert site.run()[0] == 0
    site.check()


@pytest.mark.slow
def test_a_run_that_fails_twice_is_quarantined_and_the_others_finish(site):
    """The exit status is 1, and `paribus status` names the reason."""
    status, output = site.run(rules=[{"do": "crash", "at": 5, "arm": "+ token_level", "seed": 1}])
    assert status == 1, output
    shown = json.loads(site.command("status", "faked", "--json"))["runs"]
    assert Counter(r["state"] for r in shown) == {"SUCCEEDED": 3, "QUARANTINED": 1}
    bad = next(r for r in shown if r["state"] == "QUARANTINED")
    assert (bad["arm"], bad["seed"], bad["attempt"]) == ("+ token_level", 1, 2)
    assert bad["reason"].startswith("ValueError: made to fail")


@pytest.mark.slow
def test_the_inline_engine_gives_the_same_numbers(site, tmp_path):
    """All in one process, one run at a time: the same metric values."""
    assert site.run("--home", str(tmp_path / "other"))[0] == 0
    status, output = site.run("--engine", "inline")
    assert status == 0, output
    site.check()
    for run in site.runs():
        here, there = (RunFolder.of(h, run.fingerprint, 1) for h in (site.home, tmp_path / "other"))
        assert [line.values for line in here.read_metrics()] == [line.values for line in there.read_metrics()]


@pytest.mark.slow
def test_one_at_a_time_and_status_meanwhile(site):
    """A second `paribus run` is refused with the process id of the first; `paribus status` works."""
    process = site.start(rules=[{"do": "hang", "at": 3}])
    until(site.training)
    status, output = site.run()
    assert status == 1
    assert f"process {process.pid}" in output
    shown = json.loads(site.command("status", "faked", "--json"))["runs"]
    assert "RUNNING" in {r["state"] for r in shown}
    assert max(r["step"] for r in shown) >= 2
    assert json.loads(site.command("status", "--json"))["studies"][0]["runs"] == 4
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=PATIENCE_S)
