"""What the detectors say of published courses of runs, drawn through values that their sources state.

    python benchmarks/health_published.py            # seconds: writes into docs/reference/health.md
    python benchmarks/health_published.py --check    # writes nothing, and fails if the page would change

The courses are in `health_published.yaml`. The exit status is 1 if a verdict is not the expected one.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from health_page import PAGE, written

from paribus.health.detector import Setting
from paribus.health.diagnose import judge_lines
from paribus.health.finding import RAISED, Finding
from paribus.health.profile import load_profile
from paribus.health.signals import with_signals
from paribus.run_folder.folder import MetricLine
from paribus.yaml_file.document import plain, read_document

COURSES = Path(__file__).with_suffix(".yaml")
Course = Mapping[str, Any]


def lines_of(course: Course) -> list[MetricLine]:
    """Return the metric lines: straight from one stated point of a metric to the next."""
    steps = [1, *range(course.get("every", 1), course["steps"] + 1, course.get("every", 1))]
    steps = sorted(set(steps))
    curves = {name: np.interp(steps, *np.transpose(points)) for name, points in course["metrics"].items()}
    return [
        MetricLine(step=step, time_ms=0, values={name: float(curve[i]) for name, curve in curves.items()})
        for i, step in enumerate(steps)
    ]


def raised(course: Course) -> list[Finding]:
    """Return the findings on a course, as on another trainer's log: the recipe is unknown."""
    lines = lines_of(course)
    setting = Setting(profile=load_profile(course.get("profile", "default")), planned=len(lines))
    return [f for f in judge_lines(setting, with_signals(lines)) if f.state in RAISED]


def page_lines(judged: Sequence[tuple[Course, Sequence[Finding]]]) -> list[str]:
    """Return the section of the page."""
    lines = [
        "## On published courses\n",
        "Drawn by `benchmarks/health_published.py` through values that papers, issues and printed logs state in words",
        "or numbers; no figure was digitised. Few points, straight lines and no noise: this checks that verdicts agree",
        "with what the sources say of these runs; it is no rate. For hacked rewards, no source that we found states",
        "enough.\n",
        "| course | stated | assumed | verdict | source |",
        "|---|---|---|---|---|",
    ]
    for course, found in judged:
        verdict = ", ".join(f"{f.detector} ({f.state}, since step {f.step_onset})" for f in found) or "healthy"
        cells = (course["name"], course["stated"], course.get("assumed", ""), verdict, course["source"])
        lines.append(f"| {' | '.join(cells)} |")
    return lines


def main() -> int:
    """Judge all courses, write or compare the page; return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="write nothing, fail if the page would change")
    options = parser.parse_args()
    courses: list[Course] = plain(read_document(COURSES).checked())
    judged = [(course, raised(course)) for course in courses]
    wrong = 0
    for course, found in judged:
        said = {f.detector: f.state for f in found}
        if said != course["raised"]:
            wrong += 1
            print(f"{course['name']}: {said or 'healthy'}, expected {course['raised'] or 'healthy'}")
    before = PAGE.read_text()
    after = written(before, Path(__file__).name, page_lines(judged))
    if options.check and after != before:
        wrong += 1
        print(f"{PAGE} is out of date: run benchmarks/health_published.py")
    elif not options.check:
        PAGE.write_text(after)
    print(f"{len(judged)} published courses, {wrong or 'nothing'} wrong")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
