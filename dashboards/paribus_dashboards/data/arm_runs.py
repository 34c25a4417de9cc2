"""The runs of some arms with their current series, in the form that the report's curves take."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import TYPE_CHECKING, cast

from paribus.errors import RunFolderError
from paribus.report.analysis.analysis import Analysis
from paribus.report.collect import OUTCOMES, counted
from paribus.report.inputs import RunData, StudyData
from paribus.store.models import RunRecord
from paribus_dashboards.data.home import Home
from paribus_dashboards.data.study_now import StudyNow

if TYPE_CHECKING:
    from paribus.run_folder.series import Recorded


def analysis_of(home: Home, study: StudyNow, arms: Iterable[str]) -> Analysis:
    """Return the runs of some arms, with their current series and without evaluations."""
    wanted = set(arms)
    runs = tuple(_data(home, study, r) for r in study.runs if r.arm in wanted)
    return Analysis(StudyData(plan=study.record.plan, runs=runs))


def _data(home: Home, study: StudyNow, run: RunRecord) -> RunData:
    tried = study.attempts.get(run.fingerprint, ())
    data = RunData(
        fingerprint=run.fingerprint,
        arm=run.arm,
        seed=run.seed,
        outcome=OUTCOMES.get(run.state, "pending"),
        gpus=tried[-1].gpus if tried else 0.0,
    )
    try:
        return counted(replace(data, stored=cast("Recorded", home.series(run))), study.record.plan)
    except RunFolderError:
        return data
