"""What a reader chooses on pages of single runs, the run and the problem set; and addresses that hold the choice."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from urllib.parse import urlencode

from starlette.datastructures import QueryParams

from paribus.store.records import RunRecord
from paribus.track.folder import SHORT
from paribus_dashboards.home import Home, StudyNow
from paribus_dashboards.reading import RunReading


@dataclass(frozen=True, kw_only=True)
class Link:
    """Something to choose: where it leads, what it is called, and whether it is chosen."""

    href: str
    text: str
    chosen: bool = False


@dataclass(frozen=True, kw_only=True)
class Option:
    """An entry of a drop-down list."""

    value: str
    text: str
    chosen: bool = False


def at(page: str, query: QueryParams, **changes: str) -> str:
    """Return the address of a page with its query and changes to it; what becomes empty is left out."""
    rest = urlencode({k: v for k, v in (dict(query) | changes).items() if v})
    return f"{page}?{rest}" if rest else page


def chosen_run(home: Home, study: StudyNow, query: QueryParams) -> RunRecord | None:
    """Return the run that is asked for, else the first that was attempted; ``None`` before any was.

    Raises:
        NotThere: there is no such run.
    """
    if query.get("run"):
        return home.find_run(study, query["run"])
    return next((r for r in study.runs if r.token), None)


def run_options(study: StudyNow, run: RunRecord) -> Mapping[str, tuple[Option, ...]]:
    """Return label of the arm to its runs that were attempted, for a drop-down list."""
    found: dict[str, list[Option]] = {}
    for r in study.runs:
        if r.token or r.id == run.id:
            option = Option(value=r.fingerprint[:SHORT], text=f"{r.label}, seed {r.seed}", chosen=r.id == run.id)
            found.setdefault(r.label, []).append(option)
    return {label: tuple(options) for label, options in found.items()}


def chosen_set(reading: RunReading, query: QueryParams) -> str:
    """Return the problem set that is asked for, else the first; empty if the run keeps none."""
    sets = reading.sets
    return query["set"] if query.get("set") in sets else next(iter(sets), "")
