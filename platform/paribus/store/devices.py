"""The GPUs and cores of hosts as rows, and what an attempt holds of them from its claim to its end.

They are taken in the transaction of the claim. Nothing gives them back: an attempt holds what its leases say as long as
it has not ended, so the transaction that ends it frees them, whoever ended it and why.

A run that needs more than another and has waited :data:`PATIENCE_S` keeps the other away from the emptiest devices, as
many as it needs, until it has them: these only ever become emptier, so its turn comes.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import sqlalchemy as sa

from paribus.engines.base import Device, Need
from paribus.store import tables as t
from paribus.store.records import Claim, DeviceRecord

PATIENCE_S = 600.0
"""Seconds after which a run that waits for devices keeps smaller ones away from them."""

STALE_S = 60.0
"""Seconds after which nobody waits any more who has not asked again."""

_TINY = 1e-6
_REFRESH_S = STALE_S / 3
_Now = sa.ColumnElement[float]


@dataclass(frozen=True, kw_only=True)
class Pool:
    """What a claim may choose from.

    Attributes:
        host: name of the machine.
        need: what the run holds.
        devices: numbers of devices of this machine.
    """

    host: str
    need: Need
    devices: Collection[int]


@dataclass(frozen=True, kw_only=True)
class Room:
    """A device, and how much of it is not held."""

    id: int
    kind: Literal["gpu", "cpu"]
    name: str
    amount: float
    memory: float
    free: float


@dataclass(frozen=True, kw_only=True)
class Held:
    """What a claim has taken.

    Attributes:
        gpus: how many GPUs.
        cpus: cores of the host that are counted.
        shares: parts of GPUs by the numbers of the devices.
        names: of these devices.
    """

    gpus: float
    cpus: float = 0.0
    shares: Mapping[int, float] = field(default_factory=dict)
    names: tuple[str, ...] = ()


# ---- the choice: pure --------------------------------------------------------------------------------


def choose(rooms: Sequence[Room], need: Need) -> Held | None:
    """Return what a run takes, all or nothing; ``None`` if there is too little.

    A part of a GPU comes from the fullest that has room, so that whole ones stay free for runs that need them.
    """
    gpus = [r for r in rooms if r.kind == "gpu"]
    cores = sum(r.free for r in rooms if r.kind == "cpu")
    if need.cpus > cores + _TINY:
        return None
    if need.gpu_memory or 0 < need.gpus < 1:
        fitting = [(r.free, r.id, r) for r in gpus if _part(r, need) <= r.free + _TINY]
        chosen = [min(fitting)[2]] if fitting else []
        wanted = 1
    else:
        wanted = round(need.gpus)
        chosen = [r for r in sorted(gpus, key=lambda r: r.id) if r.free > 1 - _TINY][:wanted]
    if len(chosen) < wanted:
        return None
    shares = {r.id: min(_part(r, need), 1.0) for r in chosen}
    names = tuple(r.name for r in chosen)
    return Held(gpus=sum(shares.values()), cpus=need.cpus, shares=shares, names=names)


def _part(room: Room, need: Need) -> float:
    if need.gpu_memory:
        return need.gpu_memory / room.memory if room.memory else 1.0
    return min(need.gpus, 1.0)


def set_aside(rooms: Sequence[Room], mine: Need, others: Iterable[Need]) -> list[Room]:
    """Return what is left for a run after what others, who have waited too long, keep free of smaller runs."""
    left = list(rooms)
    for other in others:
        if other.gpus > mine.gpus > 0:
            wanted = max(1, round(other.gpus))
            kept = sorted((-r.free, r.id) for r in left if r.kind == "gpu" and _part(r, other) <= 1 + _TINY)[:wanted]
            left = [r for r in left if r.id not in {number for _, number in kept}]
        if other.cpus > mine.cpus > 0:
            left = [replace(r, free=r.free - other.cpus) if r.kind == "cpu" else r for r in left]
    return left


# ---- the rows ----------------------------------------------------------------------------------------


def _held(host: Any) -> sa.ColumnElement[float]:
    """Return how much of a device the attempts that have not ended hold."""
    live = t.attempt.c.ended_at.is_(None)
    holders = sa.select(t.attempt.c.run_id, t.attempt.c.token).where(live)  # not a join: SQLite would read all leases
    of_live = sa.tuple_(t.lease.c.run_id, t.lease.c.token).in_(holders)
    shares = sa.select(sa.func.sum(t.lease.c.share)).where(of_live, t.lease.c.device_id == t.device.c.id)
    # a worker is called after its host, and its home folder behind a slash
    here = sa.func.substr(t.attempt.c.worker + "/", 1, sa.func.length(host) + 1) == host + "/"
    cores = sa.select(sa.func.sum(t.attempt.c.cpus)).where(live, here)
    gpu = t.device.c.kind == "gpu"
    of_both = sa.case((gpu, shares.scalar_subquery()), else_=cores.correlate(t.device).scalar_subquery())
    return sa.func.coalesce(of_both, 0.0)


def _rooms(*kinds: str) -> sa.Select[Any]:
    """Return the query for a host's devices of these kinds, since when a study waits, and how many others do."""
    host = sa.bindparam("host", type_=sa.String)
    mine = t.waiting.c.study_id == sa.bindparam("study", type_=sa.Integer)
    here = t.waiting.c.host == host
    since = sa.select(t.waiting.c.since).where(here, mine).scalar_subquery()
    others = sa.select(sa.func.count()).select_from(t.waiting).where(here, ~mine).scalar_subquery()
    query = sa.select(t.device, _held(host).label("held"), since.label("since"), others.label("others"))
    return query.where(t.device.c.host == host, t.device.c.kind.in_(kinds), t.device.c.cordoned == "")


# made once: making them takes longer than running them
_ROOMS, _ROOMS_OF_GPU_RUNS = _rooms("cpu"), _rooms("gpu", "cpu")


def register(connection: sa.Connection, host: str, devices: Iterable[Device]) -> dict[str, int]:
    """Write down the devices of a host that a scheduler uses; return their numbers by name."""
    numbers = {}
    for found in devices:
        row = {"host": host, "kind": found.kind, "name": found.name}
        facts = {"amount": found.amount, "memory": found.memory}
        least = sa.case((t.device.c.idle < found.used, t.device.c.idle), else_=found.used)
        known = sa.update(t.device).where(*(t.device.c[k] == v for k, v in row.items())).values(**facts, idle=least)
        number = connection.execute(known.returning(t.device.c.id)).scalar()
        if number is None:
            new = sa.insert(t.device).values(**row, **facts, idle=found.used, cordoned="")
            number = connection.execute(new.returning(t.device.c.id)).scalar_one()
        numbers[found.name] = number
    return numbers


def take(connection: sa.Connection, now: _Now, study_id: int, pool: Pool, count: int) -> tuple[Held, ...]:
    """Choose what each of so many runs of a study holds; note that it waits if there is too little for all.

    Nobody else may choose from this host's devices before the end of the transaction.
    """
    host, need = pool.host, pool.need
    me = {"host": host, "study": study_id}
    rows = connection.execute(_ROOMS_OF_GPU_RUNS if need.gpus else _ROOMS, me).all()
    rooms = [_room(row) for row in rows if row.id in pool.devices]
    since = rows[0].since if rows else None
    if rows and rows[0].others:
        rooms = set_aside(rooms, need, _late(connection, now, host, study_id, since))
    taken: list[Held] = []
    while len(taken) < count and (held := choose(rooms, need)) is not None:
        rooms = [_without(room, held) for room in rooms]
        taken.append(held)
    if taken and since is not None:
        connection.execute(sa.delete(t.waiting).where(t.waiting.c.host == host, t.waiting.c.study_id == study_id))
    if len(taken) < count:
        _wait(connection, now, host, study_id, need)
    return tuple(taken)


def _without(room: Room, held: Held) -> Room:
    return replace(room, free=room.free - (held.cpus if room.kind == "cpu" else held.shares.get(room.id, 0.0)))


def _late(connection: sa.Connection, now: _Now, host: str, study_id: int, since: float | None) -> list[Need]:
    """Return what others need who wait too long, and longer than a study that waits since then, if it does."""
    w = t.waiting.c
    before = [] if since is None else [w.since < since]
    late = sa.and_(w.host == host, w.study_id != study_id, w.seen > now - STALE_S, w.since < now - PATIENCE_S, *before)
    rows = connection.execute(sa.select(t.waiting).where(late).order_by(w.since, w.study_id))
    return [Need(gpus=r.gpus, gpu_memory=r.gpu_memory, cpus=r.cpus) for r in rows]


def note(connection: sa.Connection, taken: Iterable[tuple[Claim, Held]]) -> None:
    """Write down which GPUs attempts hold."""
    rows = [
        {"run_id": claim.run_id, "token": claim.token, "device_id": device, "share": share}
        for claim, held in taken
        for device, share in held.shares.items()
    ]
    if rows:
        connection.execute(sa.insert(t.lease), rows)


def cordon(connection: sa.Connection, device: int, reason: str) -> None:
    """Let no run have a device any more; without a reason: again."""
    connection.execute(sa.update(t.device).where(t.device.c.id == device).values(cordoned=reason))


def devices_of(connection: sa.Connection, host: str | None) -> tuple[DeviceRecord, ...]:
    """Return the devices of a host, or of all, with how much of each is held."""
    where = [] if host is None else [t.device.c.host == host]
    order = (t.device.c.host, t.device.c.kind, t.device.c.id)
    query = sa.select(t.device, _held(t.device.c.host).label("held")).where(*where).order_by(*order)
    return tuple(DeviceRecord(**row._mapping) for row in connection.execute(query))


def _room(row: sa.Row[Any]) -> Room:
    free = row.amount - row.held
    return Room(id=row.id, kind=row.kind, name=row.name, amount=row.amount, memory=row.memory, free=free)


def _wait(connection: sa.Connection, now: _Now, host: str, study_id: int, need: Need) -> None:
    """Note that a run waits, and since when; as long as it asks again."""
    w = t.waiting.c
    size = {"gpus": need.gpus, "gpu_memory": need.gpu_memory, "cpus": need.cpus}
    mine = sa.and_(w.host == host, w.study_id == study_id)
    found = connection.execute(sa.select(w.seen < now - _REFRESH_S, w.seen < now - STALE_S).where(mine)).one_or_none()
    if found is None:
        row = sa.insert(t.waiting).values(study_id=study_id, host=host, **size, since=now, seen=now)
        connection.execute(row)
    elif found[0]:
        since = {"since": now} if found[1] else {}
        connection.execute(sa.update(t.waiting).where(mine).values(**size, **since, seen=now))
