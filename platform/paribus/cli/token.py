"""``paribus token``: who may use the server of this home folder from another machine."""

from __future__ import annotations

import json
from pathlib import Path

import click

from paribus.cli import Group
from paribus.cli.console import console, table
from paribus.cli.options import home_option, json_option
from paribus.home import home
from paribus.masking import unmasked
from paribus.remote.tokens import SCOPES, Scope, Tokens


@click.group(cls=Group)
def command() -> None:
    """Create, list and revoke the access tokens of the server of this home folder.

    The server is `paribus dashboard`. Scope `read` allows to see studies and reports; `run` also to submit, cancel and
    retry. A study can run programs on the server: give `run` to people whom you would give a shell there.
    """


@command.command()
@click.option("--name", required=True, help="For whom or what it is.")
@click.option("--scope", type=click.Choice(SCOPES), required=True)
@home_option
@json_option
def create(name: str, scope: Scope, folder: Path | None, as_json: bool) -> None:
    """Create a token and print it, this once: only its hash is kept."""
    secret = Tokens(folder or home()).create(name, scope)
    made = {"name": name, "scope": scope, "token": secret}
    click.echo(json.dumps(made, indent=1) if as_json else secret, file=unmasked())
    click.echo("It isn't shown again. On the other machine: export PARIBUS_SERVER=ADDRESS PARIBUS_TOKEN=...", err=True)


@command.command("list")
@home_option
@json_option
def show(folder: Path | None, as_json: bool) -> None:
    """List the tokens: name, scope, day of creation."""
    found = Tokens(folder or home()).all()
    if as_json:
        listed = [{"name": token.name, "scope": token.scope, "created": token.created} for token in found]
        click.echo(json.dumps({"tokens": listed}, indent=1))
        return
    if not found:
        click.echo("no tokens. Create one: paribus token create --scope run --name NAME")
        return
    shown = table("name", "scope", "created")
    for token in found:
        shown.add_row(token.name, token.scope, token.created)
    console().print(shown)


@command.command()
@click.argument("name")
@home_option
@json_option
def revoke(name: str, folder: Path | None, as_json: bool) -> None:
    """Revoke the token NAME: the server refuses it from the next request on."""
    gone = Tokens(folder or home()).revoke(name)
    if as_json:
        click.echo(json.dumps({"name": gone.name, "scope": gone.scope}, indent=1))
        return
    click.echo(f"revoked {gone.name} ({gone.scope}). What it has submitted goes on: paribus cancel STUDY")
