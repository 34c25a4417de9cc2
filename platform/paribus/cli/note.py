"""``paribus note``: a note on a study or a run, in the store; and what `tag` and `archive` share with it."""

from __future__ import annotations

import getpass
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import click

from paribus.cli.options import home_option, is_file, json_option, study_name
from paribus.errors import ParibusError
from paribus.home import home
from paribus.monitor.status import remarks_of
from paribus.remote.client import server_for
from paribus.remote.received import visible
from paribus.run_folder.folder import SHORT
from paribus.store.reader import Reader
from paribus.store.remarks import Change, Kind
from paribus.store.store import Store
from paribus.text import time_text


@click.command()
@click.argument("target", metavar="STUDY|RUN")
@click.argument("text", required=False)
@click.option("--remove", is_flag=True, help="Remove the note.")
@click.option("--history", is_flag=True, help="Also show who has noted and tagged what, and when.")
@home_option
@json_option
def command(target: str, text: str | None, remove: bool, history: bool, folder: Path | None, as_json: bool) -> None:
    """Write a note on STUDY (a name or a file) or RUN (the first digits of its fingerprint), in place of its old one.

    Without TEXT, show its note and tags. A note of a run is shown in all studies that share it. The fingerprints of
    the runs of a study are in `paribus status STUDY`, and in the addresses of the dashboard.
    """
    if text is not None and remove:
        raise click.UsageError("give a TEXT or --remove, not both")
    if text is not None and not text.strip():
        raise click.UsageError("the TEXT is empty: --remove removes a note")
    if text is None and not remove:
        show_remarks(read_remarks(target, folder), history=history, as_json=as_json)
        return
    found = change_remarks(target, Change(note=text or ""), folder)
    show_remarks(found, history=history, as_json=as_json)


def read_remarks(target: str, folder: Path | None) -> dict[str, Any]:
    """Return what is said of a study or run: the value of :func:`paribus.monitor.status.remarks_of`."""
    named = _named(target)
    if (server := server_for(folder)) is not None:
        return server.remarks(named)
    with Reader.open(folder or home()) as reader:
        return remarks_of(reader, reader.subject(named))


def change_remarks(target: str, change: Change, folder: Path | None) -> dict[str, Any]:
    """Change what is said of a study or run; return what is said then."""
    named = _named(target)
    if (server := server_for(folder)) is not None:
        return server.remark(named, change)
    place = folder or home()
    Reader.open(place).close()  # no home folder is created for a mistyped name
    with Store.open(place) as store:
        subject = store.subject(named)
        store.remark(subject, change, getpass.getuser())
        return remarks_of(store, subject)


def show_remarks(found: dict[str, Any], *, history: bool, as_json: bool) -> None:
    """Print note and tags of a study or run, and its history if that is asked for."""
    if as_json:
        click.echo(json.dumps(found, indent=1))
        return
    click.echo(name_of(found) + (" (archived)" if found["archived"] else ""))
    click.echo(f"  tags: {tags_text(found['tags']) or 'none'}")
    for line in note_lines(found["note"], found["author"], found["at"]) or ["note: none"]:
        click.echo(f"  {line}")
    for line in found["log"] if history else ():
        click.echo(f"  {time_text(line['at'])} {visible(line['author'])}: {_said(line)}")


def name_of(found: dict[str, Any]) -> str:
    """Return the name of a study, or a run as people know it: arm, seed, study and first digits."""
    if found["study"]:
        return str(found["study"])
    where = "; ".join(f"{each['arm']}, seed {each['seed']} of {each['study']}" for each in found["in"])
    return f"run {found['run'][:SHORT]}" + (f": {where}" if where else "")


def note_lines(note: str, author: str = "", at: float = 0.0) -> list[str]:
    """Return a note as lines of a terminal, with who wrote it if that is given; none without a note."""
    if not note:
        return []
    by = f" of {visible(author)}, {time_text(at)}" if author else ""
    first, *rest = visible(note, lines=True).split("\n")
    return [f"note{by}: {first}", *(f"  {line}" for line in rest)]


def tags_text(tags: Iterable[str]) -> str:
    """Return tags on one line."""
    return visible(", ".join(tags))


def _said(line: dict[str, Any]) -> str:
    text = visible(line["text"])
    match line["kind"]:
        case Kind.NOTE:
            return f"note: {text}" if text else "removed the note"
        case Kind.TAG:
            return f"+{text}"
        case Kind.UNTAG:
            return f"-{text}"
        case Kind.DELETE:
            return f"deleted {text}"
    return f"{line['kind']} {text}".rstrip()


def _named(target: str) -> str:
    if not target:
        raise ParibusError("the STUDY or RUN is empty: name a study, its file, or the first digits of a run.")
    return study_name(target) if is_file(target) else target
