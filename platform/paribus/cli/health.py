"""``paribus health``: judges a run, the runs of a study, or the log of another trainer."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any, Literal

import click
import yaml

from paribus.cli.console import console, table
from paribus.cli.options import home_option, json_option, study_name
from paribus.errors import LogFileError, RunFolderError, StoreError
from paribus.health.context import ALONE, compared, context_of
from paribus.health.finding import Diagnosis, Finding, plain, read_health
from paribus.health.import_logs import PARIBUS, mappings, open_log
from paribus.health.judge import Records, judge_log, judge_run, read_attempts, read_run
from paribus.health.log_files import SUFFIXES
from paribus.health.own_rules import setting_of
from paribus.health.profile import Profile, load_profile
from paribus.home import home
from paribus.run_folder.attempt_files import read_job
from paribus.run_folder.folder import SHORT, RunFolder
from paribus.store.models import RunRecord
from paribus.store.reader import Reader
from paribus.study.plan import Plan
from paribus.text import plural

FAILED = 3
"""Exit status if a finding is as bad as ``--fail-on``."""
UNJUDGED = 4
"""Exit status with ``--fail-on`` without such a finding, if a run that has started could not be judged in full."""

_NAMES = 8
"""How many unmapped names of a log are listed; some logs have hundreds."""


@click.command()
@click.argument("target", metavar="[RUN|STUDY|FILE]", required=False)
@click.option("--profile", help="Thresholds: a profile or a file. [default: that of the study; `default` for a log]")
@click.option("--trainer", help="The trainer that wrote a log. [default: guessed from the metric names]")
@click.option(
    "--fail-on",
    type=click.Choice(["critical", "warn"]),
    help=f"Exit with {FAILED} if a finding is this bad or worse, {UNJUDGED} if a run cannot be judged.",
)
@click.option("--all", "show_all", is_flag=True, help="List all detectors, including those without a finding.")
@click.option(
    "--try-rule",
    "rule",
    metavar="RULE.yaml",
    help="Show how often a rule would have fired in the runs that have ended: of STUDY, or of the home folder.",
)
@home_option
@json_option
def command(
    target: str | None,
    profile: str | None,
    trainer: str | None,
    fail_on: Literal["critical", "warn"] | None,
    show_all: bool,
    rule: str | None,
    folder: Path | None,
    as_json: bool,
) -> None:
    """Show what is wrong with a run, since when, and what to try.

    RUN is a fingerprint (or its first digits) or a run folder. STUDY is a name or a study file. FILE is a log of
    another trainer: TRL's output folder or trainer_state.json, JSON lines, a console log of verl, a CSV of W&B,
    TensorBoard or MLflow, a folder of TensorBoard, MLflow or W&B, a .wandb file, or mlflow:RUN_ID.
    """
    thresholds = None if profile is None else load_profile(profile)
    if rule is not None:
        if trainer or fail_on or show_all:
            raise click.UsageError("--try-rule goes with STUDY, --profile, --home and --json alone")
        from paribus.cli.try_rule import try_rule

        try_rule(rule, target, thresholds, folder or home(), as_json=as_json)
        return
    if not target:
        raise click.UsageError("name a RUN, a STUDY or a FILE, or try a rule with --try-rule")
    check_trainer(trainer)
    log = _log(target, trainer, thresholds or load_profile("default"), folder)
    if log is None and trainer is not None:
        raise click.UsageError(f"--trainer says who wrote a log, and `{target}` is no log: leave it out")
    found = _stored(target, thresholds, folder) if log is None else [log]
    if as_json:
        used = ", ".join(sorted({about["profile"] for about, _ in found}))
        click.echo(json.dumps({"profile": used, "runs": [_plain(*f) for f in found]}, indent=1))
    elif len(found) == 1:
        _show(*found[0], show_all=show_all)
    else:
        _show_table(found)
    if fail_on is not None:
        sys.exit(_status(found, ("critical", "warn") if fail_on == "warn" else ("critical",)))


def _status(found: Sequence[tuple[dict[str, Any], Diagnosis]], bad: tuple[str, ...]) -> int:
    """Return the exit status; runs without an attempt are ignored."""
    if any(diagnosis.status in bad for _, diagnosis in found):
        return FAILED
    begun = [(about, diagnosis) for about, diagnosis in found if about.get("attempts") != 0]
    return UNJUDGED if any(about.get("trouble") or d.status == "unknown" for about, d in begun) else 0


def tracking_uri_of(place: Path) -> str:
    """Return the address of the MLflow that a home folder is copied to."""
    from paribus.mlflow_sync.client import tracking_uri

    return tracking_uri(place)


def check_trainer(trainer: str | None) -> None:
    """Refuse a trainer whose names are not known.

    Raises:
        click.BadParameter: nothing is known of it.
    """
    known = (PARIBUS, *mappings())
    if trainer is not None and trainer not in known:
        raise click.BadParameter(f"`{trainer}` must be one of {', '.join(known)}", param_hint="--trainer")


def _log(
    target: str, trainer: str | None, profile: Profile, folder: Path | None
) -> tuple[dict[str, Any], Diagnosis] | None:
    """Return the diagnosis of a log; ``None`` if the target is not a log."""
    path = Path(target)
    if target.endswith((".yaml", ".yml")):
        return None
    log = open_log(target, partial(tracking_uri_of, folder or home()), trainer)
    if log is None and ((path / "job.json").is_file() or not (path.exists() or "/" in target)):
        return None
    if log is None:
        raise LogFileError(
            f"{target}: neither a run folder, nor a folder of TRL, TensorBoard, MLflow or W&B, nor a "
            f"{', '.join(SUFFIXES)} file, nor a study file; see `paribus health --help`"
        )
    mapped = log.mapped
    about: dict[str, Any] = {"run": target, "trainer": mapped.trainer, "steps": len(log.lines)}
    about |= {
        "proxies": mapped.proxies,
        "unread": mapped.unread,
        "relevant": mapped.relevant,
        "profile": profile.identity,
    }
    return {**about, "notes": log.notes, "trouble": log.trouble}, judge_log(profile, log)


def _stored(target: str, profile: Profile | None, folder: Path | None) -> list[tuple[dict[str, Any], Diagnosis]]:
    """Return the diagnosis of a run folder, a run in the store, or all runs of a study; by default with its profile."""
    path = Path(target)
    if (path / "job.json").is_file():
        return [_of_folder(path, profile)]
    with Reader.open(folder or home()) as reader:
        names = {s.name for s in reader.studies()}
        if target not in names and set(target) <= set("0123456789abcdef") and len(target) >= 4:
            study, run = find_run(reader, target, f"there is no study `{target}`, and ")
            return [_of_record(reader, study, run, profile)]
        found = reader.study(study_name(target))
        return [_of_record(reader, found.plan, run, profile) for run in reader.runs_of(found.id)]


def find_run(reader: Reader, digits: str, also: str = "") -> tuple[Plan, RunRecord]:
    """Return the run whose fingerprint starts with these digits, and the plan of its newest study.

    Args:
        reader: the store.
        digits: what a user names.
        also: what else there is not, before the sentence that there is no such run.

    Raises:
        StoreError: no run has such a fingerprint, or several have; the message says how to list the runs.
    """
    studies = reader.studies()
    found = {
        run.fingerprint: (study.plan, run)
        for study in studies
        for run in reader.runs_of(study.id)
        if run.fingerprint.startswith(digits)
    }
    if len(found) == 1:
        return next(iter(found.values()))
    if found:
        start = f"{len(found)} runs have a fingerprint that starts with `{digits}`: give more digits."
    else:
        start = f"{also}no run has a fingerprint that starts with `{digits}` in {reader.home}."
    names = ", ".join(sorted({study.name for study in studies})) or "none"
    raise StoreError(f"{start} `paribus status STUDY` lists the runs of a study. Studies: {names}.")


def _of_record(reader: Reader, plan: Plan, run: RunRecord, profile: Profile | None) -> tuple[dict[str, Any], Diagnosis]:
    stated, own = setting_of("default" if profile else plan.profile, plan.rules)
    profile = profile or stated
    records = read_run(reader.home, run.fingerprint, run.token)
    recipe, primary = plan.known_recipe(run.arm), plan.evaluate.primary_metric
    diagnosis = judge_run(profile, records, recipe=recipe, primary=primary, own=own)
    about = {"run": run.fingerprint[:SHORT], "arm": run.label, "seed": run.seed, "state": str(run.state)}
    about |= {"attempts": run.token, "steps": _last(records), "profile": profile.identity}
    about["context"] = _context(reader, plan, run, diagnosis)
    return {**about, "trouble": records.trouble}, diagnosis


def _context(reader: Reader, plan: Plan, run: RunRecord, diagnosis: Diagnosis) -> str:
    """Return what the study adds to the first finding, from the verdicts that were written beside its runs."""
    if diagnosis.first is None:
        return ""
    raised = {run.fingerprint: [f.detector for f in diagnosis.raised]}
    tokens = {r.fingerprint: r.token for study in reader.studies() for r in reader.runs_of(study.id)}
    arms = compared(plan, run.arm)
    for other in (r for r in plan.all_runs if r.arm in arms):
        token = tokens.get(other.fingerprint, 0)
        found = read_health(RunFolder.of(reader.home, other.fingerprint, token)) if token else None
        if found is not None and other.fingerprint != run.fingerprint:
            raised[other.fingerprint] = [f.detector for f in found.raised]
    return context_of(plan, run.arm, diagnosis.first.detector, raised)


def _of_folder(path: Path, profile: Profile | None) -> tuple[dict[str, Any], Diagnosis]:

    folder = RunFolder(path)
    job = read_job(folder.job)
    records = read_attempts([folder])
    if records.trouble:
        raise RunFolderError(records.trouble)
    stated, own = setting_of("default" if profile else job.profile, job.rules)
    profile, primary = profile or stated, job.evaluate.primary_metric
    diagnosis = judge_run(profile, records, recipe=job.recipe, primary=primary, own=own)
    about = {"run": str(path), "arm": job.arm, "seed": job.seed, "steps": _last(records), "profile": profile.identity}
    return about, diagnosis


def _last(records: Records) -> int:
    return records.lines[-1].step if records.lines else 0


def _plain(about: dict[str, Any], diagnosis: Diagnosis) -> dict[str, Any]:
    return {**about, "health": diagnosis.status, "sentence": diagnosis.sentence} | {
        "findings": [plain(f) for f in diagnosis.findings]
    }


def _show(about: dict[str, Any], diagnosis: Diagnosis, *, show_all: bool) -> None:
    """Print the diagnosis of one run, with evidence and remedies."""
    name = f"{about['arm']}, seed {about['seed']} ({about['run']})" if "arm" in about else about["run"]
    trainer = f", log of {about['trainer']}" if "trainer" in about else ""
    click.echo(f"{name}: {plural(about['steps'], 'step')}{trainer}")
    if about.get("trouble"):
        click.echo(f"some records cannot be read: {about['trouble']}")
    for note in about.get("notes", ()):
        click.echo(note)
    click.echo(diagnosis.sentence)
    if diagnosis.raised:
        click.echo(about.get("context") or ALONE)
    for finding in (*diagnosis.raised, *diagnosis.notes):
        _show_finding(finding)
    if about.get("proxies"):
        click.echo(f"\nProxies (close to the definition, not exact): {', '.join(about['proxies'])}")
    if relevant := about.get("relevant"):
        click.echo(f"\nNot understood, and perhaps needed: {', '.join(relevant)}")
    if unread := [name for name in about.get("unread", ()) if name not in about["relevant"]]:
        more = f" and {len(unread) - _NAMES} more (--json)" if len(unread) > _NAMES else ""
        click.echo(f"\nNot used: {', '.join(unread[:_NAMES])}{more}")
    if show_all:
        shown = table("detector", "state", "why")
        for f in diagnosis.findings:
            shown.add_row(f.detector, f.state.replace("_", " "), f.evidence)
        console().print(shown)


def _show_finding(finding: Finding) -> None:
    until = f"until {finding.step_cleared}, " if finding.step_cleared else ""
    note = "; experimental threshold" if finding.experimental else ""
    click.echo(f"\n{finding.state:8} {finding.detector}, since step {finding.step_onset}, {until}", nl=False)
    click.echo(f"detected at {finding.step_detected}{note}")
    click.echo(f"         {finding.evidence}")
    for remedy in finding.remedies:
        patch = f": {_yaml(remedy.patch)}" if remedy.patch else ""
        click.echo(f"         try [{remedy.evidence}] {remedy.text}{patch} ({remedy.source})")


def _yaml(patch: Any) -> str:
    text: str = yaml.safe_dump(patch, default_flow_style=True, sort_keys=False, width=1000)
    return text.strip()


def _show_table(found: Sequence[tuple[dict[str, Any], Diagnosis]]) -> None:
    """Print one row per run."""
    shown = table("arm", "seed", "state", "step", "health", "since", "findings")
    for about, diagnosis in found:
        names = ", ".join(
            [f.detector if f.state == "warn" else f.detector.upper() for f in diagnosis.raised]
            + ["unreadable records"] * bool(about["trouble"])
        )
        since = str(diagnosis.first.step_onset) if diagnosis.first else ""
        state = about["state"].lower().replace("_", " ")
        shown.add_row(about["arm"], str(about["seed"]), state, str(about["steps"]), diagnosis.status, since, names)
    console().print(shown)
    for about, _ in found:
        if about["trouble"]:
            click.echo(f"{about['arm']}, seed {about['seed']}: some records cannot be read: {about['trouble']}")
    shown_order = ("critical", "warn", "ok", "unknown")
    statuses = [d.status for _, d in found]
    counts = ", ".join(f"{statuses.count(s)} {s}" for s in shown_order if s in statuses)
    click.echo(
        f"{plural(len(found), 'run')}: {counts}. Critical findings are in capitals; `paribus health RUN` shows details."
    )
