"""The services of docker-compose.yml: containers with images of this machine, or else its processes."""

import os
import shutil
import socket
import tempfile
from pathlib import Path

import pytest

from compose import engine
from compose.engine import PATIENCE_S
from compose.outside import Outside

SECRETS = ("postgres_password", "dashboard_token", "ray_token")

TEST_S = 4 * PATIENCE_S
"""Seconds for each test, and for a run that it holds: images are built, and other suites share the machine."""

STEPS = 80
"""Steps of a run: as many as eight attempts at one that is held make, and no run here is interrupted that often."""

STUDY = f"""
study: short
base:
  preset: grpo
  set:
    model: tiny
    task: search
    kl: off
    optimizer.learning_rate: 5.0e-4
    schedule: {{steps: {STEPS}, prompts_per_step: 4, group_size: 4, minibatches: 1, epochs: 1, max_new_tokens: 20}}
tricks:
  clip_higher: {{clip.high: 0.28}}
  held: {{reward.functions.gate: {{path: gate.pass_gate, weight: 0.0, timeout_s: {TEST_S:.1f}}}}}
designs: {{solo: {{kind: add_one}}}}
seeds: {{n: 4}}
evaluate: {{every: {STEPS}, problems: 8, primary: eval/heldout/avg_at_1, checkpoint: final}}
checkpoint: {{every: 5}}
timeouts: {{reward: {TEST_S:.1f}}}
"""
"""12 runs of the native runner; those of the arm `held` wait for the test, so that faults meet some that train.

With two slots, and runs in the order of their seeds, both slots hold such a run in the end, and four runs have results.
"""

GATE = '''
"""Holds a run after ten steps of each of its attempts until a file is there."""

import time
from pathlib import Path

OPENED = Path({opened!r})
calls = 0


def pass_gate(completions, **kwargs):
    global calls
    calls += 1
    while calls > 40 and not OPENED.exists():
        time.sleep(0.2)
    return [0.0] * len(completions)
'''
"""The reward function of the arm `held`: a resumed run has new processes, which count anew."""


@pytest.fixture(scope="session")
def images():
    """Build all images; with KEEP=1, use those that are there if none is missing."""
    if reason := no_containers():
        pytest.skip(reason)
    keep = os.environ.get("KEEP") and engine.sizes().keys() >= engine.KINDS
    took = {} if keep else engine.build_images()
    shown = {name: f"{size:.0f} MB" for name, size in engine.sizes().items()}
    print("compose: seconds to build:", {k: round(v) for k, v in took.items()}, "sizes:", shown)
    return engine.sizes()


def no_containers():
    """Return why there are no containers; empty if there are."""
    return "CONTAINERS=0" if os.environ.get("CONTAINERS") == "0" else engine.missing()


@pytest.fixture
def compose(request):
    """A project of a profile, by default `cpu`, with new secrets and one study, not yet up; removed at the end."""
    folder, profile = Path(tempfile.mkdtemp(prefix="paribus-compose-")), getattr(request, "param", "cpu")
    (folder / "secrets").mkdir(mode=0o700)
    for name in SECRETS:
        (folder / "secrets" / name).write_text(os.urandom(32).hex())
        (folder / "secrets" / name).chmod(0o444)
    (folder / "studies").mkdir()
    (folder / "studies" / "short.yaml").write_text(STUDY)
    folder.chmod(0o755)
    reason = no_containers()
    seen = folder / "studies" if reason else Path("/srv/paribus/studies")
    (folder / "studies" / "gate.py").write_text(GATE.format(opened=str(seen / "opened")))
    if reason:
        print(f"compose: services are processes of this machine, not containers: {reason}")
        made = Outside(folder, folder / "studies", profile)
    else:
        request.getfixturevalue("images")
        with socket.create_server(("127.0.0.1", 0)) as probe:
            port = probe.getsockname()[1]
        print("compose: services are containers")
        made = engine.Compose(folder, folder / "studies", port, profile)
    yield made
    made.close()
    shutil.rmtree(folder)
