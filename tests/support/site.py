"""A folder with studies for the runner ``fake``, a home folder, and `paribus` as processes that work in it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from paribus.audit.invariants import audit
from paribus.audit.snapshot import snapshot
from paribus.run_folder.folder import RunFolder, read_json
from paribus.store.models import AttemptRecord, RunRecord, StudyRecord
from paribus.store.reader import Reader

STEPS = 12
"""Steps of a run where a test does not say otherwise."""

PATIENCE_S = 480.0
"""Seconds to wait for anything: a machine may be slow, and busy with other suites."""

_STUDY = """
study: {name}
question: Does it run?
runner: {runner}
base:
  preset: grpo
  set: {{schedule.steps: {steps}, kl: {{kind: "off"}}}}
tricks:
  token_level: {{aggregation: token_batch}}
designs:
  solo: {{kind: add_one}}
seeds: {{n: {seeds}}}
evaluate: {{every: 6, problems: 20, samples: 2}}
"""
_T = TypeVar("_T")


def until(condition: Callable[[], _T]) -> _T:
    """Wait until a condition gives something, and return it."""
    end = time.monotonic() + PATIENCE_S
    while not (found := condition()):
        assert time.monotonic() < end, "it did not come so far"
        time.sleep(0.02)
    return found


class Site:
    """The folder, and the processes that were started in it.

    Args:
        path: the folder.
        environment: of the processes; absent: that of this one.
    """

    def __init__(self, path: Path, environment: Mapping[str, str] = os.environ) -> None:
        self.path = path
        self.home = path / "home"
        self.environment = {**environment, "PARIBUS_HOME": str(self.home)}
        self._started: list[subprocess.Popen[str]] = []

    def study(self, name: str = "faked", *, seeds: int = 2, steps: int = STEPS, runner: str = "fake") -> str:
        """Write a study with two arms; return the path of its file."""
        file = self.path / f"{name}.yaml"
        file.write_text(_STUDY.format(name=name, seeds=seeds, steps=steps, runner=runner))
        return str(file)

    def start(self, *arguments: str, step_s: float = 0.01, rules: Sequence[Any] = ()) -> subprocess.Popen[str]:
        """Start `paribus` with these arguments, in a session of its own; how its runs behave is the last two."""
        orders = json.dumps({"step_s": step_s, "rules": list(rules)})
        process = subprocess.Popen(
            [sys.executable, "-m", "paribus", *arguments],
            cwd=self.path,
            env={**self.environment, "PARIBUS_FAKE": orders},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        self._started.append(process)
        return process

    def ended(self, process: subprocess.Popen[str]) -> tuple[int, str]:
        """Wait for the end of a process; return its exit status and what it said."""
        output, _ = process.communicate(timeout=PATIENCE_S)
        return process.returncode, output

    def close(self) -> None:
        """Kill what was started and has not ended."""
        for process in self._started:
            process.kill()
            with process:  # closes its pipe
                pass

    def look(self, what: Callable[[Reader, StudyRecord], _T], study: str = "faked") -> _T:
        """Return what a function of the reader and a study gives."""
        with Reader.open(self.home) as reader:
            return what(reader, reader.study(study))

    def runs(self, study: str = "faked") -> tuple[RunRecord, ...]:
        """Return the runs of a study."""
        return self.look(lambda reader, record: reader.runs_of(record.id), study)

    def attempts(self, study: str = "faked") -> tuple[AttemptRecord, ...]:
        """Return the attempts at the runs of a study."""
        return self.look(lambda reader, record: reader.attempts_of(record.id), study)

    def held(self, *, at: int = 5, **which: object) -> dict[str, object]:
        """Return a rule: the first attempts at these runs, or at all, go no further than a step until :meth:`release`.

        A test that acts on runs that train needs no luck then to find them training.
        """
        return {"do": "wait", "at": at, "for": str(self.path / "released"), "token": 1, **which}

    def release(self) -> None:
        """Let the runs that are held go on."""
        (self.path / "released").touch()

    def training(self) -> list[RunFolder]:
        """Return the folders of attempts that have trained three steps, and have four to go at least."""
        folders = [RunFolder(p) for p in sorted(self.home.glob("runs/*/a*"))]
        return [f for f in folders if not f.outcome.exists() and 3 <= len(list(f.read_metrics())) <= _steps(f) - 4]

    def check(self, *studies: str) -> None:
        """Every run has succeeded, and no promise of the store is broken."""
        with Reader.open(self.home) as reader:
            assert audit(snapshot(reader, deep=True)) == ()
            for name in studies:
                assert {str(s) for s in reader.counts(reader.study(name).id)} == {"SUCCEEDED"}


def _steps(folder: RunFolder) -> int:
    return int(read_json(folder.job)["recipe"]["schedule"]["steps"]) if folder.job.exists() else 0
