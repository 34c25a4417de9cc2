"""Options of the Ray engine; Ray is not needed."""

import re
import sys

import pytest

from paribus.contract import Resources
from paribus.engines.base import EngineSettings
from paribus.engines.options import read_options
from paribus.engines.ray import engine
from paribus.engines.ray.engine import RayEngine, RayOptions
from paribus.errors import MissingExtra, StudyFileError, install_command


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
    """Stands for the module ``ray``: nodes that come and go."""

    def __init__(self):
        self.known = [{"Alive": True, "Resources": {"CPU": 2.0, "GPU": 2.0}}]

    def nodes(self):
        """Return the nodes."""
        return self.known


def test_nodes_that_join_later_are_used(tmp_path, monkeypatch):
    """Without a restart, and those that are gone no longer count."""
    cluster = Cluster()
    monkeypatch.setattr(engine, "_connect", lambda address: (cluster, ""))
    monkeypatch.setattr(engine, "_NODES_S", 0.0)
    made = RayEngine(EngineSettings(runner="fake", folder=tmp_path))
    need = made.need(Resources(gpus=1))
    assert (made.slots(), made.capacity(need)) == (2, 2)
    cluster.known.append({"Alive": True, "Resources": {"CPU": 4.0, "GPU": 4.0}})
    assert (made.slots(), made.capacity(need)) == (6, 6)
    cluster.known[0]["Alive"] = False
    assert made.capacity(need) == 4


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
    ],
)
def test_what_a_study_declares_goes_before_the_options(resources, bundle, threads):
    """One placement group holds it, parts of a GPU included."""
    options = RayOptions(gpus=0.5, cpus=2)
    need = options.need(Resources(**resources))
    assert (options.bundle(need), need.threads) == (bundle, threads)
