"""The home folder: where the store, the run folders and the caches of this user or project lie."""

from __future__ import annotations

import os
from pathlib import Path

DATABASE_URL = "PARIBUS_DATABASE_URL"
"""Variable with the URL of a database on a PostgreSQL server; without it the store is a file in the home folder."""


def home() -> Path:
    """Return ``$PARIBUS_HOME``, or ``.paribus`` in the current folder; not created here."""
    named = os.environ.get("PARIBUS_HOME")
    return Path(named).expanduser() if named else Path(".paribus")
