"""Lets the runner make what the runs of a study share, as jobs of the engine, before the first of them starts."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

from paribus.engines.base import Engine, JobState, Need, Status
from paribus.errors import RunnerError
from paribus.recipe.recipe import Recipe
from paribus.schedule import prepare
from paribus.schedule.signature import storable

LOST_S = 60.0
"""Seconds after which a job that the engine does not know is taken for lost."""


class Preparation:
    """The jobs that prepare a study.

    Args:
        engine: where they run.
        home: home folder; logs are written to ``prepare/``, models and data to ``cache/``.
        runner: name of the runner.
        parts: one recipe for each job, by a name that is the same in every process.
        need: what a job holds.
        say: takes one line for people.

    Attributes:
        parts: their names.
    """

    def __init__(
        self,
        engine: Engine,
        home: Path,
        runner: str,
        parts: Mapping[str, Recipe],
        need: Need,
        say: Callable[[str], None],
    ) -> None:
        self._engine = engine
        self._home = home
        self._runner = runner
        self._need = need
        self._say = say
        self.parts = tuple(parts)
        session = secrets.token_hex(3)  # an engine may remember what an earlier session prepared
        self._waiting = {f"{name}-{session}": recipe for name, recipe in parts.items()}
        self._logs = {f"{name}-{session}": home / "prepare" / f"{name}.log" for name in parts}
        self._seen: dict[str, float] = {}

    def turn(self) -> Mapping[str, Status]:
        """Start what there is room for, and look at what was started. What has failed fails again at the next turn.

        Returns:
            The jobs that wait or run; empty: everything is prepared.

        Raises:
            RunnerError: the runner cannot; the message holds the end of its log.
            EngineError: the engine will not take a job as it is.
        """
        while self._waiting and self._engine.capacity(self._need) > 0:
            name, recipe = next(reversed(self._waiting.items()))
            spec = prepare.specification(self._runner, recipe, self._home / "cache", self._logs[name])
            self._say(f"preparing {recipe.model.name} for {recipe.task.kind}")
            self._engine.submit(replace(spec, need=self._need), name)
            del self._waiting[name]
            self._seen[name] = time.monotonic()
        statuses = self._engine.poll(tuple(self._seen))
        for name, status in statuses.items():
            if status.state is JobState.ENDED or self._lost(name, status):
                if status.exit_code != 0:
                    raise self._unprepared(self._logs[name], status)
                del self._seen[name]
        waiting = dict.fromkeys(self._waiting, Status(state=JobState.PENDING))
        return {**waiting, **{name: statuses[name] for name in self._seen}}

    def cancel(self) -> None:
        """End what was started, and start nothing more."""
        self._waiting.clear()
        for name in self._seen:
            self._engine.cancel(name, 0.0)

    def _lost(self, name: str, status: Status) -> bool:
        now = time.monotonic()
        if status.state is not JobState.UNKNOWN:
            self._seen[name] = now
        return now - self._seen[name] > LOST_S

    def _unprepared(self, log: Path, status: Status) -> RunnerError:
        tail = storable(log.read_text(errors="replace")[-2000:]) if log.exists() else ""
        if not tail:
            tail = f"its job ended before its first word{f' ({status.reason})' if status.reason else ''}."
            if self._engine.reach is not None:
                said = self._home / "engine"
                tail += f" Do the nodes see {self._home} and the Python environment? What they said is in {said}"
        return RunnerError(f"the runner `{self._runner}` could not prepare the study:\n{tail}")
