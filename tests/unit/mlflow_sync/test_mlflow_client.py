"""The mirror, with MLflow's own SQLite store: every call may be repeated."""

import math

import pytest

from paribus.health.import_logs import read_mlflow
from paribus.mlflow_sync.client import MlflowWriter, RunCard, tracking_uri
from paribus.run_folder.folder import MetricLine

pytest.importorskip("mlflow")


@pytest.mark.filterwarnings("ignore")  # MLflow's own
def test_a_run_is_written_once_however_often_it_is_sent(tmp_path, monkeypatch):
    """The same run, parameters and points by two clients; infinities become NaN; times are the records'; read back."""
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    card = RunCard(
        fingerprint="f" * 64,
        study="ladder",
        name="+ clip_higher, seed 1",
        params={f"clip.p{i}": "x" * 600 for i in range(120)},
        tags={"paribus.arm": "+ clip_higher"},
        start_ms=1_000,
    )
    lines = [
        MetricLine(step=s, time_ms=1_000 + s, values={"reward/mean": 0.5, "kl/old_k3": math.inf}) for s in range(600)
    ]
    identities = set()
    for _ in range(2):
        mirror = MlflowWriter(tracking_uri(tmp_path), tmp_path)
        identity = mirror.open_run(card)
        identities.add(identity)
        mirror.describe(identity, card)
        mirror.log(identity, lines)
        mirror.close_run(identity, succeeded=True, end_ms=9_000)
    assert len(identities) == 1
    run = mirror._client.get_run(identity)
    assert (run.info.status, run.info.start_time, run.info.end_time) == ("FINISHED", 1_000, 9_000)
    assert len(run.data.params) == 120
    history = mirror._client.get_metric_history(identity, "kl/old_k3")
    assert [m.step for m in history] == list(range(600))
    assert [m.timestamp for m in history] == [1_000 + s for s in range(600)]
    assert all(math.isnan(m.value) for m in history)
    assert mirror.steps(identity, ["reward/mean"]) == {"reward/mean": set(range(600))}
    log = read_mlflow(identity, tracking_uri(tmp_path))
    assert (log.mapped.trainer, [line.step for line in log.lines]) == ("paribus", list(range(600)))
    assert all(line.values["reward/mean"] == 0.5 for line in log.lines)


def test_a_server_is_used_if_the_environment_names_one(tmp_path, monkeypatch):
    """`MLFLOW_TRACKING_URI` wins; without it everything stays in the home folder."""
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://tracking:5000")
    assert tracking_uri(tmp_path) == "http://tracking:5000"
    monkeypatch.delenv("MLFLOW_TRACKING_URI")
    assert tracking_uri(tmp_path) == f"sqlite:///{tmp_path}/mlflow.db"
