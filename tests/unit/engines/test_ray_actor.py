"""The actor that runs a job of Ray on its node, where the node cannot write the job's files; Ray is not needed."""

from __future__ import annotations

import asyncio
import os
import sys
import threading
from pathlib import Path
from types import ModuleType

import pytest

from paribus.engines.launch import Order
from paribus.engines.ray.actors import JobActor


@pytest.fixture
def freed(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The placement groups that were given back."""
    found: list[str] = []
    ray, util = ModuleType("ray"), ModuleType("ray.util")
    util.get_current_placement_group = lambda: "group"  # type: ignore[attr-defined]
    util.remove_placement_group = found.append  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "ray", ray)
    monkeypatch.setitem(sys.modules, "ray.util", util)
    return found


@pytest.mark.parametrize("missing", ["log", "note"])
def test_a_job_whose_files_cannot_be_written_ends_and_holds_nothing(
    tmp_path: Path, freed: list[str], missing: str
) -> None:
    """Such as on a node that does not see the home folder: its GPUs are given back, and the reason is raised."""
    files = {name: str(tmp_path / ("not there" if name == missing else "") / name) for name in ("log", "note")}
    order = Order(module="paribus.text", arguments=(), environment=dict(os.environ), cwd=str(tmp_path), **files)
    made: list[JobActor] = []
    thread = threading.Thread(target=lambda: made.append(JobActor(order)), daemon=True)
    thread.start()
    thread.join(60)
    assert made, "the actor is still being made"
    with pytest.raises(FileNotFoundError):
        asyncio.run(asyncio.wait_for(made[0].watch(), 60))
    assert freed == ["group"]
