"""The heatmap page: which prompts are mastered, which are being learned, which are hopeless."""

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
from paribus.run_folder.folder import SHORT, TRAIN
from paribus.text import plural
from paribus_dashboards.choices import Link, at, chosen_run, chosen_set, run_links, run_options, spread_out
from paribus_dashboards.data.sample_index import Counts, KeptGroups, RunSamples
from paribus_dashboards.format import one_line
from paribus_dashboards.heatmap.data import COLUMNS, ROWS, Heatmap, Measured, heatmap, of_evaluations, of_kept
from paribus_dashboards.heatmap.figure import COLOURS, Drawing, draw
from paribus_dashboards.web import Page, home_of, render

MAX_BYTES = 24 << 20
"""Most bytes of evaluations that one request reads; larger evaluations get fewer columns."""

MIN_COLUMNS = 8
"""Columns of any heatmap, whatever the size of the evaluations."""

_NAME = 24


class Cell(NamedTuple):
    """A cell of the table: the mean reward as text, and whether the group has no spread."""

    text: str
    flat: bool


@dataclass(frozen=True, kw_only=True)
class Line:
    """One row of the table.

    Attributes:
        name: the prompt, or the positions of the prompts that share the row.
        key: key of the problem in addresses; empty if several share the row.
        within: address of the heatmap of these prompts alone; empty for a single prompt.
        solved: when it was first solved, e.g. ``step 20``.
        cells: one per column.
    """

    name: str
    key: str
    within: str
    solved: str
    cells: tuple[Cell, ...]


ONE_RESPONSE = (
    "One response a problem: the staircase is the sorting. Rows are in the order of their first right answer, so that "
    "chance alone, without any learning, draws one; read the row with the mean of all instead."
)
"""What the order of the rows shows if each group has a single response."""


@dataclass(frozen=True, kw_only=True)
class HeatmapView:
    """The page.

    Attributes:
        summary: what the order of the prompts shows, as sentences.
        about: which part of the data is shown, as sentences.
        label: a description for screen readers.
        scale: meaning of the two ends of the colour scale.
        hatch: meaning of the hatching; empty if groups have one response, so that nothing is hatched.
        colours: the colour scale, from low to high.
        drawing: the drawing.
        steps: first step of each column.
        columns: titles of the columns.
        lines: rows of the table.
        per_row: prompts per row.
        links: links to other prompts of the order.
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
    per_row: int
    links: tuple[Link, ...]


def view(
    found: Heatmap, names: Mapping[int, str], about: Sequence[str], address: str, query: QueryParams
) -> HeatmapView:
    """Lay out a heatmap.

    Args:
        found: the heatmap.
        names: key to problem, for rows with a single prompt.
        about: which part of the data is shown.
        address: address of the page.
        query: query of the request.
    """
    measured = found.measured
    width = max((len(r.keys) for r in found.rows), default=1)
    lines = tuple(_line(found, i, names, address, query) for i in range(len(found.rows)))
    correct = measured.scored == "correct"
    scale = (
        ("no response correct", "all correct") if correct else (f"reward {measured.low:.3g}", f"{measured.high:.3g}")
    )
    hatch = "all responses of the group have the same reward, so it gives no gradient" if measured.responses > 1 else ""
    shared = [f"Each row covers {width} prompts that are neighbours in this order."] if width > 1 else []
    single = [] if hatch else ["Each group has one response, so there is no spread and nothing is hatched."]
    summary = (*_summary(found), *([ONE_RESPONSE] if measured.responses == 1 else []))
    return HeatmapView(
        summary=summary,
        about=(*about, *shared, *single),
        label=f"{plural(len(found.order), 'prompt')} by {len(measured.spans)} columns of steps. {' '.join(summary)} "
        "The numbers are in the table below.",
        scale=scale,
        hatch=hatch,
        colours=COLOURS,
        drawing=draw(found, [line.name for line in lines]),
        steps=tuple(first for first, _ in measured.spans),
        columns=tuple(f"{a}" if a == b else f"{a} to {b}" for a, b in measured.spans),
        lines=lines,
        per_row=width,
        links=_links(found, address, query),
    )


def _summary(found: Heatmap) -> tuple[str, ...]:
    """Return the numbers of mastered, learned, lost and hopeless prompts, as sentences."""
    n, measured = len(found.order), found.measured
    half, best, worst = (
        ("half of the responses correct", "all responses were correct", "no response was ever correct")
        if measured.judged
        else ("the middle of the scale", "the mean reward was the highest of the scale", "it was always the lowest")
    )
    return (
        f"Mastered: {found.mastered} of {plural(n, 'prompt')}, {best} at the newest step.",
        f"Learned during training: {found.later}, first solved after the first column (solved: {half}, or better).",
        f"Lost: {found.lost}, solved earlier but not at the newest step.",
        f"Hopeless: {found.hopeless}, {worst}.",
    )


def _line(found: Heatmap, place: int, names: Mapping[int, str], address: str, query: QueryParams) -> Line:
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


def _links(found: Heatmap, address: str, query: QueryParams) -> tuple[Link, ...]:
    """Return links to other prompts of the order, if not all are shown or rows are shared."""
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


# ---- input ---------------------------------------------------------------------------


def number(query: QueryParams, name: str) -> int | None:
    """Return an integer of the query; ``None`` if it is missing or not an integer."""
    return int(query[name]) if re.fullmatch(r"[0-9]{1,15}", query.get(name, "")) else None


def measured_of(
    samples: RunSamples, name: str, recipe: Recipe | None, query: QueryParams
) -> tuple[Measured, list[str]]:
    """Return the groups of a problem set, and sentences about which part of the data they are.

    They come from its evaluations, which count every problem, else from the groups that are kept as text.
    """
    first, last = number(query, "first") or 0, number(query, "last")
    last = 1 << 53 if last is None else last
    if evaluated := samples.evaluated(name):
        return _evaluated(samples, name, [s for s in evaluated if first <= s <= last])
    kept = samples.kept(name).between(first, last)
    return of_kept(kept), _about_kept(samples, kept, recipe if name == TRAIN else None)


def _evaluated(samples: RunSamples, name: str, steps: Sequence[int]) -> tuple[Measured, list[str]]:
    size = max((samples.size(name, s) for s in steps[-1:]), default=0) + 1
    shown = spread_out(steps, min(COLUMNS, max(MIN_COLUMNS, MAX_BYTES // size)))
    known: dict[int, Counts] = {}
    lost = 0
    for step in shown:
        try:
            known[step] = samples.counts(name, step)
        except RunFolderError:
            lost += 1
    measured = of_evaluations(known)
    k = plural(measured.responses, "response")
    about = [f"Shown: all {len(measured.keys)} evaluated problems of `{name}`, {k} each."]
    if len(shown) < len(steps):
        about.append(
            f"{len(shown)} of {len(steps)} evaluations, evenly spaced; choose a range of steps to see all of it."
        )
    if lost:
        about.append(f"{plural(lost, 'unreadable evaluation is', 'unreadable evaluations are')} left out.")
    return measured, about


def _about_kept(samples: RunSamples, kept: KeptGroups, recipe: Recipe | None) -> list[str]:
    """Return sentences about the shown groups, and of how many they are if a recipe trains on them."""
    steps = len(np.unique(kept.step))
    shown = f"{plural(len(kept.step), 'group')} at {plural(steps, 'step')}"
    if recipe and steps:
        shown += f", {len(kept.step) / steps:.3g} of {recipe.schedule.prompts_per_step} that a step trains on"
    about = [f"Shown: the groups that `samples.jsonl` keeps as text, {shown}."]
    if samples.behind:
        about.append(f"{1 - samples.behind:.0%} of `samples.jsonl` is indexed so far; reload to continue.")
    return about


router = APIRouter()


@router.get("/study/{study}/heatmap")
def show(request: Request, study: str) -> Response:
    """Show the heatmap of a run."""
    home, query = home_of(request), request.query_params
    now = home.study(study)
    run = chosen_run(home, now, query)
    if run is None:
        return render(request, "no_runs.html", page, study)
    samples = home.samples(run)
    name = chosen_set(samples, query)
    recipe = now.record.plan.known_recipe(run.arm)
    measured, about = measured_of(samples, name, recipe, query)
    shown = None
    if len(measured.keys):
        found = heatmap(measured, number(query, "from") or 0, number(query, "rows"))
        names = measured.names or samples.names(name, [r.keys[0] for r in found.rows if len(r.keys) == 1])
        shown = view(found, names, about, page.address(study), query)
    return render(
        request,
        "heatmap/page.html",
        page,
        study,
        run=run,
        runs=run_options(now, run),
        more_runs=run_links(now, run, page.address(study)),
        sets=samples.sets,
        set=name,
        view=shown,
        about=about,
        hatch=f"hatch-{now.record.id}",
        exact=at(page.address(study), query, run=run.fingerprint[:SHORT], set=name),
    )


page = Page(key="heatmap", title="Heatmap", place=5, router=router)
