"""Judges runs from their files: run folders, and the logs of other trainers."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from paribus.errors import RunFolderError
from paribus.health.detector import Setting
from paribus.health.diagnose import Diagnosis, diagnose
from paribus.health.health_file import HealthFile
from paribus.health.import_logs import Log
from paribus.health.profile import Profile
from paribus.health.registry import DETECTORS, judge_lines
from paribus.health.signals import with_signals
from paribus.recipe.recipe import Recipe
from paribus.run_folder.folder import TRAIN, Evaluation, MetricLine, RunFolder


@dataclass(frozen=True, kw_only=True)
class Records:
    """What a run has recorded over its attempts.

    Attributes:
        lines: metric lines, one per step.
        evaluations: by set and step.
        samples: records of ``samples.jsonl``.
        trouble: why some records could not be read; empty if all could.
    """

    lines: tuple[MetricLine, ...]
    evaluations: tuple[Evaluation, ...]
    samples: tuple[dict[str, Any], ...]
    trouble: str


def judge_run(profile: Profile, records: Records, *, recipe: Recipe, primary: str) -> Diagnosis:
    """Return the diagnosis of a Paribus run.

    Args:
        profile: the thresholds.
        records: what it has recorded.
        recipe: what it trains.
        primary: the study's primary metric.
    """
    lines = with_signals(records.lines, primary=primary, evaluations=records.evaluations, samples=records.samples)
    setting = Setting(profile=profile, recipe=recipe, planned=recipe.schedule.steps)
    return diagnose(judge_lines(setting, lines), damaged=bool(records.trouble))


def judge_log(profile: Profile, log: Log) -> Diagnosis:
    """Return the diagnosis of another trainer's log, whose recipe is unknown."""
    setting = Setting(profile=profile, planned=len(log.lines))
    return diagnose(judge_lines(setting, with_signals(log.lines)))


def saved_diagnosis(file: HealthFile) -> Diagnosis | None:
    """Return the diagnosis in ``health.json``; ``None`` if its detectors are not exactly those of this version."""
    findings = (*file.raised, *file.others)
    order = [d.name for d in DETECTORS]
    if {f.detector for f in findings} != set(order):
        return None
    ordered = tuple(sorted(findings, key=lambda f: order.index(f.detector)))
    return Diagnosis(status=file.status, sentence=file.sentence, raised=file.raised, findings=ordered)


def read_run(home: Path, fingerprint: str, token: int) -> Records:
    """Return what a run has recorded; an attempt replaces, from its first step on, what earlier attempts recorded.

    Args:
        home: the home folder.
        fingerprint: the run.
        token: fence token of its newest attempt.
    """
    return read_attempts([RunFolder.of(home, fingerprint, n) for n in range(1, token + 1)])


def read_attempts(folders: Iterable[RunFolder]) -> Records:
    """Return what attempts, the oldest first, have recorded; of each attempt, lines after a damaged one are ignored."""
    lines: dict[int, MetricLine] = {}
    evaluations: dict[tuple[str, int], Evaluation] = {}
    samples: list[dict[str, Any]] = []
    trouble = ""
    for folder in folders:
        found: list[MetricLine] = []
        try:
            found.extend(folder.read_metrics())
            evaluated = folder.read_evaluations()
        except RunFolderError as error:
            trouble, evaluated = str(error), ()
        if not found:
            continue
        first = found[0].step
        lines = {s: x for s, x in lines.items() if s < first} | {x.step: x for x in found}
        evaluations = {k: e for k, e in evaluations.items() if k[1] < first} | {(e.set, e.step): e for e in evaluated}
        samples = [s for s in samples if s.get("step", 0) < first] + _read_samples(folder.samples)
    ordered = tuple(lines[s] for s in sorted(lines))
    known = tuple(evaluations[k] for k in sorted(evaluations))
    return Records(lines=ordered, evaluations=known, samples=tuple(samples), trouble=trouble)


def _read_samples(path: Path) -> list[dict[str, Any]]:
    try:
        with path.open("rb") as file:
            return parse_samples(file)
    except FileNotFoundError:
        return []


def parse_samples(lines: Iterable[bytes]) -> list[dict[str, Any]]:
    """Return the evaluation records among lines of ``samples.jsonl``, without damaged lines.

    Records of training groups are left out: no detector uses them.
    """
    found = []
    for line in lines:
        try:
            record = json.loads(line.decode(errors="replace"))
        except ValueError:
            continue
        if isinstance(record, dict) and record.get("set") != TRAIN:
            found.append(record)
    return found
