"""Where a study or a run is in MLflow, if its tracking server has an address that a browser can open."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from urllib.error import URLError
from urllib.parse import urlencode, urlsplit
from urllib.request import ProxyHandler, build_opener

from paribus.errors import DashboardError
from paribus.schedule.ledger import identity_of
from paribus.track.mlflow import tracking_uri

PATIENCE_S = 5.0
"""Seconds for an answer of the tracking server."""


def server_of(folder: Path) -> str:
    """Return the address of the tracking server of a home folder; empty if it is a file, or holds a password."""
    uri = tracking_uri(folder).rstrip("/")
    parts = urlsplit(uri)
    return uri if parts.scheme in ("http", "https") and "@" not in parts.netloc else ""


def address_of(folder: Path, study: str, run: str = "") -> str:
    """Return the page of a study, or of one of its runs, in MLflow.

    Args:
        folder: the home folder.
        study: its name, that of the experiment.
        run: fingerprint; empty: the study.

    Raises:
        DashboardError: there is no server with an address, it does not answer, or it does not know the run yet.
    """
    server = server_of(folder)
    if not server:
        raise DashboardError("MLflow has no address here: set MLFLOW_TRACKING_URI to that of its server.")
    known = identity_of(folder, run) if run else None
    if run and known is None:
        raise DashboardError("this run is not in MLflow yet; its shipper brings it there while it trains.")
    if known is None:
        found = _ask(server, "experiments/get-by-name", experiment_name=study)
        return f"{server}/#/experiments/{found['experiment']['experiment_id']}"
    found = _ask(server, "runs/get", run_id=known)
    return f"{server}/#/experiments/{found['run']['info']['experiment_id']}/runs/{known}"


def _ask(server: str, what: str, **asked: str) -> Any:
    opener = build_opener(ProxyHandler({})) if _is_near(server) else build_opener()
    try:
        with opener.open(f"{server}/api/2.0/mlflow/{what}?{urlencode(asked)}", timeout=PATIENCE_S) as answer:
            return json.load(answer)
    except (URLError, OSError, ValueError) as error:
        raise DashboardError(f"MLflow at {server} does not tell where this is: {error}") from error


def _is_near(server: str) -> bool:
    return urlsplit(server).hostname in ("localhost", "127.0.0.1", "::1")
