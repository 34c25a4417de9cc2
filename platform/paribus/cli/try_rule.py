"""``paribus health --try-rule``: how often a rule would have fired in runs that have ended."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
from scipy.stats import binomtest

from paribus.cli.console import console, table
from paribus.cli.options import study_name
from paribus.contract.rule import HealthRule
from paribus.errors import StoreError
from paribus.health.detector import Detector
from paribus.health.diagnose import diagnose
from paribus.health.finding import Finding, HealthFile, Status, plain, read_health
from paribus.health.judge import judge_alone, read_run
from paribus.health.own_rules import load_detector, setting_of
from paribus.health.profile import Profile
from paribus.run_folder.folder import SHORT, RunFolder
from paribus.store.models import RunRecord
from paribus.store.reader import Reader
from paribus.study.plan import Plan
from paribus.study.rules import find_rule
from paribus.study.spec import DETECTORS
from paribus.text import plural

_FIRED: tuple[Status, ...] = ("critical", "warn", "note")
_UNJUDGED: tuple[Status, ...] = ("unknown", "not_applicable")
_STEPS = 8
"""How many onsets of an arm are listed."""


@dataclass(frozen=True, kw_only=True)
class Tried:
    """What a rule says about a run that has ended.

    Attributes:
        study: name of the study.
        arm: label of the arm.
        seed: its seed.
        run: first digits of its fingerprint.
        finding: of the rule.
        health: status by the detectors of Paribus; empty if it is not recorded.
    """

    study: str
    arm: str
    seed: int
    run: str
    finding: Finding
    health: str

    @property
    def judged(self) -> bool:
        """Whether the rule could be judged."""
        return self.finding.state not in _UNJUDGED

    @property
    def fired(self) -> bool:
        """Whether the rule has raised a finding."""
        return self.finding.state in _FIRED


def try_rule(name: str, target: str | None, profile: Profile | None, folder: Path, *, as_json: bool) -> None:
    """Print how often a rule would have fired.

    Args:
        name: a rule file, or an installed detector.
        target: a study; ``None``: all of the home folder.
        profile: thresholds; ``None``: those of each study.
        folder: the home folder.
        as_json: print one JSON object.

    Raises:
        StudyFileError: the file is no rule.
        StoreError: there is no such study, or no run has ended.
    """
    rule = find_rule(name, Path())
    detector = load_detector(rule)
    with Reader.open(folder) as reader:
        tried = list(_tried(reader, target, profile, detector))
    if not tried:
        where = f"study `{study_name(target)}`" if target else f"home folder {folder}"
        raise StoreError(f"no run of the {where} has ended: there is nothing to try the rule on")
    if as_json:
        click.echo(json.dumps(_plain(detector, tried), indent=1))
        return
    click.echo(f"{detector.name}: {_stated(rule) if isinstance(rule, HealthRule) else detector.looks_for}\n")
    _show(tried)
    click.echo(_sentence(tried))


def _tried(reader: Reader, target: str | None, profile: Profile | None, detector: Detector) -> Iterator[Tried]:
    """Yield what the rule says about each run that has ended, once for each study that has it."""
    studies = reader.studies() if target is None else (reader.study(study_name(target)),)
    seen: set[tuple[str, str]] = set()
    findings: dict[str, Finding] = {}
    for study in studies:
        for run in reader.runs_of(study.id):
            key = study.name, run.fingerprint
            if run.terminal and run.token and key not in seen:
                seen.add(key)
                if run.fingerprint not in findings:
                    findings[run.fingerprint] = _finding(reader, study.plan, run, profile, detector)
                health = read_health(RunFolder.of(reader.home, run.fingerprint, run.token))
                status = _by_paribus(health) if health else ""
                yield Tried(
                    study=study.name,
                    arm=run.label,
                    seed=run.seed,
                    run=run.fingerprint[:SHORT],
                    finding=findings[run.fingerprint],
                    health=status,
                )


def _by_paribus(file: HealthFile) -> Status:
    """Return the status of a run without the findings of detectors of one's own, one of which may be the rule."""
    if all(f.detector in DETECTORS for f in file.raised):
        return file.status
    return diagnose([f for f in (*file.raised, *file.others) if f.detector in DETECTORS]).status


def _finding(reader: Reader, plan: Plan, run: RunRecord, profile: Profile | None, detector: Detector) -> Finding:
    records = read_run(reader.home, run.fingerprint, run.token)
    recipe, primary = plan.known_recipe(run.arm), plan.evaluate.primary_metric
    stated = profile or setting_of(plan.profile, ())[0]  # as `paribus health` does
    return judge_alone(detector, stated, records, recipe=recipe, primary=primary)


def _stated(rule: HealthRule) -> str:
    test = ", ".join(f"{k} {v}" for k, v in rule.test.model_dump(exclude={"kind"}).items() if v is not None)
    return f"{rule.metric} {rule.test.kind} ({test}), window {rule.window} points, {rule.level}"


def _show(tried: Sequence[Tried]) -> None:
    """Print one row for each arm of each study."""
    arms: dict[tuple[str, str], list[Tried]] = {}
    for run in tried:
        arms.setdefault((run.study, run.arm), []).append(run)
    shown = table("study", "arm", "fired", "judged", "since step")
    for (study, arm), runs in arms.items():
        judged, fired = [r for r in runs if r.judged], [r for r in runs if r.fired]
        steps = [str(r.finding.step_onset) for r in sorted(fired, key=lambda r: r.seed)]
        more = f" and {len(steps) - _STEPS} more" if len(steps) > _STEPS else ""
        shown.add_row(study, arm, str(len(fired)), f"{len(judged)} of {len(runs)}", ", ".join(steps[:_STEPS]) + more)
    console().print(shown)
    if found := next((r for r in tried if r.fired), None):
        click.echo(f"{found.arm}, seed {found.seed} ({found.run}): {found.finding.evidence}.")


def _once(tried: Iterable[Tried]) -> list[Tried]:
    """Return each run once, however many studies share it."""
    return list({run.run: run for run in tried}.values())


def _sentence(tried: Sequence[Tried]) -> str:
    runs = _once(tried)
    judged = [r for r in runs if r.judged]
    if not judged:
        return f"None of {plural(len(runs), 'run that has', 'runs that have')} ended can be judged: {_reasons(runs)}."
    fired = [r for r in judged if r.fired]
    low, high = _interval(len(fired), len(judged))
    text = f"Fired in {len(fired)} of {plural(len(judged), 'run')} ({len(fired) / len(judged):.0%}; 95% interval "
    text += f"{low:.0%} to {high:.0%})."
    healthy = [r for r in judged if r.health == "ok"]
    if healthy:
        text += f" The detectors of Paribus call {len(healthy)} of these runs ok: it fired in "
        text += f"{sum(r.fired for r in healthy)} of them."
    left = [r for r in runs if not r.judged]
    return text + (f" Not judged: {len(left)} ({_reasons(left)})." if left else "")


def _reasons(runs: Sequence[Tried]) -> str:
    return "; ".join(dict.fromkeys(r.finding.evidence for r in runs if not r.judged))


def _interval(hits: int, count: int) -> tuple[float, float]:
    """Return the 95% interval of a share (Wilson 1927)."""
    found = binomtest(hits, count).proportion_ci(method="wilson")
    return float(found.low), float(found.high)


def _plain(detector: Detector, tried: Sequence[Tried]) -> dict[str, Any]:
    runs = _once(tried)
    return {
        "rule": detector.name,
        "judged": sum(r.judged for r in runs),
        "fired": sum(r.fired for r in runs),
        "ok": sum(r.judged and r.health == "ok" for r in runs),
        "fired_in_ok": sum(r.fired and r.health == "ok" for r in runs),
        "runs": [
            {"study": r.study, "arm": r.arm, "seed": r.seed, "run": r.run, "health": r.health}
            | {"finding": plain(r.finding)}
            for r in tried
        ],
    }
