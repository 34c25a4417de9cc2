"""The GPUs and CPU cores of hosts, and what each attempt holds of them.

An attempt takes its devices in the transaction of its claim and holds them until it has ended. The transaction that
ends it frees them, whatever the reason for the end: devices are never returned in a step of their own.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import sqlalchemy as sa

from paribus.contract import Device, Need
from paribus.store import tables as t
from paribus.store.models import Claim, DeviceRecord

_TINY = 1e-6


@dataclass(frozen=True, kw_only=True)
class Pool:
    """The devices that a claim may choose from.

    Attributes:
        host: name of the machine.
        need: what the run holds.
        devices: numbers of devices of this machine.
    """

    host: str
    need: Need
    devices: Collection[int]


@dataclass(frozen=True, kw_only=True)
class FreeDevice:
    """A device, and how much of it is free."""

    id: int
    kind: Literal["gpu", "cpu"]
    name: str
    free: float


@dataclass(frozen=True, kw_only=True)
class Allocation:
    """What one run takes.

    Attributes:
        gpus: number of GPUs.
        cpus: cores of the host.
        shares: share of each GPU, by number.
        names: names of these GPUs.
    """

    gpus: float
    cpus: float = 0.0
    shares: Mapping[int, float] = field(default_factory=dict)
    names: tuple[str, ...] = ()


# ---- the choice: pure --------------------------------------------------------------------------------


def choose(devices: Sequence[FreeDevice], need: Need) -> Allocation | None:
    """Return what a run takes, all or nothing; ``None`` if too little is free.

    A fraction comes from the fullest GPU that has room, so that whole GPUs stay free for runs that need them.
    """
    gpus = [d for d in devices if d.kind == "gpu"]
    cores = sum(d.free for d in devices if d.kind == "cpu")
    if need.cpus > cores + _TINY:
        return None
    wanted, share = round(need.gpus), min(need.gpus, 1.0)
    if 0 < need.gpus < 1:
        fitting = [(d.free, d.id, d) for d in gpus if share <= d.free + _TINY]
        chosen = [min(fitting)[2]] if fitting else []
        wanted = 1
    else:
        chosen = [d for d in sorted(gpus, key=lambda d: d.id) if d.free > 1 - _TINY][:wanted]
    if len(chosen) < wanted:
        return None
    names = tuple(d.name for d in chosen)
    return Allocation(gpus=share * wanted, cpus=need.cpus, shares={d.id: share for d in chosen}, names=names)


# ---- the rows ----------------------------------------------------------------------------------------


def _held(host: Any) -> sa.ColumnElement[float]:
    """Return how much of a device is held by attempts that have not ended."""
    live = t.attempt.c.ended_at.is_(None)
    holders = sa.select(t.attempt.c.run_id, t.attempt.c.token).where(live)  # with a join SQLite would scan all leases
    of_live = sa.tuple_(t.lease.c.run_id, t.lease.c.token).in_(holders)
    shares = sa.select(sa.func.sum(t.lease.c.share)).where(of_live, t.lease.c.device_id == t.device.c.id)
    # a worker is named HOST or HOST/HOME
    here = sa.func.substr(t.attempt.c.worker + "/", 1, sa.func.length(host) + 1) == host + "/"
    cores = sa.select(sa.func.sum(t.attempt.c.cpus)).where(live, here)
    gpu = t.device.c.kind == "gpu"
    of_both = sa.case((gpu, shares.scalar_subquery()), else_=cores.correlate(t.device).scalar_subquery())
    return sa.func.coalesce(of_both, 0.0)


def _free_devices(*kinds: str) -> sa.Select[Any]:
    host = sa.bindparam("host", type_=sa.String)
    columns = (t.device.c.id, t.device.c.kind, t.device.c.name, t.device.c.amount, _held(host).label("held"))
    return sa.select(*columns).where(t.device.c.host == host, t.device.c.kind.in_(kinds))


# built once: building them takes longer than executing them
_CORES, _GPUS_AND_CORES = _free_devices("cpu"), _free_devices("gpu", "cpu")


def register(connection: sa.Connection, host: str, devices: Iterable[Device]) -> dict[str, int]:
    """Insert or update the devices of a host; return their numbers by name."""
    numbers = {}
    for found in devices:
        row = {"host": host, "kind": found.kind, "name": found.name}
        facts = {"amount": found.amount, "memory": found.memory}
        known = sa.update(t.device).where(*(t.device.c[k] == v for k, v in row.items())).values(facts)
        number = connection.execute(known.returning(t.device.c.id)).scalar()
        if number is None:
            new = sa.insert(t.device).values(**row, **facts, idle=0.0)
            number = connection.execute(new.returning(t.device.c.id)).scalar_one()
        numbers[found.name] = number
    return numbers


def allocate(connection: sa.Connection, pool: Pool, count: int) -> tuple[Allocation, ...]:
    """Choose the devices of up to ``count`` equal runs.

    The caller holds the host's lock until the end of the transaction, so that no other claim chooses meanwhile.
    """
    rows = connection.execute(_GPUS_AND_CORES if pool.need.gpus else _CORES, {"host": pool.host}).all()
    devices = [_free_device(row) for row in rows if row.id in pool.devices]
    taken: list[Allocation] = []
    while len(taken) < count and (chosen := choose(devices, pool.need)) is not None:
        devices = [_without(device, chosen) for device in devices]
        taken.append(chosen)
    return tuple(taken)


def _free_device(row: sa.Row[Any]) -> FreeDevice:
    return FreeDevice(id=row.id, kind=row.kind, name=row.name, free=row.amount - row.held)


def _without(device: FreeDevice, taken: Allocation) -> FreeDevice:
    held = taken.cpus if device.kind == "cpu" else taken.shares.get(device.id, 0.0)
    return replace(device, free=device.free - held)


def record_leases(connection: sa.Connection, taken: Iterable[tuple[Claim, Allocation]]) -> None:
    """Insert which GPUs attempts hold."""
    rows = [
        {"run_id": claim.run_id, "token": claim.token, "device_id": device, "share": share}
        for claim, held in taken
        for device, share in held.shares.items()
    ]
    if rows:
        connection.execute(sa.insert(t.lease), rows)


def devices_of(connection: sa.Connection, host: str | None) -> tuple[DeviceRecord, ...]:
    """Return the devices of a host, or of all hosts, with how much of each is held."""
    where = [] if host is None else [t.device.c.host == host]
    columns = [t.device.c[name] for name in ("id", "host", "kind", "name", "amount", "memory")]
    order = (t.device.c.host, t.device.c.kind, t.device.c.id)
    query = sa.select(*columns, _held(t.device.c.host).label("held")).where(*where).order_by(*order)
    return tuple(DeviceRecord(**row._mapping) for row in connection.execute(query))
