"""``paribus dashboard``: serve the pages of a home folder, or export them to one file."""

from __future__ import annotations

import importlib.util
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import click

from paribus.cli.options import FilePath, home_option
from paribus.errors import MissingExtra, StoreError

if TYPE_CHECKING:
    from paribus_dashboards.data.home import Home

HOST, PORT = "127.0.0.1", 8765
NEEDS = ("fastapi", "uvicorn", "plotly")


@click.command()
@home_option
@click.option("--study", "studies", multiple=True, help="Show only this study; repeatable.")
@click.option(
    "--host",
    default=HOST,
    show_default=True,
    help="Address to listen on; an address that other machines can reach needs a token.",
)
@click.option("--port", type=click.IntRange(0, 65535), default=PORT, show_default=True, help="0 chooses a free port.")
@click.option("--token-env", metavar="NAME", help="Environment variable that holds the token.")
@click.option("--token-file", type=FilePath(), metavar="FILE", help="File that holds the token.")
@click.option(
    "--export",
    "file",
    type=FilePath(dir_okay=False),
    metavar="FILE.html",
    help="Write all pages to one file that works offline, and exit.",
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
    """Show studies in a browser, before, during and after training.

    Its pages only read, unless a token of the scope `run` is used. Ctrl-C stops it; runs keep training.
    """
    if any(importlib.util.find_spec(name) is None for name in NEEDS):
        raise MissingExtra("dashboard", "`paribus dashboard`")
    if token_env is not None and token_file is not None:
        raise click.UsageError("use either --token-env or --token-file, not both")
    if file is not None and (host, port, token_env, token_file) != (HOST, PORT, None, None):
        raise click.UsageError("--export serves nothing: leave out --host, --port, --token-env and --token-file")
    from paribus.home import home
    from paribus_dashboards.data.home import Home
    from paribus_dashboards.server.access import access_for

    shown = Home(folder or home(), studies)
    if file is not None:
        from paribus_dashboards.server.export import export

        replaced = ", replaced the existing file" if file.exists() else ""
        size = export(shown, file)
        click.echo(f"{file}  ({size / 1e6:.1f} MB{replaced})")
        return
    refuse_unknown(shown)
    access = access_for(host, token_env, token_file)
    from paribus_dashboards.server.serve import listen, serve

    socket = listen(host, port)
    name = f"[{host}]" if ":" in host else host
    address = f"http://{name}:{socket.getsockname()[1]}/"
    click.echo(f"{address}{'?token=...' if access.token else ''}  (Ctrl-C stops it)")
    serve(shown, access, socket)


def refuse_unknown(shown: Home) -> None:
    """Refuse ``--study`` names that do not exist. Before the first study, any name is accepted: it may come later.

    Raises:
        DashboardError: a study does not exist.
    """
    with suppress(StoreError):  # the pages show the error, and recover from it
        if shown.reader().summaries():
            shown.require()
