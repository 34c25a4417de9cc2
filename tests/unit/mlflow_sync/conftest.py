"""The runner ``fake``, here and in child processes; a file with the tables of MLflow."""

import os

import pytest

from paribus.testing.fake_runner import install


@pytest.fixture(autouse=True)
def fake_runner_installed(tmp_path, monkeypatch):
    """Install the entry point of the fake runner."""
    site = str(install(tmp_path / "site"))
    monkeypatch.syspath_prepend(site)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([site, os.environ.get("PYTHONPATH", "")]).rstrip(os.pathsep))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")


@pytest.fixture(scope="module")
def empty(tmp_path_factory):
    """A file with MLflow's tables, which take seconds to make."""
    from paribus.mlflow_sync.database_file import prepared

    file = tmp_path_factory.mktemp("mlflow") / "mlflow.db"
    with prepared(file):
        pass
    return file
