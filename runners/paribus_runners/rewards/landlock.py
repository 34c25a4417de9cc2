"""Confines a process with Landlock (Linux): from then on it, and all that it starts, write below some folders alone.

The calls are made by number, which is the same on all processors, because no C library wraps them. What Landlock
cannot do is in :data:`WEAK` and in ``docs/security.md``: https://docs.kernel.org/userspace-api/landlock.html
"""

from __future__ import annotations

import ctypes
import os
import stat
import struct
import sys
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446
_ASK_VERSION, _PATH_BENEATH = 1, 1
_PR_SET_NO_NEW_PRIVS = 38

_WRITE_FILE = 1 << 1
_FIRST = _WRITE_FILE | sum(1 << bit for bit in range(4, 13))  # also remove and make, for each kind of file
_REFER, _TRUNCATE = 1 << 13, 1 << 14  # since versions 2 and 3
_OF_FILES = _WRITE_FILE | _TRUNCATE  # what a rule for a file may allow; the others are for folders
_NO_SIGNALS = 1 << 1  # since version 6

FULL = 3
"""The first version of Landlock that stops every change of a file's content: Linux 6.2."""

WEAK = "except that files can be emptied: that takes Linux 6.2"
"""What the versions before :data:`FULL` lack."""

DEVICES = ("null", "zero", "full", "random", "urandom", "shm", "nvidia*", "kfd", "dri", "infiniband")
"""What may be written below ``/dev``: what every program uses, memory shared by processes, and GPUs; no terminal."""


def version() -> int:
    """Return the version of the kernel's Landlock; 0 if it has none, or doesn't let this process use it."""
    if sys.platform != "linux":
        return 0
    with suppress(OSError):
        return _call(_CREATE_RULESET, None, 0, _ASK_VERSION)
    return 0


def confine(folders: Iterable[Path], *, most: int | None = None) -> str:
    """Refuse this thread, and what it starts, every write outside ``folders`` and :data:`DEVICES`, for good.

    Reading stays as it was, also that of other processes' environment. Call it before there is a second thread. It also
    keeps programs from gaining rights (``sudo``), from mounting, and from tracing the processes outside; since version
    6 from signalling them, too.

    Args:
        folders: what may be written in, with all that is below; one that cannot be opened is left out.
        most: use no later version of Landlock than this.

    Returns:
        What is enforced, in a few words that begin with ``confined`` or ``not confined``.
    """
    found = version()
    if found == 0:
        return "not confined (this kernel has no Landlock)"
    used = found if most is None else min(found, most)
    rights = _FIRST | (_REFER if used >= 2 else 0) | (_TRUNCATE if used >= FULL else 0)
    attributes = struct.pack("=QQQ", rights, 0, _NO_SIGNALS)[: 24 if used >= 6 else 8]
    try:
        rules = _call(_CREATE_RULESET, attributes, len(attributes), 0)
        try:
            for path in (*folders, *(p for name in DEVICES for p in Path("/dev").glob(name))):
                _allow(rules, path, rights)
            if ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0:
                raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
            _call(_RESTRICT_SELF, rules, 0)
        finally:
            os.close(rules)
    except OSError as error:
        return f"not confined (Landlock {used}: {error.strerror})"
    return f"confined (Landlock {used})" if used >= FULL else f"confined (Landlock {used}, {WEAK})"


def _allow(rules: int, path: Path, rights: int) -> None:
    """Allow ``rights`` on a path and all below it; do nothing if it does not exist, or cannot be opened."""
    with suppress(OSError):  # such as a link to itself: one odd folder must not leave all others open
        place = os.open(path, os.O_PATH | os.O_CLOEXEC)
        try:
            allowed = rights if stat.S_ISDIR(os.fstat(place).st_mode) else rights & _OF_FILES
            _call(_ADD_RULE, rules, _PATH_BENEATH, struct.pack("=Qi", allowed, place), 0)
        finally:
            os.close(place)


def _call(number: int, *arguments: int | bytes | None) -> int:
    """Make a system call.

    Raises:
        OSError: it fails.
    """
    given = [ctypes.c_long(a) if isinstance(a, int) else ctypes.c_char_p(a) for a in arguments]
    done: int = ctypes.CDLL(None, use_errno=True).syscall(ctypes.c_long(number), *given)
    if done < 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
    return done
