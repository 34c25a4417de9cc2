"""Ray Jobs with a head that does not answer, loses answers, or refuses; Ray is not needed."""

import json
import sys
from types import SimpleNamespace

import pytest

from paribus.contract import Need
from paribus.engines.base import EngineSettings, JobState, Spec
from paribus.engines.controller import Controller
from paribus.engines.ray import driver
from paribus.engines.ray import engine as engine_module
from paribus.engines.ray import jobs as ray_jobs
from paribus.engines.ray.engine import RayEngine

SPEC = Spec(module="m", arguments=())


class Head:
    """A head that does with requests what a test says."""

    def __init__(self):
        self.jobs = {}
        self.deaf = self.loses_answers = self.closed = False
        self.refusal = None

    def submit_job(self, *, submission_id, **_):
        """Take a job."""
        if self.refusal:
            raise self.refusal
        if submission_id in self.jobs:
            raise RuntimeError("it exists already")
        self.jobs[submission_id] = "PENDING"
        if self.loses_answers:
            raise ConnectionError("timed out")

    def list_jobs(self):
        """Return all jobs."""
        if self.deaf:
            raise ConnectionError("busy")
        states = {k: SimpleNamespace(value=v) for k, v in self.jobs.items()}
        return [SimpleNamespace(submission_id=k, status=v, message="") for k, v in states.items()]

    def stop_job(self, job):
        """End a job."""
        self.jobs[job] = "STOPPED"

    def shutdown(self):
        """Note it."""
        self.closed = True


class DriverHere(driver.Driver):
    """The driver in this process."""

    def join(self):
        """Join the cluster."""
        self._server = driver.Server(sys.modules["ray"], driver._launcher(sys.modules["ray"], "", "job", self._folder))

    def ask(self, do, **values):
        """Answer as the process does, values of JSON included."""
        request = json.loads(json.dumps({"do": do, **values}))
        return driver.value_of(json.loads(json.dumps(self._server.answer(request))))

    def close(self):
        """Leave the cluster."""
        sys.modules["ray"].shutdown()


@pytest.fixture
def head(monkeypatch):
    """A head instead of Ray; it is asked again at once."""
    head = Head()
    ray = SimpleNamespace(
        init=lambda **_: SimpleNamespace(dashboard_url=""),
        nodes=lambda: [{"Alive": True, "Resources": {"CPU": 4.0}}],
        exceptions=SimpleNamespace(RayError=OSError),
        shutdown=head.shutdown,
    )
    monkeypatch.setitem(sys.modules, "ray", ray)
    monkeypatch.setitem(sys.modules, "ray.job_submission", SimpleNamespace(JobSubmissionClient=lambda _: head))
    monkeypatch.setattr(engine_module.importlib.util, "find_spec", lambda _: True)
    monkeypatch.setattr(engine_module, "Driver", DriverHere)
    monkeypatch.setattr(engine_module, "_RETRY_S", 0.0)
    monkeypatch.setattr(engine_module, "_LOOK_S", 0.0)
    monkeypatch.setattr(ray_jobs, "_LOOK_S", 0.0)
    return head


@pytest.fixture
def engine(head, tmp_path):
    """An engine whose runs are Ray Jobs."""
    options = tmp_path / "engines.yaml"
    options.write_text(json.dumps({"ray": {"launch": "job"}}))
    engine = RayEngine(EngineSettings(runner="fake", folder=tmp_path, options=options))
    engine._controller = Controller(retry_s=0.0)
    return engine


def test_a_question_without_an_answer_is_no_end(head, engine):
    """A job that was submitted after the last look is not in what is known, and goes on."""
    engine.submit(SPEC, "mine")
    head.deaf = True
    assert engine.poll(["mine"])["mine"].state is JobState.PENDING
    head.deaf = False
    (job,) = head.jobs
    head.jobs[job] = "RUNNING"
    assert engine.poll(["mine"])["mine"].state is JobState.RUNNING
    del head.jobs[job]
    assert engine.poll(["mine"])["mine"].state is JobState.ENDED


def test_a_job_whose_submission_had_no_answer_is_ended_all_the_same(head, engine, tmp_path):
    """Taken back before it is sent again, it leaves nothing on the head, and no environment on the disk."""
    head.loses_answers = True
    engine.submit(SPEC, "mine")
    head.deaf = True
    assert engine.poll(["mine"])["mine"].state is JobState.PENDING
    head.deaf = False
    engine.cancel("mine", 30.0)
    assert engine.poll(["mine"])["mine"].state is JobState.ENDED
    assert list(head.jobs.values()) == ["STOPPED"]
    assert not list(tmp_path.rglob("*.order"))


def test_a_job_that_was_taken_without_an_answer_gets_no_second_order(head, engine, tmp_path):
    """The first one was used up by the program, and nobody would remove the second, with its environment."""
    head.loses_answers = True
    engine.submit(SPEC, "mine")
    (order,) = tmp_path.rglob("*.order")
    order.unlink()
    head.jobs = dict.fromkeys(head.jobs, "RUNNING")
    engine.poll(["mine"])
    assert engine.poll(["mine"])["mine"].state is JobState.RUNNING
    assert not order.exists()


@pytest.mark.parametrize("deaf", [False, True])
def test_a_refusal_of_a_job_that_was_put_off_is_the_end_of_that_job_only(head, engine, tmp_path, deaf):
    """Polling goes on, and says the reason; a head that cannot be asked refuses nothing."""
    head.refusal = ConnectionError("refused")
    engine.submit(SPEC, "mine")
    assert engine.poll(["mine"])["mine"].state is JobState.PENDING
    head.refusal, head.deaf = RuntimeError("status code 502"), deaf
    status = engine.poll(["mine"])["mine"]
    assert status.state is (JobState.PENDING if deaf else JobState.ENDED)
    assert deaf or "502" in status.reason
    assert engine.capacity(Need(cpus=1.0)) == (0 if deaf else 4)
    engine.close()
    assert head.closed
    assert not list(tmp_path.rglob("*.order"))


@pytest.mark.parametrize("error", [RuntimeError("No available agent to submit job"), ConnectionError("refused")])
def test_a_ray_job_is_asked_for_again_until_the_head_takes_it(head, engine, error):
    """A head that has just started takes no Ray Jobs yet: they wait, and can be taken back."""
    head.refusal = error
    engine.submit(SPEC, "mine")
    status = engine.poll(["mine"])["mine"]
    assert status.state is JobState.PENDING
    assert status.reason or engine.trouble
    head.refusal = None
    engine.poll(["mine"])
    assert list(head.jobs.values()) == ["PENDING"]
    head.refusal = error
    engine.submit(SPEC, "other")
    engine.cancel("other", 30.0)
    engine.poll([])
    assert engine.poll(["other"])["other"].state is JobState.ENDED
    assert len(head.jobs) == 1


def test_a_head_that_is_away_at_the_first_submission_does_not_refuse(head, engine):
    """The job waits and is sent as soon as the head answers."""
    head.deaf = True
    engine.submit(SPEC, "mine")
    assert engine.poll(["mine"])["mine"].state is JobState.PENDING
    assert engine.trouble == "Ray does not answer (Ray Jobs: busy). If its head has ended, start the cluster again."
    head.deaf = False
    engine.poll(["mine"])
    assert engine.trouble == ""
    assert list(head.jobs.values()) == ["PENDING"]
