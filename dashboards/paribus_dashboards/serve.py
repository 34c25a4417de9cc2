"""Serves the application until Ctrl-C."""

from __future__ import annotations

import logging
import os
import socket
from contextlib import suppress

from paribus.errors import DashboardError
from paribus_dashboards.access import Access
from paribus_dashboards.app import make_app
from paribus_dashboards.home import Home

KEEP_S = 30
"""Seconds that a connection without a request is kept: longer than pages wait between polls."""


def listen(host: str, port: int) -> socket.socket:
    """Return a socket that listens on an address.

    Raises:
        DashboardError: the port is taken, or the address is none of this machine.
    """
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        made = socket.create_server((host, port), family=family, backlog=128)
    except OSError as error:
        reason = os.strerror(error.errno) if error.errno and error.errno > 0 else str(error)
        raise DashboardError(
            f"cannot listen on {host} port {port}: {reason}. Is another dashboard running there? "
            "Choose another port with --port, or --port 0 for any that is free."
        ) from error
    made.set_inheritable(False)
    return made


def serve(home: Home, access: Access, listening: socket.socket) -> None:
    """Serve until the process is told to end; requests in progress have a second."""
    import uvicorn

    class Server(uvicorn.Server):
        """One that ends without a word, also while requests are broken off."""

        async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
            logging.getLogger("uvicorn.error").setLevel(logging.CRITICAL)
            await super().shutdown(sockets)

    app = make_app(home, access=access)
    config = uvicorn.Config(
        app, log_level="warning", access_log=False, timeout_graceful_shutdown=1, server_header=False, ws="none",
        timeout_keep_alive=KEEP_S,
    )  # fmt: skip
    with suppress(KeyboardInterrupt), listening:  # the address is in the log of nobody, as it may hold the token
        Server(config).run(sockets=[listening])
