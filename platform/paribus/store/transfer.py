"""The rows of a study without the numbers that a database gives them: read from one store, inserted into another.

Runs are named by their fingerprints, studies by theirs. A live run is written as queued and without its attempt, so
that the rows are those of a study in which nothing runs. Budgets are computed from the attempts.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from typing import Any

import sqlalchemy as sa

from paribus.errors import StoreError
from paribus.run_folder.json_text import LARGEST, field_of, fields, listed, shown
from paribus.store import remarks
from paribus.store import tables as t
from paribus.store.budget import KEPT, open_budgets
from paribus.store.deletion import numbers
from paribus.store.models import PLAN, payload_hash, unit_of
from paribus.store.reader import BATCH, rows_of
from paribus.store.states import LIVE, RECORDED, Move, RunState, target_of
from paribus.study.plan import Plan
from paribus.text import plural

Row = dict[str, Any]

_OWN = {"id", "run_id", "study_id", "lease_until", "cancel_requested", "recorded"}
"""Columns that have a meaning in one database only, or follow from the others."""

_STUDY, _LINK, _RUN, _ATTEMPT, _EVENT, _RESULT, _REMARK = (
    tuple(column.name for column in table.columns if column.name not in _OWN)
    for table in (t.study, t.study_run, t.run, t.attempt, t.event, t.result, t.remark)
)
_TERMS = (
    "submitted_at",
    "first_submitted_at",
    "paused",
    "priority",
    "weight",
    "plan",
)  # a study keeps its identity if these change
_HEX = re.compile(r"[0-9a-f]{64}")
_MOVES = frozenset(str(move) for move in Move)


@dataclass(frozen=True)
class StudyRows:
    """All plans of one name, oldest first, and their runs.

    Attributes:
        studies: rows of the study table, each with its ``links``: run, arm and position.
        runs: rows of the run table, each with its ``attempts``, ``events`` and ``result``.
        remarks: what people said of the study and its runs.
    """

    studies: tuple[Row, ...]
    runs: tuple[Row, ...]
    remarks: tuple[Row, ...] = ()

    @property
    def name(self) -> str:
        """Name of the study."""
        return str(self.studies[0]["name"])

    @property
    def attempts(self) -> tuple[tuple[str, int], ...]:
        """Fingerprint and token of each attempt."""
        return tuple((run["fingerprint"], attempt["token"]) for run in self.runs for attempt in run["attempts"])

    @property
    def results(self) -> Mapping[str, int]:
        """Fingerprint of each run that has a result, and the token of the attempt that left it."""
        return {run["fingerprint"]: run["result"]["token"] for run in self.runs if run["result"]}

    @property
    def unfinished(self) -> int:
        """Number of queued runs that a plan still wants."""
        wanted = {link["run"] for study in self.studies for link in study["links"] if not link["withdrawn"]}
        return sum(run["state"] == RunState.QUEUED and run["fingerprint"] in wanted for run in self.runs)

    @property
    def may_grow(self) -> bool:
        """Whether results may add runs to the newest plan."""
        return PLAN.validate_json(self.studies[-1]["plan"]).may_grow

    def to_json(self) -> Row:
        """Return the rows as JSON values."""
        return {"studies": list(self.studies), "runs": list(self.runs), "remarks": list(self.remarks)}

    def differences(self, other: StudyRows) -> tuple[str, ...]:
        """Return what differs in another copy of the study, one sentence each; terms, budgets and remarks do not."""
        found = []
        mine, theirs = ({s["fingerprint"]: _identity(s) for s in rows.studies} for rows in (self, other))
        if mine != theirs:
            found.append(
                f"the study has {plural(len(mine), 'plan')} in the archive and {len(theirs)} here, or other runs"
            )
        here = {run["fingerprint"]: run for run in other.runs}
        pairs = ((run, here.get(run["fingerprint"], run)) for run in self.runs)
        found.extend(_two_runs(run, known) for run, known in pairs if run != known)
        return tuple(found)


def _identity(study: Row) -> Row:
    return {name: value for name, value in study.items() if name not in _TERMS}


def _two_runs(there: Row, here: Row) -> str:
    states = [f"{run['state'].lower()} at attempt {run['token']}" for run in (there, here)]
    return f"run {there['fingerprint'][:12]} is {states[0]} in the archive and {states[1]} here" + (
        ", with other records" if states[0] == states[1] else ""
    )


# ---- reading -----------------------------------------------------------------------------------------


def read_rows(connection: sa.Connection, name: str) -> StudyRows | None:
    """Return the rows of all plans of a name; ``None`` if there is no such study."""
    found = connection.execute(sa.select(t.study).where(t.study.c.name == name).order_by(t.study.c.id)).all()
    if not found:
        return None
    studies = []
    for row in found:
        query = sa.select(t.run.c.fingerprint.label("run"), *(t.study_run.c[n] for n in _LINK))
        query = query.join(t.run, t.run.c.id == t.study_run.c.run_id).where(t.study_run.c.study_id == row.id)
        links = [dict(link._mapping) for link in connection.execute(query.order_by(t.study_run.c.position))]
        studies.append({**{n: row._mapping[n] for n in _STUDY}, "links": links})
    runs = dict.fromkeys(link["run"] for study in studies for link in study["links"])
    return StudyRows(tuple(studies), read_runs(connection, tuple(runs)), _remarks(connection, name, tuple(runs)))


def _remarks(connection: sa.Connection, name: str, runs: Sequence[str]) -> tuple[Row, ...]:
    """Return what was said of a study, since one of its name was deleted, and of its runs, the oldest first."""
    mine = list(remarks.read(connection, remarks.of(remarks.Subject(study=name))))
    deleted = max((n for n, line in enumerate(mine, 1) if line.kind == remarks.Kind.DELETE), default=0)
    found = mine[deleted:]
    for start in range(0, len(runs), BATCH):
        found += remarks.read(connection, t.remark.c.run.in_(runs[start : start + BATCH]))
    return tuple(asdict(line) for line in found)


def read_runs(connection: sa.Connection, fingerprints: Sequence[str]) -> tuple[Row, ...]:
    """Return the rows of those of these runs that the store has, in the given order."""
    runs: dict[str, Row] = {}
    for row in rows_of(connection, sa.select(t.run), fingerprints):
        runs[row.fingerprint] = {n: row._mapping[n] for n in _RUN} | {"attempts": [], "events": [], "result": None}
    for table, names, key in ((t.attempt, _ATTEMPT, "attempts"), (t.event, _EVENT, "events"), (t.result, _RESULT, "")):
        query = sa.select(t.run.c.fingerprint.label("run"), table).join(table, table.c.run_id == t.run.c.id)
        for row in rows_of(connection, query.order_by(table.c.id), fingerprints):
            values = {n: row._mapping[n] for n in names}
            if key:
                runs[row.run][key].append(values)
            else:
                runs[row.run]["result"] = values
    return tuple(_without_live_attempt(runs[f]) for f in fingerprints if f in runs)


def _without_live_attempt(run: Row) -> Row:
    """Return a live run as it would be if its newest attempt had not been claimed."""
    if run["state"] not in LIVE:
        return run
    past = {key: [row for row in run[key] if row["token"] < run["token"]] for key in ("attempts", "events")}
    return {**run, **past, "state": str(RunState.QUEUED), "token": run["token"] - 1}


# ---- checking what a file says -----------------------------------------------------------------------


def checked_rows(value: Any) -> StudyRows:
    """Return the rows in JSON values that may come from anywhere.

    Raises:
        ValueError: a value has another type than its column, or the rows contradict each other or their plans.
    """
    raw = fields(value)
    studies = [_checked_study(fields(s)) for s in listed(field_of(raw, "studies"), "studies")]
    runs = [_checked_run(fields(r)) for r in listed(field_of(raw, "runs"), "runs")]
    known = {run["fingerprint"] for run in runs}
    linked = {link["run"] for study in studies for link in study["links"]}
    if not studies or len({s["name"] for s in studies}) > 1 or len({s["fingerprint"] for s in studies}) < len(studies):
        raise ValueError("it does not hold the plans of one study")
    if len(known) < len(runs) or known != linked:
        raise ValueError("its runs are not those of its study")
    said = [_checked_remark(fields(r)) for r in listed(raw.get("remarks", []), "remarks")]  # new in revision 0007
    if {(line["study"], line["run"]) for line in said} - {(studies[0]["name"], ""), *(("", run) for run in known)}:
        raise ValueError("it has remarks on something else than its study")
    return StudyRows(tuple(studies), tuple(runs), tuple(said))


def _checked_remark(raw: Row) -> Row:
    row = _checked(t.remark, _REMARK, raw)
    kind, text = row["kind"], row["text"]
    tags = (text,) if kind in (remarks.Kind.TAG, remarks.Kind.UNTAG) else ()
    try:
        remarks.checked(remarks.Change(note=text if kind == remarks.Kind.NOTE else None, add=tags))
    except StoreError as error:
        raise ValueError(f"it has a remark that the store does not take: {error}") from None
    if kind not in [*map(str, remarks.Kind)] or kind == remarks.Kind.DELETE:
        raise ValueError(f"it has a remark of the kind {shown(kind)}")
    return row


def _checked_study(raw: Row) -> Row:
    row = _checked(t.study, _STUDY, raw)
    try:
        plan: Plan = PLAN.validate_json(row["plan"])
    except ValueError as error:
        raise ValueError(f"it holds no plan that this version reads: {shown(str(error))}") from None
    links = [_checked(t.study_run, _LINK, fields(k)) | {"run": _fingerprint(fields(k))} for k in _list(raw, "links")]
    planned = {p.fingerprint: p.arm for p in plan.all_runs}
    if (plan.study, plan.fingerprint) != (row["name"], row["fingerprint"]) or len(links) != len(planned):
        raise ValueError(f"the study {shown(row['name'])} is not the one of its plan")
    if {link["run"]: link["arm"] for link in links} != planned:
        raise ValueError(f"the study {shown(row['name'])} has other runs than its plan")
    if any(before["position"] >= after["position"] for before, after in pairwise(links)):
        raise ValueError(f"the study {shown(row['name'])} does not have its runs in the order of their positions")
    return row | {"links": links}


def _checked_run(raw: Row) -> Row:
    row = _checked(t.run, _RUN, raw)
    if not _HEX.fullmatch(row["fingerprint"]):
        raise ValueError(f"{shown(row['fingerprint'])} is not the fingerprint of a run")
    attempts = [_checked(t.attempt, _ATTEMPT, fields(a)) for a in _list(raw, "attempts")]
    events = [_checked(t.event, _EVENT, fields(e)) for e in _list(raw, "events")]
    result = None if field_of(raw, "result") is None else _checked(t.result, _RESULT, fields(raw["result"]))
    wrong = f"run {row['fingerprint'][:12]}: its "
    if [a["token"] for a in attempts] != list(range(1, row["token"] + 1)):
        raise ValueError(f"{wrong}attempts are not those that it counts")
    if any(a["ended_at"] is None or a["charged"] is None or a["outcome"] not in _MOVES for a in attempts):
        raise ValueError(f"{wrong}attempts have not all ended")
    if _end_of(events) != (row["state"], row["token"]) or row["state"] in (*LIVE, RunState.PLANNED):
        raise ValueError(f"{wrong}events do not lead to its state")
    if (result is not None) != (row["state"] in RECORDED) or (result and result["token"] != row["token"]):
        raise ValueError(f"{wrong}result does not belong to its last attempt")
    if result and (payload_hash(result["payload"]) != result["payload_hash"] or not _is_object(result["payload"])):
        raise ValueError(f"{wrong}result is not the one that was recorded")
    return row | {"attempts": attempts, "events": events, "result": result}


def _end_of(events: Sequence[Row]) -> tuple[str, int] | None:
    """Return state and token after a run's events; ``None`` if the state machine does not allow one of them."""
    state, token = str(RunState.PLANNED), 0
    for event in events:
        token += event["move"] == Move.CLAIM
        target = target_of(Move(event["move"]), RunState(event["source"]))
        if (event["source"], event["target"], event["token"]) != (state, target, token):
            return None
        state = event["target"]
    return state, token


def _is_object(text: str) -> bool:
    try:
        return isinstance(json.loads(text), dict)
    except (ValueError, RecursionError):
        return False


def _fingerprint(link: Row) -> str:
    name = field_of(link, "run")
    if not isinstance(name, str) or not _HEX.fullmatch(name):
        raise ValueError(f"{shown(name)} is not the fingerprint of a run")
    return name


def _list(raw: Row, name: str) -> list[Any]:
    return listed(field_of(raw, name), name)


def _checked(table: sa.Table, names: Sequence[str], raw: Row) -> Row:
    """Return the columns of a row, each with the type of its column; one that was added since has its default."""
    row = {}
    for name in names:
        column = table.columns[name]
        if name not in raw and column.server_default is not None:
            default = str(column.server_default.arg)  # type: ignore[attr-defined]
            row[name] = default if isinstance(column.type, sa.String) else json.loads(default)
        elif not _fits(column, value := field_of(raw, name)):
            raise ValueError(f"`{table.name}.{name}` is {shown(value)}, which the store does not take")
        else:
            row[name] = value
    return row


def _fits(column: sa.Column[Any], value: Any) -> bool:
    if value is None:
        return bool(column.nullable)
    match column.type:
        case sa.Boolean():
            return isinstance(value, bool)
        case sa.Integer():
            return type(value) is int and abs(value) < 1 << (63 if isinstance(column.type, sa.BigInteger) else 31)
        case sa.Float():
            return (type(value) is float and math.isfinite(value)) or (type(value) is int and abs(value) < LARGEST)
        case sa.String():
            most = column.type.length
            return isinstance(value, str) and "\0" not in value and (most is None or len(value) <= most)
    return False


# ---- inserting; the connection is in a transaction ---------------------------------------------------


def insert_rows(connection: sa.Connection, rows: StudyRows, paused: str) -> None:
    """Insert a study. Runs that the store has, from other studies, are shared.

    Args:
        connection: in a transaction that has compared these runs with those of the store.
        rows: from :func:`checked_rows` or :func:`read_rows`.
        paused: why none of its runs is claimed; empty: as it is in ``rows``.

    Raises:
        StoreError: the store has something of the same name that is not the same.
    """
    try:
        numbers = [_insert_study(connection, study, paused) for study in rows.studies]
        wanted = [run["fingerprint"] for run in rows.runs]
        shared = {r.fingerprint for r in rows_of(connection, sa.select(t.run.c.fingerprint), wanted)}
        fresh = [run for run in rows.runs if run["fingerprint"] not in shared]
        owners: dict[str, int] = {}
        for number, study in zip(numbers, rows.studies, strict=True):
            for link in study["links"]:
                owners.setdefault(link["run"], number)
        _insert_runs(connection, fresh, owners)
        ids = {r.fingerprint: r.id for r in rows_of(connection, sa.select(t.run.c.fingerprint, t.run.c.id), wanted)}
        _insert_links(connection, rows, numbers, ids)
        _insert_budgets(connection, rows, [a for run in fresh for a in run["attempts"]])
        said = [line for line in rows.remarks if line["run"] not in shared]  # what is said here of shared runs stays
        if said:
            connection.execute(sa.insert(t.remark), said)
    except sa.exc.IntegrityError as error:
        raise StoreError(f"the study `{rows.name}` contradicts this store: {shown(str(error.orig))}") from error


def _insert_study(connection: sa.Connection, study: Row, paused: str) -> int:
    row = {**study, "paused": study["paused"] or paused, **numbers(connection, t.study, 1)[0]}
    del row["links"]
    return int(connection.execute(sa.insert(t.study).values(row).returning(t.study.c.id)).scalar_one())


def _insert_runs(connection: sa.Connection, runs: Sequence[Row], owners: Mapping[str, int]) -> None:
    own = {"lease_until": None, "cancel_requested": False}
    free = numbers(connection, t.run, len(runs))
    rows = [
        {n: run[n] for n in _RUN} | own | number | {"study_id": owners[run["fingerprint"]]}
        for run, number in zip(runs, free, strict=True)
    ]
    if not rows:
        return
    connection.execute(sa.insert(t.run), rows)
    wanted = [run["fingerprint"] for run in runs]
    ids = {r.fingerprint: r.id for r in rows_of(connection, sa.select(t.run.c.fingerprint, t.run.c.id), wanted)}
    by_claim = sorted(
        ((a, run["fingerprint"]) for run in runs for a in run["attempts"]), key=lambda pair: pair[0]["claimed_at"]
    )
    tables = {
        t.attempt: [{**a, "run_id": ids[run], "study_id": owners[run]} for a, run in by_claim],
        t.event: [{**e, "run_id": ids[run["fingerprint"]]} for run in runs for e in run["events"]],
        t.result: [{**run["result"], "run_id": ids[run["fingerprint"]]} for run in runs if run["result"]],
    }
    for table, more in tables.items():
        if more:
            connection.execute(sa.insert(table), more)


def _insert_links(connection: sa.Connection, rows: StudyRows, numbers: Sequence[int], ids: Mapping[str, int]) -> None:
    links = [
        {**{n: link[n] for n in _LINK}, "study_id": number, "run_id": ids[link["run"]]}
        for number, study in zip(numbers, rows.studies, strict=True)
        for link in study["links"]
    ]
    for link, recorded in ((link, link["run_id"] in {ids[f] for f in rows.results}) for link in links):
        link["recorded"] = recorded
    if links:
        connection.execute(sa.insert(t.study_run), links)


def _insert_budgets(connection: sa.Connection, rows: StudyRows, attempts: Sequence[Row]) -> None:
    open_budgets(connection, PLAN.validate_json(rows.studies[-1]["plan"]))
    for unit in ("gpu", "cpu"):
        mine = [a for a in attempts if unit_of(a["gpus"]) == unit]
        kept = [a["charged"] for a in mine if a["outcome"] in KEPT]
        sums = {
            "spent": math.fsum(a["charged"] for a in mine),
            "wasted": math.fsum(a["charged"] for a in mine if a["outcome"] not in KEPT),
            "longest": max(kept, default=0.0),
            "results": sum(a["outcome"] in (Move.SUCCEED, Move.STOP_EARLY) for a in mine),
        }
        where = (t.budget.c.study == rows.name, t.budget.c.unit == unit)
        connection.execute(sa.update(t.budget).where(*where).values(sums))
