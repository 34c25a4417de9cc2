"""What a report says of a study that looks at its results and adds seeds."""

from __future__ import annotations

from dataclasses import replace

from paribus.report.analysis import Analysis
from paribus.report.growth import enough
from paribus.report.model import Table
from paribus.stats.sequential import level_at
from paribus.study.growth import looks_text

BIASED = "A difference that ended the study at an early look is overstated on average: that is when chance helped it."


def with_looks(analysis: Analysis, table: Table) -> Table:
    """Return a table with the declared looks among its notes, if it has intervals or p values."""
    tested = any(c.low is not None or c.p_adjusted is not None for row in table.rows for c in row.cells)
    return replace(table, notes=(*table.notes, looks_note(analysis))) if analysis.plan.looks and tested else table


def looks_note(analysis: Analysis) -> str:
    """Return the declared looks, where the study stands, and what that does to intervals and p values."""
    looks, share = analysis.plan.looks, analysis.share
    assert looks is not None  # asked for such studies only
    early = f" {BIASED}" if len(analysis.plan.seeds) < looks.at[-1] else ""
    return (
        f"Declared before the launch: {looks_text(looks)}. {where(analysis)}: each interval is taken at "
        f"{100 * level_at(share):.4g}%, so that those of all looks cover with 95%, and each p is divided by this "
        f"look's share of the 5%, {share:.3g}.{early}"
    )


def where(analysis: Analysis) -> str:
    """Return e.g. ``Stopped at look 2 of 3, at 5 seeds``."""
    plan, looks = analysis.plan, analysis.plan.looks
    assert looks is not None  # as above
    of = f"look {plan.look} of {len(looks.at)}, at {len(plan.seeds)} seeds"
    if any(run.outcome == "pending" for run in analysis.data.runs):
        return f"On the way to {of}"
    if enough(analysis):
        return f"Stopped at {of}"
    return f"Ended at {of}, the last" if plan.look == len(looks.at) else f"Stands at {of}"
