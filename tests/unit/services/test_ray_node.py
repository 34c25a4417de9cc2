"""A node of a Ray cluster and the command beside it: they start in turn, and end together."""

import os
import shutil
import signal
import subprocess
import sys
from contextlib import suppress

import pytest

from paribus.errors import ServiceError
from paribus.services import health_checks, ray_node
from paribus.services.ray_node import TOKEN_FILE, main, node_command, own_address
from support.site import until

NODE = """
import os, sys, time
os.symlink({sleep!r}, "raylet")
pid = os.spawnv(os.P_NOWAIT, "raylet", ["raylet", "611"])
while open(f"/proc/{{pid}}/comm").read().strip() != "raylet":
    time.sleep(0.01)
with open("pid.new", "w") as file:
    file.write(str(pid))
os.rename("pid.new", "pid")
"""
"""Stands for `ray start`: it leaves a process of the name that counts, and returns."""


@pytest.fixture
def start(tmp_path):
    """Start a node, with a shell's command beside it or none; it ends with the test."""
    begun = []

    def start(command="", node=NODE):
        program = (
            "import os, sys\nfrom paribus.errors import ParibusError\nfrom paribus.services.ray_node import run_node\n"
            f"node = [sys.executable, '-c', {node.format(sleep=shutil.which('sleep'))!r}]\n"
            "try:\n    sys.exit(run_node(node, sys.argv[1:], os.environ))\n"
            "except ParibusError as error:\n    sys.exit(str(error))"
        )
        words = ["sh", "-c", command] if command else []
        process = subprocess.Popen(
            [sys.executable, "-c", program, *words], cwd=tmp_path, stderr=subprocess.PIPE, text=True
        )
        begun.append(process)
        return process

    yield start
    for process in begun:
        process.kill()
        process.communicate()
    with suppress(OSError, ValueError):
        os.kill(int((tmp_path / "pid").read_text()), signal.SIGKILL)


def joined(folder):
    """Wait for the node; return its process id."""
    return int(until(lambda: (folder / "pid").exists() and (folder / "pid").read_text()))


def ended(pid):
    """Return whether a process has ended."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    return False


def test_the_node_ends_with_its_command(start, tmp_path):
    """The exit status is the command's."""
    process = start("exit 7")
    pid = joined(tmp_path)
    process.communicate(timeout=300)
    assert process.returncode == 7
    assert ended(pid)


def test_the_command_ends_with_its_node(start, tmp_path):
    """By force and at once: it could only wait for a node that never comes back."""
    process = start("trap '' TERM; touch up; sleep 611")
    pid = joined(tmp_path)
    until((tmp_path / "up").exists)
    os.kill(pid, signal.SIGKILL)
    _, said = process.communicate(timeout=300)
    assert process.returncode == 1
    assert "this node of the Ray cluster has ended" in said


def test_a_command_that_is_asked_to_stop_keeps_its_node_until_it_has(start, tmp_path):
    """A scheduler needs it while its runs write their checkpoints."""
    process = start("trap 'kill -0 $(cat pid) && touch there; exit 0' TERM; touch up; while :; do sleep 0.1; done")
    pid = joined(tmp_path)
    until((tmp_path / "up").exists)
    process.terminate()
    process.communicate(timeout=300)
    assert process.returncode == 0
    assert (tmp_path / "there").exists()
    assert ended(pid)


def test_a_node_alone_is_stopped(start, tmp_path):
    """With exit status 0, and nothing left."""
    process = start()
    pid = joined(tmp_path)
    process.terminate()
    process.communicate(timeout=300)
    assert process.returncode == 0
    assert ended(pid)


@pytest.mark.parametrize(
    ("node", "said"),
    [("raise SystemExit('no such head')", "did not start: no such head. Is the head up"), ("", "ended right after")],
    ids=["refused", "gone"],
)
def test_a_node_that_does_not_join_is_an_error(start, node, said):
    """The command is not started."""
    process = start("touch started", node)
    _, shown = process.communicate(timeout=300)
    assert process.returncode == 1
    assert said in shown


def test_the_command_line_of_ray():
    """The head has its port, other nodes have its address; a node for a scheduler has no cores."""
    head = node_command("", 6379, "10.0.0.1", 0)
    assert head[3:4] == ["start"]
    assert "--head" in head
    assert head[head.index("--port") + 1] == "6379"
    assert head[head.index("--num-cpus") + 1] == "0"
    other = node_command("head:6379", 6379, "10.0.0.2", None)
    assert other[other.index("--address") + 1] == "head:6379"
    assert other[other.index("--node-ip-address") + 1] == "10.0.0.2"
    assert not {"--head", "--num-cpus", "--include-dashboard"} & {*other}, "Ray allows some for the head alone"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--address", ""], "'' is no HOST:PORT"),
        (["--address", "foo"], "'foo' is no HOST:PORT: write it like ray-head:6379"),
        (["--address", "foo:"], "'' is no port: a number from 1 to 65535"),
        (["--address", "foo:x"], "'x' is no port"),
        (["--address", ":6379"], "':6379' is no HOST:PORT"),
        (["--address", "foo:70000"], "'70000' is no port"),
        (["--head", "--port", "0"], "'0' is no port"),
        (["--head", "--cpus", "-1"], "'-1' is no number of cores"),
    ],
)
def test_a_wrong_option_is_named(capsys, words, said):
    """Before anything is started, with the value and what is allowed."""
    with pytest.raises(SystemExit) as found:
        main(words)
    assert found.value.code == 2
    assert said in capsys.readouterr().err


def test_a_node_is_called_by_its_address_in_the_network_of_the_head(monkeypatch):
    """A machine may have several; a head that no one knows is an error."""
    assert own_address("127.0.0.1:6379") == "127.0.0.1"
    monkeypatch.setattr(ray_node, "_RESOLVE_S", 0.0)
    with pytest.raises(ServiceError, match="no way to no-such-head"):
        own_address("no-such-head.invalid:6379")


@pytest.mark.parametrize(
    ("content", "said"), [(None, "is not set"), ("", "is empty: write the token of the Ray cluster into it")]
)
def test_a_node_without_a_token_is_refused(tmp_path, monkeypatch, capsys, content, said):
    """Before anything is started."""
    monkeypatch.delenv(TOKEN_FILE, raising=False)
    if content is not None:
        (tmp_path / "token").write_text(content)
        monkeypatch.setenv(TOKEN_FILE, str(tmp_path / "token"))
    assert main(["--head"]) == 1
    assert said in capsys.readouterr().err


@pytest.mark.parametrize(
    ("program", "said"),
    [
        ("", None),
        ("raise SystemExit('wrong token')", "does not answer: wrong token"),
        ("import time; time.sleep(611)", "within 2 s"),
    ],
    ids=["works", "refuses", "hangs"],
)
def test_the_check_of_ray_is_rays_own(tmp_path, monkeypatch, program, said):
    """Its exit status and its last line count; what hangs is ended."""
    package = tmp_path / "ray" / "scripts"
    package.mkdir(parents=True)
    for file, text in (("../__init__.py", ""), ("__init__.py", ""), ("scripts.py", program)):
        (package / file).write_text(text)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setenv("RAY_ADDRESS", "head:6379")
    monkeypatch.setattr(health_checks, "find_spec", lambda name: name)
    if said is None:
        health_checks.check("ray", tmp_path, 60)
    else:
        with pytest.raises(ServiceError, match=said):
            health_checks.check("ray", tmp_path, 2 if "2 s" in said else 60)
