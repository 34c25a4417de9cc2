"""What Paribus finds on a machine: its home folder, the data folders that come with it, and a clock."""

from __future__ import annotations

import os
import time
from importlib.resources import files
from pathlib import Path

from paribus.errors import ParibusError

DATABASE_URL = "PARIBUS_DATABASE_URL"
"""Environment variable with the URL of a database on a PostgreSQL server.

Without it, the store is a file in the home folder.
"""


def home() -> Path:
    """Return the folder of the store, the run folders and the caches: ``$PARIBUS_HOME``, or ``.paribus`` here.

    The folder may not exist yet.
    """
    named = os.environ.get("PARIBUS_HOME")
    return Path(named).expanduser() if named else Path(".paribus")


def data_root(name: str) -> Path:
    """Return the folder ``ablations`` or ``db_migrations``.

    Args:
        name: name of the folder at the top of a checkout; a wheel has it at ``paribus/_<name>``.

    Raises:
        ParibusError: neither place has the folder; the installation is damaged.
    """
    installed = Path(str(files("paribus"))) / f"_{name}"
    if installed.is_dir():
        return installed
    checkout = Path(__file__).resolve().parents[2]
    if (checkout / "pyproject.toml").is_file() and (checkout / name).is_dir():
        return checkout / name
    raise ParibusError(f"the folder {name!r} is neither at {installed} nor at {checkout / name}: reinstall paribus")


def since_boot() -> float:
    """Return seconds on a clock that cannot be set and that keeps running while the machine is suspended."""
    return time.clock_gettime(time.CLOCK_BOOTTIME) if hasattr(time, "CLOCK_BOOTTIME") else time.monotonic()
