"""A worker process: loads one function, then answers calls until it is killed. Started by :mod:`.pool`, below a keeper.

It reads requests and writes answers as JSON lines over pipes that the function cannot reach by its standard streams.
The function is code of the user: nothing that it does to this process (printing, closing files, exiting, forking,
hanging, filling the memory) may reach the training process.
"""

from __future__ import annotations

import asyncio
import importlib
import inspect
import io
import json
import os
import resource
import sys
import traceback
from collections.abc import Callable, Mapping
from contextlib import redirect_stderr, redirect_stdout, suppress
from pathlib import Path
from typing import Any

from paribus_runners.rewards.landlock import confine

MOST_FILE = 1 << 30
"""Most bytes of a file that a function writes."""

MORE_TASKS = 4096
"""Most processes and threads of the user beside those that were there when the worker started.

Far above what a training starts later, and far below what brings a machine down.
"""

SHOWN = 2_000
"""Characters of a traceback, and of what a call prints, that are handed on."""


class Printed(io.TextIOBase):
    """Keeps the beginning of what is written to it, and forgets the rest."""

    def __init__(self) -> None:
        self.text = ""

    def writable(self) -> bool:
        """Return True."""
        return True

    def write(self, text: str) -> int:
        """Keep the text as far as there is room."""
        self.text += text[: SHOWN - len(self.text)]
        return len(text)


def main() -> None:
    """Serve the function that the first argument describes."""
    settings = json.loads(sys.argv[1])
    requests, answers = os.fdopen(os.dup(0), encoding="utf-8"), os.dup(1)
    null = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1, 2):
        os.dup2(null, stream)
    own = os.getpid()
    writes = settings["writes"]
    _send(answers, {"confined": f"not confined ({writes} names /)" if isinstance(writes, str) else
                    confine(Path(folder) for folder in writes)})  # fmt: skip
    try:
        _limit(settings["memory_gib"])
        function = load(settings["path"], settings["folder"])
    except BaseException as error:  # also SystemExit: the module is the user's
        _send(answers, {"loaded": False, "reason": _brief(error), "detail": _traceback(error)})
        return
    _only(own)
    _send(answers, {"loaded": True})
    for line in requests:
        answer = call(function, json.loads(line))
        _only(own)
        _send(answers, answer)


def _limit(memory_gib: float) -> None:
    """Limit address space, size of a file, and processes; a smaller limit that the process has already is kept.

    The kernel counts the processes and threads of the user, not of this function, and doesn't count those of root.
    """
    limits = {
        resource.RLIMIT_AS: int(memory_gib * 2**30),
        resource.RLIMIT_FSIZE: MOST_FILE,
        resource.RLIMIT_NPROC: _tasks_of_user() + MORE_TASKS,
        resource.RLIMIT_CORE: 0,
    }
    for kind, wanted in limits.items():
        _, hard = resource.getrlimit(kind)
        limit = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        resource.setrlimit(kind, (limit, limit))


def _tasks_of_user() -> int:
    """Return the number of threads of all processes of this user."""
    found = 0
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError, IndexError, ValueError):  # it has ended meanwhile
            if process.stat().st_uid == os.getuid():
                found += int((process / "stat").read_bytes().rpartition(b")")[2].split()[17])  # names may be any bytes
    return found


def _only(process: int) -> None:
    """End this process if it is a child that the user's code forked: it must not answer in its parent's place."""
    if os.getpid() != process:
        os._exit(0)


def load(path: str, folder: str) -> Callable[..., Any]:
    """Return the function at a dotted path; modules in ``folder`` come before installed ones.

    Raises:
        Exception: whatever importing the module raises.
        AttributeError: the module lacks the name.
        TypeError: what it names cannot be called.
    """
    if folder:
        sys.path.insert(0, folder)
    module, _, name = path.rpartition(".")
    function = getattr(importlib.import_module(module), name)
    if not callable(function):
        raise TypeError(f"`{path}` is a {type(function).__name__}, not a function")
    return function  # type: ignore[no-any-return]


def call(function: Callable[..., Any], arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Call a function with those of the arguments that it takes; return its result, or why there is none."""
    printed = Printed()
    try:
        with redirect_stdout(printed), redirect_stderr(printed):
            result = function(**_accepted(function, arguments))
            if inspect.isawaitable(result):
                result = asyncio.run(_awaited(result))
            value = plain(result)
    except BaseException as error:  # SystemExit and KeyboardInterrupt too
        answer = {"ok": False, "reason": _brief(error), "detail": _traceback(error)}
    else:
        answer = {"ok": True, "value": value}
    return {**answer, "printed": printed.text}


async def _awaited(result: Any) -> Any:
    return await result


def _accepted(function: Callable[..., Any], arguments: Mapping[str, Any]) -> Mapping[str, Any]:
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):  # some callables in C have none
        return arguments
    if any(p.kind is p.VAR_KEYWORD for p in parameters):
        return arguments
    return {p.name: arguments[p.name] for p in parameters if p.name in arguments}


def plain(value: Any) -> Any:
    """Return a result as JSON values: arrays and tuples as lists, numbers of any library as floats."""
    if value is None or isinstance(value, str | bool | int | float):
        return value
    if isinstance(value, list | tuple):
        return [plain(x) for x in value]
    if hasattr(value, "tolist"):
        return plain(value.tolist())
    if hasattr(value, "__float__"):
        return float(value)
    return f"<{type(value).__name__}>"


def _brief(error: BaseException) -> str:
    text = str(error).strip().split("\n")[0]
    return f"{type(error).__name__}: {text}"[:300] if text else type(error).__name__


def _traceback(error: BaseException) -> str:
    try:
        return "".join(traceback.format_exception(error))[-SHOWN:]
    except BaseException:  # after a MemoryError there may be none left
        return ""


def _send(answers: int, message: Mapping[str, Any]) -> None:
    try:
        data = json.dumps(message).encode() + b"\n"
        while data:
            data = data[os.write(answers, data) :]
    except BaseException:  # closed by the function, or no memory: the pool sees the end of the process
        os._exit(1)


if __name__ == "__main__":
    main()
