"""Set-up jobs: the runner makes what the runs of a study share (a model, a data set) before the first run starts.

``python -m paribus.scheduler.setup_jobs RUNNER RECIPE CACHE LOG`` is such a job. The engine starts it like a run, so
the scheduler imports neither torch nor a model.

What is known of each outlives the scheduler, in the folder ``prepare`` of the home folder: ``NAME.job.json`` names the
newest job, so that the next scheduler waits for it instead of queueing another; ``NAME.done.json`` says that a job
succeeded, and lists the files of the cache, which must still be there for it to count.
"""

from __future__ import annotations

import secrets
import sys
import time
import traceback
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import redirect_stderr, redirect_stdout, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from paribus.contract import Need, load_runner
from paribus.engines.base import Engine, JobState, Spec, Status
from paribus.errors import EngineError, ParibusError, RunFolderError, RunnerError
from paribus.failures import describe_exit, from_outside, last_line, storable
from paribus.monitor.progress import Preparing
from paribus.recipe.analysis.facts import other_reference
from paribus.recipe.recipe import Recipe, fingerprint_of
from paribus.run_folder.folder import SHORT, read_json, write_json
from paribus.store.attempts import INFRASTRUCTURE_TRIES, backoff_s
from paribus.study.plan import Arm
from paribus.text import plural

LOST_S = 60.0
"""Seconds after which a job that the engine does not know counts as lost."""

_LINE = 60
"""Characters of the log's last line that the progress shows."""

_LOG = 2000
"""Characters of the log that an error shows."""

_UNFINISHED = (".lock", ".partial", ".tmp", ".incomplete")
"""Endings of files and folders of the cache that come and go."""


def shared_parts(runner: str, arms: Iterable[Arm]) -> dict[str, Recipe]:
    """Return one recipe for each distinct set of models and task, by a name that is the same in every process.

    The name also depends on the runner and on the hashes of its code, data and model, so that what another version has
    prepared does not count.
    """
    distinct: dict[str, Arm] = {}
    for arm in arms:
        distinct.setdefault(fingerprint_of(_subject(arm.recipe)), arm)
    return {_name(runner, arm): arm.recipe for arm in distinct.values()}


def _subject(recipe: Recipe) -> list[Any]:
    parts = (recipe.model, recipe.task, other_reference(recipe))
    return [part.model_dump(mode="json") for part in parts if part is not None]


def _name(runner: str, arm: Arm) -> str:
    hashes = None if arm.hashes is None else asdict(arm.hashes)
    return f"prepare-{fingerprint_of([runner, hashes, *_subject(arm.recipe)])[:SHORT]}"


def prepared(home: Path, name: str) -> bool:
    """Return whether a set-up job has made a part in this home folder, and all files are still in the cache."""
    try:
        files = read_json(_done(home, name))["files"]
        return all((home / "cache" / path).stat().st_size == size for path, size in files.items())
    except (RunFolderError, OSError, KeyError, TypeError, AttributeError, ValueError):
        return False


def _done(home: Path, name: str) -> Path:
    return home / "prepare" / f"{name}.done.json"


def _cached_files(cache: Path) -> dict[str, int]:
    """Return the sizes of the files in the cache by their paths, without those that come and go."""
    found = {}
    for path in cache.rglob("*"):
        inside = path.relative_to(cache)
        with suppress(OSError):  # gone meanwhile
            if path.is_file() and not any(part.endswith(_UNFINISHED) for part in inside.parts):
                found[str(inside)] = path.stat().st_size
    return found


@dataclass(kw_only=True)
class _Part:
    """What is known of one part that is to be made.

    Attributes:
        job: name of its job in the engine; empty while it has none.
        seen: when the engine last knew the job (monotonic seconds).
        begun: when this session first had a job for it (monotonic seconds).
        failures: failures of the infrastructure.
        retry_at: when the next job may be submitted (monotonic seconds).
        error: why it can't be made; empty if it may be.
    """

    recipe: Recipe
    job: str = ""
    seen: float = 0.0
    begun: float = 0.0
    failures: int = 0
    retry_at: float = 0.0
    error: str = ""

    @property
    def about(self) -> str:
        return f"{self.recipe.model.name} for {self.recipe.task.kind}"


class SetupJobs:
    """The set-up jobs of one study: one for each of its :func:`shared_parts`.

    A job that was killed, cancelled or lost with its node is submitted again, as often and with the same pauses as a
    run. They write logs to ``prepare/`` in the home folder, models and data to ``cache/``.
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
        self._parts = {name: _Part(recipe=recipe) for name, recipe in parts.items()}
        self._adopted = False

    def turn(self) -> Mapping[str, Status]:
        """Submit what the engine has room for, and check what it runs. A part that failed fails again at the next turn.

        Returns:
            The jobs that wait or run; empty when the study is set up.

        Raises:
            RunnerError: the runner failed, or the infrastructure too often; the message holds the end of the log.
            EngineError: the engine refused a job.
        """
        if not self._adopted:
            self._adopt()
        for name, part in self._parts.items():
            if part.error:
                raise RunnerError(part.error)
            if not part.job and time.monotonic() >= part.retry_at and self._engine.capacity(self._need) > 0:
                self._submit(name, part)
        statuses = self._engine.poll(tuple(part.job for part in self._parts.values() if part.job))
        left = {}
        for name, part in list(self._parts.items()):
            status = statuses.get(part.job, Status(state=JobState.PENDING))
            if part.job and (status.state is JobState.ENDED or self._lost(part, status)):
                if status.exit_code == 0:
                    self._finish(name)
                    continue
                self._fail(name, part, status)
                status = Status(state=JobState.PENDING)
            left[part.job or name] = status
        return left

    def progress(self) -> tuple[Preparing, ...]:
        """Return what has a job, for how long, and the last line of its log."""
        now = time.monotonic()
        return tuple(
            Preparing(about=part.about, seconds=now - part.begun, line=last_line(self._file(name, ".log"))[:_LINE])
            for name, part in self._parts.items()
            if part.job
        )

    def cancel(self) -> None:
        """Kill the jobs that run, and submit no more."""
        for name, part in self._parts.items():
            if part.job:
                self._engine.cancel(part.job, 0.0)
                self._file(name, ".job.json").unlink(missing_ok=True)
        self._parts.clear()

    # ---- jobs ------------------------------------------------------------------------------------

    def _file(self, name: str, ending: str) -> Path:
        return self._home / "prepare" / f"{name}{ending}"

    def _adopt(self) -> None:
        """Take over the jobs of an earlier scheduler that still wait or run, with their places in the queue."""
        self._adopted = True
        for name, part in self._parts.items():
            # without an answer of the engine: another job, which waits for the lock of the first
            with suppress(RunFolderError, EngineError, KeyError, TypeError):
                note = read_json(self._file(name, ".job.json"))
                job = str(note["job"])
                if note["engine"] != self._engine.name or self._engine.find(job) is None:
                    continue
                if self._engine.poll([job])[job].state in (JobState.PENDING, JobState.RUNNING):
                    self._say(f"{part.about}: the job that prepares it is still there, taken over")
                    part.job = job
                    part.seen = part.begun = time.monotonic()

    def _submit(self, name: str, part: _Part) -> None:
        if not part.failures:
            self._say(f"preparing {part.about}")
        job = f"{name}-{secrets.token_hex(3)}"  # an engine may remember an ended job by its name
        log, file = self._file(name, ".log"), self._file(name, ".json")
        log.parent.mkdir(parents=True, exist_ok=True)
        log.unlink(missing_ok=True)  # or an older job's words would be taken for this one's
        file.write_text(part.recipe.model_dump_json(indent=1))
        write_json(self._file(name, ".job.json"), {"engine": self._engine.name, "job": job})
        arguments = (self._runner, str(file), str(self._home / "cache"), str(log))
        self._engine.submit(Spec(module=__name__, arguments=arguments, need=self._need), job)
        part.job, part.seen = job, time.monotonic()
        part.begun = part.begun or part.seen

    def _lost(self, part: _Part, status: Status) -> bool:
        now = time.monotonic()
        if status.state is not JobState.UNKNOWN:
            part.seen = now
        return now - part.seen > LOST_S

    def _finish(self, name: str) -> None:
        del self._parts[name]
        write_json(_done(self._home, name), {"files": _cached_files(self._home / "cache")})
        self._file(name, ".job.json").unlink(missing_ok=True)

    def _fail(self, name: str, part: _Part, status: Status) -> None:
        """Note a failed job; submit another one later if the infrastructure is to blame.

        Raises:
            RunnerError: no other job can help.
        """
        job, part.job = part.job, ""
        if status.state is JobState.UNKNOWN:
            self._engine.cancel(job, 0.0)  # or the engine would keep a place for it
        if from_outside(status.exit_code):
            part.failures += 1
            if part.failures < INFRASTRUCTURE_TRIES:
                wait = backoff_s(part.failures, int(name[-8:], 16), part.failures)
                part.retry_at = time.monotonic() + wait
                when = f"in {wait:.0f} s" if wait else "at once"
                self._say(
                    f"{part.about}: {self._why(status)}; trying again {when} "
                    f"(try {part.failures + 1} of {INFRASTRUCTURE_TRIES})"
                )
                return
        part.error = self._failed(self._file(name, ".log"), part, status)
        raise RunnerError(part.error)

    def _why(self, status: Status) -> str:
        if status.exit_code is not None:
            return f"the job that prepares it ended: {describe_exit(status.exit_code)}"
        known = "was lost" if status.state is JobState.UNKNOWN else "ended without an exit status"
        return f"the job that prepares it {known}{f' ({status.reason})' if status.reason else ''}"

    def _failed(self, log: Path, part: _Part, status: Status) -> str:
        tail = storable(log.read_text(errors="replace")[-_LOG:]) if log.exists() else ""
        if not tail:
            tail = f"its job ended before it wrote anything{f' ({status.reason})' if status.reason else ''}."
            if self._engine.reach is not None:
                logs = self._home / "engine"
                tail += f" Do the nodes see {self._home} and the Python environment? Their output is in {logs}"
        tries = f" in {plural(part.failures, 'try')}; last, {self._why(status)}" if part.failures else ""
        return f"the runner `{self._runner}` could not prepare the study{tries}:\n{tail}"


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
