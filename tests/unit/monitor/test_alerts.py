"""What becomes critical while runs train is told once, shown by status and name, and mirrored."""

import gc

import pytest

from paribus.monitor.alerts import Alerts
from paribus.monitor.status import page_of
from paribus.run_folder.folder import MetricLine, RunFolder, Tail, write_json
from paribus.store.store import Store
from support.plans import small_plan

FOUND = {"detector": "truncation", "state": "critical", "evidence": "60% are cut off", "step_onset": 20}


def verdict(folder, status, *findings):
    """Write what a supervisor would."""
    known = {"status": status, "sentence": "", "step": 2, "time_ms": 5, "profile": "default 1"}
    write_json(folder.health, {**known, "findings": list(findings)})


@pytest.fixture
def case(tmp_path):
    """A store with one run in progress, its folder, and the study."""
    with Store.open(tmp_path) as store:
        study = store.add_study(small_plan(arms=1, seeds=1))
        claim = store.claim(study.id, engine="test", worker="here")
        store.start(claim.run_id, claim.token)
        folder = RunFolder.of(tmp_path, claim.fingerprint, claim.token)
        folder.path.mkdir(parents=True)
        yield store, study, claim, folder


def test_each_critical_finding_is_told_once(case):
    """A warning is not told, a critical finding is, also that of a run that has ended since the last look."""
    store, study, claim, folder = case
    said = []
    news = Alerts(store, study, said.append)
    verdict(folder, "warn", FOUND | {"state": "warn"})
    assert news.view(0.0).live[0].status == "warn"
    assert said == []
    verdict(folder, "critical", FOUND)
    news.view(1.0), news.view(2.0)
    assert said == ["small: arm 0, seed 0: truncation is critical: 60% are cut off"]
    verdict(folder, "critical", FOUND, FOUND | {"detector": "dead_update", "evidence": "no step"})
    store.fail(claim.run_id, claim.token, "program", "ValueError")
    news.view(3.0)
    assert said[1:] == ["small: arm 0, seed 0: dead_update is critical: no step"]


def test_what_has_ended_is_let_go(case):
    """Two looks after its end nothing of an attempt is kept: a study may have a hundred thousand."""
    store, study, claim, folder = case

    def kept():
        gc.collect()
        return [tail for tail in gc.get_objects() if type(tail) is Tail and tail.path == folder.metrics]

    news = Alerts(store, study, lambda line: None)
    news.view(0.0)
    assert kept()
    store.finish(claim.run_id, claim.token, {"status": "succeeded"})
    news.view(1.0), news.view(2.0)
    assert not kept()


def test_status_names_health_and_worst_detector(case):
    """Without a verdict numbers that are none are seen all the same; a folder without anything is grey."""
    store, _, _, folder = case

    def shown():
        [entry] = page_of(store, "small")["runs"]
        return entry["health"], entry["detector"]

    assert shown() == ("unknown", "")
    verdict(folder, "ok")
    assert shown() == ("ok", "")
    verdict(folder, "critical", FOUND)
    assert shown() == ("critical", "truncation")
    folder.health.unlink()
    folder.append_metrics(MetricLine(step=1, time_ms=0, values={"reward/mean": float("nan")}))
    assert shown() == ("critical", "nan")


@pytest.mark.parametrize(
    ("step", "score", "whole"), [(4, 0.5, True), (4, float("nan"), False), (4, None, False), (3, 0.5, False)]
)
def test_status_knows_a_run_that_was_stopped_at_its_last_step(case, step, score, whole):
    """It needs all its steps and a score there: then a report counts it as finished, too."""
    store, study, claim, folder = case
    values = {"reward/mean": 0.1} | ({} if score is None else {study.plan.evaluate.primary_metric: score})
    folder.append_metrics(MetricLine(step=step, time_ms=0, values=values))
    assert [entry["stopped_at_end"] for entry in page_of(store, "small")["runs"]] == [False]
    store.finish(claim.run_id, claim.token, {"status": "stopped_early", "reason": "nan"}, stopped_early=True)
    [entry] = page_of(store, "small")["runs"]
    assert (entry["state"], entry["stopped_at_end"]) == ("STOPPED_EARLY", whole)
