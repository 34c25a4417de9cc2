"""``paribus gradients``: compares the gradients of all arms of a study at one step of a run."""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import NamedTuple

import click

from paribus.cli.console import console, describe, table
from paribus.cli.health import find_run
from paribus.cli.options import home_option, is_file, json_option, study_name
from paribus.contract import PARTS, GradientJob, load_runner
from paribus.errors import ParibusError, RunFolderError
from paribus.home import home, make_home
from paribus.run_folder.checkpoints import published, read_manifest, tokens
from paribus.run_folder.folder import SHORT, RunFolder
from paribus.store.database import named_server
from paribus.store.trained import TrainedModels
from paribus.store.untouched import open_untouched
from paribus.study.evaluation import arm_hashes
from paribus.study.expand import draft_file
from paribus.study.gradients import (
    SHARE_NOTE,
    WORDS,
    GradientProbe,
    about,
    cosine_text,
    judged,
    noise_note,
    objectives,
    plain,
    ratio_text,
    sentence,
    unseen,
    write_probe,
)
from paribus.study.plan import Plan
from paribus.study.stages import located
from paribus.version import VERSION

HELP_AT = "Step of a run: `RUN:STEP`, RUN being the first digits of a fingerprint; or 0: the base as it begins."


class Place(NamedTuple):
    """The run and the checkpoint that are probed.

    Attributes:
        run: fingerprint of the run.
        arm: key of its arm in its own plan.
        seed: its seed.
        plan: the plan of the study that it belongs to.
        checkpoint: its checkpoint; ``None``: before the first step.
    """

    run: str
    arm: str
    seed: int
    plan: Plan
    checkpoint: Path | None


@click.command()
@click.argument("study")
@click.option("--at", "place", required=True, metavar="RUN:STEP", help=HELP_AT)
@click.option("--after-updates", is_flag=True, help="Take the gradients after the run's own updates on the rollouts.")
@home_option
@json_option
def command(study: str, place: str, after_updates: bool, folder: Path | None, as_json: bool) -> None:
    """Show which arms of STUDY, a name or a file, change the gradient at one step, before they are trained.

    The step's rollouts and weights are those of one run; the gradient of each arm's objective is taken there, before
    gradient clipping. The run folder is only read.
    """
    where = folder or home()
    plan, found = _located(study, place, where)
    probe = probed(plan, found, where, after_updates=after_updates)
    try:
        make_home(where)
        kept = str(write_probe(where, probe))
    except OSError as error:
        kept = f"not kept for the report: {where} cannot be written ({error.strerror or error})"
    if as_json:
        click.echo(json.dumps({**plain(probe), "kept": kept}, indent=1))
        return
    show(probe)
    click.echo(f"\n{kept}")


def _located(study: str, place: str, where: Path) -> tuple[Plan, Place]:
    """Return the plan of the study, and the step that ``--at`` names."""
    digits, _, step = place.rpartition(":")
    if not (step.isascii() and step.isdigit() and (digits or int(step) == 0)):
        raise click.BadParameter(f"`{place}` is not RUN:STEP, such as 3f2a:40, nor 0", param_hint="--at")
    if not digits:
        plan = _plan(study, where)
        run = next(run for run in plan.runs if run.arm == plan.base)
        return plan, Place(run.fingerprint, plan.base, run.seed, plan, None)
    with open_untouched(where, named_server()) as reader:
        owner, run_ = find_run(reader, digits)
    plan = _plan(study, where)
    checkpoint = _checkpoint(where / "runs" / run_.fingerprint[:SHORT], run_.fingerprint, int(step))
    return plan, Place(run_.fingerprint, run_.arm, run_.seed, owner, checkpoint)


def _plan(study: str, where: Path) -> Plan:
    """Return the plan of a study file, or of a study in the store."""
    if is_file(study):
        return draft_file(Path(study), models=TrainedModels(where)).checked()
    with open_untouched(where, named_server()) as reader:
        return reader.study(study_name(study)).plan


def _checkpoint(folder: Path, run: str, step: int) -> Path | None:
    """Return the checkpoint of a run after ``step`` steps, in any of its attempts; ``None`` for step 0.

    Raises:
        ParibusError: there is none; the message lists the steps that can be probed.
    """
    if step == 0:
        return None
    found: dict[int, Path] = {}
    for token in sorted(tokens(folder)) if folder.is_dir() else ():
        with suppress(RunFolderError):  # a damaged index or manifest: its steps cannot be probed
            for place in published(RunFolder(folder / f"a{token}")):
                found[read_manifest(place).step] = place
    if step in found:
        return found[step]
    steps = ", ".join(map(str, sorted({0, *found})))
    raise ParibusError(
        f"the run {run[:SHORT]} has no checkpoint of step {step}: the steps that can be probed are {steps}. "
        "`checkpoint: {every, keep}` in a study says which are kept"
    )


def probed(plan: Plan, place: Place, where: Path, *, after_updates: bool) -> GradientProbe:
    """Return the gradients of all arms of a plan at a step of a run.

    Raises:
        ParibusError: Paribus did not start these runs, the run has another model or task than the base, or files of
            data or model have changed since the run was planned.
    """
    if plan.external or place.plan.external:
        raise ParibusError("Paribus did not start these runs, so it does not know their objectives: nothing to probe.")
    arm = place.plan.arm(place.arm)
    base = plan.arm(plan.base).recipe
    if (arm.recipe.model, arm.recipe.task) != (base.model, base.task):
        mine, other = (f"{r.model.name} on {describe(r.task)}" for r in (arm.recipe, base))
        raise ParibusError(
            f"the run {place.run[:SHORT]} trains {mine}, and the base of `{plan.study}` {other}: name a run of the "
            "same model and task."
        )
    runner = load_runner(place.plan.runner)
    now = arm_hashes(runner, arm.recipe, place.plan.options, place.plan.evaluate)
    if arm.hashes is not None and (now.data, now.model) != (arm.hashes.data, arm.hashes.model):
        what = "data" if now.data != arm.hashes.data else f"the initial model ({arm.recipe.model.name})"
        raise ParibusError(f"{what} changed since the run {place.run[:SHORT]} was planned: restore the files.")
    asked = objectives(plan, arm.recipe)
    begun = partial(located, home=where, paths=place.plan.models_of(place.run))
    found = runner.gradients(
        GradientJob(
            run=place.run,
            recipe=begun(arm.recipe),
            options=place.plan.options,
            seed=place.seed,
            cache=str(where / "cache"),
            checkpoint=place.checkpoint,
            base=begun(asked.base),
            arms={key: begun(each) for key, each in asked.arms.items()},
            after_updates=after_updates,
        )
    )
    return GradientProbe(
        study=plan.study,
        base=plan.base,
        run=place.run,
        arm=arm.label,
        seed=place.seed,
        checkpoint="" if place.checkpoint is None else str(place.checkpoint.relative_to(where)),
        after_updates=after_updates,
        code=now.code,
        run_code=arm.hashes.code if arm.hashes else "",
        version=VERSION,
        gradients=found,
        arms=judged(plan, found, asked.seen),
    )


def show(probe: GradientProbe) -> None:
    """Print a probe as a table, with what it cannot show."""
    out, found = console(), probe.gradients
    out.print(f"gradients of {probe.study} at step {found.step} of {probe.arm}, seed {probe.seed}", style="bold")
    out.print(about(probe))
    listed = table("arm", "cosine", "ratio", "changes", "long", "wrong", "rare", "first", "last")
    listed.add_row("share of tokens", "", "", "", *_shares(found.share))
    for arm in probe.arms:
        mine, empty = arm.gradient, arm.verdict == "hidden"
        numbers = ("", "") if empty else (cosine_text(mine.cosine), ratio_text(mine.ratio))
        listed.add_row(arm.label, *numbers, WORDS[arm.verdict], *_shares({} if empty else mine.weight))
    out.print(listed)
    out.print(SHARE_NOTE)
    out.print(noise_note(probe))
    for arm in probe.arms:
        for line in unseen(arm):
            out.print(f"- {arm.label}: {line}")
    out.print(f"\n{sentence(probe)}", style="bold")


def _shares(share: Mapping[str, float]) -> list[str]:
    return [f"{100 * share[name]:.0f}%" if name in share else "" for name in PARTS]
