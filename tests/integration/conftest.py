"""The runner ``fake`` can be found, here and in child processes; databases that are empty."""

import os

import pytest

from paribus.testing.fake_runner import install
from support.databases import database

__all__ = ["database"]


@pytest.fixture(autouse=True)
def fake_runner_installed(tmp_path, monkeypatch):
    """Install the entry point of the fake runner."""
    site = str(install(tmp_path / "site"))
    monkeypatch.syspath_prepend(site)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([site, os.environ.get("PYTHONPATH", "")]).rstrip(os.pathsep))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
