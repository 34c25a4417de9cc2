"""Prompts by steps: which are mastered, which are being learned, which are hopeless."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from fastapi import APIRouter
from starlette.datastructures import QueryParams
from starlette.requests import Request
from starlette.responses import Response

from paribus.errors import RunFolderError
from paribus.recipe.recipe import Recipe
from paribus.track.folder import TRAIN
from paribus_dashboards.choices import Link, at, chosen_run, chosen_set, run_options
from paribus_dashboards.figures.heatmap import COLOURS, Drawing, draw
from paribus_dashboards.heat import COLUMNS, ROWS, Heat, Measured, heat, of_evaluations, of_kept, spread_out
from paribus_dashboards.reading import Counts, KeptGroups, RunReading
from paribus_dashboards.visible import one_line
from paribus_dashboards.web import Page, home_of, render

MOST_BYTES = 24 << 20
"""Bytes of evaluations that one page reads; larger ones have fewer columns."""

FEWEST = 8
"""Columns that there are in any case."""

_NAME = 24


class Cell(NamedTuple):
    """A number of the table: mean reward in words, and whether the group has no spread."""

    text: str
    flat: bool


@dataclass(frozen=True, kw_only=True)
class Line:
    """One row of the table.

    Attributes:
        name: the prompt, or how many share the row.
        key: the problem in the address of its samples; empty where several share the row.
        within: address of the map of these prompts alone; empty where there is one.
        solved: when it was solved first, in words.
        cells: one a column.
    """

    name: str
    key: str
    within: str
    solved: str
    cells: tuple[Cell, ...]


@dataclass(frozen=True, kw_only=True)
class HeatView:
    """The page.

    Attributes:
        summary: what the order of the prompts says, as sentences.
        about: what is shown of what there is, as sentences.
        label: the map in one sentence, for those who do not see it.
        scale: what the ends of the colours mean.
        hatch: what hatching means; empty where groups have one response, so that nothing can be hatched.
        colours: from the lowest to the highest.
        drawing: the map.
        steps: first step of each column.
        columns: the columns in words.
        lines: rows of the table.
        widths: prompts a row.
        links: to neighbouring prompts, and to all.
    """

    summary: tuple[str, ...]
    about: tuple[str, ...]
    label: str
    scale: tuple[str, str]
    hatch: str
    colours: tuple[str, ...]
    drawing: Drawing
    steps: tuple[int, ...]
    columns: tuple[str, ...]
    lines: tuple[Line, ...]
    widths: int
    links: tuple[Link, ...]


def view(found: Heat, names: Mapping[int, str], about: Sequence[str], address: str, query: QueryParams) -> HeatView:
    """Lay out a map.

    Args:
        found: the map.
        names: problems by key, of the rows that stand for one.
        about: what is shown of what there is.
        address: of the page.
        query: what the page was asked for.
    """
    measured = found.measured
    width = max((len(r.keys) for r in found.rows), default=1)
    lines = tuple(_line(found, i, names, address, query) for i in range(len(found.rows)))
    correct = measured.scored == "correct"
    scale = (
        ("no response correct", "all correct") if correct else (f"reward {measured.low:.3g}", f"{measured.high:.3g}")
    )
    hatch = "every response of the group has the same reward: it teaches nothing" if measured.responses > 1 else ""
    shared = [f"A row stands for {width} prompts that were solved one after the other."] if width > 1 else []
    single = [] if hatch else ["Each group has one response, so no group can be without spread: nothing is hatched."]
    summary = _summary(found)
    return HeatView(
        summary=summary,
        about=(*about, *shared, *single),
        label=f"{len(found.order)} prompts by {len(measured.spans)} columns of steps. {' '.join(summary)} "
        "The numbers are in the table below.",
        scale=scale,
        hatch=hatch,
        colours=COLOURS,
        drawing=draw(found, [line.name for line in lines]),
        steps=tuple(first for first, _ in measured.spans),
        columns=tuple(f"{a}" if a == b else f"{a} to {b}" for a, b in measured.spans),
        lines=lines,
        widths=width,
        links=_links(found, address, query),
    )


def _summary(found: Heat) -> tuple[str, ...]:
    """Return what a reader looks for first: mastered, learned, lost, hopeless."""
    n, measured = len(found.order), found.measured
    half, best, worst = (
        ("half of the responses correct", "all responses were correct", "no response was ever correct")
        if measured.judged
        else ("the middle of the scale", "the mean reward was the highest of the scale", "it was always the lowest")
    )
    return (
        f"Mastered: {found.mastered} of {n} prompts, {best} at the newest step.",
        f"Learned on the way: {found.later}, solved later than in the first column (solved: {half}, or better).",
        f"Lost: {found.lost}, solved once and not at the newest step.",
        f"Hopeless: {found.hopeless}, {worst}.",
    )


def _line(found: Heat, place: int, names: Mapping[int, str], address: str, query: QueryParams) -> Line:
    row, measured = found.rows[place], found.measured
    alone = len(row.keys) == 1
    name = one_line(names.get(row.keys[0], f"{row.keys[0]:016x}"), _NAME)
    return Line(
        name=name if alone else f"{row.place + 1} to {row.place + len(row.keys)}",
        key=f"{row.keys[0]:016x}" if alone else "",
        within="" if alone else at(address, query, **{"from": str(row.place), "rows": str(len(row.keys))}),
        solved="never" if row.solved is None else f"step {measured.spans[row.solved][0]}",
        cells=tuple(
            Cell("" if np.isnan(x) else f"{x:.2f}".rstrip("0").rstrip("."), bool(flat))
            for x, flat in zip(row.mean.tolist(), row.flat.tolist(), strict=True)
        ),
    )


def _links(found: Heat, address: str, query: QueryParams) -> tuple[Link, ...]:
    """Return the ways to other prompts, where not all are shown, or rows are shared."""
    n, shown = len(found.order), sum(len(r.keys) for r in found.rows)
    if shown == n and n <= ROWS:
        return ()
    links = [Link(href=at(address, query, **{"from": "", "rows": ""}), text=f"all {n} prompts", chosen=shown == n)]
    size = shown if shown < n else ROWS
    if shown < n and found.first:
        links.append(_span(address, query, max(0, found.first - size), size, "earlier solved"))
    if shown < n and found.first + shown < n:
        links.append(_span(address, query, found.first + shown, size, "later solved"))
    if shown == n:
        links += [
            _span(address, query, i, ROWS, f"{i + 1} to {min(n, i + ROWS)}") for i in range(0, min(n, 10 * ROWS), ROWS)
        ]
    return tuple(links)


def _span(address: str, query: QueryParams, first: int, count: int, text: str) -> Link:
    return Link(href=at(address, query, **{"from": str(first), "rows": str(count)}), text=text)


# ---- what is asked for ---------------------------------------------------------------------------


def number(query: QueryParams, name: str) -> int | None:
    """Return a whole number of the query; ``None`` if it is not one."""
    return int(query[name]) if re.fullmatch(r"[0-9]{1,15}", query.get(name, "")) else None


def measured_of(reading: RunReading, name: str, recipe: Recipe, query: QueryParams) -> tuple[Measured, list[str]]:
    """Return the groups of a problem set, and what is said of their choice.

    They are those of its evaluations, which count every problem, else those that are kept as text.
    """
    first, last = number(query, "first") or 0, number(query, "last")
    last = 1 << 53 if last is None else last
    if evaluated := reading.evaluated(name):
        return _evaluated(reading, name, [s for s in evaluated if first <= s <= last])
    kept = reading.kept(name).between(first, last)
    return of_kept(kept), _about_kept(reading, kept, recipe if name == TRAIN else None)


def _evaluated(reading: RunReading, name: str, steps: Sequence[int]) -> tuple[Measured, list[str]]:
    size = max((reading.size(name, s) for s in steps[-1:]), default=0) + 1
    shown = spread_out(steps, min(COLUMNS, max(FEWEST, MOST_BYTES // size)))
    known: dict[int, Counts] = {}
    lost = 0
    for step in shown:
        try:
            known[step] = reading.counts(name, step)
        except RunFolderError:
            lost += 1
    measured = of_evaluations(known)
    k = f"{measured.responses} response{'s' * (measured.responses != 1)}"
    about = [f"Shown: every one of {len(measured.keys)} evaluated problems of `{name}`, {k} each."]
    if len(shown) < len(steps):
        about.append(
            f"{len(shown)} of {len(steps)} evaluations, evenly spread; name a range of steps to see all of it."
        )
    if lost:
        about.append(f"{lost} evaluation{'s' * (lost != 1)} left out, since unreadable.")
    return measured, about


def _about_kept(reading: RunReading, kept: KeptGroups, recipe: Recipe | None) -> list[str]:
    """Return what is shown of the groups; of how many, where a recipe trains on them."""
    steps = len(np.unique(kept.step))
    shown = f"{len(kept.step):,} groups at {steps:,} steps"
    if recipe and steps:
        shown += f", {len(kept.step) / steps:.3g} of {recipe.schedule.prompts_per_step} that a step trains on"
    about = [f"Shown: the groups that are kept as text in samples.jsonl, {shown}."]
    if reading.behind:
        about.append(f"{1 - reading.behind:.0%} of samples.jsonl is indexed so far; reload to go on.")
    return about


router = APIRouter()


@router.get("/study/{study}/heatmap")
def show(request: Request, study: str) -> Response:
    """Show the map of a run."""
    home, query = home_of(request), request.query_params
    now = home.study(study)
    run = chosen_run(home, now, query)
    if run is None:
        return render(request, "not_begun.html", page, study)
    reading = home.reading(run)
    name = chosen_set(reading, query)
    recipe = now.record.plan.arm(run.arm).recipe
    measured, about = measured_of(reading, name, recipe, query)
    shown = None
    if len(measured.keys):
        found = heat(measured, number(query, "from") or 0, number(query, "rows"))
        names = measured.names or reading.names(name, [r.keys[0] for r in found.rows if len(r.keys) == 1])
        shown = view(found, names, about, page.address(study), query)
    return render(
        request,
        "heatmap.html",
        page,
        study,
        run=run,
        runs=run_options(now, run),
        sets=reading.sets,
        set=name,
        view=shown,
        about=about,
        hatch=f"hatch-{now.record.id}",
    )


page = Page(key="heatmap", title="Heatmap", place=5, router=router)
