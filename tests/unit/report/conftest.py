"""Made-up studies that several tests of reports share."""

from __future__ import annotations

import pytest

from paribus.report.build import build_report
from paribus.report.inputs import StudyData
from paribus.report.model import ReportModel
from support.studies import Shape, made_up_study


@pytest.fixture(scope="session")
def lossy() -> StudyData:
    """A study with a failed and a stopped run, two tricks, three designs."""
    outcomes = (("clip_higher", 0, "failed"), ("+ soft_overlong", 1, "stopped_early"))
    tricks = ("soft_overlong", "clip_higher")
    return made_up_study(Shape(tricks=tricks, outcomes=outcomes, steps=4))


@pytest.fixture(scope="session")
def model(lossy: StudyData) -> ReportModel:
    """The report of the study with losses."""
    return build_report(lossy)
