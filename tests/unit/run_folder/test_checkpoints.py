"""The index of checkpoints: whatever a crash leaves of a disk, a whole checkpoint is found."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paribus.contract import Checkpoints, Evaluate, Job
from paribus.errors import RunFolderError
from paribus.failures import STORAGE, failure_in
from paribus.recipe.recipe import Recipe
from paribus.run_folder import checkpoints
from paribus.run_folder.checkpoints import damaged_files, publish, published, read_manifest
from paribus.run_folder.folder import MetricLine, RunFolder


def attempt_in(path: Path, **checkpoint: int) -> tuple[RunFolder, Job]:
    """Return a new attempt with a metric line, and its job."""
    path.mkdir(parents=True)
    folder = RunFolder(path)
    folder.append_metrics(MetricLine(step=0, time_ms=0, values={}))
    job = Job(
        run="f" * 64, study="s", arm="a", runner="toy", seed=0, token=int(path.name[1:]), recipe=Recipe(),
        evaluate=Evaluate(), cache="c", checkpoint=Checkpoints(**checkpoint),
    )  # fmt: skip
    return folder, job


def writer(step: int) -> Callable[[Path], None]:
    """Return a function that writes a checkpoint of this step, with a file in a folder of its own."""

    def write(place: Path) -> None:
        (place / "model").mkdir()
        (place / "model" / "weights").write_bytes(bytes([step]) * 40)
        (place / "moments").write_bytes(bytes([step]) * 20)

    return write


def names(folder: RunFolder) -> list[str]:
    """Return the names of the checkpoints that count."""
    return [place.name for place in published(folder)]


def test_what_was_published_is_found_and_the_rest_deleted(tmp_path: Path) -> None:
    """The newest first, at most `keep`; leftovers of a killed save go with the next."""
    folder, job = attempt_in(tmp_path / "a1", keep=2)
    assert published(folder) == ()
    for step in (5, 10, 20):
        (folder.checkpoints / "step-000003" / "model").mkdir(parents=True)
        (folder.checkpoints / ".index.json.7").touch()
        place = publish(folder, job, step, writer(step), {"tokens": step})
    assert names(folder) == ["step-000020", "step-000010"]
    assert sorted(p.name for p in folder.checkpoints.iterdir()) == ["index.json", "step-000010", "step-000020"]
    manifest = read_manifest(place)
    assert (manifest.run, manifest.step, manifest.spent) == (job.run, 20, {"tokens": 20})
    assert set(manifest.files) == {"model/weights", "moments"}
    assert damaged_files(place) == ()
    (place / "model" / "weights").write_bytes(b"")
    (place / "moments").unlink()
    assert damaged_files(place) == ("model/weights", "moments")


def test_the_same_step_is_written_once(tmp_path: Path) -> None:
    """A run that ends at a step with a checkpoint does not write its weights again."""
    folder, job = attempt_in(tmp_path / "a1")
    place = publish(folder, job, 5, writer(5))
    assert publish(folder, job, 5, pytest.fail) == place


@pytest.mark.parametrize("when", ["before", "while it writes"])
@pytest.mark.parametrize("how", ["revoked", "next attempt"])
def test_an_attempt_that_lost_its_run_publishes_and_deletes_nothing(tmp_path: Path, how: str, when: str) -> None:
    """Its last checkpoint may be what the next attempt is loading."""
    folder, job = attempt_in(tmp_path / "a2")
    publish(folder, job, 5, writer(5))

    def lose() -> None:
        folder.revoked.touch() if how == "revoked" else (tmp_path / "a3").mkdir()

    def write(place: Path) -> None:
        assert when == "while it writes"
        writer(10)(place)
        lose()

    if when == "before":
        lose()
    with pytest.raises(RunFolderError, match=r"was given to (attempt 3|another attempt)"):
        publish(folder, job, 10, write)
    assert names(folder) == [p.name for p in folder.checkpoints.iterdir() if p.is_dir()] == ["step-000005"]
    assert damaged_files(published(folder)[0]) == ()


def test_a_full_disk_leaves_the_checkpoint_before_and_makes_room(tmp_path: Path) -> None:
    """The message names it, and the supervisor counts it as a failure of the disk."""
    folder, job = attempt_in(tmp_path / "a1")
    publish(folder, job, 5, writer(5))

    def write(place: Path) -> None:
        writer(10)(place)
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(place / "moments"))

    with pytest.raises(RunFolderError, match=r"No space left.*that of step-000005 is complete") as full:
        publish(folder, job, 10, write)
    assert [p.name for p in folder.checkpoints.iterdir() if p.is_dir()] == names(folder) == ["step-000005"]
    shown = f"paribus.errors.RunFolderError: {full.value}"
    folder.log.write_text(f'Traceback (most recent call last):\n  File "x.py", line 1, in run\n{shown}\n')
    assert failure_in(folder.log, 1).signature == STORAGE


@pytest.mark.parametrize(
    "text", ["", "{", "[]", '{"checkpoints": 3}', '{"checkpoints": ["../a1"]}', '{"checkpoints": [""]}']
)
def test_a_damaged_index_is_an_error(tmp_path: Path, text: str) -> None:
    """It never leads out of the folder, and its path is in the message."""
    folder, job = attempt_in(tmp_path / "a1")
    publish(folder, job, 5, writer(5))
    (folder.checkpoints / "index.json").write_text(text)
    with pytest.raises(RunFolderError, match=r"index\.json"):
        published(folder)


# ---- a model of a disk that loses what was not synced ------------------------------------------------------------

Tree = dict[int, "bytes | dict[str, int]"]
"""Inode to the content of a file, or to the entries of a folder."""
Choose = Callable[[int], int]
"""Returns a number from 0 to the given one."""


@dataclass
class Disk:
    """What is certainly on the disk.

    Attributes:
        sure: contents of synced files and entries of synced folders.
        moments: before each change of the disk: the tree as programs see it, and what is certain.
    """

    root: Path
    sure: Tree = field(default_factory=dict)
    moments: list[tuple[Tree, Tree]] = field(default_factory=list)

    def note(self) -> None:
        """Remember this moment as one at which the machine may stop."""
        seen = {path.stat().st_ino: _content(path) for path in (self.root, *self.root.rglob("*"))}
        self.moments.append((seen, dict(self.sure)))

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Note the disk before each change within, and after the last."""

        def around(name: str) -> Callable[..., object]:
            real = getattr(os, name)

            def call(*given: Any, **more: Any) -> object:
                self.note()
                if name == "fsync":
                    path = Path(f"/proc/self/fd/{given[0]}").readlink()
                    self.sure[path.stat().st_ino] = _content(path)
                return real(*given, **more)

            return call

        with pytest.MonkeyPatch.context() as patch:
            for name in ("fsync", "replace", "rename", "mkdir", "unlink", "rmdir"):
                patch.setattr(os, name, around(name))
            yield
        self.note()

    def rebuild(self, moment: int, to: Path, choose: Choose) -> None:
        """Write what a crash may leave: each entry that was not synced is new or old, each such content is cut."""
        shutil.rmtree(to, ignore_errors=True)
        self._rebuild(*self.moments[moment], self.root.stat().st_ino, to, choose)

    def _rebuild(self, seen: Tree, sure: Tree, folder: int, to: Path, choose: Choose) -> None:
        now, old = seen.get(folder, sure.get(folder, {})), sure.get(folder, {})
        assert isinstance(now, dict)
        assert isinstance(old, dict)
        to.mkdir()
        for name in sorted(now.keys() | old.keys()):
            inodes = list(dict.fromkeys((now.get(name), old.get(name))))
            inode = inodes[choose(len(inodes) - 1)]
            content = None if inode is None else seen.get(inode, sure.get(inode))
            if isinstance(content, dict):
                assert inode is not None
                self._rebuild(seen, sure, inode, to / name, choose)
            elif content is not None:
                synced = sure.get(inode or 0, b"")
                assert isinstance(synced, bytes)
                least = len(synced) if content.startswith(synced) else 0  # what was appended to is not lost
                kept = len(content) - choose(len(content) - least)
                (to / name).write_bytes(content[:kept])


def _content(path: Path) -> bytes | dict[str, int]:
    return {p.name: p.stat().st_ino for p in path.iterdir()} if path.is_dir() else path.read_bytes()


def third_save(root: Path) -> Disk:
    """Return the disk during the third save of an attempt; all before it is on the disk."""
    folder, job = attempt_in(root / "a1")
    for step in (5, 10):
        publish(folder, job, step, writer(step))
    disk = Disk(root)
    disk.sure = {path.stat().st_ino: _content(path) for path in (root, *root.rglob("*"))}
    folder.append_metrics(MetricLine(step=1, time_ms=0, values={}))
    with disk.watched():
        publish(folder, job, 20, writer(20))
    return disk


def is_whole(folder: RunFolder, *, returned: bool) -> bool:
    """Return whether the next attempt finds the checkpoint before the save or the new one, and all of it."""
    newest = published(folder)[0]
    if newest.name == "step-000010" and not returned:
        lines = [0]
    elif newest.name == "step-000020":
        lines = [0, 1]
    else:
        return False
    named = read_manifest(newest).files if (newest / "paribus.json").exists() else {}
    steps = [line.step for line in folder.read_metrics()]
    return set(named) == {"model/weights", "moments"} and damaged_files(newest) == () and steps[: len(lines)] == lines


@pytest.fixture(scope="module")
def disk(tmp_path_factory: pytest.TempPathFactory) -> Disk:
    """A disk during the third save of an attempt."""
    return third_save(tmp_path_factory.mktemp("disk"))


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_a_power_cut_at_any_moment_leaves_a_whole_checkpoint(disk: Disk, data: st.DataObject) -> None:
    """The one before or the new one, with its records; the new one once the call has returned."""
    moment = data.draw(st.integers(0, len(disk.moments) - 1), label="moment")
    to = disk.root.with_name("rebuilt")
    disk.rebuild(moment, to, lambda most: data.draw(st.integers(0, most)))
    assert is_whole(RunFolder(to / "a1"), returned=moment == len(disk.moments) - 1)


@pytest.mark.parametrize("forgotten", ["files", "records", "folders"])
def test_the_model_of_a_disk_sees_a_sync_that_is_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, forgotten: str
) -> None:
    """Files, metric lines and entries of folders: without one of these syncs the worst crash loses the checkpoint."""
    sync = checkpoints._sync

    def some(path: Path) -> None:
        kind = "folders" if path.is_dir() else "records" if path.name == "metrics.jsonl" else "files"
        if kind != forgotten:
            sync(path)

    (tmp_path / "disk").mkdir()
    monkeypatch.setattr(checkpoints, "_sync", some)
    disk = third_save(tmp_path / "disk")
    found = []
    for moment in range(len(disk.moments)):
        for choose in (lambda most: most, lambda most: 0 if most == 1 else most):  # entries are old, or new
            disk.rebuild(moment, tmp_path / "rebuilt", choose)
            returned = moment == len(disk.moments) - 1
            found.append(is_whole(RunFolder(tmp_path / "rebuilt" / "a1"), returned=returned))
    assert not all(found)
