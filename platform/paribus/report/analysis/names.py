"""Names of arms and rows that no other arm or row of a report has."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from paribus.study.plan import Plan, Row


def arm_names(plan: Plan) -> Mapping[str, str]:
    """Return a name for each arm that no other arm has.

    A single trick is named as such, a row of a ladder by its place (``ladder 3: ... + token_level``), other arms by
    their label, with the name of their design where two arms have the same.
    """
    first: dict[str, Row] = {}
    single: dict[str, str] = {}
    for row in plan.rows:
        first.setdefault(row.arm, row)
        if row.kind in TRICKS_ONLY and len(row.tricks) == 1:
            single.setdefault(row.arm, row.tricks[0])
    named = {a.key: single.get(a.key) or row_name(plan, first[a.key]) if a.key in first else a.label for a in plan.arms}
    named[plan.base] = plan.arm(plan.base).label
    counts = Counter(named.values())
    return {
        arm: f"{first[arm].design}: {name}" if counts[name] > 1 and arm in first and arm != plan.base else name
        for arm, name in named.items()
    }


TRICKS_ONLY = ("cumulative", "add_one", "pairs", "factorial", "fractional")
"""Designs whose arms are the base with tricks added."""


def row_name(plan: Plan, row: Row) -> str:
    """Return the label of a row; in a ladder with its place, because the row has the tricks above it as well."""
    if row.kind != "cumulative" or row.parent is None:
        return row.label
    place = [r.label for r in plan.rows if r.design == row.design].index(row.label)
    return f"{row.design} {place}: {'... ' if place > 1 else ''}{row.label}"
