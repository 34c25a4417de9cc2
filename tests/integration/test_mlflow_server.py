"""The mirror in a real MLflow server, on the loopback address."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections import Counter

import pytest

STUDY = """
study: mirrored
runner: fake
base:
  preset: grpo
  set: {schedule.steps: 6, kl: off}
designs:
  one: {kind: list, arms: {other: {set: {scale: none}}}}
seeds: {n: 1}
evaluate: {every: 3, problems: 20, samples: 2}
"""


@pytest.fixture
def server(tmp_path):
    """Start an MLflow server and yield its address."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [sys.executable, "-m", "mlflow", "server", "--workers", "1", "--host", "127.0.0.1", "--port", str(port)]
    command += ["--backend-store-uri", f"sqlite:///{tmp_path / 'server.db'}"]
    command += ["--artifacts-destination", str(tmp_path / "store")]
    quiet = {"MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false", "MLFLOW_DISABLE_TELEMETRY": "true"}
    with (tmp_path / "server.log").open("wb") as log:
        process = subprocess.Popen(
            command, env={**os.environ, **quiet}, stdout=log, stderr=subprocess.STDOUT, start_new_session=True
        )
    address = f"http://127.0.0.1:{port}"
    for _ in range(600):
        try:
            urllib.request.urlopen(f"{address}/health", timeout=1).close()
            break
        except (urllib.error.URLError, OSError):
            assert process.poll() is None, (tmp_path / "server.log").read_text()
            time.sleep(0.1)
    yield address
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def ask(address, call, **body):
    """Return the answer of the server's REST interface."""
    request = urllib.request.Request(
        f"{address}/api/2.0/mlflow/{call}", json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=30) as answer:
        return json.load(answer)


def test_runs_are_mirrored_to_the_server_of_the_environment(tmp_path, server):
    """MLFLOW_TRACKING_URI names the server; each run is there once, finished, with every step of a metric once."""
    (tmp_path / "study.yaml").write_text(STUDY)
    done = subprocess.run(
        [sys.executable, "-m", "paribus", "run", "study.yaml", "--no-report", "--slots", "2"],
        cwd=tmp_path,
        env={
            **os.environ,
            "PARIBUS_HOME": str(tmp_path / "home"),
            "MLFLOW_TRACKING_URI": server,
            "PARIBUS_FAKE": json.dumps({"step_s": 0.01, "rules": []}),
        },
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    experiment = ask(server, "experiments/search", max_results=10, filter="name = 'mirrored'")["experiments"][0]
    runs = ask(server, "runs/search", experiment_ids=[experiment["experiment_id"]])["runs"]
    assert Counter(run["info"]["status"] for run in runs) == {"FINISHED": 2}
    for run in runs:
        query = f"run_id={run['info']['run_id']}&metric_key=reward/mean"
        with urllib.request.urlopen(f"{server}/api/2.0/mlflow/metrics/get-history?{query}", timeout=30) as answer:
            steps = [metric.get("step", 0) for metric in json.load(answer)["metrics"]]
        assert sorted(map(int, steps)) == [1, 2, 3, 4, 5, 6]
    assert not (tmp_path / "home" / "mlflow.db").exists()
