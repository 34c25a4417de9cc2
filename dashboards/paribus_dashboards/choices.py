"""What readers choose on pages about single runs, and how addresses hold it: run, problem set, part of the x axis."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias
from urllib.parse import urlencode

import numpy as np
from starlette.datastructures import QueryParams

from paribus.run_folder.folder import SHORT
from paribus.store.models import RunRecord
from paribus_dashboards.data.home import Home, NotFound
from paribus_dashboards.data.sample_index import RunSamples
from paribus_dashboards.data.study_now import StudyNow

X_LIMIT = 2.0**53
"""Largest position on an x axis; below it, no step is lost to rounding."""

Span: TypeAlias = tuple[float | None, float | None]
"""First and last shown position of an x axis; ``None``: no bound."""


@dataclass(frozen=True, kw_only=True)
class Link:
    """A choice that is a link: its address, its text, and whether it is the current choice."""

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
    """Return the address of a page with a changed query; parameters with an empty value are left out."""
    rest = urlencode({k: v for k, v in (dict(query) | changes).items() if v})
    return f"{page}?{rest}" if rest else page


def chosen_span(query: QueryParams) -> Span:
    """Return the requested part of the x axis.

    Raises:
        NotFound: an end is not a number, or the last one is smaller than the first.
    """
    first, last = _end(query, "first"), _end(query, "last")
    if first is not None and last is not None and last < first:
        raise NotFound(f"`last` ({last:g}) must not be smaller than `first` ({first:g})")
    return first, last


def _end(query: QueryParams, name: str) -> float | None:
    text = query.get(name, "")
    if not text:
        return None
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise NotFound(f"`{name}` must be a number, a position on the x axis; got `{text[:SHORT]}`")
    return max(-X_LIMIT, min(X_LIMIT, value))


def chosen_run(home: Home, study: StudyNow, query: QueryParams) -> RunRecord | None:
    """Return the requested run, else the first one with an attempt; ``None`` if no run has one.

    Raises:
        NotFound: there is no such run.
    """
    if query.get("run"):
        return home.find_run(study, query["run"])
    return next((r for r in study.runs if r.token), None)


MAX_OFFERED = 200
"""Most runs in a drop-down list; links lead to the runs before and after."""


def _offered(study: StudyNow, run: RunRecord) -> tuple[list[RunRecord], int]:
    """Return the runs that can be chosen, and the place of the first one in the list around this run."""
    started = [r for r in study.runs if r.token or r.id == run.id]
    place = next(i for i, r in enumerate(started) if r.id == run.id)
    return started, place // MAX_OFFERED * MAX_OFFERED


def run_links(study: StudyNow, run: RunRecord, address: str) -> tuple[Link, ...]:
    """Return links to the runs before and after those of the drop-down list."""
    started, first = _offered(study, run)
    return tuple(
        Link(href=f"{address}?run={started[i].fingerprint[:SHORT]}", text=text)
        for i, text in ((first - MAX_OFFERED, "earlier runs"), (first + MAX_OFFERED, "later runs"))
        if 0 <= i < len(started)
    )


def run_options(study: StudyNow, run: RunRecord) -> Mapping[str, tuple[Option, ...]]:
    """Return the runs with an attempt around this one for a drop-down list, by label of their arm."""
    found: dict[str, list[Option]] = {}
    started, first = _offered(study, run)
    for r in started[first : first + MAX_OFFERED]:
        option = Option(value=r.fingerprint[:SHORT], text=f"{r.label}, seed {r.seed}", chosen=r.id == run.id)
        found.setdefault(r.label, []).append(option)
    return {label: tuple(options) for label, options in found.items()}


def chosen_set(samples: RunSamples, query: QueryParams) -> str:
    """Return the requested problem set, else the first; empty if the run has none."""
    sets = samples.sets
    return query["set"] if query.get("set") in sets else next(iter(sets), "")


def spread_out(steps: Sequence[int], most: int) -> tuple[int, ...]:
    """Return at most ``most`` of the steps, evenly spaced by position, with the first and the last."""
    if len(steps) <= most:
        return tuple(steps)
    places = np.linspace(0, len(steps) - 1, max(2, most)).round().astype(int)
    return tuple(steps[i] for i in places)
