"""Worker processes for code that may hang, crash or lie: calls go in, outcomes come back as futures, in time.

Each process runs one function and is killed with everything that it has started when a call takes too long. Results
are JSON, never pickles. A thread of the caller's process hands out the calls, so that they go on while it generates.
"""

from __future__ import annotations

import json
import os
import selectors
import signal
import subprocess
import sys
import threading
import time
import uuid
from collections import deque
from collections.abc import Mapping
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, NamedTuple

from paribus.engines.process import KIN, Identity, end_kin, end_tree, kept, signal_group
from paribus.errors import ParibusError
from paribus.scratch import Scratch, make

Fault = Literal["timeout", "exception", "died", "not_finite", "wrong_length", "not_a_number"]
FAULTS: tuple[Fault, ...] = ("timeout", "exception", "died", "not_finite", "wrong_length", "not_a_number")
"""How a call fails; the first three end the call, the others are results that are no scores."""

LOADING_S = 300.0
"""Seconds in which a worker must have loaded its function."""

WORKERS = "PARIBUS_REWARD_WORKERS"
"""Environment variable: most processes for each function."""

WRITES = "PARIBUS_REWARD_WRITES"
"""Environment variable: folders that functions may write in, separated by ``:``; ``/`` confines none of them."""

CACHES = ("HF_HOME", "HF_HUB_CACHE", "HF_DATASETS_CACHE")
"""Environment variables of folders that functions may write in, too; and where Hugging Face's libraries write else."""
USUAL_CACHE = "~/.cache/huggingface"

_MOST_BYTES = 16 * 2**20
_POLL_S = 0.05
_ENDING_S = 3.0
"""Seconds in which a process that has closed its side should end, so that its exit status is known."""
_MARK = "PARIBUS_REWARD_WORKER"

PASSED_ON = frozenset({
    "PATH", "HOME", "USER", "LOGNAME", "SHELL", "LANG", "LANGUAGE", "TZ", "PYTHONPATH",
    "VIRTUAL_ENV", "CONDA_PREFIX", "LD_LIBRARY_PATH", "CUDA_VISIBLE_DEVICES", "HF_HOME", "HF_HUB_CACHE",
    "HF_DATASETS_CACHE", "HF_HUB_OFFLINE", "HF_DATASETS_OFFLINE", "TRANSFORMERS_OFFLINE", "NLTK_DATA", KIN,
})  # fmt: skip
"""Variables of the environment that a worker gets, beside ``LC_*``: everything else may hold a secret."""


@dataclass(frozen=True, kw_only=True)
class Worker:
    """What the processes of a pool run.

    Attributes:
        path: dotted path of the function.
        folder: where modules are looked for first; empty: only where Python looks.
        timeout_s: seconds after which a call is ended.
        memory_gib: address space of each process.
    """

    path: str
    folder: str = ""
    timeout_s: float
    memory_gib: float


class Outcome(NamedTuple):
    """What became of a call.

    Attributes:
        value: the result as JSON values.
        fault: how it failed; ``None`` if it did not.
        reason: why, in a few words.
        detail: its traceback; may be empty.
        printed: the beginning of what it printed.
    """

    value: Any = None
    fault: Fault | None = None
    reason: str = ""
    detail: str = ""
    printed: str = ""


@dataclass
class _Call:
    request: bytes
    future: Future[Outcome]


@dataclass
class _Process:
    """One process of a pool.

    Attributes:
        keeper: adopts and ends what the process starts; the process is below it.
        mark: what it and all that it starts have in their environment, unless they are started with another one.
        folder: its own folder for temporary files.
        confined: what it has said of its confinement, before it loaded code of the user.
        deadline: when it is ended unless it answers before.
        loaded: whether it has loaded the function.
        call: the call that it has.
        unsent: what is left to send of it.
        received: what it has answered so far.
        silent: whether it has closed its side.
    """

    popen: subprocess.Popen[bytes]
    keeper: Identity
    mark: str
    folder: Scratch
    deadline: float
    confined: str = ""
    loaded: bool = False
    call: _Call | None = None
    unsent: bytes = b""
    received: bytearray = field(default_factory=bytearray)
    silent: bool = False

    @property
    def idle(self) -> bool:
        return self.loaded and self.call is None


def workers() -> int:
    """Return the most processes for each function: ``PARIBUS_REWARD_WORKERS``, else one a core, from 2 to 8.

    Raises:
        ParibusError: the variable is not a positive number.
    """
    wanted = os.environ.get(WORKERS)
    if wanted is None:
        return min(8, max(2, len(os.sched_getaffinity(0))))
    if not (wanted.isascii() and wanted.isdigit() and int(wanted)):
        raise ParibusError(f"{WORKERS} is {wanted!r}: set it to a number of processes, 1 or more, or unset it")
    return int(wanted)


def writable() -> tuple[Path, ...] | str:
    """Return the folders that functions may write in beside their own: caches of Hugging Face, and what is declared.

    Returns:
        If one of them is the root folder, by whatever path, nothing would be confined: the name of the variable.

    Raises:
        ParibusError: ``PARIBUS_REWARD_WRITES`` names something else than folders, each by its absolute path.
    """
    declared = [part for part in os.environ.get(WRITES, "").split(":") if part]
    for part in declared:
        if not (Path(part).is_absolute() and Path(part).is_dir()):
            raise ParibusError(
                f"{WRITES} names {part!r}, which is not the absolute path of a folder: make the folder, or correct the "
                "variable (paths are separated by `:`)"
            )
    named = [(WRITES, part) for part in declared]
    named += [(name, os.environ[name]) for name in CACHES if os.environ.get(name)]
    with suppress(RuntimeError):  # a user without a home folder
        named.append((USUAL_CACHE, str(Path(USUAL_CACHE).expanduser())))
    for name, folder in named:
        with suppress(OSError):  # it does not exist, or cannot be reached
            if Path(folder).samefile("/"):
                return name
    return tuple(dict.fromkeys(Path(folder) for _, folder in named))


def _make_caches() -> None:
    """Make the caches of Hugging Face that are missing, as its libraries would: a confined function cannot."""
    named = [os.environ[name] for name in CACHES if os.environ.get(name)]
    for folder in (*named, *(() if os.environ.get("HF_HOME") else (USUAL_CACHE,))):
        with suppress(OSError, RuntimeError):  # a folder of others, or a user without a home folder
            Path(folder).expanduser().mkdir(parents=True, exist_ok=True)


def environment(mark: str, folder: Path) -> dict[str, str]:
    """Return the environment of a worker: nothing of this one that may hold a secret.

    Args:
        mark: what the worker, and what it starts with its own environment, is found by.
        folder: for its temporary files.
    """
    kept = {k: v for k, v in os.environ.items() if k in PASSED_ON or k.startswith("LC_")}
    fixed = {"PYTHONHASHSEED": "0", "OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false", _MARK: mark}
    return {**kept, **fixed, **dict.fromkeys(("TMPDIR", "TEMP", "TMP"), str(folder))}


_CLOSED = Outcome(fault="died", reason="the pool was closed")


class Pool:
    """Calls one function in worker processes.

    Args:
        worker: what they run.
        size: most processes; they are started as calls come.

    Raises:
        ParibusError: see :func:`writable`.
    """

    def __init__(self, worker: Worker, size: int) -> None:
        _make_caches()
        self._worker, self._size, self._writable = worker, size, writable()
        self._confined = ""
        self._waiting: deque[_Call] = deque()
        self._processes: list[_Process] = []
        self._lock = threading.Lock()
        self._closed = False
        self._load_error: Outcome | None = None
        self._cause: ParibusError | None = None
        self._ready = threading.Event()
        self._wake_read, self._wake_write = os.pipe()
        os.set_blocking(self._wake_write, False)
        self._thread = threading.Thread(target=self._serve, name=f"rewards {worker.path}", daemon=True)
        self._thread.start()

    def __enter__(self) -> Pool:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def wait_until_loaded(self) -> None:
        """Wait until a process has loaded the function.

        Raises:
            ParibusError: it cannot be loaded; the message has its traceback.
        """
        self._ready.wait()
        if self._cause is not None:
            raise self._cause
        if self._load_error is not None:
            reason, detail = self._load_error.reason, self._load_error.detail
            raise ParibusError(f"`{self._worker.path}` cannot be loaded: {reason}\n{detail}".rstrip())

    @property
    def confined(self) -> str:
        """What keeps the function from writing elsewhere, as its first process has found; empty until it is loaded."""
        return self._confined

    def submit(self, arguments: Mapping[str, Any]) -> Future[Outcome]:
        """Return the outcome of a call, which always comes; whatever the function does is an outcome.

        Args:
            arguments: keyword arguments, JSON values; the function gets those that it takes.

        Raises:
            ParibusError: no process can be started any more; calls that wait raise it, too.
        """
        call = _Call(json.dumps(arguments).encode() + b"\n", Future())
        with self._lock:
            if self._closed:
                raise self._cause or RuntimeError("the pool is closed")
            self._waiting.append(call)
        self._wake()
        return call.future

    def close(self) -> None:
        """Kill all processes and whatever they have started; calls that wait fail."""
        with self._lock:
            self._closed = True
        self._wake()
        self._thread.join()
        for end in (self._wake_read, self._wake_write):
            with suppress(OSError):
                os.close(end)
        self._wake_read = self._wake_write = -1

    def _wake(self) -> None:
        with suppress(BlockingIOError, OSError):
            os.write(self._wake_write, b"x")

    # ---- the thread --------------------------------------------------------------------------------

    def _serve(self) -> None:
        cause: ParibusError | None = None
        try:
            self._start()
            while not self._closed:
                self._hand_out()
                self._exchange()
                for process in list(self._processes):
                    self._judge(process)
        except Exception as error:  # such as a machine without room for another process
            cause = ParibusError(f"`{self._worker.path}` cannot be called any more: {type(error).__name__}: {error}")
            cause.__cause__ = error
        finally:
            with self._lock:
                self._closed, self._cause = True, cause
                left = [*self._waiting, *(p.call for p in self._processes if p.call is not None)]
                self._waiting.clear()
            for call in left:  # first, so that whatever the end of the processes meets, no caller waits for ever
                if cause is None:
                    call.future.set_result(_CLOSED)
                else:  # no failure of the function: a score for it would be a wrong number
                    call.future.set_exception(cause)
            self._ready.set()
            for process in list(self._processes):
                process.call = None
                with suppress(Exception):  # the first error is the cause
                    self._end(process, _CLOSED)

    def _start(self) -> None:
        scratch, allowed = make("reward"), self._writable
        folder = scratch.path
        writes = allowed if isinstance(allowed, str) else [str(path) for path in (folder, *allowed)]
        settings = {
            "path": self._worker.path, "folder": self._worker.folder, "memory_gib": self._worker.memory_gib,
            "writes": writes,
        }  # fmt: skip
        mark = uuid.uuid4().hex
        try:
            popen = subprocess.Popen(
                kept(sys.executable, "-P", "-m", "paribus_runners.rewards.worker", json.dumps(settings)),
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
                env=environment(mark, folder), start_new_session=True,
            )  # fmt: skip
        except OSError:
            scratch.delete()
            raise
        assert popen.stdin is not None
        assert popen.stdout is not None
        os.set_blocking(popen.stdin.fileno(), False)
        os.set_blocking(popen.stdout.fileno(), False)
        self._processes.append(_Process(popen, Identity.of(popen.pid), mark, scratch, time.monotonic() + LOADING_S))

    def _hand_out(self) -> None:
        """Give waiting calls to idle processes, and start processes while there are fewer than calls."""
        with self._lock:
            for process in self._processes:
                if process.idle and self._waiting:
                    call = self._waiting.popleft()
                    process.call, process.unsent = call, call.request
                    process.received.clear()
                    process.deadline = time.monotonic() + self._worker.timeout_s
            coming = sum(not p.loaded for p in self._processes)
            missing = min(self._size - len(self._processes), len(self._waiting) - coming)
        for _ in range(missing):
            try:
                self._start()
            except OSError:
                if not self._processes:
                    raise
                self._size = len(self._processes)  # the machine has no room for more
                break

    def _exchange(self) -> None:
        """Send and receive what can be, and wait for it as long as nothing else can happen."""
        with selectors.DefaultSelector() as selector:
            selector.register(self._wake_read, selectors.EVENT_READ)
            for process in self._processes:
                assert process.popen.stdin is not None
                assert process.popen.stdout is not None
                if not process.silent:
                    selector.register(process.popen.stdout, selectors.EVENT_READ, process)
                if process.unsent:
                    selector.register(process.popen.stdin, selectors.EVENT_WRITE, process)
            busy = any(not p.idle or p.silent for p in self._processes)
            for key, events in selector.select(_POLL_S if busy else None):
                if key.data is None:
                    os.read(self._wake_read, 1 << 16)
                elif events & selectors.EVENT_READ:
                    _receive(key.data)
                else:
                    _send(key.data)

    def _judge(self, process: _Process) -> None:
        """Take an answer of a process; end one that is dead, late or talks nonsense."""
        if (end := process.received.find(b"\n")) >= 0:
            line = bytes(process.received[:end])
            del process.received[: end + 1]
            try:
                self._take(process, json.loads(line))
            except (ValueError, KeyError, TypeError, RecursionError):
                self._end(process, Outcome(fault="died", reason="its answer cannot be read"))
        elif len(process.received) > _MOST_BYTES:
            self._end(process, Outcome(fault="died", reason="its answer is too long"))
        elif (status := process.popen.poll()) is not None:
            if not process.silent and _receive(process):
                return  # what it has written before its end is taken first
            how = f"signal {-status}" if status < 0 else f"exit status {status}"
            self._end(process, Outcome(fault="died", reason=f"its process ended ({how})"))
        elif process.silent and time.monotonic() > process.deadline:
            self._end(process, Outcome(fault="died", reason="it closed the files of its process"))
        elif not process.idle and time.monotonic() > process.deadline:
            limit = self._worker.timeout_s if process.loaded else LOADING_S
            self._end(process, Outcome(fault="timeout", reason=f"no result within {limit:g} s"))

    def _take(self, process: _Process, answer: Mapping[str, Any]) -> None:
        if not process.confined:
            process.confined = str(answer["confined"])
            self._confined = self._confined or process.confined
        elif not process.loaded:
            if not answer["loaded"]:
                self._end(process, Outcome(fault="exception", reason=str(answer["reason"]), detail=answer["detail"]))
                return
            process.loaded = True
            self._ready.set()
        elif process.call is not None:
            printed = str(answer["printed"])
            outcome = Outcome(answer["value"], printed=printed) if answer["ok"] else Outcome(
                fault="exception", reason=str(answer["reason"]), detail=str(answer["detail"]), printed=printed
            )  # fmt: skip
            process.call.future.set_result(outcome)
            process.call, process.unsent = None, b""

    def _end(self, process: _Process, why: Outcome) -> None:
        """Kill a process and all that it has started, and remove its files; its call has the outcome ``why``."""
        self._processes.remove(process)
        try:
            self._kill(process)
        finally:  # also if the system refuses something: the caller must not wait for ever
            if process.call is not None:
                process.call.future.set_result(why)
            elif not process.loaded:
                self._cannot_load(why)

    @staticmethod
    def _kill(process: _Process) -> None:
        if process.popen.poll() is None:  # else the keeper has ended all, and its number may be another's
            end_tree(process.keeper)
            signal_group(process.popen.pid, signal.SIGKILL)
        process.popen.kill()
        process.popen.wait()
        for stream in (process.popen.stdin, process.popen.stdout):
            with suppress(OSError):
                stream.close()  # type: ignore[union-attr]
        end_kin(process.mark, variable=_MARK)
        process.folder.delete()

    def _cannot_load(self, why: Outcome) -> None:
        """Fail a call for each process that could not load the function, so that none waits for ever.

        While another process serves, calls wait for that one, and no more are started.
        """
        if any(p.loaded for p in self._processes):
            self._size = len(self._processes)
            return
        if not self._ready.is_set():
            self._load_error = why
            self._ready.set()
        with self._lock:
            call = self._waiting.popleft() if self._waiting else None
        if call is not None:
            call.future.set_result(why)


def _receive(process: _Process) -> bool:
    """Take what a process has written; return whether there was something."""
    assert process.popen.stdout is not None
    try:
        data = os.read(process.popen.stdout.fileno(), 1 << 20)
    except BlockingIOError:
        return False
    process.received += data
    if not data:
        process.silent, process.deadline = True, min(process.deadline, time.monotonic() + _ENDING_S)
    return bool(data)


def _send(process: _Process) -> None:
    assert process.popen.stdin is not None
    try:
        sent = os.write(process.popen.stdin.fileno(), process.unsent)
    except BlockingIOError:
        return
    except OSError:  # the process has ended, which is seen next
        sent = len(process.unsent)
    process.unsent = process.unsent[sent:]
