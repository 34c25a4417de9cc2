"""The parts of a checkpoint that other processes than the first hold: they meet in a folder of the attempt.

With ``compute.sharding: optimizer`` each process writes its share of the optimizer's state into a folder of its own,
``parts/step-000040-2/``, and trains on; the first one moves the files into the checkpoint that it writes. Nothing is
sent between processes: on SIGTERM each leaves where it is, so that none may wait for a message that another no longer
sends.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from paribus.run_folder.folder import RunFolder
from paribus_runners.native.checkpoint import write_optimizers
from paribus_runners.native.launch import PARTS
from paribus_runners.native.learner import Learner

LOOK_S = 0.01
"""Seconds between two looks at what is there."""


class PartMissing(Exception):
    """Another process was stopped before it had the step that is to be saved."""


class Parts:
    """Where the processes of an attempt put their parts.

    Args:
        attempt: the folder of the attempt.
        learner: this process's, with its share of the optimizer.
    """

    def __init__(self, attempt: RunFolder, learner: Learner) -> None:
        self._folder, self._learner, self._world = attempt.path / PARTS, learner, learner.world
        self._newest = -1
        self._needed = learner.optimizer.sharded and learner.world.trains

    @contextmanager
    def noting_an_early_end(self) -> Iterator[None]:
        """Note if this process ends before its last part: the first one then waits for no more of them."""
        try:
            yield
        except BaseException:
            if self._needed and not self._world.writes:
                self._folder.mkdir(exist_ok=True)
                self._gone(self._world.rank).touch()
            raise

    def put(self, step: int) -> None:
        """Write this process's part of the checkpoint after ``step``, once; nothing if all is in the first process.

        Raises:
            OSError: it cannot be written.
        """
        if not self._needed or step == self._newest:
            return
        written = self._folder / f"writing-{self._world.rank}"
        written.mkdir(parents=True, exist_ok=True)
        write_optimizers(self._learner, written)
        written.replace(self._part(step, self._world.rank))
        self._newest = step

    def take(self, step: int, checkpoint: Path) -> None:
        """Move the parts of all other processes into a checkpoint, as soon as they are there.

        Raises:
            PartMissing: a process has ended without its part.
        """
        if not self._needed:
            return
        for rank in range(1, self._world.size):
            part = self._part(step, rank)
            while not part.is_dir():
                if self._gone(rank).exists() and not part.is_dir():
                    raise PartMissing(f"process {rank} of {self._world.size} has left before step {step} was saved")
                self._world.phases.wait(True)
                time.sleep(LOOK_S)
            self._world.phases.wait(False)
            for file in part.iterdir():
                file.replace(checkpoint / file.name)
            part.rmdir()

    def _part(self, step: int, rank: int) -> Path:
        return self._folder / f"step-{step:06d}-{rank}"

    def _gone(self, rank: int) -> Path:
        return self._folder / f"gone-{rank}"
