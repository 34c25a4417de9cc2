"""The mirror in a real MLflow server, on the loopback address."""

import json
import os
import signal
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from collections import Counter

import pytest

from support.processes import until_up

STUDY = """
study: mirrored
question: Does it matter? See https://ada:c4nary@wiki.example/x
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
    until_up(process, address, tmp_path / "server.log")
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


@pytest.mark.slow
def test_runs_are_mirrored_to_the_server_of_the_environment(tmp_path, server):
    """MLFLOW_TRACKING_URI names the server; each run is there once, finished, with every step of a metric once."""
    (tmp_path / "study.yaml").write_text(STUDY)
    done = subprocess.run(
        [sys.executable, "-m", "paribus", "run", "study.yaml", "--slots", "2"],
        cwd=tmp_path,
        env={
            **os.environ,
            "PARIBUS_HOME": str(tmp_path / "home"),
            "MLFLOW_TRACKING_URI": server,
            "PARIBUS_PUBLIC_URL": "http://127.0.0.1:8765",
            "PARIBUS_FAKE": json.dumps({"step_s": 0.01, "rules": []}),
        },
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    experiment = ask(server, "experiments/search", max_results=10, filter="name = 'mirrored'")["experiments"][0]
    found = ask(server, "runs/search", experiment_ids=[experiment["experiment_id"]])["runs"]
    tags = {run["info"]["run_id"]: {tag["key"]: tag["value"] for tag in run["data"]["tags"]} for run in found}
    runs = [run for run in found if "paribus.run" in tags[run["info"]["run_id"]]]
    assert Counter(run["info"]["status"] for run in found) == {"FINISHED": 5}
    assert len(runs) == 2
    names = {run["info"]["run_id"]: run["info"]["run_name"] for run in found}
    parents = {name: names.get(tags[run].get("mlflow.parentRunId", "")) for run, name in names.items()}
    assert parents == {
        "mirrored": None,
        "base": "mirrored",
        "other": "mirrored",
        "base, seed 0": "base",
        "other, seed 0": "other",
    }
    study = next(run for run, name in names.items() if name == "mirrored")
    assert "[Dashboard](http://127.0.0.1:8765/study/mirrored)" in tags[study]["mlflow.note.content"]
    with urllib.request.urlopen(f"{server}/api/2.0/mlflow/artifacts/list?run_id={study}", timeout=30) as answer:
        files = json.load(answer)["files"]
    assert {file["path"] for file in files} == {"study.yaml", "report.md", "report.html"}
    copies = [path.read_bytes() for path in (tmp_path / "store").rglob("*") if path.is_file()]
    assert len(copies) > 5
    assert not any(b"c4nary" in copy for copy in copies)
    assert all(run["info"]["artifact_uri"].startswith("mlflow-artifacts:/") for run in found)  # no path of this machine
    for run in runs:
        query = f"run_id={run['info']['run_id']}&metric_key=reward/mean"
        with urllib.request.urlopen(f"{server}/api/2.0/mlflow/metrics/get-history?{query}", timeout=30) as answer:
            steps = [metric.get("step", 0) for metric in json.load(answer)["metrics"]]
        assert sorted(map(int, steps)) == [1, 2, 3, 4, 5, 6]
    assert not (tmp_path / "home" / "mlflow.db").exists()
