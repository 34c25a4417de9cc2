"""The heatmap as paths of an SVG, which the server draws: it needs no script, and prints.

Plotly cannot hatch the cells of a heatmap. Here, neighbours of one colour are one rectangle, so that a map of ten
thousand cells takes a hundred kilobytes, and the hatching has the same width for every size of the cells.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby

import numpy as np
from numpy.typing import NDArray

from paribus_dashboards.heatmap.data import Heatmap

COLOURS = (
    "#440154",
    "#482576",
    "#414487",
    "#35608d",
    "#2a788e",
    "#21908d",
    "#22a884",
    "#43bf71",
    "#7ad151",
    "#bddf26",
    "#fde725",
)
"""Viridis (Smith and van der Walt 2015, matplotlib): lightness grows evenly, so that its levels can be distinguished
in print and with colour blindness."""

_WIDE, _TALL = 860, 640
_CELL = (5, 36)
_ROW = (4, 18)
_LABELLED = 12  # pixels a row needs for its name
_LABEL = 24
_TOP, _BOTTOM, _SIDE, _GAP = 6, 34, 128, 6


@dataclass(frozen=True, kw_only=True)
class Mark:
    """A short text at a position."""

    x: float
    y: float
    text: str


@dataclass(frozen=True, kw_only=True)
class Block:
    """A block of rows, e.g. the never solved ones: a line above it, its title and count beside it.

    Attributes:
        top: top of its first row.
        baseline: baseline of the title; the count is on the next line.
        title: e.g. ``never solved``.
        count: number of its prompts of all.
    """

    top: float
    baseline: float
    title: str
    count: str


@dataclass(frozen=True, kw_only=True)
class Drawing:
    """What the template draws. Lengths in pixels.

    Attributes:
        width: width of the drawing.
        height: height of the drawing.
        left: left edge of the first column.
        top: top of the first row of prompts.
        total: top of the row with the mean of all prompts.
        cell: width of a column.
        row: height of a row.
        right: right edge of the last column.
        bottom: bottom of the last row.
        fills: colour, and path of all cells of this colour.
        hatched: path of the cells without spread.
        names: names of the rows, if there is room.
        ticks: steps below the columns.
        blocks: blocks of rows, by when they were solved.
    """

    width: float
    height: float
    left: float
    top: float
    total: float
    cell: float
    row: float
    right: float
    bottom: float
    fills: tuple[tuple[str, str], ...]
    hatched: str
    names: tuple[Mark, ...]
    ticks: tuple[Mark, ...]
    blocks: tuple[Block, ...]


def levels(values: NDArray[np.float64], low: float, high: float) -> NDArray[np.int64]:
    """Return the index of the colour of each value; -1 without a value."""
    share = np.nan_to_num((values - low) / ((high - low) or 1.0), nan=-1.0)
    top = len(COLOURS) - 1
    found: NDArray[np.int64] = np.where(share < -0.5, -1, np.clip(np.rint(share * top), 0, top)).astype(int)
    return found


def draw(heatmap: Heatmap, names: Sequence[str]) -> Drawing:
    """Return the drawing.

    Args:
        heatmap: the heatmap.
        names: one short text per row, drawn if the rows are high enough.
    """
    spans, rows = heatmap.measured.spans, heatmap.rows
    cell = _clamped(_WIDE / max(1, len(spans)), _CELL)
    height = _clamped(_TALL / max(1, len(rows)), _ROW)
    named = height >= _LABELLED
    left = 7.2 * min(_LABEL, max(map(len, names), default=0)) + 12 if named else 14
    total, top = float(_TOP), _TOP + max(height, 10.0) + _GAP
    right, bottom = left + cell * len(spans), top + height * len(rows)
    shades = [levels(r.mean, heatmap.measured.low, heatmap.measured.high) for r in rows]
    lines = [(levels(heatmap.total, heatmap.measured.low, heatmap.measured.high), total, max(height, 10.0))]
    lines += [(shade, top + i * height, height) for i, shade in enumerate(shades)]
    fills = tuple((colour, path) for number, colour in enumerate(COLOURS) if (path := _path(lines, number, left, cell)))
    flat = [(r.flat.astype(int), top + i * height, height) for i, r in enumerate(rows)]
    marks = [Mark(x=left - 6, y=top + (i + 0.5) * height, text=t) for i, t in enumerate(names)] if named else []
    return Drawing(
        width=right + _SIDE,
        height=max(bottom + _BOTTOM, top + 110),
        left=left,
        top=top,
        total=total,
        cell=cell,
        row=height,
        right=right,
        bottom=bottom,
        fills=fills,
        hatched=_path(flat, 1, left, cell),
        names=tuple(marks),
        ticks=_ticks(heatmap, left, cell, bottom),
        blocks=_blocks(heatmap, top, height),
    )


def _clamped(value: float, limits: tuple[int, int]) -> float:
    return float(int(min(max(value, limits[0]), limits[1])))


def _path(lines: Sequence[tuple[NDArray[np.int64], float, float]], wanted: int, left: float, cell: float) -> str:
    """Return a path with one rectangle for each stretch of this index."""
    found = []
    for numbers, y, height in lines:
        column = 0
        for number, run in groupby(numbers.tolist()):
            length = len(list(run))
            if number == wanted:
                found.append(f"M{left + column * cell:g} {y:g}h{length * cell:g}v{height:g}h{-length * cell:g}z")
            column += length
    return "".join(found)


def _ticks(heatmap: Heatmap, left: float, cell: float, bottom: float) -> tuple[Mark, ...]:
    spans = heatmap.measured.spans
    every = max(1, round(56 / cell))
    return tuple(
        Mark(x=left + (i + 0.5) * cell, y=bottom + 16, text=f"{span[0]:,}".replace(",", "\u202f"))
        for i, span in enumerate(spans)
        if i % every == 0
    )


def _blocks(heatmap: Heatmap, top: float, height: float) -> tuple[Block, ...]:
    """Return the blocks of drawn rows: solved at once, later, and never."""
    kinds = [
        "never solved" if r.solved is None else "solved later" if r.solved else "solved at once" for r in heatmap.rows
    ]
    counts = {"solved at once": heatmap.from_the_start, "solved later": heatmap.later, "never solved": heatmap.never}
    found = list[Block]()
    for kind in dict.fromkeys(kinds):
        begin = top + kinds.index(kind) * height
        baseline = max(begin + 14, found[-1].baseline + 32 if found else 0.0)
        found.append(Block(top=begin, baseline=baseline, title=kind, count=f"{counts[kind]} of {len(heatmap.order)}"))
    return tuple(found)
