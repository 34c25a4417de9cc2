"""What each arm changes: paths of the recipe and their values, the base's own first."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from paribus.recipe.presets import load_preset
from paribus.recipe.recipe import difference
from paribus.report.analysis.analysis import Analysis
from paribus.report.model import Cell, Column, Table, TableRow

RATE = "optimizer.learning_rate"


def changes_table(analysis: Analysis) -> Table:
    """Return paths and values that an arm has other than the base, and what the base sets."""
    plan = analysis.plan
    if plan.external:
        texts, label = {arm.key: "not known" for arm in plan.arms}, "settings"
        note = "Paribus did not start these runs: that arms differ in their settings alone is for you to know."
    else:
        texts = {a.key: _base(analysis) if a.key == plan.base else changes_text(a.changes) for a in plan.arms}
        label = "path: base → arm"
        preset = f"; the rest is that of the preset `{plan.preset}`" if plan.preset else ""
        note = f"In the row of the base: its learning rate and what the study sets{preset}."
    return Table(
        key="changes",
        title="What each arm changes",
        answers="Which settings does an arm have that the base does not?",
        first="Arm",
        columns=(Column(key="changes", label=label),),
        rows=tuple(TableRow(label=analysis.label(arm), cells=(Cell(text=text),)) for arm, text in texts.items()),
        notes=(note,),
        main=True,
    )


def _base(analysis: Analysis) -> str:
    plan = analysis.plan
    recipe = plan.arm(plan.base).recipe
    own = {RATE: recipe.optimizer.learning_rate}
    if plan.preset:
        changed = difference(load_preset(plan.preset).recipe, recipe)
        own |= {path: after for path, (_, after) in changed.items()}
    return "; ".join(f"{path} = {_value(value)}" for path, value in own.items())


def changes_text(changes: Mapping[str, tuple[Any, Any]]) -> str:
    """Return what an arm changes, on one line; ``nothing`` for the base."""
    return "; ".join(f"{path}: {_value(a)} → {_value(b)}" for path, (a, b) in changes.items()) or "nothing"


def _value(value: object) -> str:
    """Return a value in short."""
    if value is None:
        return "none"
    return f"{value:g}" if isinstance(value, float) else str(value)
