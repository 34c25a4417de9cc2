"""The made-up home that pages are tried on."""

import dataclasses
from collections import Counter

from paribus.audit.invariants import audit
from paribus.audit.snapshot import snapshot
from paribus.run_folder.folder import RunFolder, read_json
from paribus.run_folder.series_file import RunSeries
from paribus.store.reader import Reader
from support.homes import ILL, SHAPE, made_up_home

QUICK = dataclasses.replace(
    SHAPE, seeds=4, steps=60, designs=("add_one",), tricks=("clip_higher", "soft_overlong"), problems=8
)


def test_a_made_up_home_is_what_the_platform_would_have_written(tmp_path):
    """Its store passes the audit, and each claimed run has metrics, evaluations and a verdict."""
    data = made_up_home(tmp_path / "home", QUICK)
    with Reader.open(tmp_path / "home") as store:
        assert audit(snapshot(store, deep=True)) == ()
        runs = store.runs_of(store.study(data.plan.study).id)
    assert Counter(r.state for r in runs) == {"SUCCEEDED": len(runs) - 3, "RUNNING": 2, "QUEUED": 1}
    for run in runs[:-1]:
        folder = RunFolder.of(tmp_path / "home", run.fingerprint, run.token)
        span = RunSeries(tmp_path / "home", run.fingerprint, run.token).span
        assert span == (0, QUICK.steps if run.state == "SUCCEEDED" else QUICK.steps * 2 // 3)
        assert folder.read_evaluations()
        ill = (run.label, run.seed) in ILL
        assert (read_json(folder.health)["status"] == "ok") is not ill
