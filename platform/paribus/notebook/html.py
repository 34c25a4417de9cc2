"""What a notebook shows of a study and of results: HTML with every text escaped, legible on light and dark pages."""

from __future__ import annotations

from collections.abc import Mapping

from paribus.report.model import ReportModel
from paribus.report.render.html import report_environment
from paribus.study.plan import Plan

MOST_ROWS = 60
"""Rows of a plan that are shown; the frames have all of them."""


def results_html(model: ReportModel) -> str:
    """Return the first screen of a report: question, answer, cost, and the table beside the answer."""
    lead = [t for t in model.tables if t.lead] or [t for t in model.tables if t.main][:1]
    return _rendered("results.html.j2", {"model": model, "lead": lead})


def plan_html(plan: Plan, changes: Mapping[str, str], recorded: frozenset[str]) -> str:
    """Return a plan as a table of its rows.

    Args:
        plan: the plan.
        changes: key of an arm to what it changes against the base, in words.
        recorded: fingerprints of the runs with a result.
    """
    done = {arm.key: [r.fingerprint in recorded for r in plan.runs if r.arm == arm.key] for arm in plan.arms}
    rows = [(row.design, row.label, changes[row.arm], sum(done[row.arm]), len(done[row.arm])) for row in plan.rows]
    values = {
        "plan": plan,
        "rows": rows[:MOST_ROWS],
        "left_out": len(rows) - MOST_ROWS,
        "recorded": sum(r.fingerprint in recorded for r in plan.runs),
    }
    return _rendered("plan.html.j2", values)


def message_html(name: str, question: str, message: str) -> str:
    """Return a study that has no plan, and why."""
    return _rendered("message.html.j2", {"name": name, "question": question, "message": message})


def _rendered(template: str, values: Mapping[str, object]) -> str:
    return report_environment("paribus.notebook").get_template(template).render(values)
