"""What each arm answered to the same held-out problems."""

from __future__ import annotations

from paribus.report.analysis.analysis import Analysis
from paribus.report.inputs import ArmSample
from paribus.report.model import Cell, Column, Table, TableRow
from paribus.report.samples import RULE
from paribus.report.visible import shown

CODES = "Line ends are ↵, tabs ⇥, repeated spaces dots; a character without ink stands as its code, such as ⟨U+200B⟩."


def samples_tables(analysis: Analysis) -> list[Table]:
    """Return a table for each chosen problem; none if the runs kept no responses to the same problems."""
    found = analysis.data.samples
    return [_table(analysis, place, chosen) for place, chosen in enumerate(found, start=1)]


def _table(analysis: Analysis, place: int, chosen: tuple[ArmSample, ...]) -> Table:
    there = {each.arm for each in chosen}
    missing = [f"`{analysis.label(a.key)}`" for a in analysis.plan.arms if a.key not in there]
    gone = [f"Without a finished run that kept a response to this problem: {', '.join(missing)}."] if missing else []
    return Table(
        key=f"samples.{place}",
        title=f"Samples: problem {place}",
        answers="What does each arm write for the same held-out problem at its last evaluation?",
        first="Arm",
        columns=(
            Column(key="seed", label="seed"),
            Column(key="step", label="step"),
            Column(key="verdict", label="verdict"),
            Column(key="tokens", label="tokens"),
            Column(key="response", label="response"),
        ),
        rows=tuple(TableRow(label=analysis.label(each.arm), cells=_cells(each)) for each in chosen),
        notes=(f"Problem: {shown(chosen[0].sample.prompt or chosen[0].sample.problem)}", RULE, CODES, *gone),
    )


def _cells(each: ArmSample) -> tuple[Cell, ...]:
    sample = each.sample
    verdict = {True: "right", False: "wrong", None: "n/a"}[sample.correct]
    return (
        Cell(text=str(each.seed)),
        Cell(text=str(sample.step)),
        Cell(text=verdict + ("" if sample.finished is not False else ", cut off")),
        Cell(text="n/a" if sample.tokens is None else str(sample.tokens)),
        Cell(text=shown(sample.response)),
    )
