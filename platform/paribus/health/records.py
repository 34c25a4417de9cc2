"""Judges what is on disk: run folders and the logs of other trainers."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from paribus.health.battery import judge
from paribus.health.detector import Setting
from paribus.health.diagnose import Diagnosis, diagnose
from paribus.health.logs import Log
from paribus.health.profile import Profile
from paribus.health.signals import with_signals
from paribus.recipe.recipe import Recipe
from paribus.track.folder import Evaluation, MetricLine


def judge_run(
    profile: Profile,
    lines: Sequence[MetricLine],
    *,
    recipe: Recipe,
    primary: str,
    evaluations: Sequence[Evaluation] = (),
    samples: Sequence[dict[str, Any]] = (),
) -> Diagnosis:
    """Return the diagnosis of a run of ours.

    Args:
        profile: the thresholds.
        lines: its metric lines, one a step.
        recipe: what it trains.
        primary: the metric of the tables.
        evaluations: with counts per problem.
        samples: records of ``samples.jsonl``.
    """
    known = with_signals(lines, primary=primary, evaluations=evaluations, samples=samples)
    setting = Setting(profile=profile, recipe=recipe, planned=recipe.schedule.steps)
    return diagnose(judge(setting, known))


def judge_log(profile: Profile, log: Log) -> Diagnosis:
    """Return the diagnosis of another trainer's log, whose recipe is unknown."""
    setting = Setting(profile=profile, planned=len(log.lines))
    return diagnose(judge(setting, with_signals(log.lines)))


def read_samples(path: Path) -> list[dict[str, Any]]:
    """Return the records of ``samples.jsonl`` that are whole; a damaged line costs a sample, not the verdict."""
    if not path.is_file():
        return []
    found = []
    for line in path.read_text(encoding="utf-8", errors="replace").splitlines():
        try:
            record = json.loads(line)
        except ValueError:
            continue
        if isinstance(record, dict):
            found.append(record)
    return found
