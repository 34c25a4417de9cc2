"""Finds a run that hangs: a process that shows no progress for as long as its phase may take without any.

The clock counts only while the supervisor looks, so that neither a machine that sleeps nor one that was frozen as a
whole makes a run look hung.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from paribus.contract import Timeouts
from paribus.engines.process import proc_stat
from paribus.failures import HUNG
from paribus.run_folder.phases import DUMP, Sign, read_signs, stacks

LOOK_S = 1.0
"""Seconds between two looks; a longer pause counts as one."""
WRITING_S = 5.0
"""Seconds that processes have to write their stacks."""
STACKS = "stacks.txt"
"""File in the folder of an attempt with the stacks of all processes of a run that hung."""

_STOPPED, _DISK = ("T", "t"), "D"


@dataclass(frozen=True, kw_only=True)
class Hang:
    """Why a run counts as hung.

    Attributes:
        reason: which process shows no progress in which phase and step, for how long.
        signature: the kind of failure: the same for all runs that hang in this phase.
        outside: whether the machine is the cause: the process was stopped, or waits for a disk.
    """

    reason: str
    signature: str
    outside: bool


class Watchdog:
    """Watches the processes of one run.

    Args:
        attempt: the folder of its attempt.
        limits: seconds that each phase may take without a sign of progress.
        clock: seconds.
    """

    def __init__(self, attempt: Path, limits: Timeouts, clock: Callable[[], float]) -> None:
        self._attempt, self._limits, self._clock = attempt, limits, clock
        self._looked = clock()
        self._signs: dict[int, Sign] = {}
        self._quiet: dict[int, float] = {}

    def look(self) -> Hang | None:
        """Return why the run hangs, if it does; to be called every now and then."""
        now = self._clock()
        passed = now - self._looked
        if passed < LOOK_S:
            return None
        self._looked = now
        signs = read_signs(self._attempt)
        for rank, sign in signs.items():
            same = self._signs.get(rank) == sign
            self._quiet[rank] = self._quiet.get(rank, 0.0) + min(passed, 2 * LOOK_S) if same else 0.0
        self._signs = signs
        working = {rank: sign for rank, sign in signs.items() if not sign.waiting}
        over = [rank for rank, sign in (working or signs).items() if self._quiet[rank] > self._limits.of(sign.phase)]
        if not over:
            return None
        # one that was stopped while it waited for another is the cause all the same
        halted = [rank for rank, sign in signs.items() if _state(sign) in (*_STOPPED, _DISK)]
        rank = next((each for each in halted if self._quiet[each] >= LOOK_S), over[0])
        return self._hang(rank, signs[rank])

    def about(self) -> str:
        """Return what the run was doing when it was looked at last, for messages; empty if that is not known."""
        parts = [
            f"{self._who(rank)} {_doing(sign)} for {self._quiet[rank]:.0f} s" for rank, sign in self._signs.items()
        ]
        return "; ".join(parts)

    def write_stacks(self, runner: int, wait: Callable[[float], object]) -> str:
        """Write the stacks of all threads of all processes of the run into :data:`STACKS`.

        Args:
            runner: id of the runner's process, whose group they are in. It passes :data:`DUMP` on to other nodes.
            wait: waits for some seconds.

        Returns:
            Where they are, for messages; empty if there are none.
        """
        if any(sign.elsewhere for sign in self._signs.values()):
            with suppress(ProcessLookupError, PermissionError):
                os.kill(runner, DUMP)
        for sign in (each for each in self._signs.values() if not each.elsewhere):
            with suppress(ProcessLookupError, PermissionError):
                if os.getpgid(sign.pid) == runner:  # else it is another process by now
                    os.kill(sign.pid, DUMP)
                    if _state(sign) in _STOPPED:
                        os.kill(sign.pid, signal.SIGCONT)  # so that it can write
        left = WRITING_S
        sizes: list[int] = []
        while left > 0:
            wait(0.2)
            left -= 0.2
            before, sizes = sizes, [len(stacks(self._attempt, rank)) for rank in self._signs]
            if all(sizes) and sizes == before:
                break
        texts = [self._shown(rank, sign) for rank, sign in self._signs.items()]
        if not texts:
            return ""
        try:
            (self._attempt / STACKS).write_text("\n".join(texts), encoding="utf-8")
        except OSError as error:
            return f"its stacks cannot be written: {error}"
        return f"the stacks are in {self._attempt / STACKS}"

    def _shown(self, rank: int, sign: Sign) -> str:
        text = stacks(self._attempt, rank)
        nothing = "It wrote no stacks: it waits inside the kernel, or its program took the signal away.\n"
        where = " on another node" if sign.elsewhere else ""
        head = f"{self._who(rank)} (pid {sign.pid}{where}) {_doing(sign)} for {self._quiet[rank]:.0f} s"
        return f"==== {head}\n{text or nothing}"

    def _hang(self, rank: int, sign: Sign) -> Hang:
        state, limit = _state(sign), self._limits.of(sign.phase)
        why = "; it was stopped by a signal" if state in _STOPPED else ""
        why = "; it waits for a disk or a device" if state == _DISK else why
        reason = (
            f"{HUNG}: {self._who(rank)} shows no progress in {sign.phase} of step {sign.step} for "
            f"{self._quiet[rank]:.0f} s, the limit is {limit:g} s (`timeouts.{sign.phase}`){why}"
        )
        waiting = [self._who(other) for other, each in self._signs.items() if each.waiting and other != rank]
        if waiting and (why or not sign.waiting):
            reason += f"; {', '.join(waiting)} wait{'s' if len(waiting) == 1 else ''} for it"
        elif sign.waiting:
            reason += "; all its processes wait for each other"
        return Hang(reason=reason, signature=f"{HUNG} in {sign.phase}", outside=bool(why))

    def _who(self, rank: int) -> str:
        return f"process {rank} of {len(self._signs)}" if len(self._signs) > 1 else "the run"


def _doing(sign: Sign) -> str:
    what = "waits for others" if sign.waiting else "has shown no progress"
    return f"{what} in {sign.phase} of step {sign.step}"


def _state(sign: Sign) -> str:
    """Return the state letter of a process; empty where it is not known."""
    return "" if sign.elsewhere else next(iter(proc_stat(sign.pid)), "")
