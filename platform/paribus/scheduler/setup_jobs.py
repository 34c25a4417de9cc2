"""Set-up jobs: the runner makes what the runs of a study share (a model, a data set) before the first run starts.

``python -m paribus.scheduler.setup_jobs RUNNER RECIPE CACHE LOG`` is such a job. The engine starts it like a run, so
the scheduler imports neither torch nor a model.
"""

from __future__ import annotations

import secrets
import sys
import time
import traceback
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path

from paribus.contract import Need, load_runner
from paribus.engines.base import Engine, JobState, Spec, Status
from paribus.errors import ParibusError, RunnerError
from paribus.failures import storable
from paribus.recipe.recipe import Recipe, fingerprint_of
from paribus.run_folder.folder import SHORT

LOST_S = 60.0
"""Seconds after which a job that the engine does not know counts as lost."""

_LOG = 2000
"""Characters of the log that an error shows."""


def shared_parts(recipes: Iterable[Recipe]) -> dict[str, Recipe]:
    """Return one recipe for each distinct pair of model and task, by a name that is the same in every process."""
    distinct: dict[str, Recipe] = {}
    for recipe in recipes:
        subject = [recipe.model.model_dump(mode="json"), recipe.task.model_dump(mode="json")]
        distinct.setdefault(f"prepare-{fingerprint_of(subject)[:SHORT]}", recipe)
    return distinct


class SetupJobs:
    """The set-up jobs of one study: one for each of its :func:`shared_parts`.

    They write logs to ``prepare/`` in the home folder, models and data to ``cache/``.
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
        session = secrets.token_hex(3)  # an engine may remember a job of an earlier session by its name
        self._waiting = {f"{name}-{session}": recipe for name, recipe in parts.items()}
        self._logs = {f"{name}-{session}": home / "prepare" / f"{name}.log" for name in parts}
        self._seen: dict[str, float] = {}

    def turn(self) -> Mapping[str, Status]:
        """Submit what the engine has room for, and check what it runs. A job that failed fails again at the next turn.

        Returns:
            The jobs that wait or run; empty when the study is set up.

        Raises:
            RunnerError: the runner failed; the message holds the end of its log.
            EngineError: the engine refused a job.
        """
        while self._waiting and self._engine.capacity(self._need) > 0:
            name, recipe = next(reversed(self._waiting.items()))
            self._say(f"preparing {recipe.model.name} for {recipe.task.kind}")
            self._engine.submit(self._spec(recipe, self._logs[name]), name)
            del self._waiting[name]
            self._seen[name] = time.monotonic()
        statuses = self._engine.poll(tuple(self._seen))
        for name, status in statuses.items():
            if status.state is JobState.ENDED or self._lost(name, status):
                if status.exit_code != 0:
                    raise self._failed(self._logs[name], status)
                del self._seen[name]
        waiting = dict.fromkeys(self._waiting, Status(state=JobState.PENDING))
        return {**waiting, **{name: statuses[name] for name in self._seen}}

    def cancel(self) -> None:
        """Kill the jobs that run, and submit no more."""
        self._waiting.clear()
        for name in self._seen:
            self._engine.cancel(name, 0.0)

    def _spec(self, recipe: Recipe, log: Path) -> Spec:
        log.parent.mkdir(parents=True, exist_ok=True)
        file = log.with_suffix(".json")
        file.write_text(recipe.model_dump_json(indent=1))
        arguments = (self._runner, str(file), str(self._home / "cache"), str(log))
        return Spec(module=__name__, arguments=arguments, need=self._need)

    def _lost(self, name: str, status: Status) -> bool:
        now = time.monotonic()
        if status.state is not JobState.UNKNOWN:
            self._seen[name] = now
        return now - self._seen[name] > LOST_S

    def _failed(self, log: Path, status: Status) -> RunnerError:
        tail = storable(log.read_text(errors="replace")[-_LOG:]) if log.exists() else ""
        if not tail:
            tail = f"its job ended before it wrote anything{f' ({status.reason})' if status.reason else ''}."
            if self._engine.reach is not None:
                logs = self._home / "engine"
                tail += f" Do the nodes see {self._home} and the Python environment? Their output is in {logs}"
        return RunnerError(f"the runner `{self._runner}` could not prepare the study:\n{tail}")


def main(arguments: Sequence[str]) -> int:
    """Let the runner prepare one recipe; what it prints goes to the log."""
    runner, recipe, cache, log = arguments[:4]
    with Path(log).open("w") as file, redirect_stdout(file), redirect_stderr(file):
        try:
            load_runner(runner).prepare(Recipe.model_validate_json(Path(recipe).read_bytes()), Path(cache))
        except ParibusError as error:  # the scheduler shows the end of the log
            print(error)  # noqa: T201 - this is the log
            return 1
        except Exception:
            traceback.print_exc()
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
