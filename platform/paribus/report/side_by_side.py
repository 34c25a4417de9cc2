"""What every comparison of studies begins and ends with, two or more."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from paribus.errors import ParibusError
from paribus.report.analysis.analysis import Analysis
from paribus.report.build import provenance
from paribus.report.external import refuse_external
from paribus.report.inputs import StudyData
from paribus.report.model import Cell, Column, ReportModel, Table, TableRow
from paribus.report.tables.cells import MISSING


def analysed(studies: Sequence[StudyData]) -> list[Analysis]:
    """Return the analyses of studies that can be compared.

    Raises:
        ParibusError: two are the same plan, or Paribus did not train one of them.
    """
    refuse_external(*studies)
    names: dict[str, str] = {}
    for plan in (data.plan for data in studies):
        if plan.fingerprint in names:
            raise ParibusError(f"`{names[plan.fingerprint]}` and `{plan.study}` are the same plan: nothing to compare")
        names[plan.fingerprint] = plan.study
    return [Analysis(data) for data in studies]


def comparison(
    analyses: Sequence[Analysis], answer: Sequence[str], tables: Sequence[Table], depends_on: Mapping[str, str]
) -> ReportModel:
    """Return a comparison as a report, under the names of the studies.

    Args:
        analyses: those of the studies.
        answer: its sentences.
        tables: its tables.
        depends_on: name to text of what the numbers depend on.
    """
    names = [a.plan.study for a in analyses]
    runs = [a.data.runs for a in analyses]
    states = [
        f"`{n}` {sum(r.outcome == 'finished' for r in own)} of {len(own)}" for n, own in zip(names, runs, strict=True)
    ]
    return ReportModel(
        study="-vs-".join(names),
        title=f"Comparison of {', '.join(f'`{name}`' for name in names[:-1])} and `{names[-1]}`",
        question="",
        status=f"finished runs: {', '.join(states)}",
        complete=all(r.outcome != "pending" for own in runs for r in own),
        answer=" ".join(answer),
        totals=(),
        summary=(),
        words=(),
        warnings=(),
        tables=tuple(tables),
        figures=(),
        provenance=depends_on,
    )


def settings(analyses: Sequence[Analysis], keys: Sequence[str]) -> Table:
    """Return what else the numbers of the studies depend on, if it differs; ``keys`` are those of the columns."""
    found = [provenance(a) for a in analyses]
    every = dict.fromkeys(name for each in found for name in each if name not in ("study", "arms"))
    names = [name for name in every if len({each.get(name) for each in found}) > 1]
    rows = [TableRow(label=n, cells=tuple(Cell(text=each.get(n, MISSING.text)) for each in found)) for n in names]
    return Table(
        key="settings",
        title="What else differs",
        answers="Which other things that the numbers depend on differ between the studies?",
        first="What",
        columns=tuple(Column(key=key, label=a.plan.study) for key, a in zip(keys, analyses, strict=True)),
        rows=tuple(rows),
    )
