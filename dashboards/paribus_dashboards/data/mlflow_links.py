"""Addresses of studies and runs in MLflow, if its tracking server has an address that a browser can open."""

from __future__ import annotations

import json
from http.client import HTTPException
from pathlib import Path
from typing import Any
from urllib.error import URLError
from urllib.parse import urlencode, urlsplit
from urllib.request import ProxyHandler, build_opener

from paribus.errors import DashboardError
from paribus.mlflow_sync.client import tracking_uri
from paribus.mlflow_sync.offsets import identity_of

TIMEOUT_S = 5.0
"""Seconds to wait for an answer of the tracking server."""


def server_of(folder: Path) -> str:
    """Return the address of a home folder's tracking server; empty if it is a file or contains credentials."""
    uri = tracking_uri(folder).rstrip("/")
    parts = urlsplit(uri)
    return uri if parts.scheme in ("http", "https") and "@" not in parts.netloc else ""


def address_of(folder: Path, study: str, run: str = "") -> str:
    """Return the MLflow page of a study or of one of its runs.

    Args:
        folder: the home folder.
        study: name of the study, which is the name of the experiment.
        run: fingerprint of the run; empty for the study.

    Raises:
        DashboardError: there is no server with an address, it does not answer, or it does not have the run yet.
    """
    server = server_of(folder)
    if not server:
        raise DashboardError("MLflow has no address here. Set MLFLOW_TRACKING_URI to the address of its server.")
    known = identity_of(folder, run) if run else None
    if run and known is None:
        raise DashboardError("this run is not in MLflow yet; its metrics are uploaded while it trains.")
    if known is None:
        found = _get(server, "experiments/get-by-name", experiment_name=study)
        return f"{server}/#/experiments/{found['experiment']['experiment_id']}"
    found = _get(server, "runs/get", run_id=known)
    return f"{server}/#/experiments/{found['run']['info']['experiment_id']}/runs/{known}"


def _get(server: str, endpoint: str, **query: str) -> Any:
    local = urlsplit(server).hostname in ("localhost", "127.0.0.1", "::1")
    opener = build_opener(ProxyHandler({})) if local else build_opener()
    try:
        with opener.open(f"{server}/api/2.0/mlflow/{endpoint}?{urlencode(query)}", timeout=TIMEOUT_S) as answer:
            return json.load(answer)
    except (URLError, OSError, ValueError, HTTPException) as error:
        raise DashboardError(f"MLflow at {server} could not look this up: {error}") from error
