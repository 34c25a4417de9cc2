"""The compose file, brought up by Docker Compose itself: what is reachable, and what survives which fault.

Where containers can't be started, or with CONTAINERS=0, its services are processes of this machine instead.
"""

import json
import os
import re
import sys
import tempfile
import time
import urllib.error
import urllib.request
from dataclasses import dataclass
from pathlib import Path

import pytest

from compose.conftest import SECRETS, STEPS, TEST_S
from compose.engine import FOLDER, MOUNTED, PATIENCE_S, ROOT, docker_compose, run

pytestmark = pytest.mark.timeout(TEST_S)

FILE, S3 = ROOT / "docker-compose.yml", ROOT / "containers" / "s3.yml"

PROFILES = {"cpu": {"scheduler"}, "gpu": {"scheduler-gpu"}, "ray": {"ray-head", "ray-worker", "scheduler-ray"}}
"""The services that each profile adds."""

SERVICES = {"postgres": {5432}, "mlflow": {5000}, "dashboard": {8765}, "scheduler": set()}
"""The services that stay, each with the ports on which it may listen."""


class NoAnswer(Exception):
    """What is to answer can't do so now."""


def until(condition, what):
    """Wait until a condition gives something; return it."""
    end, said = time.monotonic() + PATIENCE_S, ""
    while True:
        begun = time.monotonic()
        try:
            if found := condition():
                return found
        except NoAnswer as error:
            said = f": {error}"
        assert time.monotonic() < end, f"not in time: {what}{said}"
        time.sleep(max(5.0, 4 * (time.monotonic() - begun)))  # looking costs a core, too, on a busy machine for long


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
    return compose.healthy((SERVICES.keys() - {"scheduler"}) | PROFILES[compose.profile])


def outcome(compose):
    """Return what became of the runs, counted inside the scheduler's container.

    Raises:
        NoAnswer: the container or the database is starting again.
    """
    code = (Path(__file__).parent / "points.py").read_text()
    shown = compose.inside(compose.scheduler, "python", "-", check=False, given=code)
    last = shown.splitlines()[-1:]
    if not last or not last[0].startswith('{"states"'):
        raise NoAnswer(shown[-2000:])
    return json.loads(last[0])


# ---- the file ----------------------------------------------------------------------------------------


def merged(profile, *files, check=True, command=("config", "--format", "json"), **named):
    """Return what Docker Compose makes of the file for a profile, or what it says against it."""
    if not (FOLDER / "docker-compose").exists():
        pytest.skip("Docker Compose is not there: `make test-compose` as root fetches it")
    return docker_compose([FILE, *files], profile, *command, environment={**os.environ, **named}, check=check)


@pytest.mark.parametrize("profile", PROFILES)
def test_the_file_is_valid_and_a_misspelt_key_is_not(tmp_path, profile):
    """Docker Compose itself judges."""
    merged(profile, command=("config", "--quiet"))
    wrong = tmp_path / "wrong.yml"
    wrong.write_text("services: {dashboard: {helthcheck: {interval: 1s}}}\n")
    assert "helthcheck" in merged(profile, wrong, command=("config", "--quiet"), check=False)


def test_files_of_runs_may_lie_in_an_s3_compatible_store():
    """MLflow's server gets its address, the credentials from a file, and a way out; nothing else changes."""
    place = {"PARIBUS_ARTIFACTS": "s3://runs/files", "PARIBUS_S3_ENDPOINT": "https://s3.example.org"}
    found = json.loads(merged("cpu", S3, **place))["services"]
    plain = json.loads(merged("cpu"))["services"]
    assert "--artifacts=s3://runs/files" in found["mlflow"]["command"]
    assert found["mlflow"]["environment"]["MLFLOW_S3_ENDPOINT_URL"] == "https://s3.example.org"
    assert {s["source"] for s in found["mlflow"]["secrets"]} == {"postgres_password", "s3_credentials"}
    assert {name: s for name, s in found.items() if name != "mlflow"} == {
        n: s for n, s in plain.items() if n != "mlflow"
    }
    changed = {key for key in found["mlflow"] if found["mlflow"][key] != plain["mlflow"].get(key)}
    assert changed == {"command", "environment", "secrets", "networks"}
    assert "is missing a value: set it to" in merged("cpu", S3, check=False)


@pytest.mark.parametrize("profile", PROFILES)
def test_every_service_is_confined(profile):
    """What Docker Compose passes on: no root, no capability, a read-only image, limits, rotated logs, one port."""
    services = json.loads(merged(profile))["services"]
    assert services.keys() == {"postgres", "migrate", "mlflow", "dashboard"} | PROFILES[profile]
    for name, service in services.items():
        assert not re.match(r"(0|root)\b", service["user"]), name
        assert service["read_only"] is True, name
        assert service["cap_drop"] == ["ALL"], name
        assert service["security_opt"] == ["no-new-privileges:true"], name
        assert service["logging"]["options"] == {"max-size": "10m", "max-file": "3"}, name
        assert int(service["mem_limit"]) > 0, name
        assert service["pids_limit"] > 0, name
        assert service["restart"] in ("unless-stopped", "on-failure:5"), name
        assert not service.keys() & {"privileged", "cap_add", "network_mode", "pid", "devices"}, name
        assert name == "migrate" or all(" " not in word for word in service["healthcheck"]["test"]), name
        assert all(on["condition"] != "service_started" for on in service.get("depends_on", {}).values()), name
        secret = [key for key in service.get("environment", {}) if re.search("PASSWORD$|TOKEN$|SECRET$", key)]
        assert secret == ["HF_TOKEN"] * ("HF_HOME" in service.get("environment", {})), name
    ports = {name: service["ports"] for name, service in services.items() if "ports" in service}
    assert [(p["host_ip"], p["published"], p["target"]) for p in ports.pop("dashboard")] == [
        ("127.0.0.1", "8765", 8765)
    ]
    assert ports == {}
    held = [s["deploy"]["resources"]["reservations"]["devices"] for s in services.values() if reserves(s)]
    assert [d["capabilities"] for devices in held for d in devices] == ([["gpu"]] if profile == "gpu" else [])


def reserves(service):
    """Return whether a service reserves devices."""
    return "reservations" in service.get("deploy", {}).get("resources", {})


# ---- secrets and images ------------------------------------------------------------------------------


@pytest.fixture
def empty_secrets():
    """A folder with empty secrets that every user can read: not one of pytest's, whose modes are pytest's."""
    with tempfile.TemporaryDirectory(prefix="paribus-compose-") as folder:
        for name in SECRETS:
            (Path(folder) / name).touch()
        Path(folder).chmod(0o755)
        yield folder


def test_an_empty_secret_is_refused(compose, empty_secrets):
    """By the database, by what connects to it, by the dashboard and by Ray's nodes."""
    for service, said in (
        ("postgres", "is empty"),
        ("migrate", "is empty: write the password into it"),
        ("mlflow", "is empty: write the password into it"),
        ("dashboard", "holds no token of at least 16 characters"),
        ("ray-head", "is empty: write the token of the Ray cluster into it"),
        ("ray-worker", "is empty: write the token of the Ray cluster into it"),
        ("scheduler-ray", "is empty: write the token of the Ray cluster into it"),
    ):
        shown = compose.run(service, Path(empty_secrets))
        assert said in shown, f"{service}: {shown[-1000:]}"


def test_the_images_are_small(images):
    """What the page says of the sizes; the base is Debian's Python."""
    assert images["core"] < 400


# ---- the way of a study ------------------------------------------------------------------------------


def test_a_study_survives_the_faults_of_a_server(compose, tmp_path):
    """Up, submitted by token, MLflow away, PostgreSQL restarted, the scheduler killed: nothing is lost or doubled."""
    begun = time.monotonic()
    compose.up()
    address = compose.address
    token = (compose.secrets / "dashboard_token").read_text()
    until(lambda: status_of(f"{address}?token={token}") == 200, "the dashboard")
    laptop = Laptop(address, made_token(compose, "run"), compose.studies / "short.yaml", tmp_path)
    said = laptop("submit", laptop.study)
    assert "short: 12 runs: 12 new" in said, said
    print(f"compose: {time.monotonic() - begun:.0f} s from `up` to a dashboard and a study submitted to it")
    check_tokens(compose, laptop, token)
    check_next_start(compose)
    saved = back_up(compose, tmp_path) if compose.containers else 0
    check_faults(compose)
    check_ports(compose)
    assert "12 succeeded" in laptop("submit", laptop.study)
    if compose.containers:
        check_restore(compose, laptop, saved)


@dataclass
class Laptop:
    """Another machine than the server: it has Paribus, a study file, an address and a token."""

    address: str
    token: str
    study: Path
    folder: Path

    def __call__(self, *arguments, token=None):
        """Run a command, by default with the own token; return what it printed."""
        named = {"PARIBUS_SERVER": self.address, "PARIBUS_TOKEN": token or self.token}
        command = [sys.executable, "-m", "paribus", *map(str, arguments)]
        return run(*command, check=False, cwd=self.folder, env={**os.environ, **named})


def made_token(compose, scope):
    """Make a token on the server; return it."""
    said = compose.inside(compose.scheduler, "paribus", "token", "create", "--scope", scope, "--name", f"{scope}ner")
    return re.search(r"^paribus_\S+", said, re.MULTILINE)[0]


def check_tokens(compose, laptop, token):
    """Without a token, or with another one, nothing is shown; a token that may read can't submit."""
    assert status_of(laptop.address) == 401
    assert status_of(f"{laptop.address}?token={token[:-1]}") == 401
    assert status_of(f"{laptop.address}api/studies") == 401
    reader = made_token(compose, "read")
    assert "clip_higher" in laptop("status", "short", token=reader)
    for command in (("submit", laptop.study), ("cancel", "short")):
        said = laptop(*command, token=reader)
        assert "has the scope `read`, and this needs `run`" in said, said
        assert reader not in said
    assert "Set PARIBUS_TOKEN" in laptop("submit", laptop.study, token=f"paribus_{'x' * 43}")


def among_runs(found):
    """Return whether some runs have ended and both slots hold another."""
    return found["results"] > 1 and found["states"].get("RUNNING") == 2


def gate(compose):
    """Return the file for which the runs of the arm `held` wait."""
    return compose.studies / "opened"


def check_next_start(compose):
    """After `down` and `up` in mid-study, it goes on where it stood."""
    before = until(
        lambda: (o := outcome(compose))["results"] > 0 and o["states"].get("RUNNING") and o, "a first result"
    )
    compose.down()
    compose.up()
    after = until(lambda: outcome(compose), "the counts after the next start")
    assert after["results"] >= before["results"]
    assert after["attempts"] >= before["attempts"]


def typed(title, number=0):
    """Return the lines of a block of commands of the page, the first after a title or a later one."""
    text = (ROOT / "docs" / "howto" / "deploy.md").read_text().partition(f"**{title}**")[2]
    return re.findall(r"^```sh\n(.*?)```$", text, re.DOTALL | re.MULTILINE)[number].splitlines()


def back_up(compose, folder):
    """Make the page's backup while the study runs; return how many results there were before."""
    before = outcome(compose)["results"]
    for line in typed("Backup"):
        compose.type(f"{line} || test $? = 1" if " tar " in line else line, folder)
    return before


def check_restore(compose, laptop, saved):
    """Bring the backup back into empty volumes as the page says: the study goes on to its end, and tokens hold."""
    gate(compose).unlink()
    compose.docker("down", "--volumes")
    for line in typed("Restore"):
        said = compose.type(line.replace("doctor", "doctor || true"), laptop.folder)
    left = set(re.findall(r"folder (runs/\w+/a\d+): the store has no such attempt", said))
    print(f"compose: restored with {saved} results; folders of attempts after the first copy: {len(left)}")
    remove, start = typed("Restore", 1)
    for attempt in left:
        compose.type(re.sub(r"runs/\w+/a\d+", attempt, remove), laptop.folder)
    compose.type(f"{start} --no-build", laptop.folder)
    after = until(lambda: outcome(compose), "the counts after the restore")
    assert after["results"] >= saved
    gate(compose).touch()
    until(lambda: outcome(compose)["states"] == {"SUCCEEDED": 12}, "the end of the restored study")
    found = until(lambda: (o := outcome(compose))["lost"] == 0 and o, "MLflow's copy of the restored study")
    print("compose: after the restore:", json.dumps(found))
    assert (found["results"], found["copies"], found["doubled"], found["violations"]) == (12, 12, 0, [])
    until(lambda: status_of(laptop.address) == 401, "the dashboard")
    assert "12 succeeded" in laptop("submit", laptop.study)


def check_faults(compose):
    """While the study runs MLflow is killed, PostgreSQL is restarted and the scheduler is killed by force."""
    compose.stop("mlflow")
    stopped = time.monotonic()
    compose.restart("postgres")
    before = until(lambda: among_runs(o := outcome(compose)) and o, "results and a run after the restart of PostgreSQL")
    killed = compose.pid("scheduler")
    compose.kill("scheduler")
    until(lambda: compose.pid("scheduler") not in (0, killed), "another scheduler")
    until(lambda: outcome(compose)["again"] > before["again"], "another attempt at a run that the kill interrupted")
    gate(compose).touch()
    until(lambda: outcome(compose)["results"] > before["results"], "a result without MLflow")
    assert compose.pid("mlflow") == 0, "MLflow was to be away"
    print(f"compose: MLflow was away for {time.monotonic() - stopped:.0f} s")
    compose.start("mlflow")
    until(lambda: healthy(compose), "the health of all services")
    until(lambda: outcome(compose)["states"] == {"SUCCEEDED": 12}, "the end of the study")
    found = until(lambda: (o := outcome(compose))["lost"] == 0 and o, "MLflow's copy")
    print("compose: after the faults:", json.dumps(found))
    assert (found["results"], found["copies"], found["doubled"]) == (12, 12, 0)
    assert found["resumed"] > 0, "no run went on from a checkpoint"
    assert found["points"] > 12 * STEPS
    assert found["violations"] == []
    assert found["user"] == (10001 if compose.containers else os.getuid())
    # its exit status also depends on MLflow's answer within 30 s, which a busy machine may miss
    said = compose.inside("scheduler", "paribus", "doctor", "--deep", "--json", check=False)
    checks = {each["name"]: each for each in json.loads(said[said.index("{") : said.rindex("}") + 1])["checks"]}
    print("compose: paribus doctor:", checks["invariants"]["message"])
    assert checks["invariants"]["level"] == checks["database"]["level"] == checks["processes"]["level"] == "ok"


def check_ports(compose):
    """Inside each service listens on its own port, outside there is the dashboard's alone."""
    for name, ports in SERVICES.items():
        assert compose.ports(name) == ports, name
    check_outside(compose)


def check_outside(compose):
    """On this machine the dashboard's port is the only one of the containers', on the loopback address."""
    assert compose.outside() == [compose.address.removeprefix("http://").rstrip("/")] * compose.containers


@pytest.mark.parametrize("compose", ["ray"], indirect=True)
def test_a_study_runs_on_the_workers_of_ray(compose, tmp_path):
    """Head, worker and scheduler find each other by the token; each run is the worker's, also when the scheduler
    is killed in mid-study: it joins again, and takes over what still runs.
    """
    if not compose.containers or MOUNTED:
        pytest.skip("Ray's nodes are started in containers of whole images alone")
    compose.up()
    address = compose.address
    laptop = Laptop(address, made_token(compose, "run"), compose.studies / "short.yaml", tmp_path)
    until(lambda: status_of(address) == 401, "the dashboard")
    assert "12 runs: 12 new" in laptop("submit", laptop.study)
    until(lambda: among_runs(outcome(compose)), "results and a run")
    killed = compose.pid("scheduler-ray")
    compose.kill("scheduler-ray")
    until(lambda: compose.pid("scheduler-ray") not in (0, killed), "another scheduler")
    gate(compose).touch()
    until(lambda: outcome(compose)["states"] == {"SUCCEEDED": 12}, "the end of the study")
    found = until(lambda: (o := outcome(compose))["lost"] == 0 and o, "MLflow's copy")
    print("compose: on Ray:", json.dumps(found))
    assert (found["results"], found["copies"], found["doubled"], found["violations"]) == (12, 12, 0, [])
    hostname = compose.podman("inspect", "--format", "{{.Config.Hostname}}", compose.name("ray-worker"))
    assert found["hosts"] == [hostname.split()[-1]]
    check_outside(compose)
    for name in ("ray-head", "ray-worker"):
        assert "ray works" in compose.inside(name, "paribus", "healthcheck", "ray", "--timeout", "60")
    until(lambda: healthy(compose), "the health of all services")
