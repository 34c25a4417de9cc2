"""Real clusters of several nodes on this machine, Slurm and Ray, and the runner ``fake`` for their jobs."""

import json
import os
import sqlite3
import subprocess
import sys
import textwrap
from contextlib import closing

import pytest

from clusters import started
from paribus.run_folder.folder import RunFolder
from paribus.testing.fake_runner import install
from support.site import STEPS, Site, until


@pytest.fixture(scope="session")
def slurm_cluster(tmp_path_factory):
    """Start the cluster for all tests; return the path of its configuration."""
    try:
        with started.slurm_cluster(tmp_path_factory.mktemp("slurm") / "cluster") as configuration:
            yield configuration
    except started.NotInstalled as error:
        pytest.skip(str(error))


class ClusterSite(Site):
    """A site with one study and options, and the command that runs it on a cluster."""

    def __init__(self, path, engine, values, waiting_and_running):
        super().__init__(path)
        self.engine = engine
        self.values = values
        self.jobs = waiting_and_running
        self.home.mkdir()
        self.study()
        self.options()

    def options(self, **more):
        """Write the options."""
        values = {"gpus": 1, "grace": 10, "host": "127.0.0.1", **self.values, **more}
        (self.home / "engines.yaml").write_text(json.dumps({self.engine: values}))

    def start(self, *arguments, engine=None, home="home", step_s=0.02, rules=()):
        """Start `paribus run`."""
        command = ("run", "faked.yaml", "--no-report", "--home", home, "--engine", engine or self.engine)
        return self.begin(*command, *arguments, step_s=step_s, rules=rules)

    def begin(self, *arguments, **keywords):
        """Start a command of `paribus`."""
        return super().start(*arguments, **keywords)

    def run(self, *arguments, **keywords):
        """Run `paribus run` to its end; return its exit status and output."""
        return self.ended(self.start(*arguments, **keywords))

    def check(self):
        """The record of each run has each step once, and no job is left."""
        super().check("faked")
        with closing(sqlite3.connect(self.home / "paribus.db")) as store:
            assert store.execute("SELECT COUNT(*), COUNT(DISTINCT run_id) FROM result").fetchone() == (4, 4)
        for run in self.runs():
            steps = [line.step for line in RunFolder.of(self.home, run.fingerprint, run.token).read_metrics()]
            assert steps == list(range(STEPS + 1))
        assert self.until(lambda: self.jobs() == [])

    def until(self, condition):
        """Wait until a condition gives something, and return it."""
        return until(condition)


@pytest.fixture
def slurm_site(slurm, tmp_path):
    """A site on the Slurm cluster; what a test leaves in the queue is taken out."""

    def jobs():
        command = ["squeue", "--noheader", "--format=%j", "--states=PENDING,RUNNING,SUSPENDED"]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()

    made = ClusterSite(tmp_path, "slurm", {"memory": "200M", "poll": 0.3}, jobs)
    yield made
    made.close()
    subprocess.run(["scancel", f"--user={os.getuid()}"], check=False)


@pytest.fixture
def ray_site(ray, tmp_path):
    """A site on the Ray cluster."""
    code = textwrap.dedent(f"""
        import ray
        ray.init(address={ray!r}, log_to_driver=False, logging_level="ERROR")
        print(*(a["name"] for a in ray.util.list_named_actors(all_namespaces=True)))
    """)

    def jobs():
        return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()

    made = ClusterSite(tmp_path, "ray", {"address": ray, "jobs": 4}, jobs)
    yield made
    made.close()


@pytest.fixture(params=["slurm", "ray"])
def site(request):
    """A site on each kind of cluster."""
    return request.getfixturevalue(f"{request.param}_site")


@pytest.fixture(scope="session")
def ray_cluster():
    """Start the cluster for all tests."""
    try:
        with started.RayCluster() as cluster:
            yield cluster
    except started.NotInstalled as error:
        pytest.skip(str(error))


@pytest.fixture
def ray(ray_cluster, fake_runner, monkeypatch):
    """Let this test and its children join the cluster; return its address."""
    for name, value in ray_cluster.environment.items():
        monkeypatch.setenv(name, value)
    return ray_cluster.address


@pytest.fixture
def slurm(slurm_cluster, fake_runner, monkeypatch):
    """Let this test and its children use the cluster."""
    monkeypatch.setenv("SLURM_CONF", str(slurm_cluster))


@pytest.fixture
def fake_runner(tmp_path, monkeypatch):
    """Let this test and its children find the runner ``fake``."""
    site = str(install(tmp_path / "site"))
    monkeypatch.syspath_prepend(site)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([site, os.environ.get("PYTHONPATH", "")]).rstrip(os.pathsep))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
