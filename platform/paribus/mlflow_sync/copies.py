"""Copies of metrics in files that are their own ledger: one file a run, in a folder of the home folder.

What a file has, it says itself, so there is no second record that a kill could leave ahead of or behind it.
``complete.json`` lists ended runs only to spare the next process reading their files.
"""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Mapping
from pathlib import Path
from typing import ClassVar, Protocol

from paribus.errors import RunFolderError
from paribus.masking import describe
from paribus.run_folder.folder import MetricLine, RunFolder, Tail, read_json, write_json
from paribus.store.models import AttemptedRun
from paribus.store.reader import Reader

COMPLETE = "complete.json"
"""File in the folder of the copies: runs that have ended and are written, with their newest attempt."""

_TRIES = 3
"""Failures in a row after which nothing waits for a run any more; each turn still tries it."""

_log = logging.getLogger("paribus.mlflow_sync")


class RunFile(Protocol):
    """The copy of one run."""

    def take(self, folders: Mapping[int, RunFolder], run: AttemptedRun) -> None:
        """Write what is new in the attempts of a run; the first attempt to reach a step counts.

        Raises:
            OSError: the file cannot be written; it is as before.
        """


class Copies(ABC):
    """The copies of one kind in a home folder.

    Args:
        reader: its store.
    """

    folder: ClassVar[str]
    """Folder of the copies in the home folder."""

    kind: ClassVar[str]
    """What a copy is called in messages."""

    def __init__(self, reader: Reader) -> None:
        self.reader = reader
        self.place = reader.home / self.folder
        self._runs: dict[str, RunFile | None] = {}
        self._failures: dict[str, int] = {}
        self._done = _read_complete(self.place / COMPLETE)
        self.trouble = ""

    @abstractmethod
    def open(self, run: AttemptedRun, folders: Mapping[int, RunFolder]) -> RunFile | None:
        """Return the copy of a run; ``None`` if its study wants none."""

    def turn(self) -> int:
        """Write what is new.

        Returns:
            The number of ended runs that are not completely written, and may still be.
        """
        self.trouble, behind, known = "", 0, dict(self._done)
        for run in self.reader.attempted_runs():
            if self._done.get(run.fingerprint, 0) >= run.token:
                continue
            try:
                self._write(run)
                self._failures.pop(run.fingerprint, None)
                if run.terminal:
                    self._done[run.fingerprint] = run.token
                    self._runs.pop(run.fingerprint, None)
            except Exception as error:  # this run's files, the disk, a name: the other runs and MLflow go on
                count = self._failures[run.fingerprint] = self._failures.get(run.fingerprint, 0) + 1
                if count <= _TRIES:
                    _log.warning("%s of run %s: %s", self.kind, run.fingerprint, error)
                    behind += run.terminal
                self.trouble = describe(error)
        if self._done != known and self.place.is_dir():
            write_json(self.place / COMPLETE, self._done)
        return behind

    def _write(self, run: AttemptedRun) -> None:
        """Write what is new of a run."""
        every = {token: RunFolder.of(self.reader.home, run.fingerprint, token) for token in range(1, run.token + 1)}
        folders = {token: folder for token, folder in every.items() if folder.job.exists()}
        if not folders:
            return  # another home folder that shares the store has it
        if run.fingerprint not in self._runs:
            self._runs[run.fingerprint] = self.open(run, folders)
        file = self._runs[run.fingerprint]
        if file is not None:
            file.take(folders, run)


class Tails:
    """Reads what was added to the metric files of a run's attempts; lines after a damaged one are left out.

    Args:
        path: the copy, for messages.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._damaged: set[str] = set()
        self._tails: dict[int, Tail] = {}

    def read(self, token: int, folder: RunFolder) -> list[MetricLine]:
        """Return the next lines of an attempt; none if there is nothing new."""
        try:
            return self._tails.setdefault(token, Tail(folder.metrics)).read()
        except RunFolderError as error:
            if str(error) not in self._damaged:
                _log.warning("%s: %s", self._path, error)
                self._damaged.add(str(error))
            return []

    def rewind(self, token: int) -> None:
        """Read an attempt again from its beginning."""
        self._tails.pop(token, None)


def unwritten(home: Path, kind: type[Copies], runs: Mapping[str, int]) -> frozenset[str]:
    """Return those of the given runs (with their newest token) whose copies of a kind are not complete."""
    done = _read_complete(home / kind.folder / COMPLETE)
    return frozenset(run for run, token in runs.items() if done.get(run, 0) < token)


def _read_complete(path: Path) -> dict[str, int]:
    try:
        return {run: token for run, token in read_json(path).items() if isinstance(token, int)}
    except (RunFolderError, AttributeError):  # there is none, or it is damaged: the files say what they have
        return {}
