"""``paribus.track``: a program that trains by itself reports its metrics, without a scheduler and a server.

The program only appends lines to a file. A process beside it (:mod:`.recorder`) does everything else: canonical names,
the store, health. So nothing here waits for a database, and a trouble of Paribus never ends a training: it is logged
once, as a warning of the logger ``paribus``.
"""

from __future__ import annotations

import json
import logging
import math
import os
import secrets
import subprocess
import sys
import time
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from paribus.errors import ParibusError
from paribus.external.spool import FOLDER, About, Spool
from paribus.home import home as usual_home
from paribus.home import make_home
from paribus.run_folder.folder import write_json

FINISH_S = 20.0
"""Longest time that ``finish`` waits until the result is recorded."""

_MOST_STEP = 2**53
_LOG = logging.getLogger("paribus")


def track(
    study: str,
    arm: str,
    seed: int,
    *,
    home: str | Path | None = None,
    trainer: str = "",
    steps: int | None = None,
    primary: str | None = None,
    base: str | None = None,
    stop_on: Iterable[str] = (),
) -> TrackedRun:
    """Track a training that this program makes: its metrics become a run of a study while it trains.

    In a program of several processes only that of rank 0 (``$RANK``) records; the others' runs do nothing.

    Args:
        study: name of the study; runs that were imported or tracked stand in it, and none that Paribus trains.
        arm: name of the arm.
        seed: the seed.
        home: home folder; ``None``: ``$PARIBUS_HOME``, else ``.paribus``.
        trainer: whose metric names ``log`` gets: ``trl``, ``verl`` or another that `paribus health` knows; by default
            they are those of Paribus, or the trainer is recognised by the first ones.
        steps: number of steps that the training will make.
        primary: metric of the tables; ``None``: held-out accuracy or the reward.
        base: arm that the others are compared with; ``None``: the first that was tracked.
        stop_on: detectors that set :attr:`TrackedRun.should_stop` when they are critical.

    Raises:
        ParibusError: an argument is wrong. Trouble with disks and databases raises nothing.
    """
    about = _checked(study, arm, seed, trainer, steps, primary, base, stop_on)
    run = TrackedRun()
    if os.environ.get("RANK", "0") in ("", "0"):
        run._begin(about, usual_home() if home is None else Path(home).expanduser())
    return run


def _checked(
    study: str, arm: str, seed: int, trainer: str, steps: int | None, primary: str | None, base: str | None,
    stop_on: Iterable[str],
) -> About:  # fmt: skip
    """Return the arguments of :func:`track`.

    Raises:
        ParibusError: one is wrong; the message says what is allowed.
    """
    from paribus.external.names import MOST_SEED, checked_label, checked_study
    from paribus.health.import_logs import PARIBUS, mappings
    from paribus.run_folder.metrics import find_metric
    from paribus.study.spec import DETECTORS

    if isinstance(seed, bool) or not isinstance(seed, int) or not 0 <= seed <= MOST_SEED:
        raise ParibusError(f"paribus.track: the seed is {seed!r}; it must be a whole number from 0 to {MOST_SEED}.")
    if steps is not None and (isinstance(steps, bool) or not isinstance(steps, int) or not 0 < steps < _MOST_STEP):
        raise ParibusError(f"paribus.track: steps is {steps!r}; it must be a whole number from 1 on, or None.")
    for name, text in (("study", study), ("arm", arm), ("base", base or "")):
        if not isinstance(text, str):
            raise ParibusError(f"paribus.track: {name} is {text!r}; it must be a text.")
    known = (PARIBUS, *mappings())
    if trainer and trainer not in known:
        raise ParibusError(f"paribus.track: there is no trainer `{trainer}`; it must be one of {', '.join(known)}.")
    if primary is not None and find_metric(primary) is None:
        raise ParibusError(f"paribus.track: `{primary}` is no metric of docs/reference/metrics.md.")
    if isinstance(stop_on, str):
        raise ParibusError(f"paribus.track: stop_on is a list of detectors, such as [{stop_on!r}].")
    stops = tuple(stop_on)
    if wrong := [name for name in stops if name not in DETECTORS]:
        raise ParibusError(f"paribus.track: there is no detector `{wrong[0]}`; they are {', '.join(DETECTORS)}.")
    return About(
        study=checked_study(study),
        arm=checked_label(arm, "paribus.track"),
        seed=seed,
        trainer=trainer,
        steps=steps or 0,
        primary=primary or "",
        base=checked_label(base, "paribus.track") if base else "",
        stop_on=stops,
        process={},
    )


class TrackedRun:
    """A training that reports to Paribus; :func:`track` makes it. Nothing of it raises while a program trains."""

    def __init__(self) -> None:
        self._spool: Spool | None = None
        self._file = -1
        self._owner = 0
        self._warned = False
        self._stop = ""
        self._recorder = 0

    def log(self, step: int, data: Mapping[str, Any]) -> None:
        """Report metrics of a step; several calls of one step are one line. What is no number is left out.

        Args:
            step: steps so far, from 1; 0 is before training.
            data: name to number; names of the trainer, or canonical ones.
        """
        if self._spool is None or os.getpid() != self._owner:
            return
        try:
            self._write(step, data)
        except Exception as error:  # a full disk, data of a wrong type: the training goes on
            self._warn(f"metrics of a step were not recorded: {type(error).__name__}: {error}")

    @property
    def should_stop(self) -> bool:
        """Whether a detector of ``stop_on`` is critical, or `paribus cancel` has asked to stop. Always cheap."""
        if not self._stop and self._spool is not None:
            with suppress(OSError):
                if self._spool.stop.exists():
                    self._stop = self._spool.stop.read_text() or "asked to stop"
        return bool(self._stop)

    @property
    def stop_reason(self) -> str:
        """Why the program should stop; empty if it should not."""
        return self._stop if self.should_stop else ""

    def finish(self) -> None:
        """Report that the training has ended well. Waits until that is recorded, at most some seconds."""
        self._end({"status": "succeeded"})

    def fail(self, reason: str) -> None:
        """Report that the training has failed."""
        self._end({"status": "failed", "reason": str(reason)[:1000]})

    def __enter__(self) -> Self:
        """Return the run."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Finish the run, or fail it with the exception, which is raised on."""
        if error is None:
            self.finish()
        else:
            self.fail(f"{type(error).__name__}: {error}")

    def __repr__(self) -> str:
        return f"<paribus.TrackedRun in {self._spool.path if self._spool else 'no folder: it records nothing'}>"

    # ---- inside ----------------------------------------------------------------------------------

    def _begin(self, about: About, place: Path) -> None:
        try:
            from paribus.engines.process import Identity

            make_home(place)
            spool = Spool(place.resolve() / FOLDER / f"{time.time_ns()}-{secrets.token_hex(4)}")
            spool.path.mkdir(parents=True, mode=0o700)
            write_json(spool.about, {**asdict(about), "process": Identity.of(os.getpid()).to_json()}, synced=False)
            self._file = os.open(spool.records, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
            self._spool, self._owner = spool, os.getpid()
            self._recorder = _started(spool)
        except Exception as error:
            self._warn(f"this training is not tracked: {type(error).__name__}: {error}")

    def _write(self, step: int, data: Mapping[str, Any]) -> None:
        if isinstance(step, bool) or not 0 <= int(step) < _MOST_STEP:
            raise ValueError(f"the step is {step!r}; it must be a whole number from 0 on")
        values, strange = {}, []
        for name, value in data.items():
            number = _number(value)
            if number is None:
                strange.append(str(name))
            else:
                values[str(name)] = number if math.isfinite(number) else str(number)
        record = {"step": int(step), "time_ms": time.time_ns() // 1_000_000, "values": values}
        line = json.dumps(record, allow_nan=False).encode(errors="replace") + b"\n"
        if (written := os.write(self._file, line)) != len(line):
            os.ftruncate(self._file, os.fstat(self._file).st_size - written)
            raise OSError("the disk is full")
        if strange:
            self._warn(f"no numbers, and so not recorded: {', '.join(strange[:5])}")

    def _end(self, how: dict[str, Any]) -> None:
        spool, self._spool = self._spool, None
        if spool is None or os.getpid() != self._owner:
            return
        try:
            os.close(self._file)
            write_json(spool.end, how, synced=False)
            if not _recorded(spool, self._recorder):
                self._warn(f"the end is not recorded yet: {spool.path / 'recorder.log'} says why")
        except Exception as error:
            self._warn(f"the end was not recorded: {type(error).__name__}: {error}")
        with suppress(OSError):
            if spool.refused.exists():
                self._warn(f"this training was not recorded: {spool.refused.read_text()}")

    def _warn(self, text: str) -> None:
        """Log the first trouble; a training that goes on for days is not to fill its log."""
        if not self._warned:
            self._warned = True
            with suppress(Exception):
                _LOG.warning("paribus: %s. The training goes on; this is said once.", text)


def _number(value: Any) -> float | None:
    """Return a value as a number; ``None`` for anything else. Truth values and text are not numbers."""
    if isinstance(value, int | float) and not isinstance(value, bool):
        try:
            return float(value)
        except OverflowError:
            return math.inf if value > 0 else -math.inf
    if isinstance(value, bool | str | bytes) or value is None or not hasattr(value, "__float__"):
        return None
    try:
        return float(value)
    except Exception:  # a tensor with several entries, an array
        return None


def _recorded(spool: Spool, recorder: int) -> bool:
    """Wait until a recorder has recorded the end of its program, or has refused to; return whether it has in time."""
    until, lives = time.monotonic() + FINISH_S, recorder > 0
    while spool.path.exists() and not spool.refused.exists():
        if not lives or time.monotonic() > until:
            return False
        with suppress(ChildProcessError):  # the program waits for all its children elsewhere
            lives = os.waitpid(recorder, os.WNOHANG) == (0, 0)
        time.sleep(0.02)
    return True


def _started(spool: Spool) -> int:
    """Start the recorder in a session of its own: a signal to the group of the training does not end it."""
    variables = {k: v for k, v in os.environ.items() if not k.startswith(("CUDA_", "OMP_", "MKL_", "LD_PRELOAD"))}
    variables |= {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    with (spool.path / "recorder.log").open("ab") as output:
        process = subprocess.Popen(
            [sys.executable, "-P", "-m", "paribus.external.recorder", str(spool.path)],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
            env=variables,
        )
    process.returncode = 0  # it outlives this object, which would warn of that
    return process.pid
