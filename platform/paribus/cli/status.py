"""``paribus status``: the studies of a home folder, or the runs of one study. It only reads, at any time."""

from __future__ import annotations

import json
from collections.abc import Collection
from pathlib import Path
from typing import Any

import click

from paribus.cli.console import console, states_text, table
from paribus.cli.note import note_lines, tags_text
from paribus.cli.options import home_option, json_option, study_name
from paribus.home import home
from paribus.monitor.status import PAGE, listed, page_of
from paribus.monitor.status import studies as all_studies
from paribus.remote.client import Server, server_for
from paribus.remote.received import visible
from paribus.run_folder.folder import SHORT
from paribus.scheduler.home_lock import LockOwner, serving
from paribus.store.reader import Reader
from paribus.store.remarks import check_tags
from paribus.store.states import RunState


@click.command()
@click.argument("study", required=False)
@home_option
@click.option("--page", type=click.IntRange(min=1), default=1, help=f"Which {PAGE} runs of STUDY, in queue order.")
@click.option(
    "--state",
    "states",
    multiple=True,
    type=click.Choice([state.lower() for state in RunState]),
    help="Only runs of STUDY in this state; repeat for more.",
)
@click.option("--tag", "tags", multiple=True, help="Only studies, or runs of STUDY, with this tag; repeat for more.")
@click.option("--archived", is_flag=True, help="The archived studies instead of the others.")
@json_option
def command(
    study: str | None,
    folder: Path | None,
    page: int,
    states: tuple[str, ...],
    tags: tuple[str, ...],
    archived: bool,
    as_json: bool,
) -> None:
    """Show the studies in the store, or the runs of STUDY (a name or a file).

    Of each run: the first digits of its fingerprint, which name its folder and what `paribus health` and
    `paribus note` take, state, attempt, step, last reward, health, reason, tags and note.
    """
    study = None if study is None else study_name(study)
    if study and archived:
        raise click.UsageError("--archived lists studies: leave out STUDY")
    if not study and (states or page != 1):
        raise click.UsageError("--page and --state choose among the runs of a study: name a STUDY")
    check_tags(tags)
    if (server := server_for(folder)) is not None:
        if study is None:
            show_studies_of(server, tags, archived, as_json)
        else:
            show_runs(server.study(study, page, states, tags), as_json)
        return
    with Reader.open(folder or home()) as reader:
        if study is None:
            found = all_studies(reader)
            entries = listed(found, tags, archived=archived)
            show_studies(entries, serving(reader.home), as_json, hidden=_hidden(found, archived))
        else:
            chosen = [RunState(s.upper()) for s in states] or tuple(RunState)
            show_runs(page_of(reader, study, page, chosen, tags), as_json)


def show_studies_of(server: Server, tags: Collection[str], archived: bool, as_json: bool) -> None:
    """Print the studies of a server."""
    found = server.studies()
    entries = listed(found["studies"], tags, archived=archived)
    if as_json:
        click.echo(json.dumps(found | {"studies": entries}, indent=1))
        return
    show_table(entries)
    _say_hidden(_hidden(found["studies"], archived))
    if (owner := found["served_by"]) is not None:
        on = f" on the engine {owner['engine']}" if owner["engine"] else ""
        click.echo(f"`{owner['command']}` (process {owner['process']}) works on {server.address}{on}")
    elif _has_open(entries):
        click.echo(f"No scheduler works on {server.address}. Start one there: paribus scheduler")


def show_studies(entries: list[dict[str, Any]], owner: LockOwner | None, as_json: bool, hidden: int = 0) -> None:
    """Print the studies, why one is paused, how many are hidden, and which process trains them."""
    if as_json:
        click.echo(json.dumps({"served_by": owner.about() if owner else None, "studies": entries}, indent=1))
        return
    show_table(entries)
    _say_hidden(hidden)
    on = f" on the engine {owner.engine}" if owner and owner.engine else ""
    if owner:
        click.echo(f"{owner} works here{on}")
    elif _has_open(entries):
        click.echo("No process of this machine trains the open studies. Start one: paribus scheduler")


def _has_open(entries: list[dict[str, Any]]) -> bool:
    return any(e["state"] in ("queued", "running") for e in entries)


def _hidden(found: list[dict[str, Any]], archived: bool) -> int:
    return 0 if archived else len(listed(found, (), archived=True))


def _say_hidden(hidden: int) -> None:
    if hidden:
        click.echo(f"{hidden} archived: paribus status --archived")


def show_table(entries: list[dict[str, Any]]) -> None:
    """Print one row for each study, and why one is paused."""
    tagged = any(e["tags"] for e in entries)
    shown = table("study", "state", "priority", "weight", "runs", "states", *(["tags"] if tagged else []))
    for e in entries:
        terms = (str(e["priority"]), f"{e['weight']:g}", str(e["runs"]))
        tags = [tags_text(e["tags"])] if tagged else []
        shown.add_row(e["study"], e["state"], *terms, states_text(e["states"]), *tags)
    console().print(shown)
    for e in entries:
        if e["paused"]:
            click.echo(f"{e['study']} is paused: {e['paused']}\nFix it, then: paribus retry {e['study']}")


def show_runs(found: dict[str, Any], as_json: bool) -> None:
    """Print a page of a study's runs, its budgets, and why it is paused.

    Raises:
        click.BadParameter: there is no such page.
    """
    _check_page(found["page"], found["pages"])
    if as_json:
        click.echo(json.dumps(found, indent=1))
        return
    more = [name for name in ("tags", "note") if any(e[name] for e in found["runs"])]
    shown = table("run", "arm", "seed", "state", "attempt", "step", "reward", "health", "reason", *more)
    for e in found["runs"]:
        reward = "" if e["reward"] is None else f"{e['reward']:.3g}"
        state = "stopped at the last step" if e["stopped_at_end"] else e["state"].lower().replace("_", " ")
        health = f"{e['health']}: {e['detector']}" if e["detector"] else e["health"]
        row = (state, str(e["attempt"]), f"{e['step']}/{e['steps']}", reward, health, e["reason"])
        said = {"tags": tags_text(e["tags"]), "note": visible(e["note"], lines=True)}
        shown.add_row(e["fingerprint"][:SHORT], e["arm"], str(e["seed"]), *row, *(said[name] for name in more))
    console().print(shown)
    if found["pages"] > 1:
        click.echo(
            f"{states_text(found['states'])}; page {found['page']} of {found['pages']}: --page, --state show others"
        )
    if found["stage"]:
        click.echo(found["stage"])
    for spending in found["budget"]:
        click.echo(spending_line(spending))
    if found["tags"]:
        click.echo(f"tags: {tags_text(found['tags'])}")
    for line in note_lines(found["note"]):
        click.echo(line)
    if found["archived"]:
        click.echo(f"archived; to list it again: paribus archive {found['study']} --undo")
    if found["paused"]:
        click.echo(f"paused: {found['paused']}\nFix it, then: paribus retry {found['study']}")


def _check_page(page: int, last: int) -> None:
    if page > last:
        rest = "the only one is 1" if last == 1 else f"the last one is {last}"
        raise click.BadParameter(f"there is no page {page}: {rest}", param_hint="--page")


def spending_line(b: dict[str, Any]) -> str:
    """Return e.g. ``GPU-hours: 1.2 spent (0.1 wasted), 0.3 in flight; forecast 3.1, expected 3.5; at most 4``."""
    parts = [f"{b['spent']:.3g} spent" + (f" ({b['wasted']:.3g} wasted)" if b["wasted"] else "")]
    parts += [f"{b[part]:.3g} {part.replace('_', ' ')}" for part in ("in_flight", "reserved") if b[part]]
    later = [f"{part} {b[part]:.3g}" for part in ("forecast", "expected") if b[part] is not None]
    cap = [] if b["cap"] is None else [f"at most {b['cap']:.3g}{'' if b['allows_another'] else ', too little left'}"]
    return f"{b['unit']}: {'; '.join([', '.join(parts), *([', '.join(later)] if later else []), *cap])}"
