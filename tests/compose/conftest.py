"""The services of docker-compose.yml: containers with images of this machine, or else its processes."""

import os
import shutil
import socket
import tempfile
from pathlib import Path

import pytest

from compose import engine
from compose.outside import Outside

SECRETS = ("postgres_password", "dashboard_token", "ray_token")

STUDY = """
study: short
base:
  preset: grpo
  set:
    model: tiny
    task: search
    kl: off
    optimizer.learning_rate: 5.0e-4
    schedule: {steps: 160, prompts_per_step: 4, group_size: 4, minibatches: 1, epochs: 1, max_new_tokens: 20}
tricks:
  clip_higher: {clip.high: 0.28}
  token_level: {aggregation: token_batch}
designs: {solo: {kind: add_one}}
seeds: {n: 4}
evaluate: {every: 160, problems: 8, primary: eval/heldout/avg_at_1, checkpoint: final}
"""
"""12 runs of the native runner: on an idle machine they take a minute, so that faults meet some that train."""


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
    if reason := no_containers():
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
