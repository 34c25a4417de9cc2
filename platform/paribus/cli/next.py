"""``paribus next``: writes the follow-up study that the results of a study ask for."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click

from paribus.cli.design_table import hours_text
from paribus.cli.options import FilePath, home_option, json_option, study_argument
from paribus.cli.studies import write_new
from paribus.home import home
from paribus.report.analysis.analysis import Analysis
from paribus.report.collect import read_study
from paribus.report.follow_up import follow_up
from paribus.store.history import past_runs, recorded_runs
from paribus.store.reader import Reader
from paribus.store.trained import TrainedModels
from paribus.study.costs import run_costs, total
from paribus.study.expand import PlanDraft, draft_file
from paribus.study.load import load_study
from paribus.study.load import read_study as read_file
from paribus.text import plural
from paribus.yaml_file.document import plain
from paribus.yaml_file.write import yaml_text


@click.command()
@study_argument
@click.option("--out", type=FilePath(dir_okay=False), help="Default: <study>-next.yaml, here")
@click.option("--seeds", type=click.IntRange(min=3), default=10, show_default=True, help="Most seeds an arm.")
@home_option
@json_option
def command(study: Path, out: Path | None, seeds: int, folder: Path | None, as_json: bool) -> None:
    """Write the study file that the results of STUDY ask for, with the reasons and what it will cost."""
    spec, where = load_study(study).spec, folder or home()
    with Reader.open(where) as reader:
        found = follow_up(Analysis(read_study(reader, spec.study)), spec, seeds)
    path = (out or Path(f"{found.changes['study']}.yaml")) if found.changes else None
    if path is not None:
        write(path, {**plain(read_file(study).root), **found.changes}, found.reasons)
    if as_json:
        about = {"study": spec.study, "file": path and str(path), "reasons": found.reasons, "left_out": found.left_out}
        click.echo(json.dumps(about, indent=1))
        return
    if not found.changes:
        click.echo(f"{spec.study}: the results ask for nothing more, with at most {plural(seeds, 'seed')} an arm.")
    for reason in found.reasons:
        click.echo(f"- {reason}")
    for reason in found.left_out:
        click.echo(f"- not asked for: {reason}")
    if path is not None:
        click.echo(f"\n{path}: {cost_of(draft_file(path, models=TrainedModels(where)), where)}")
        click.echo(f"Look at it: paribus plan {path}")


def write(path: Path, study: Mapping[str, Any], reasons: tuple[str, ...]) -> None:
    """Write a study file with the reasons above it, one a line.

    Raises:
        ParibusError: there is a file already, or none can be written there.
    """
    lines = [f"# {reason}" for reason in reasons]
    write_new(path, "\n".join([*lines, yaml_text(study, width=120)]), "name another file with --out")


def cost_of(draft: PlanDraft, home: Path) -> str:
    """Return the runs of a study, and their hours if known, in words."""
    plan = draft.checked()
    recorded = recorded_runs(home, [run.fingerprint for run in plan.runs])
    left = [run for run in plan.runs if run.fingerprint not in recorded]
    runs = f"{plural(len(plan.arms), 'arm')} x {plural(len(plan.seeds), 'fresh seed')}, {plural(len(left), 'run')}"
    cost = total(run_costs(plan, draft.study.spec.budget.prior, past_runs(home)), left)
    return f"{runs}, {hours_text(cost)} {cost.unit} by {' and '.join(cost.sources)}" if cost else runs
