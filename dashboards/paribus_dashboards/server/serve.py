"""Listens on an address and serves the application until Ctrl-C."""

from __future__ import annotations

import logging
import os
import socket
from contextlib import suppress

from paribus.errors import DashboardError
from paribus_dashboards.data.home import Home
from paribus_dashboards.server.access import Access
from paribus_dashboards.server.app import make_app

KEEP_ALIVE_S = 30
"""Seconds for which an idle connection stays open: longer than pages wait between polls."""

PROXIES = "FORWARDED_ALLOW_IPS"
"""Environment variable, uvicorn's own: addresses of proxies whose ``X-Forwarded-Proto`` says how a request came."""


def listen(host: str, port: int) -> socket.socket:
    """Return a socket that listens on an address.

    Raises:
        DashboardError: the port is taken, or this machine does not have the address.
    """
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        made = socket.create_server((host, port), family=family, backlog=128)
    except OSError as error:
        reason = os.strerror(error.errno) if error.errno and error.errno > 0 else str(error)
        raise DashboardError(
            f"cannot listen on {host} port {port}: {reason}. Is another dashboard running there? "
            "Choose another port with --port, or let --port 0 choose a free one."
        ) from error
    made.set_inheritable(False)
    return made


def serve(home: Home, access: Access, listening: socket.socket) -> None:
    """Serve until the process is interrupted; requests in progress get one second to finish."""
    import uvicorn

    class Server(uvicorn.Server):
        """A server that logs nothing when it cancels requests on shutdown."""

        async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
            logging.getLogger("uvicorn.error").setLevel(logging.CRITICAL)
            await super().shutdown(sockets)

    app = make_app(home, access=access)
    trusted = os.environ.get(PROXIES, "127.0.0.1,::1")
    config = uvicorn.Config(
        app, log_level="warning", access_log=False, timeout_graceful_shutdown=1, server_header=False, ws="none",
        timeout_keep_alive=KEEP_ALIVE_S, proxy_headers=True, forwarded_allow_ips=trusted,
    )  # fmt: skip
    # No access log: an address may contain the token.
    with suppress(KeyboardInterrupt), listening:
        Server(config).run(sockets=[listening])
