"""``paribus db``: the revision of the database, bringing it up to date, and copies of it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from paribus.store.database import Database

_HOME = click.option("--home", "folder", type=click.Path(path_type=Path), help="Default: $PARIBUS_HOME, else .paribus")


@click.group()
def command() -> None:
    """Look after the database: a file in the home folder, or what PARIBUS_DATABASE_URL names on a PostgreSQL server."""


@command.command()
@_HOME
def current(folder: Path | None) -> None:
    """Show which database is used, its revision, and the one that this version of Paribus expects."""
    from paribus.store.migrate import HEAD, revision_of

    database, _ = existing(folder)
    with database.read() as connection:
        revision = revision_of(connection)
    database.close()
    verdict = "up to date" if revision == HEAD else "`paribus db upgrade` brings an older one up to date"
    click.echo(f"{database.name}\nrevision {revision or 'none'}, expected {HEAD}: {verdict}")


@command.command()
@_HOME
def upgrade(folder: Path | None) -> None:
    """Bring the database to the newest revision. End run and scheduler first, and make a copy: `paribus db backup`."""
    from paribus.schedule.holder import hold
    from paribus.store.migrate import HEAD, revision_of
    from paribus.store.migrate import upgrade as migrate

    database, place = existing(folder)
    place.mkdir(parents=True, exist_ok=True)
    with hold(place, "paribus db upgrade"):
        with database.read() as connection:
            before = revision_of(connection)
        migrate(database, place / "migrate.lock")
    database.close()
    changed = "nothing to do" if before == HEAD else f"from revision {before or 'none'} to {HEAD}"
    click.echo(f"{database.name}: {changed}")


@command.command()
@_HOME
@click.option("--to", "target", type=click.Path(path_type=Path), help="File. [default: backups/paribus-<time>.db]")
def backup(folder: Path | None, target: Path | None) -> None:
    """Copy the database, also while a study is run. Run folders are plain files: copy `runs/` as well."""
    from paribus.store.backup import backup_file, dump_command
    from paribus.store.database import database_url
    from paribus.study.home import home

    place = folder or home()
    url = database_url(place)
    if url.get_backend_name() == "sqlite":
        click.echo(f"wrote {backup_file(place, target)}")
    else:
        click.echo(f"The database is on a server. This copies it:\n{dump_command(url)}")


def existing(folder: Path | None) -> tuple[Database, Path]:
    """Return the database and the home folder.

    Raises:
        StoreError: it would be a file, and that is not there.
    """
    from paribus.errors import StoreError
    from paribus.store.database import FILE, Database, database_url
    from paribus.study.home import home

    place = folder or home()
    url = database_url(place)
    if url.get_backend_name() == "sqlite" and not (place / FILE).is_file():
        raise StoreError(f"there is no store in {place}. Run a study first (paribus run STUDY.yaml), or name --home.")
    return Database(url), place
