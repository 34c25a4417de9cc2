"""``paribus dashboard``: serve the pages of a home folder, or write them into one file."""

from __future__ import annotations

import importlib.util
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import click

from paribus.errors import MissingExtra, StoreError

if TYPE_CHECKING:
    from paribus_dashboards.home import Home

PORT = 8765
NEEDS = ("fastapi", "uvicorn", "plotly")


@click.command()
@click.option("--home", "folder", type=click.Path(path_type=Path), help="Default: $PARIBUS_HOME, else .paribus")
@click.option("--study", "studies", multiple=True, help="Show only this study; may be given again.")
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on; any other needs a token.")
@click.option("--port", type=click.IntRange(0, 65535), default=PORT, show_default=True, help="0: any that is free.")
@click.option("--token-env", metavar="NAME", help="Environment variable that holds the token.")
@click.option("--token-file", type=click.Path(path_type=Path), metavar="FILE", help="File that holds the token.")
@click.option(
    "--export",
    "file",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE.html",
    help="Write all pages into one file that needs no network, and serve nothing.",
)
def command(
    folder: Path | None,
    studies: tuple[str, ...],
    host: str,
    port: int,
    token_env: str | None,
    token_file: Path | None,
    file: Path | None,
) -> None:
    """Look at the studies in a browser, before, while and after they train.

    It only reads. Ctrl-C ends it, and nothing else.
    """
    if any(importlib.util.find_spec(name) is None for name in NEEDS):
        raise MissingExtra("dashboard", "`paribus dashboard`")
    if token_env is not None and token_file is not None:
        raise click.UsageError("give the token by --token-env or by --token-file, not both")
    from paribus.study.home import home
    from paribus_dashboards.access import access_for
    from paribus_dashboards.home import Home

    shown = Home(folder or home(), studies)
    if file is not None:
        from paribus_dashboards.export import export

        replaced = ", in place of the file that was there" if file.exists() else ""
        size = export(shown, file)
        click.echo(f"{file}  ({size / 1e6:.1f} MB{replaced})")
        return
    refuse_unknown(shown)
    access = access_for(host, token_env, token_file)
    from paribus_dashboards.serve import listen, serve

    socket = listen(host, port)
    name = f"[{host}]" if ":" in host else host
    address = f"http://{name}:{socket.getsockname()[1]}/"
    click.echo(f"{address}{'?token=...' if access.token else ''}  (Ctrl-C ends it)")
    serve(shown, access, socket)


def refuse_unknown(shown: Home) -> None:
    """Refuse names of studies that are not there; before the first study any name may come to be one.

    Raises:
        DashboardError: there is no such study.
    """
    with suppress(StoreError):  # the pages tell of it, and go on when it is over
        if shown.reader().entries():
            shown.require()
