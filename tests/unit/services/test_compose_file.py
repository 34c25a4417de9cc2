"""docker-compose.yml without containers: what it grants, that its commands are ours, and which secrets they refuse."""

import os
import re
import subprocess
import sys
from pathlib import Path

import click
import pytest
import yaml

from paribus.cli import paribus
from paribus.mlflow_sync.groups import PUBLIC_URL
from paribus.services.health_checks import CHECKS, DASHBOARD_URL
from paribus_dashboards.api.work import VARIABLES
from paribus_dashboards.command import command as dashboard
from paribus_dashboards.server.serve import PROXIES

ROOT = Path(__file__).resolve().parents[3]
TEXT = (ROOT / "docker-compose.yml").read_text()
SERVICES = yaml.safe_load(TEXT)["services"]

LIMITS = {"user", "read_only", "cap_drop", "security_opt", "logging", "mem_limit", "pids_limit", "restart"}
"""What each service says."""

GRANTS = {"privileged", "cap_add", "network_mode", "pid", "devices", "userns_mode"}
"""What none says."""


@pytest.mark.parametrize("name", SERVICES)
def test_a_service_is_confined(name):
    """No root, no capability, no write to its image, limits, rotated logs, and no secret in the file."""
    service = SERVICES[name]
    assert service.keys() >= LIMITS
    assert not service.keys() & GRANTS
    assert re.match(r"[1-9]\d*:[1-9]\d*$", service["user"])
    assert service["read_only"] is True
    assert service["cap_drop"] == ["ALL"]
    assert service["security_opt"] == ["no-new-privileges:true"]
    assert service["logging"]["options"] == {"max-size": "10m", "max-file": "3"}
    named = service.get("environment", {}).items()
    assert not any(re.search(r"(PASSWORD|TOKEN|SECRET)$", key) and value != f"${{{key}:-}}" for key, value in named)
    assert all(on["condition"] != "service_started" for on in service.get("depends_on", {}).values())
    assert ("ports" in service) == (name == "dashboard")


@pytest.mark.parametrize("name", ["scheduler", "scheduler-gpu", "scheduler-ray", "ray-worker", "dashboard"])
def test_what_plans_or_trains_reaches_the_hub_and_keeps_what_it_loads(name):
    """On a volume, as `/tmp` is lost at each start; the image has the folder, so that the volume gets its owner."""
    service = SERVICES[name]
    assert service["environment"]["HF_TOKEN"] == "${HF_TOKEN:-}"
    place = service["environment"]["HF_HOME"]
    assert f"models:{place}" in service["volumes"]
    assert "outside" in service["networks"]
    made = next(line for line in (ROOT / "Dockerfile").read_text().splitlines() if "mkdir -p" in line)
    assert place in made.split()
    if name != "dashboard":
        assert service["environment"]["PARIBUS_REWARD_WRITES"] == "${PARIBUS_REWARD_WRITES:-}"


def test_the_public_address_is_another_than_the_one_of_the_health_check():
    """Schedulers copy to MLflow, with links for people; the dashboard's container asks itself."""
    for name, service in SERVICES.items():
        named = service.get("environment", {})
        assert ("PARIBUS_PUBLIC_URL" in named) == (name in ("scheduler", "scheduler-gpu", "scheduler-ray")), name
        assert ("PARIBUS_DASHBOARD_URL" in named) == (name == "dashboard"), name
    assert PUBLIC_URL == "PARIBUS_PUBLIC_URL" != DASHBOARD_URL
    assert SERVICES["dashboard"]["environment"].items() >= {
        PROXIES: "${FORWARDED_ALLOW_IPS:-*}", VARIABLES: "${PARIBUS_API_ENVIRONMENT:-}"
    }.items()  # fmt: skip


def test_the_page_names_every_variable_of_the_file():
    """Those that one sets before `up`; names of images are for the tests alone."""
    page = (ROOT / "docs" / "howto" / "deploy.md").read_text()
    names = set(re.findall(r"\$\{(\w+)", TEXT))
    assert {name for name in names if f"`{name}`" not in page and not name.endswith("_IMAGE")} == set()


def test_every_image_has_one_base_that_can_be_pinned():
    """By one variable, whose default is the Dockerfile's; each image says on what it was built."""
    dockerfile = (ROOT / "Dockerfile").read_text()
    default = re.search(r"^ARG BASE=(\S+)$", dockerfile, re.MULTILINE)[1]
    built = [service["build"] for service in SERVICES.values() if "build" in service]
    assert {build["target"] for build in built} == {"core", "train", "vllm"}
    assert {build["args"]["BASE"] for build in built} == {f"${{PARIBUS_BASE:-{default}}}"}
    assert "LABEL org.opencontainers.image.base.name=${BASE}" in dockerfile


def test_the_port_is_on_the_loopback_address():
    """Unless another address is named."""
    assert SERVICES["dashboard"]["ports"] == ["${PARIBUS_BIND:-127.0.0.1}:${PARIBUS_PORT:-8765}:8765"]
    assert [name for name, s in SERVICES.items() if "reservations" in s.get("deploy", {}).get("resources", {})] == [
        "scheduler-gpu"
    ]


@pytest.mark.parametrize("name", SERVICES)
def test_the_command_and_the_health_check_are_ones_that_we_have(name):
    """Each option exists, and no argument of a check holds a blank, at which some engines would split it."""
    words = SERVICES[name].get("command", [])
    if "--" in words:
        words = words[words.index("--") + 1 :]
    if words[:1] == ["paribus"]:
        _parse(words[1:])
    check = SERVICES[name].get("healthcheck", {}).get("test", [])
    assert bool(check) == (name != "migrate")
    assert not any(" " in word for word in check)
    if check[1:3] == ["paribus", "healthcheck"]:
        assert check[3] in CHECKS
        _parse(check[2:])


def _parse(words):
    """Parse a command of ours.

    Raises:
        click.UsageError: there is no such command or option.
    """
    name, *rest = words
    found = dashboard if name == "dashboard" else paribus.get_command(click.Context(paribus), name)
    assert found is not None, f"there is no command {name}"
    if isinstance(found, click.Group):
        found, rest = found.get_command(click.Context(found), rest[0]), rest[1:]
    found.make_context(name, rest)


@pytest.mark.parametrize("content", [None, ""], ids=["missing", "empty"])
@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("migrate", "password"),
        ("mlflow", "password"),
        ("dashboard", "token"),
        ("ray-head", "token of the Ray cluster"),
        ("ray-worker", "token of the Ray cluster"),
        ("scheduler-ray", "token of the Ray cluster"),
    ],
)
def test_an_empty_or_missing_secret_is_refused(tmp_path, name, said, content):
    """The command of the file, with its environment, on this machine: it ends with one line that says which file."""
    service, secrets = SERVICES[name], tmp_path / "secrets"
    secrets.mkdir()
    for secret in service["secrets"] if content is not None else ():
        (secrets / secret).write_text(content)
    program, *words = _here(service["command"], tmp_path)
    named = dict(zip(service["environment"], _here(service["environment"].values(), tmp_path), strict=True))
    done = subprocess.run(
        [sys.executable, *(["-m", "paribus"] if program == "paribus" else []), *words],
        env={**os.environ, **named, "PARIBUS_HOME": str(tmp_path / "home")},
        capture_output=True, text=True, check=False, timeout=120, cwd=tmp_path,
    )  # fmt: skip
    assert done.returncode != 0
    lines = done.stderr.strip().splitlines()
    assert len(lines) == 1, done.stderr
    assert said in lines[0]
    assert str(secrets) in lines[0]


def _here(words, folder):
    """Return words of the file as they hold on this machine: secrets and folders elsewhere, any port."""
    places = {"/run/secrets": str(folder / "secrets"), "/srv/paribus": str(folder), "8765": "0", "0.0.0.0": "127.0.0.1"}
    pattern = re.compile("|".join(map(re.escape, places)))
    plain = (re.sub(r"\$\{\w+:-([^}]*)\}", r"\1", str(word)) for word in words)
    return [pattern.sub(lambda found: places[found[0]], word) for word in plain]
