"""``paribus health RUN --as-study``: the study that tests what to try."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from paribus.health.diagnose import Diagnosis
    from paribus.health.remedy_study import Subject
    from paribus.store.reader import Reader

_DRAWN = 1_000_000
"""Seeds from here on were drawn or belong to searches: no study file can name them."""


def write_study(target: str, diagnosis: Diagnosis | None, out: str, folder: Path | None) -> None:
    """Write the study of a run's remedies, or say that no remedy has a patch.

    Args:
        target: the run, as it was typed.
        diagnosis: what is wrong with it; ``None``: the target is not one run of ours.
        out: the file; empty: named by the study.
        folder: the home folder that was named, if one was.

    Raises:
        BadParameter: the target is not one run of ours.
        ParibusError: there is a file already, or none can be written there.
    """
    from paribus.cli.next import cost_of, write
    from paribus.health.remedy_study import remedy_study
    from paribus.study.home import home
    from paribus.study.load import load_study

    if diagnosis is None:
        raise click.BadParameter(
            "needs one run of ours, whose recipe is known: RUN or its folder", param_hint="--as-study"
        )
    subject, seeds = _subject(target, folder)
    found = remedy_study(subject, diagnosis)
    click.echo("")
    if not found.content:
        said = (
            "no remedy of the findings has a patch" if diagnosis.raised else "nothing was found, so there is no remedy"
        )
        click.echo(f"No study is written: {said}.")
        return
    path = Path(out or f"{found.content['study']}.yaml")
    write(path, found.content, found.reasons, "--as-study FILE")
    cost = cost_of(load_study(path), folder or home(), seeds)
    click.echo(f"{path}: {len(found.content['tricks'])} remedies, {cost}")
    click.echo(f"Look at it: paribus plan {path}")


def _subject(target: str, folder: Path | None) -> tuple[Subject, str]:
    """Return the run of a folder or of the store, the first seed that no study here has used, and a word for these.

    A run folder needs no store; without one nobody knows which seeds were used beside its own.
    """
    from paribus.cli.health import find_run
    from paribus.errors import StoreError
    from paribus.health.remedy_study import Subject
    from paribus.store.reader import Reader
    from paribus.study.home import home
    from paribus.study.job import Job
    from paribus.study.resources import Resources

    place = Path(target) / "job.json"
    if place.is_file():
        job = Job.model_validate_json(place.read_bytes())
        try:
            with Reader.look(folder or home()) as reader:
                seed, seeds = _unused(reader, job.seed), "fresh seeds"
        except StoreError:
            seed, seeds = (job.seed + 1) % _DRAWN, "seeds"
        subject = Subject(
            study=job.study,
            name=f"{job.arm}, seed {job.seed}",
            runner=job.runner,
            recipe=job.recipe,
            evaluate=job.evaluate,
            resources=Resources(),
            seed=seed,
        )
        return subject, seeds
    with Reader.look(folder or home()) as reader:
        plan, run = find_run(reader, target)
        seed = _unused(reader, run.seed)
    subject = Subject(
        study=plan.study,
        name=f"{run.label}, seed {run.seed}",
        runner=plan.runner,
        recipe=plan.arm(run.arm).recipe,
        evaluate=plan.evaluate,
        resources=plan.resources,
        seed=seed,
    )
    return subject, "fresh seeds"


def _unused(reader: Reader, own: int) -> int:
    """Return the first seed after those that studies have used, and after the run's own."""
    used = [r.seed for s in reader.studies() for r in (*s.plan.all_runs, *s.plan.later)]
    return max((seed for seed in (*used, own) if seed < _DRAWN), default=-1) + 1
