"""The compose file, brought up by Docker Compose itself: what is reachable, and what survives which fault."""

import json
import os
import re
import signal
import subprocess
import time
import urllib.error
import urllib.request
from pathlib import Path

import pytest
import yaml

from compose.engine import PATIENCE_S, ROOT

pytestmark = pytest.mark.timeout(4 * PATIENCE_S)  # images are built, and containers share the machine with other suites

SERVICES = {"postgres": {5432}, "mlflow": {5000}, "dashboard": {8765}, "scheduler": set()}
"""The services that stay, each with the ports on which it may listen."""


class NoAnswer(Exception):
    """What is to answer can't do so now."""


def until(condition, what):
    """Wait until a condition gives something; return it."""
    end, said = time.monotonic() + PATIENCE_S, ""
    while True:
        try:
            if found := condition():
                return found
        except NoAnswer as error:
            said = f": {error}"
        assert time.monotonic() < end, f"not in time: {what}{said}"
        time.sleep(5)  # looking costs a core, too


def status_of(address):
    """Return the status of a request.

    Raises:
        NoAnswer: nothing answers.
    """
    try:
        with urllib.request.urlopen(address, timeout=30) as answer:
            return answer.status
    except urllib.error.HTTPError as error:
        error.close()
        return error.code
    except OSError as error:
        raise NoAnswer(str(error)) from error


def healthy(compose):
    """Return whether all services that stay are healthy."""
    shown = compose.podman("ps", "--format", "{{.Names}} {{.Status}}")
    return all(re.search(rf"^{compose.name(name)} .*\(healthy\)", shown, re.MULTILINE) for name in SERVICES)


def outcome(compose):
    """Return what became of the runs, counted inside the scheduler's container.

    Raises:
        NoAnswer: the container or the database is starting again.
    """
    code = (Path(__file__).parent / "points.py").read_text()
    shown = subprocess.run(
        ["podman", "exec", "-i", compose.name("scheduler"), "python", "-"],
        input=code, env=compose.environment, capture_output=True, text=True, check=False,
    )  # fmt: skip
    if shown.returncode != 0:
        raise NoAnswer(shown.stderr[-2000:])
    return json.loads(shown.stdout.splitlines()[-1])


def listening(pid):
    """Return pairs of an address and a port on which processes in the network of a process listen."""
    shown = subprocess.run(["nsenter", "-t", str(pid), "-n", "ss", "-Htln"], capture_output=True, text=True, check=True)
    places = [line.split()[3].rpartition(":") for line in shown.stdout.splitlines()]
    return {(address, int(port)) for address, _, port in places}


# ---- the file ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("profile", ["cpu", "gpu"])
def test_the_file_is_valid_and_a_misspelt_key_is_not(compose, tmp_path, profile):
    """Docker Compose itself judges."""
    compose("--profile", profile, "config", "--quiet")
    wrong = tmp_path / "wrong.yml"
    wrong.write_text("services: {dashboard: {helthcheck: {interval: 1s}}}\n")
    said = compose("--profile", profile, "config", "--quiet", files=[wrong], check=False)
    assert "helthcheck" in said


def test_every_service_is_confined():
    """No root, no capability, no write to its image, limits, rotated logs; one port, on the loopback address."""
    text = (ROOT / "docker-compose.yml").read_text()
    services = yaml.safe_load(text)["services"]
    assert SERVICES.keys() | {"migrate", "scheduler-gpu"} == services.keys()
    for name, service in services.items():
        assert service["read_only"] is True, name
        assert service["cap_drop"] == ["ALL"], name
        assert service["security_opt"] == ["no-new-privileges:true"], name
        assert service["logging"]["options"].keys() == {"max-size", "max-file"}, name
        assert {"pids_limit", "mem_limit", "restart"} <= service.keys(), name
        assert "privileged" not in service, name
        assert name == "migrate" or all(" " not in word for word in service["healthcheck"]["test"]), name
        assert all(on["condition"] != "service_started" for on in service.get("depends_on", {}).values()), name
    assert {name: s["ports"] for name, s in services.items() if "ports" in s} == {
        "dashboard": ["${PARIBUS_BIND:-127.0.0.1}:${PARIBUS_PORT:-8765}:8765"]
    }
    assert "PASSWORD:" not in text
    assert services["scheduler-gpu"]["deploy"]["resources"]["reservations"]["devices"][0]["capabilities"] == ["gpu"]


def test_an_empty_secret_is_refused(compose, tmp_path):
    """By the database, by what connects to it, and by the dashboard."""
    tmp_path.chmod(0o755)
    for name in ("postgres_password", "dashboard_token"):
        (tmp_path / name).touch()
    for service, said in (
        ("postgres", "is empty"),
        ("migrate", "is empty: write the password into it"),
        ("mlflow", "is empty: write the database's password into it"),
        ("dashboard", "holds no token of at least 16 characters"),
    ):
        shown = compose("run", "--rm", "--no-deps", service, check=False, PARIBUS_SECRETS=str(tmp_path))
        assert said in shown, f"{service}: {shown[-1000:]}"
    compose("down", "--volumes")


def test_the_images_are_small(images):
    """What the page says of the sizes; the base is Debian's Python."""
    assert images["core"] < 400


# ---- the way of a study ------------------------------------------------------------------------------


def test_a_study_survives_the_faults_of_a_server(compose):
    """Up, submitted, MLflow away, PostgreSQL restarted, the scheduler killed: nothing is lost, nothing is doubled."""
    begun = time.monotonic()
    compose("up", "--detach", "--no-build")
    said = compose.inside("scheduler", "paribus", "submit", "/srv/paribus/studies/short.yaml")
    assert "short: 12 runs: 12 new" in said
    address = f"http://127.0.0.1:{compose.port}/"
    token = (compose.secrets / "dashboard_token").read_text()
    until(lambda: status_of(f"{address}?token={token}") == 200, "the dashboard")
    print(f"containers: {time.monotonic() - begun:.0f} s from `up` to a submitted study and its dashboard")
    assert status_of(address) == 401
    assert status_of(f"{address}?token={token[:-1]}") == 401
    check_faults(compose)
    found = outcome(compose)
    check_ports(compose)
    check_next_start(compose, found)


def among_runs(found):
    """Return whether some runs have ended and others run."""
    return found["results"] > 1 and found["states"].get("RUNNING")


def check_faults(compose):
    """While the study runs MLflow goes away, PostgreSQL is restarted and the scheduler is killed by force."""
    until(lambda: outcome(compose)["attempts"] > 0, "the first run")
    compose("stop", "--timeout", "0", "mlflow")
    stopped = time.monotonic()
    compose("restart", "--timeout", "10", "postgres")
    until(lambda: among_runs(outcome(compose)), "results and a run after the restart of PostgreSQL")
    killed = compose.pid("scheduler")
    os.kill(killed, signal.SIGKILL)
    until(lambda: compose.pid("scheduler") not in (0, killed), "another scheduler")
    time.sleep(max(0.0, 60 - (time.monotonic() - stopped)))
    compose("start", "mlflow")

    until(lambda: healthy(compose), "the health of all services")
    until(lambda: outcome(compose)["states"] == {"SUCCEEDED": 12}, "the end of the study")
    found = until(lambda: (o := outcome(compose))["lost"] == 0 and o, "MLflow's copy")
    assert (found["results"], found["copies"], found["doubled"]) == (12, 12, 0)
    assert found["attempts"] > 12, "the scheduler was killed while nothing ran"
    assert found["points"] > 12 * 12
    assert found["violations"] == []
    assert found["user"] == 10001


def check_ports(compose):
    """Inside each service listens on its own port, outside there is the dashboard's alone."""
    for name, ports in SERVICES.items():
        open_to_others = {port for address, port in listening(compose.pid(name)) if not address.startswith("127.")}
        assert open_to_others == ports, name
    shown = subprocess.run(["ss", "-Htlnp"], capture_output=True, text=True, check=True).stdout
    ours = [
        line.split()[3] for line in shown.splitlines() if re.search(r'"(conmon|podman|netavark|rootlessport)"', line)
    ]
    assert ours == [f"127.0.0.1:{compose.port}"]
    published = compose.podman("ps", "--format", "{{.Names}} {{.Ports}}")
    assert re.findall(r"(\S+)->", published) == [f"127.0.0.1:{compose.port}"]


def check_next_start(compose, found):
    """After `down` and `up`, all that was there is there; the same study has nothing to do."""
    compose("down")
    compose("up", "--detach", "--no-build")
    said = compose.inside("scheduler", "paribus", "submit", "/srv/paribus/studies/short.yaml")
    assert "12 succeeded" in said
    until(lambda: healthy(compose), "the health of all services")
    again = until(lambda: outcome(compose), "the counts after the next start")
    assert {**again, "attempts": 0} == {**found, "attempts": 0}
