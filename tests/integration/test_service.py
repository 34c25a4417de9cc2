"""`paribus submit` and `paribus scheduler` from end to end with the fake runner, killed and stopped on the way."""

import json
import os
import signal

import pytest
from click.testing import CliRunner

from paribus.cli import paribus
from paribus.store.reader import Reader
from support.site import Site, until


class ServedSite(Site):
    """A site whose studies get reports."""

    def say(self, *arguments):
        """Run a short command here; return what it said."""
        result = CliRunner().invoke(paribus, [*arguments, "--home", str(self.home)])
        assert result.exit_code == 0, result.output
        return result.output

    def status(self):
        """Return what `paribus status` tells: who serves, and the studies by name."""
        told = json.loads(self.say("status", "--json"))
        return told["served_by"], {s["study"]: s for s in told["studies"]}

    def check(self, *studies):
        """Each has a complete report."""
        for name in studies:
            report = json.loads((self.path / "reports" / name / "report.json").read_text())
            assert report["study"] == name
        super().check(*studies)


@pytest.fixture
def site(tmp_path, monkeypatch):
    """A site without MLflow."""
    monkeypatch.delenv("PARIBUS_DATABASE_URL", raising=False)
    (tmp_path / "site" / "sitecustomize.py").write_text("import sys\nsys.modules['mlflow'] = None\n")
    made = ServedSite(tmp_path)
    yield made
    made.close()


@pytest.mark.slow
def test_a_killed_service_goes_on_and_writes_the_report_of_every_study(site):
    """One study is submitted before it starts, one while it runs; one that cannot be trained is paused, no other."""
    said = site.say("submit", site.study("first"), "--priority", "2")
    assert "first: 4 runs: 4 new; priority 2, weight 1" in said
    assert f"No scheduler serves {site.home}" in said
    service = site.start("scheduler", "--slots", "2", step_s=0.5)
    until(site.training)
    said = site.say("submit", site.study("second", seeds=3), "--weight", "2.5")
    assert "second: 6 runs: 2 new, 4 shared with other studies; priority 0, weight 2.5" in said
    assert f"`paribus scheduler` (process {service.pid}) serves it" in said
    holder, studies = site.status()
    assert (holder["process"], holder["engine"]) == (service.pid, "local")
    assert (studies["first"]["state"], studies["second"]["weight"]) == ("running", 2.5)
    os.killpg(service.pid, signal.SIGKILL)
    service.wait()
    assert site.status()[0] is None

    broken = site.study("broken", steps=9)
    site.say("submit", broken)
    with Reader.open(site.home) as reader, reader.database.write() as connection:
        connection.exec_driver_sql('UPDATE study SET plan = replace(plan, \'"runner":"fake"\', \'"runner":"gone"\')')
        connection.exec_driver_sql(
            'UPDATE study SET plan = replace(plan, \'"runner":"gone"\', \'"runner":"fake"\') WHERE name != \'broken\''
        )
    status, output = site.ended(site.start("scheduler", "--slots", "2", "--until-idle"))
    assert status == 1, output
    assert "first: complete: 4 succeeded" in output
    assert "second: complete: 6 succeeded" in output
    assert "broken: paused: 4 queued\nthere is no runner `gone`" in output
    assert "broken: 4 runs are left: it is paused" in output
    assert "nothing is left that can be done now" in output
    assert site.status()[1]["broken"]["state"] == "paused"
    site.check("first", "second")


@pytest.mark.slow
def test_run_follows_where_a_service_serves_and_the_service_stops_with_grace(site):
    """Ctrl-C ends the following alone; SIGTERM puts the runs back with their checkpoints; `run` then trains itself."""
    service = site.start("scheduler", "--slots", "2", rules=[site.held(at=100)])  # which only the long study has
    until(lambda: (site.home / "run.lock.json").exists())
    status, output = site.ended(site.start("run", site.study("short", seeds=1)))
    assert status == 0, output
    assert f"Attached to `paribus scheduler` (process {service.pid})" in output
    assert "short: 2 succeeded" in output
    site.check("short")

    long = site.study("long", seeds=1, steps=200)
    follower = site.start("run", long)
    until(site.training)
    follower.send_signal(signal.SIGINT)
    status, output = site.ended(follower)
    assert status == 130, output
    assert "Detached; the scheduler keeps training" in output
    assert site.status()[1]["long"]["state"] == "running"
    service.send_signal(signal.SIGTERM)
    status, output = site.ended(service)
    assert status == 0, output
    assert "stopping: the runs write a checkpoint" in output
    with Reader.open(site.home) as reader:
        study = reader.study("long")
        assert {str(s) for s in reader.counts(study.id)} == {"QUEUED"}
        assert {a.outcome for a in reader.attempts_of(study.id)} == {"release"}
    status, output = site.ended(site.start("run", long, "--slots", "2", "--no-report", step_s=0.0))
    assert status == 0, output
    assert "long: 2 succeeded" in output
    site.check("short")
