"""``paribus gc``: show or delete what no report and no resumable run needs."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import click

from paribus.cli.console import console, table
from paribus.cli.options import home_option, json_option, study_name
from paribus.home import home
from paribus.retention.deletion import FILE, leftovers, pending
from paribus.retention.unneeded import (
    KINDS,
    Item,
    Rule,
    Unneeded,
    delete,
    delete_models,
    delete_restore,
    killed_models,
    killed_restore,
    size_of,
    unneeded,
)
from paribus.scheduler.home_lock import lock_home
from paribus.store.reader import Reader
from paribus.text import size_text

_MEANING = {
    "checkpoints": "older ones; of runs with a result, all but the trained model",
    "samples": "responses as text of runs with a result that no report shows",
    "leftovers": "of writers, restores and deletions that were killed",
}


@click.command()
@click.argument("study", required=False)
@click.option("--delete", "really", is_flag=True, help="Delete it. Without this, it is only shown.")
@click.option("--models", is_flag=True, help="Also the trained models: the newest checkpoints of runs with a result.")
@click.option("--samples", is_flag=True, help="Also responses as text: of runs with a result that no report shows.")
@home_option
@json_option
def command(study: str | None, really: bool, models: bool, samples: bool, folder: Path | None, as_json: bool) -> None:
    """Show what no report and no resumable run needs, of STUDY (a name or a study file) or of all studies.

    The newest whole checkpoint of every run without a result stays, and all metrics, evaluations and results. Live runs
    are not touched, so this may be used while a scheduler works.
    """
    rule = Rule(models=not models, samples=not samples)
    with Reader.open(folder or home()) as reader:
        found = list(unneeded(reader, None if study is None else study_name(study), rule))
        left = None if study else killed_restore(reader.home)
        doomed = [] if study else _of_killed_deletion(reader)
        unfinished = [] if study else killed_models(reader.home)
        items = [*(item for each in found for item in each.items), *([left] if left else []), *unfinished, *doomed]
        if as_json:
            freed = _delete(reader, found, left, unfinished, doomed) if really and items else 0
            listed = [{"kind": item.kind, "path": str(item.path), "bytes": item.size} for item in items]
            click.echo(json.dumps({"items": listed, "deleted": really, "freed_bytes": freed}, indent=1))
            return
        if not items:
            click.echo("there is nothing to delete")
            return
        _show(items)
        if really:
            freed = _delete(reader, found, left, unfinished, doomed)
            click.echo(f"freed {size_text(freed)}")
        else:
            size = sum(item.size for item in items)
            click.echo(f"{size_text(size)} can be freed. Nothing was deleted: add --delete.")


def _of_killed_deletion(reader: Reader) -> list[Item]:
    """Return the folders that are left, and the file that names them: with it goes what engines keep of them."""
    runs = pending(reader.home)
    places = [*leftovers(reader, runs), *([reader.home / FILE] if runs else [])]
    return [Item(kind="leftovers", path=place, size=size_of(place)) for place in places]


def _delete(
    reader: Reader, found: Sequence[Unneeded], left: Item | None, unfinished: Sequence[Item], doomed: Sequence[Item]
) -> int:
    """Delete all that was found; return the bytes that were freed."""
    freed = delete(reader, found) + (delete_restore(reader.home) if left else 0) + delete_models(unfinished)
    if doomed:
        with lock_home(reader.home, "paribus gc"):  # which deletes them
            freed += sum(item.size for item in doomed)
    return freed


def _show(items: list[Item]) -> None:
    shown = table("what", "number", "size", "")
    for kind in KINDS:
        if mine := [item.size for item in items if item.kind == kind]:
            shown.add_row(kind, str(len(mine)), size_text(sum(mine)), _MEANING[kind])
    console().print(shown)
