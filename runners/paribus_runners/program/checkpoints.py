"""Checkpoints of a program: it renames a folder into its outbox, and what is complete is published."""

from __future__ import annotations

import re
import shutil
from functools import partial
from pathlib import Path

from paribus.contract import Job
from paribus.errors import RunnerError
from paribus.run_folder.checkpoints import MANIFEST, publish
from paribus.run_folder.folder import RunFolder

_NAME = re.compile(r"step-(\d{1,15})")


class Outbox:
    """The folder ``checkpoints`` of an outbox. What is not named ``step-<n>`` there is still being written.

    Args:
        folder: the folder of the attempt.
        job: its job.
        place: the folder in the outbox.

    Attributes:
        published: the newest step of which a checkpoint was published; -1: none.
    """

    def __init__(self, folder: RunFolder, job: Job, place: Path) -> None:
        self.published = -1
        self._folder, self._job, self._place = folder, job, place

    def look(self, done: int) -> None:
        """Publish the newest checkpoint whose steps are all recorded, and delete those before it.

        Args:
            done: the newest recorded step.

        Raises:
            RunFolderError: it cannot be written, or the run was given to another attempt.
            RunnerError: it is empty, holds more than files and folders, or has a file whose name is not UTF-8.
        """
        ready = sorted((step, path) for step, path in self._waiting() if step <= done)
        for step, path in ready:
            if step > self.published and step == ready[-1][0]:
                _refuse_odd_files(path)
                publish(self._folder, self._job, step, partial(_move, path))
                self.published = step
            shutil.rmtree(path, ignore_errors=True)

    def waiting(self) -> list[int]:
        """Return the steps of checkpoints that could not be published, because their steps were not recorded."""
        return sorted(step for step, _ in self._waiting())

    def _waiting(self) -> list[tuple[int, Path]]:
        try:
            found = [(_NAME.fullmatch(path.name), path) for path in self._place.iterdir()]
        except FileNotFoundError:
            return []
        return [(int(match[1]), path) for match, path in found if match and path.is_dir() and not path.is_symlink()]


def _refuse_odd_files(folder: Path) -> None:
    entries = [path for path in folder.rglob("*") if path.is_symlink() or not path.is_dir()]
    for name in (path.relative_to(folder).as_posix() for path in entries):
        if name != name.encode(errors="replace").decode():  # JSON has no such text: the manifest would be wrong
            raise RunnerError(f"{name!a} in the checkpoint {folder.name} is no name in UTF-8: give the file another")
    odd = next((path for path in entries if path.is_symlink() or not path.is_file()), None)
    if odd is not None:
        raise RunnerError(f"{odd.name} in the checkpoint {folder.name} is no plain file: copy what links lead to")
    if not entries:
        raise RunnerError(
            f"the checkpoint {folder.name} is empty: write its files into another folder, then rename that"
        )
    if (folder / MANIFEST).exists():
        raise RunnerError(
            f"the checkpoint {folder.name} has a file {MANIFEST}, a name that Paribus takes: choose another"
        )


def _move(source: Path, place: Path) -> None:
    for path in sorted(source.iterdir()):
        path.rename(place / path.name)
