"""Options of the Ray engine; Ray is not needed."""

import json
import re
import sys
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paribus.contract import Resources
from paribus.engines.base import EngineSettings, gangs, need_of
from paribus.engines.options import read_options
from paribus.engines.ray import engine
from paribus.engines.ray.actors import passed_on
from paribus.engines.ray.engine import RayEngine
from paribus.engines.ray.options import RayOptions
from paribus.engines.slurm.script import SlurmOptions
from paribus.errors import MissingExtra, StudyFileError, TooLarge, install_command


def test_without_ray_the_user_is_told_what_to_install(tmp_path, monkeypatch):
    """One pip line, no traceback."""
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(MissingExtra, match="engine `ray`.*" + re.escape(install_command("ray"))):
        RayEngine(EngineSettings(runner="fake", folder=tmp_path))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("ray: {gpus: 1.5}", "write a whole number, or a fraction below 1 such as 0.5"),
        ("ray: {cpus: 0}", "must be > 0"),
        ("ray: {partition: gpu}", "unknown key `partition`"),
        ("ray: {resources: {a100: 0}}", "ray.resources.a100: must be > 0"),
        ("ray: {patience: 30}", "ray.patience: must be >= 60"),
    ],
)
def test_a_wrong_option_is_told_with_its_place(tmp_path, text, said):
    """What a user can get wrong is one line with file, line, column and what is allowed."""
    file = tmp_path / "engines.yaml"
    file.write_text(text)
    with pytest.raises(StudyFileError, match=rf"engines.yaml:1:\d+: .*{said}"):
        read_options(file, "ray", RayOptions)


class Cluster:
    """Stands for Ray's driver: nodes that come and go."""

    def __init__(self, *nodes):
        self.known = list(nodes)

    def join(self):
        """Do nothing."""

    def ask(self, do):
        """Return what the nodes have."""
        assert do == "nodes"
        return self.known


@pytest.fixture
def made(tmp_path, monkeypatch):
    """Make engines on a cluster."""

    def make(cluster, **options):
        file = tmp_path / "engines.yaml"
        file.write_text(json.dumps({"ray": options}))
        monkeypatch.setattr(engine.importlib.util, "find_spec", lambda _: True)
        monkeypatch.setattr(engine, "Driver", lambda *_: cluster)
        monkeypatch.setattr(engine, "_NODES_S", 0.0)
        return RayEngine(EngineSettings(runner="fake", folder=tmp_path, options=file))

    return make


def test_nodes_that_join_later_are_used(made):
    """Without a restart, and those that are gone no longer count."""
    cluster = Cluster({"CPU": 2.0, "GPU": 2.0})
    engine = made(cluster)
    need = engine.need(Resources(gpus=1))
    assert (engine.capacity(need), engine.slots()) == (2, 2)
    cluster.known.append({"CPU": 4.0, "GPU": 4.0})
    assert (engine.capacity(need), engine.slots()) == (6, 6)
    del cluster.known[0]
    assert engine.capacity(need) == 4


@pytest.mark.parametrize(
    ("options", "resources", "said"),
    [
        ({"gpus": 1, "jobs": 5}, {}, "Ray: 1 CPU, 1 GPU per run, up to 4 at a time"),
        ({"jobs": 3}, {"gpus": 1}, "Ray: 1 CPU, 1 GPU per run, up to 3 at a time"),
        ({}, {"gpus": 2, "cpus": 2}, "Ray: 2 CPU, 2 GPU per run, up to 2 at a time"),
        ({}, {"gpus": 4, "nodes": 2}, "Ray: 1 CPU, 2 GPU on each of 2 nodes per run, up to 1 at a time"),
        ({}, {"gpus": 2, "cpus": 2, "nodes": 2}, "Ray: 1 CPU, 1 GPU on each of 2 nodes per run, up to 2 at a time"),
        (
            {"jobs": 9},
            {"gpus": 4},
            "Ray: 1 CPU, 4 GPU per run, but no node has that now: runs wait for nodes that join later",
        ),
    ],
)
def test_no_more_run_at_a_time_than_there_is_room_for(made, options, resources, said):
    """What the study declares is what is said, and counted."""
    nodes = [{"CPU": 2.0, "GPU": 2.0}, {"CPU": 2.0, "GPU": 2.0}]
    assert made(Cluster(*nodes), **options).about(Resources(**resources)) == said


def test_a_cluster_without_gpus_is_called_so(made):
    """With what to do; no count of what there is none of."""
    engine = made(Cluster({"CPU": 2.0}))
    with pytest.raises(TooLarge, match=r"asks for 1 CPU, 1 GPU; no node of the Ray cluster has a GPU. .*--num-gpus"):
        engine.need(Resources(gpus=1))
    waits = "but no node has a GPU now: runs wait for nodes that join later"
    assert made(Cluster({"CPU": 2.0}), jobs=4).about(Resources(gpus=1)) == f"Ray: 1 CPU, 1 GPU per run, {waits}"


def test_too_few_nodes_are_called_so(made):
    """And a Ray program, which asks for its own workers, is given none by `nodes`."""
    nodes = [{"CPU": 2.0, "GPU": 2.0}, {"CPU": 2.0}]
    with pytest.raises(
        TooLarge, match=r"asks for 1 CPU, 2 GPU on each of 2 nodes; 1 of the Ray cluster's nodes has that"
    ):
        need_of(made(Cluster(*nodes)), Resources(gpus=4, nodes=2))
    with pytest.raises(TooLarge, match="the engine `ray` gives a run one node"):
        need_of(made(Cluster(*nodes), launch="job"), Resources(gpus=2, nodes=2))


@given(st.lists(st.integers(0, 3), max_size=5), st.integers(1, 4))
def test_no_two_parts_of_a_job_are_on_one_node(parts, nodes):
    """As many jobs as if each took the nodes with most room left, one after the other."""
    left, jobs = list(parts), 0
    while len(left) >= nodes and sorted(left)[-nodes] > 0:
        left.sort()
        left[-nodes:] = [part - 1 for part in left[-nodes:]]
        jobs += 1
    assert gangs(parts, nodes) == jobs


def test_what_a_run_holds_is_what_ray_is_asked_for(tmp_path):
    """Memory in GiB becomes bytes; what is not asked for is left out; one engine's options are not the other's."""
    file = tmp_path / "engines.yaml"
    file.write_text("ray: {gpus: 0.5, cpus: 2, memory: 1, resources: {a100: 1}}\nslurm: {gpus: 4}\n")
    options = read_options(file, "ray", RayOptions)
    assert options.bundle() == {"CPU": 2.0, "GPU": 0.5, "memory": float(1 << 30), "a100": 1.0}
    assert options.about() == "2 CPU, 0.5 GPU, 1 GiB memory, 1 a100 per run"
    assert RayOptions().bundle() == {"CPU": 1.0}


@pytest.mark.parametrize(
    ("resources", "bundle", "threads"),
    [
        ({}, {"CPU": 2.0, "GPU": 0.5}, None),
        ({"gpus": 0.25}, {"CPU": 2.0, "GPU": 0.25}, None),
        ({"gpus": 4, "cpus": 16}, {"CPU": 16.0, "GPU": 4.0}, 16),
        ({"gpus": 0}, {"CPU": 2.0}, 1),
        ({"gpus": 4, "nodes": 2}, {"CPU": 1.0, "GPU": 2.0}, None),
        ({"nodes": 4}, {"CPU": 1.0, "GPU": 1.0}, None),
    ],
)
def test_what_a_study_declares_goes_before_the_options(resources, bundle, threads):
    """One placement group holds it, parts of a GPU included."""
    options = RayOptions(gpus=0.5, cpus=2)
    need = options.need(Resources(**resources))
    assert (options.bundle(need), need.threads) == (bundle, threads)


@pytest.mark.parametrize("resources", [{}, {"gpus": 0}, {"gpus": 2, "nodes": 2}, {"cpus": 3}, {"gpus": 0.25}])
def test_ray_and_slurm_give_a_run_the_same_but_parts_of_a_gpu(resources):
    """Slurm rounds a part up to a whole GPU."""
    ray, slurm = (o.need(Resources(**resources)) for o in (RayOptions(gpus=1, cpus=4), SlurmOptions(gpus=1, cpus=4)))
    assert replace(ray, gpus=slurm.gpus) == slurm
    assert (ray.gpus, slurm.gpus) == ((0.25, 1.0) if resources == {"gpus": 0.25} else (slurm.gpus, slurm.gpus))


def test_a_job_of_ray_gets_no_variables_of_ray_or_of_gpus(monkeypatch):
    """Its node sets them."""
    for name in ("RAY_ADDRESS", "CUDA_VISIBLE_DEVICES", "MINE"):
        monkeypatch.setenv(name, "here")
    assert passed_on().keys() & {"RAY_ADDRESS", "CUDA_VISIBLE_DEVICES", "MINE"} == {"MINE"}
