"""F7: the database cannot be reached for half a lease to three; what stands between is a relay of ours."""

from __future__ import annotations

import asyncio
import json
import multiprocessing
import os
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from faults import judge
from faults.fork_server import PATIENCE
from faults.judge import Verdict
from faults.sessions import HastyEngine, work
from faults.world import LEASE_S, LONG_LEASE_S, Lines, World, ended, process, until
from paribus.audit.snapshot import Snapshot
from paribus.errors import RunFolderError
from paribus.home import DATABASE_URL
from paribus.run_folder.folder import RunFolder, read_json
from paribus.store.database import Unreachable
from paribus.store.states import Move
from paribus.study.plan import Plan
from support.plans import small_plan

PASS, REFUSE, SILENT, LATE = range(4)
"""Pass everything on; refuse and break off; take everything and never answer, then break off; answer afterwards."""

SLOTS = 6
LEASES = (0.25, 2.0)
_LOOK_S = 0.01
_CHUNK = 1 << 16


def outages(world: World) -> Verdict:
    """Trainers go on for as long as their leases allow and end before these are over; nothing crashes or is lost."""
    wanted, rounds, made = world.number(40, 6), 0, list[tuple[int, float, float]]()
    assert world.server is not None
    world.orders(json.dumps({"step_s": 0.5}))  # a run takes longer than a lease
    world.store().close()
    mode, told = multiprocessing.get_context("fork").Value("i", PASS), Lines()
    direct = os.environ[DATABASE_URL]
    with process(relay, world.server.url.query["host"], mode, told):
        behind = world.server.url.set(database=world.database, host="127.0.0.1", port=until(told.new)[0], query={})
        while len(made) < wanted:
            rounds += 1
            plan = small_plan(f"outages{rounds}", arms=6, seeds=2 if world.short else 4, steps=40 + rounds)
            os.environ[DATABASE_URL] = behind.render_as_string(hide_password=False)
            with process(patient, world.home, plan) as session:
                os.environ[DATABASE_URL] = direct
                session.join(1.0)
                while session.is_alive() and len(made) < wanted:
                    made.append(outage(world, mode, len(made)))
                    session.join(world.random.uniform(0.5, 1.5) * LEASE_S)
                ended(session)
    s = world.snapshot()
    fenced = sum(why(world, a.fingerprint, a.token) == "unreachable" for a in s.attempts)
    return judge.judge(
        s, trials=len(s.runs), faults=len(made), home=world.home,
        recovery=judge.until_next_claim(s, [at for _, _, at in made]),
        wrong=[*judge.broken_records(s, world.home), *late_lines(s, world)],
        note=f"for {LEASES[0]:g} to {LEASES[1]:g} leases of {LONG_LEASE_S:g} s; {fenced} attempts ended themselves "
        "before their lease was over; recovery: from the end of the outage",
    )  # fmt: skip


def patient(home: Path, plan: Plan) -> None:
    """Bring a study to its end; type the same again where the database was away before or after the training."""
    os.environ[PATIENCE] = str(LONG_LEASE_S / 12)
    while True:
        with suppress(Unreachable):
            work(home, plan, SLOTS, engine=HastyEngine)
            return


def outage(world: World, mode: Any, number: int) -> tuple[int, float, float]:
    """Make the database unreachable for a while; return how, for how long, and when it was over."""
    kind, length = 1 + number % 3, world.random.uniform(*LEASES) * LONG_LEASE_S
    mode.value = kind
    time.sleep(length)
    mode.value = PASS
    return kind, length, time.time()


def why(world: World, fingerprint: str, token: int) -> str:
    """Return why the supervisor of an attempt stopped it; empty if it did not, or left no word."""
    with suppress(RunFolderError):
        reason = read_json(RunFolder.of(world.home, fingerprint, token).outcome).get("reason", "")
        return "unreachable" if reason == "the lease could not be renewed in time" else ""
    return ""


def late_lines(s: Snapshot, world: World) -> list[str]:
    """Return the attempts that trained on after their run had been taken back."""
    wrong = []
    for a in s.attempts:
        if a.outcome is not Move.EXPIRE or a.ended_at is None:
            continue
        written = [line.time_ms / 1000 for line in RunFolder.of(world.home, a.fingerprint, a.token).read_metrics()]
        if max(written, default=0.0) > a.ended_at + judge.CLOCK_S:
            wrong.append(f"{a.submit_name} wrote a line {max(written) - a.ended_at:.2f} s after its lease was over")
    return wrong


# ---- the relay ---------------------------------------------------------------------------------------


def relay(folder: str, mode: Any, told: Lines) -> None:
    """Pass bytes on between a TCP port, which is told, and the socket of the server, as the mode says."""
    asyncio.run(Relay(f"{folder}/.s.PGSQL.5432", mode).serve(told))


class Relay:
    """What stands between a client and the server.

    Args:
        target: the server's socket.
        mode: what to do now; others change it.
    """

    def __init__(self, target: str, mode: Any) -> None:
        self._target = target
        self._mode = mode
        self._open = set[asyncio.StreamWriter]()

    async def serve(self, told: Lines) -> None:
        """Tell the port, then do what the mode says, without end."""
        server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        told.put(port)
        before = PASS
        while True:
            now = self._mode.value
            if now != before and (now == REFUSE or before == SILENT):
                for writer in self._open:
                    writer.transport.abort()
            if now == REFUSE and before != REFUSE:
                server.close()
            elif before == REFUSE and now != REFUSE:
                server = await asyncio.start_server(self._accept, "127.0.0.1", port)
            before = now
            await asyncio.sleep(_LOOK_S)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there, back = await asyncio.open_unix_connection(self._target)
        self._open |= {writer, back}
        await asyncio.gather(self._pump(reader, back), self._pump(there, writer))
        self._open -= {writer, back}

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError):
            while data := await reader.read(_CHUNK):
                while self._mode.value in (SILENT, LATE):
                    await asyncio.sleep(_LOOK_S)
                writer.write(data)
                await writer.drain()
        writer.close()
