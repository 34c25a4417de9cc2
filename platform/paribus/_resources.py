"""Finds the data folders of Paribus: inside the installed package, or in a checkout."""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path

from paribus.errors import ParibusError


def data_root(name: str) -> Path:
    """Return the folder ``ablations`` or ``db_migrations``.

    Args:
        name: name of the folder at the top of a checkout; in a wheel it lies at ``paribus/_<name>``.

    Raises:
        ParibusError: the folder is in neither place; the installation is damaged.
    """
    installed = Path(str(files("paribus"))) / f"_{name}"
    if installed.is_dir():
        return installed
    checkout = Path(__file__).resolve().parents[2]
    if (checkout / "pyproject.toml").is_file() and (checkout / name).is_dir():
        return checkout / name
    raise ParibusError(f"the folder {name!r} is neither at {installed} nor at {checkout / name}: reinstall paribus")
