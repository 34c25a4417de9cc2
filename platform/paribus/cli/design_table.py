"""Prints what each design of a plan costs and can show, as a table or as JSON."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console

from paribus.cli.console import table
from paribus.study.costs import Cost
from paribus.study.design_faults import ROMAN
from paribus.study.plan import Plan
from paribus.study.precision import DesignSummary, Precision, design_summaries, order_summaries
from paribus.study.spec import Study


def designs_as_plain(
    study: Study, plan: Plan, recorded: frozenset[str], costs: Mapping[str, Cost]
) -> list[dict[str, Any]]:
    """Return what each design costs and can show as JSON values."""
    return [
        {
            **vars(s),
            "cost": vars(s.cost) if s.cost else None,
            "precisions": [vars(p) for p in s.precisions],
            "aliases": {k: list(v) for k, v in s.aliases.items()},
        }
        for s in design_summaries(study, plan, recorded, costs)
    ]


def orders_as_plain(plan: Plan) -> list[dict[str, Any]]:
    """Return the precision of means over several orders as JSON values."""
    return [{"ladders": names, "precisions": [vars(p) for p in found]} for names, found in order_summaries(plan)]


def print_design_summaries(
    study: Study, plan: Plan, recorded: frozenset[str], costs: Mapping[str, Cost], out: Console
) -> None:
    """Print one table of all designs, then the aliases of fractions and cheaper designs."""
    summaries = design_summaries(study, plan, recorded, costs)
    if not summaries:
        return
    units = list(dict.fromkeys(s.cost.unit for s in summaries if s.cost))
    listed = table(
        "design", "rows", "runs", "effect", "number", "SE", "detects", *([" or ".join(units)] if units else [])
    )
    listed.title = "\nwhat the designs measure"
    for summary in summaries:
        first = [summary.design, str(summary.cells), str(summary.runs)]
        price = [hours_text(summary.cost)] if summary.cost else []
        _add_rows(listed, first, summary.precisions, price, len(listed.columns))
    for names, precisions in order_summaries(plan):
        _add_rows(listed, [f"{names[0]} and {len(names) - 1} more", "", ""], precisions, [], len(listed.columns))
    out.print(listed)
    unit = "SE, and effect detected with power 0.8 at level 0.05, in standard deviations of an arm's score over seeds"
    out.print(unit + ("; both times sqrt(1 - rho) where scores of a seed correlate by rho" if plan.paired else ""))
    for summary in summaries:
        if summary.kind == "fractional":
            _print_aliases(summary, out)
    for summary in summaries:
        if summary.cheaper:
            out.print(f"cheaper than {summary.design}: {summary.cheaper}")


def hours_text(cost: Cost) -> str:
    """Return ``12 (8 to 20)``: expected, low and high."""
    return f"{cost.expected:.3g} ({cost.low:.3g} to {cost.high:.3g})"


def _add_rows(listed: Any, first: list[str], precisions: Sequence[Precision], price: list[str], width: int) -> None:
    for k, p in enumerate(precisions):
        reach = "not testable" if p.detectable is None else f"{p.detectable:.2f}"
        cells = [*(first if k == 0 else [""] * len(first)), p.effect, str(p.count), f"{p.se:.2f}", reach]
        cells += price if k == 0 else []
        listed.add_row(*cells, *[""] * (width - len(cells)))


def _print_aliases(summary: DesignSummary, out: Console) -> None:
    resolution = ROMAN.get(summary.resolution or 0, "none")
    out.print(
        f"\n{summary.design}, resolution {resolution}: effect, and what its rows cannot separate from it", style="bold"
    )
    for effect, aliases in summary.aliases.items():
        if aliases:
            out.print(f"  {effect}: {' '.join(aliases)}")
    if clear := sum(not aliases for aliases in summary.aliases.values()):
        out.print(f"  {clear} interactions of two: separate from every effect of two tricks or fewer")
