"""The containers of docker-compose.yml, with images of this machine."""

import os
import shutil
import socket
import tempfile
from pathlib import Path

import pytest

from compose import engine

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
    schedule: {steps: 40, prompts_per_step: 4, group_size: 4, minibatches: 1, epochs: 1, max_new_tokens: 20}
tricks:
  clip_higher: {clip.high: 0.28}
  token_level: {aggregation: token_batch}
designs: {solo: {kind: add_one}}
seeds: {n: 4}
evaluate: {every: 40, problems: 8, primary: eval/heldout/avg_at_1, checkpoint: final}
"""
"""12 runs of the native runner with 40 steps each."""


@pytest.fixture(scope="session")
def images():
    """Build all images; with KEEP=1, use those that are there if none is missing."""
    if reason := engine.missing():
        pytest.skip(f"containers: {reason}")
    keep = os.environ.get("KEEP") and engine.sizes().keys() >= engine.KINDS
    took = {} if keep else engine.build_images()
    shown = {name: f"{size:.0f} MB" for name, size in engine.sizes().items()}
    print("containers: seconds to build:", {k: round(v) for k, v in took.items()}, "sizes:", shown)
    return engine.sizes()


@pytest.fixture
def compose(images, request):
    """A project of a profile, by default `cpu`, with new secrets and one study, not yet up; removed at the end."""
    folder = Path(tempfile.mkdtemp(prefix="paribus-compose-"))
    (folder / "secrets").mkdir(mode=0o700)
    for name in SECRETS:
        (folder / "secrets" / name).write_text(os.urandom(32).hex())
        (folder / "secrets" / name).chmod(0o444)
    (folder / "studies").mkdir()
    (folder / "studies" / "short.yaml").write_text(STUDY)
    folder.chmod(0o755)
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    made = engine.Compose(folder, folder / "studies", port, getattr(request, "param", "cpu"))
    yield made
    made.close()
    shutil.rmtree(folder)
