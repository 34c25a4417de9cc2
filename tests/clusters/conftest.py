"""A real Slurm cluster of two nodes on this machine, and the runner ``fake`` for its jobs."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from paribus.testing.fake_runner import install

CLUSTER = Path(__file__).with_name("slurm_cluster.py")


@pytest.fixture(scope="session")
def slurm_cluster(tmp_path_factory):
    """Start the cluster for all tests; return the path of its configuration."""
    folder = tmp_path_factory.mktemp("slurm") / "cluster"
    started = subprocess.run([sys.executable, CLUSTER, "up", folder], capture_output=True, text=True, check=False)
    if started.returncode == 3:
        pytest.skip(f"{started.stdout.strip()} (`make engines` installs it)")
    assert started.returncode == 0, started.stderr
    yield folder / "slurm.conf"
    subprocess.run([sys.executable, CLUSTER, "down", folder], check=True)


@pytest.fixture
def slurm(slurm_cluster, tmp_path, monkeypatch):
    """Let this test and its children use the cluster and the runner ``fake``."""
    site = str(install(tmp_path / "site"))
    monkeypatch.syspath_prepend(site)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([site, os.environ.get("PYTHONPATH", "")]).rstrip(os.pathsep))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setenv("SLURM_CONF", str(slurm_cluster))
