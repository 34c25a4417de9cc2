"""Plans and reports of the API: each in a process of its own, few at a time, with nothing left of it afterwards.

A request takes a place before its body is read. Where all places are taken it is refused at once, so that neither
memory nor disk grows with the number of clients. A client that disconnects ends its work.
"""

from __future__ import annotations

import asyncio
import json
import math
import os
import signal
import sys
import uuid
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

from starlette.requests import ClientDisconnect, Request

from paribus.engines.process import Identity, end_kin, end_tree, kept, signal_group
from paribus.errors import DashboardError, ParibusError, ServerError
from paribus.scratch import make

LIMIT_S = 600.0
"""Seconds in which a study must be planned, or a report written."""

AT_ONCE = 2
"""Most studies and reports that are worked on at the same time."""

WAITING = 16
"""Most requests that wait for one of these to end."""

WAIT_S = 240.0
"""Most seconds that a request waits: with :data:`LIMIT_S`, less than a client waits for an answer."""

AGAIN_S = 30
"""Seconds after which a client that was refused should come again."""

MEMORY_GIB = 4.0
"""Memory that such a process may take, in GiB, unless :data:`MEMORY` sets another limit."""

MEMORY = "PARIBUS_API_MEMORY_GIB"
"""Environment variable: the memory that such a process may take, in GiB."""

COMMAND = (sys.executable, "-P", "-m", "paribus.remote.worker")
"""The program that does the work."""

VARIABLES = "PARIBUS_API_ENVIRONMENT"
"""Environment variable: names of further variables that the processes get, such as those of a runner of your own."""

MARK = "PARIBUS_API_WORKER"
"""Environment variable that marks a process and what it starts with its own environment: a second way to find them."""

PASSED_ON = frozenset({
    "PATH", "HOME", "USER", "LOGNAME", "LANG", "LANGUAGE", "TZ", "PYTHONPATH", "VIRTUAL_ENV", "CONDA_PREFIX",
    "LD_LIBRARY_PATH", "CUDA_VISIBLE_DEVICES", "OMP_NUM_THREADS", "XDG_CACHE_HOME", "MPLCONFIGDIR",
    "PARIBUS_DATABASE_URL", "PARIBUS_DATABASE_PASSWORD_FILE", "TRANSFORMERS_OFFLINE", "HUGGING_FACE_HUB_TOKEN",
    "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "http_proxy", "https_proxy", "no_proxy",
    "SSL_CERT_FILE", "SSL_CERT_DIR", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE",
})  # fmt: skip
"""Variables that the processes get, beside ``LC_*``, ``HF_*`` and ``PG*``: to use the store, to read data and models.

Tokens of the dashboard, passwords of MLflow and of object stores, addresses of alerts, and all else stay outside.
"""


class Busy(ServerError):
    """All places are taken, or none became free in time: the same request may succeed later.

    Attributes:
        unread: whether the body of the request has not been read.
    """

    def __init__(self, message: str, *, unread: bool) -> None:
        super().__init__(message)
        self.unread = unread


class Room:
    """Places for requests: some are worked on, some wait, and more are refused.

    Raises:
        DashboardError: the limit of memory in the environment is not a number from 0.5 on.
    """

    def __init__(self) -> None:
        self._memory_gib = _memory_gib()
        self._there = 0
        self._turn = asyncio.Semaphore(AT_ONCE)

    @asynccontextmanager
    async def place(self) -> AsyncIterator[Path]:
        """Take a place, with an empty folder that is removed when the block is left.

        Raises:
            Busy: all are taken.
        """
        if self._there >= AT_ONCE + WAITING:
            there = f"the server works on {AT_ONCE} studies and reports, and {WAITING} more wait"
            raise Busy(f"{there}: try again in {AGAIN_S} s.", unread=True)
        self._there += 1
        try:
            with make("api") as folder:
                yield folder.path
        finally:
            self._there -= 1

    async def work(self, request: Request, order: Mapping[str, Any], folder: Path) -> dict[str, Any]:
        """Return what :mod:`paribus.remote.worker` answers to an order, when it is this request's turn.

        Its process outlives neither :data:`LIMIT_S`, nor the client, nor the server; neither does what it has started.

        Args:
            request: its body has been read.
            order: what to do.
            folder: of :meth:`place`, for temporary files.

        Raises:
            ParibusError: what it was asked for cannot be done, takes too long, or takes too much memory.
            ClientDisconnect: the client has.
        """
        tasks = asyncio.create_task(self._in_turn(order, folder)), asyncio.create_task(_until_gone(request))
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            if not tasks[0].done():
                raise ClientDisconnect
            return tasks[0].result()
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _in_turn(self, order: Mapping[str, Any], folder: Path) -> dict[str, Any]:
        try:
            await asyncio.wait_for(self._turn.acquire(), WAIT_S)
        except TimeoutError:
            raise Busy(f"the server is busy since {WAIT_S:.0f} s: try again in {AGAIN_S} s.", unread=False) from None
        try:
            return await _done({**order, "memory_gib": self._memory_gib}, folder)
        finally:
            self._turn.release()


def _memory_gib() -> float:
    given = os.environ.get(MEMORY, "")
    with suppress(ValueError):
        if not given or 0.5 <= float(given) < math.inf:
            return float(given or MEMORY_GIB)
    raise DashboardError(f"{MEMORY} is `{given}`: it takes a number of GiB from 0.5 on, for example {MEMORY_GIB:g}.")


async def _until_gone(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


async def _done(order: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    sent = json.dumps(order).encode()
    async with _process(folder) as process:
        try:
            printed, _ = await asyncio.wait_for(process.communicate(sent), LIMIT_S)
        except TimeoutError:
            raise ServerError(f"the server has not done this within {LIMIT_S:.0f} s, and has stopped it.") from None
    try:
        found: dict[str, Any] = json.loads(printed)
    except ValueError:
        raise ServerError(
            "the process that did this on the server was killed, or failed: its log says more. Does it have too little "
            "memory?"
        ) from None
    if "error" in found:
        raise Sent(found["error"])
    answer: dict[str, Any] = found["answer"]
    return answer


class Sent(ParibusError):
    """An error of a worker process, as JSON already."""

    def __init__(self, raw: dict[str, Any]) -> None:
        super().__init__(raw["message"])
        self.raw = raw


def environment(mark: str, folder: Path) -> dict[str, str]:
    """Return the environment of a process: what it needs of this one, and nothing else that may hold a secret.

    Args:
        mark: what the process and all that it starts is found by.
        folder: for its temporary files.
    """
    more = {name.strip() for name in os.environ.get(VARIABLES, "").split(",")}
    kept = {k: v for k, v in os.environ.items() if k in PASSED_ON | more or k.startswith(("LC_", "HF_", "PG"))}
    return {**kept, MARK: mark, **dict.fromkeys(("TMPDIR", "TEMP", "TMP"), str(folder))}


@asynccontextmanager
async def _process(folder: Path) -> AsyncIterator[asyncio.subprocess.Process]:
    """Start a worker process; kill it, and all that it has started, when the block is left."""
    pipe, mark = asyncio.subprocess.PIPE, uuid.uuid4().hex
    process = await asyncio.create_subprocess_exec(
        *kept(*COMMAND), stdin=pipe, stdout=pipe, start_new_session=True, env=environment(mark, folder)
    )
    keeper = Identity.of(process.pid)
    try:
        yield process
    finally:
        await asyncio.to_thread(end_tree, keeper)  # does nothing if it has ended, and with it all
        if process.returncode is None:  # else its number may be another's
            signal_group(process.pid, signal.SIGKILL)
        with suppress(ProcessLookupError):
            process.kill()
        await asyncio.to_thread(end_kin, mark, variable=MARK)
        await process.wait()
