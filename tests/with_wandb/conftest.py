"""W&B with a home of its own and a server on this machine; the runner ``fake``."""

import importlib.util
import os
from pathlib import Path

import pytest

from paribus.testing.fake_runner import install
from support.wandb_server import KEY, serving


def pytest_collection_modifyitems(items):
    """Skip these tests where W&B is not installed."""
    for item in items:
        if item.path.is_relative_to(Path(__file__).parent) and importlib.util.find_spec("wandb") is None:
            item.add_marker(pytest.mark.skip(reason="W&B is not installed: `make test-wandb`"))


@pytest.fixture(autouse=True)
def surroundings(tmp_path, monkeypatch):
    """Give W&B a home of its own, and install the entry point of the fake runner."""
    for name in [name for name in os.environ if name.startswith("WANDB_")]:
        monkeypatch.delenv(name)
    for name in ("HOME", "WANDB_CONFIG_DIR", "WANDB_CACHE_DIR", "WANDB_DATA_DIR"):
        monkeypatch.setenv(name, str(tmp_path / "user"))
    (tmp_path / "user").mkdir()
    monkeypatch.setenv("WANDB_ERROR_REPORTING", "false")
    site = str(install(tmp_path / "site"))
    monkeypatch.syspath_prepend(site)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([site, os.environ.get("PYTHONPATH", "")]).rstrip(os.pathsep))


@pytest.fixture
def server(surroundings, monkeypatch):
    """Yield the server; the environment names it, and a key."""
    with serving() as known:
        monkeypatch.setenv("WANDB_BASE_URL", known.address)
        monkeypatch.setenv("WANDB_API_KEY", KEY)
        yield known
