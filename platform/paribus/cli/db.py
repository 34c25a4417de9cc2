"""``paribus db``: show the revision of the database, upgrade it, copy it."""

from __future__ import annotations

import json
from pathlib import Path

import click

from paribus.cli import Group
from paribus.cli.options import FilePath, home_option, json_option
from paribus.home import home, make_home
from paribus.scheduler.home_lock import lock_home
from paribus.store.database import backup_file, database_url, dump_command
from paribus.store.migrate import HEAD, is_newer, revision_of
from paribus.store.migrate import upgrade as migrate
from paribus.store.reader import existing_database


@click.group(cls=Group)
def command() -> None:
    """Show, upgrade or copy the database: a file in the home folder, or on the server in PARIBUS_DATABASE_URL."""


@command.command()
@home_option
@json_option
def current(folder: Path | None, as_json: bool) -> None:
    """Show the database, its revision, and the revision that this version of Paribus expects."""
    database = existing_database(folder or home())
    with database.read() as connection:
        revision = revision_of(connection)
    database.close()
    if as_json:
        click.echo(json.dumps({"database": database.name, "revision": revision, "expected": HEAD}, indent=1))
        return
    verdict = "up to date" if revision == HEAD else "`paribus db upgrade` upgrades it"
    if is_newer(revision):
        verdict = "a newer version of Paribus wrote this database: update Paribus"
    click.echo(f"{database.name}\nrevision {revision or 'none'}, expected {HEAD}: {verdict}")


@command.command()
@home_option
@json_option
def upgrade(folder: Path | None, as_json: bool) -> None:
    """Upgrade the database to the newest revision. First stop all runs and make a copy with `paribus db backup`."""
    place = folder or home()
    database = existing_database(place)
    make_home(place)
    with lock_home(place, "paribus db upgrade"):
        with database.read() as connection:
            before = revision_of(connection)
        migrate(database, place / "migrate.lock")
    database.close()
    if as_json:
        click.echo(json.dumps({"database": database.name, "before": before, "revision": HEAD}, indent=1))
        return
    changed = "nothing to do" if before == HEAD else f"from revision {before or 'none'} to {HEAD}"
    click.echo(f"{database.name}: {changed}")


@command.command()
@home_option
@click.option("--to", "target", type=FilePath(), help="File. [default: backups/paribus-<time>.db]")
@json_option
def backup(folder: Path | None, target: Path | None, as_json: bool) -> None:
    """Copy the database, also while a study runs. Run folders are plain files: copy `runs/` yourself."""
    place = folder or home()
    url = database_url(place)
    file = backup_file(place, target) if url.get_backend_name() == "sqlite" else None
    line = None if file else dump_command(url)
    if as_json:
        click.echo(json.dumps({"file": file and str(file), "command": line}, indent=1))
    else:
        click.echo(f"wrote {file}" if file else f"The database is on a server. To copy it, run:\n{line}")
