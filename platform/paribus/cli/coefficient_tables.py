"""The coefficients of a batch in a terminal, 80 columns or more: a block a response, then where the weight lies."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import exp
from statistics import median

from rich.console import Console
from rich.table import Table
from rich.text import Text

from paribus.cli.console import console
from paribus.recipe.recipe import Recipe
from paribus.study.coefficients import STATES, Against, ResponseCoefficients, Share, caveats, reason, summary
from paribus.study.responses import Response, ResponseBatch

MAX_ROWS = 8
"""Tokens of a response that are listed one by one; the others are summed up."""
ALIKE = 3
"""From this many tokens with the same c and reason on, one line stands for all of them."""
BAR = 8
"""Characters of the longest bar."""
ROUNDING = 1e-6
"""A sum of c that is smaller than this share of the sum of |c| is 0 but for rounding."""
STYLES = {"+": "green", "-": "red"}


@dataclass(frozen=True)
class Row:
    """One line of a response: a token, or several.

    Attributes:
        at: position of the token, from 1; empty for several.
        token: its text, or how many tokens the line stands for.
        p: old probability.
        r: ratio.
        advantage: A, if it differs between the tokens of the response.
        c: coefficient.
        bar: its size, as ``+++`` or ``--``.
        why: why it is not A x weight.
    """

    at: str
    token: str
    p: str
    r: str
    advantage: str
    c: str
    bar: str
    why: str


def print_all(
    names: tuple[str, str | None],
    recipe: Recipe,
    batch: ResponseBatch,
    found: Sequence[ResponseCoefficients],
    shares: Sequence[Against],
) -> None:
    """Print what was assumed, each response, the totals, and the comparison if there is one."""
    out = console()
    counts = (len(found), "response"), (len({x.group for x in batch.responses}), "group")
    size = ", ".join(_many(*x) for x in (*counts, (sum(x.length for x in found), "token")))
    out.print(f"{names[0]}: {size} in one optimizer batch", style="bold")
    out.print("grad = -sum c grad log pi;  c = A x w where no reason is given")
    notes = Table.grid(padding=(0, 1))
    for line in (*batch.assumptions(recipe), *caveats(recipe)):
        notes.add_row(" -", Text(line), style="dim")
    out.print(notes)
    largest = max((abs(c) for x in found for c in x.total), default=0.0)
    labels = labels_of(batch.responses)
    headed = above = True
    for label, response, x in zip(labels, batch.responses, found, strict=True):
        if above or x.in_loss:
            out.print()
        above = x.in_loss
        out.print(Text(heading(label, response, x), style="bold" if x.in_loss else "dim"))
        if x.in_loss:
            out.print(_tokens(rows(recipe, response, x, largest), headed))
            headed = False
    _print_totals(out, found)
    if shares:
        _print_against(out, names, labels, found, shares)


def labels_of(responses: Sequence[Response]) -> list[str]:
    """Return ``a 1``, ``a 2``, ``b 1``: group and place in it."""
    seen: Counter[str] = Counter()
    found = []
    for response in responses:
        seen[response.group] += 1
        found.append(f"{clean(response.group, 20)} {seen[response.group]}")
    return found


def heading(label: str, response: Response, found: ResponseCoefficients) -> str:
    """Return the line above the tokens of a response."""
    verdict = ("correct" if response.correct else "wrong") + (", truncated" if response.truncated else "")
    head = f"{label}  {verdict}  R {number(found.reward)}"
    if not found.in_loss:
        return f"{head}  L {found.length}  c 0: {STATES[found.state]}"
    advantage = number(found.advantage[0]) if len(set(found.advantage)) == 1 else "by token"
    if found.state == "zero_spread":
        advantage = "0"
    return f"{head}  A {advantage}  L {found.length}  w {found.weight:.3g}  sum c {number(sum(found.total))}"


def rows(recipe: Recipe, response: Response, found: ResponseCoefficients, largest: float) -> list[Row]:
    """Return the lines of a response: tokens in order, then what stands for several.

    Tokens with the same c and reason are one line if they are :data:`ALIKE` or more. Of the others those whose c is
    farthest from the median of the response are listed, :data:`MAX_ROWS` or one more.
    """
    every = [_row(recipe, response, found, t, largest) for t in range(found.length)]
    keys = [(row.c, row.advantage, row.why) for row in every]
    sizes = Counter(keys)
    middle = median(found.total)
    alone = [t for t in range(found.length) if sizes[keys[t]] < ALIKE]
    limit = MAX_ROWS if len(alone) > MAX_ROWS + 1 else len(alone)
    listed = sorted(sorted(alone, key=lambda t: -abs(found.total[t] - middle))[:limit])
    left = [t for t in alone if t not in listed]
    lines = [every[t] for t in listed]
    for key, n in sizes.items():
        if n >= ALIKE:
            same = [row for row, k in zip(every, keys, strict=True) if k == key]
            lines.append(replace(_shared(same), token=f"{n} tokens"))
    if left:
        low, high = min(found.total[t] for t in left), max(found.total[t] for t in left)
        lines.append(Row("", f"{len(left)} more", "", "", "", "", "", f"c from {number(low)} to {number(high)}"))
    return lines


def _shared(same: Sequence[Row]) -> Row:
    """Return one line for lines that differ in place, probability and perhaps ratio only."""
    ratios = {row.r for row in same}
    return replace(same[0], at="", p="", r=ratios.pop() if len(ratios) == 1 else "")


def _row(recipe: Recipe, response: Response, found: ResponseCoefficients, t: int, largest: float) -> Row:
    c, ratio = found.total[t], found.ratio[t]
    size = round(BAR * abs(c) / largest) if largest else 0
    text = clean(response.tokens[t], 10) if response.tokens else ""
    return Row(
        at=str(t + 1),
        token=text,
        p=f"{exp(response.logp_old[t]):.3g}",
        r="-" if ratio is None else f"{ratio:.2f}",
        advantage=number(found.advantage[t]) if len(set(found.advantage)) > 1 else "",
        c=number(c),
        bar=("+" if c > 0 else "-") * (max(1, size) if c else 0),
        why=reason(recipe, found, t),
    )


def _tokens(lines: Sequence[Row], headed: bool) -> Table:
    """Return the lines as a table whose columns have the same places in every response."""
    table = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0), show_header=headed, header_style="dim")
    by_token = any(row.advantage for row in lines)
    place = max(4, *(len(row.at) for row in lines))
    columns = [("at", "", place), ("token", "token", 10), ("p", "p old", 6), ("r", "r", 6)]
    columns += [("advantage", "A", 8)] if by_token else []
    for name, title, width in (*columns, ("c", "c", 10), ("bar", "", BAR)):
        table.add_column(title, width=width, no_wrap=True, justify="left" if name in ("token", "bar") else "right")
    table.add_column("why", overflow="fold")
    for row in lines:
        style = STYLES.get(row.c[:1], "dim")
        shown = [Text(getattr(row, name)) for name, _, _ in columns]
        table.add_row(*shown, Text(row.c, style=style), Text(row.bar, style=style), Text(row.why))
    return table


def _print_totals(out: Console, found: Sequence[ResponseCoefficients]) -> None:
    """Print where the weight lies by the sign of A and by length."""
    total = summary(found)
    out.print()
    inside = sum(x.in_loss for x in found)
    net = number(total.net if abs(total.net) > ROUNDING * total.absolute else 0.0)
    share = f"{inside} of {_many(len(found), 'response')} in the loss"
    out.print(f"{share}: sum |c| {total.absolute:.3g}, sum c {net}", style="bold")
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
    for title in ("share of |c| (mean)", f"L <= {total.cut:g}", f"L > {total.cut:g}", "all"):
        table.add_column(title, justify="right" if title[0] in "La" else "left")
    for sign, title in (("positive", "A > 0"), ("negative", "A < 0"), ("zero", "A = 0")):
        cells = total.cells[sign]
        if cells["all"].tokens:
            table.add_row(title, *map(_cell, _in_order(cells)))
    out.print(table)


def _in_order(cells: Mapping[str, Share]) -> Iterator[Share]:
    yield from (cells[name] for name in ("shorter", "longer", "all"))


def _cell(share: Share) -> str:
    return f"{100 * share.share:.1f}% ({share.mean:.3g})" if share.tokens else "-"


def _print_against(
    out: Console,
    names: tuple[str, str | None],
    labels: Sequence[str],
    found: Sequence[ResponseCoefficients],
    shares: Sequence[Against],
) -> None:
    """Print the share of each response under both recipes."""
    out.print()
    out.print(f"against {names[1]}: sum of c of a response over the sum of all |c|", style="bold")
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
    titles = ("response", "L", f"{names[0]}{' here' if names[0] == names[1] else ''}", str(names[1]), "ratio")
    for title in titles:
        table.add_column(title, justify="left" if title == "response" else "right")
    for label, x, share in zip(labels, found, shares, strict=True):
        ratio = "-" if share.ratio is None else f"{share.ratio or 0:.3g}"
        table.add_row(Text(label), str(x.length), _percent(share.here), _percent(share.there), ratio)
    out.print(table)


def _percent(share: float) -> str:
    return f"{100 * share:+.1f}%" if share else "0"


def _many(count: int, noun: str) -> str:
    return f"{count} {noun}{'' if count == 1 else 's'}"


def number(x: float) -> str:
    """Return a signed number with three digits; ``0`` for zero."""
    return f"{x:+.3g}" if x else "0"


def clean(text: str, limit: int) -> str:
    """Return text of a file on one line without control characters, shortened."""
    shown = "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)
    return shown if len(shown) <= limit else f"{shown[: limit - 3]}..."
