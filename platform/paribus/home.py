"""What Paribus finds on a machine: its home folder, secrets in files, the data that comes with it, and a clock."""

from __future__ import annotations

import os
import shlex
import stat
import time
from contextlib import suppress
from importlib.resources import files
from pathlib import Path

from paribus.errors import ParibusError

DATABASE_URL = "PARIBUS_DATABASE_URL"
"""Environment variable with the URL of a database on a PostgreSQL server.

Without it, the store is a file in the home folder.
"""


UP_FILE = "up.json"
"""File in the home folder with the process of `paribus up` and the address of its dashboard, while it runs."""


def home() -> Path:
    """Return the folder of the store, the run folders and the caches: ``$PARIBUS_HOME``, or ``.paribus`` here.

    The folder may not exist yet.
    """
    named = os.environ.get("PARIBUS_HOME")
    return Path(named).expanduser() if named else Path(".paribus")


def at_home(folder: Path | None) -> str:
    """Return the option with which commands that are proposed find a home folder; empty for the usual one, ``None``."""
    return "" if folder is None else f" --home {shlex.quote(str(folder))}"


def make_home(folder: Path) -> None:
    """Create a home folder that only its owner can enter; take the rights of others from one that exists.

    Run folders, logs and addresses of servers lie in it. A folder of your own that others may enter loses their rights.
    Its group keeps what it has if you have shared the folder: by the set-group-ID bit, an access control list, a group
    other than your own first one, or by having taken the others' rights yourself.
    """
    with suppress(FileExistsError):
        folder.parent.mkdir(parents=True, exist_ok=True)
        folder.mkdir(mode=0o700)
        return
    folder.mkdir(exist_ok=True)  # raises an error if it is a file
    found = folder.stat()
    if found.st_uid != os.getuid() or not found.st_mode & stat.S_IRWXO:
        return
    shared = found.st_mode & stat.S_ISGID or found.st_gid != os.getgid() or _has_access_list(folder)
    kept = stat.S_IMODE(found.st_mode) & ~(stat.S_IRWXO if shared else stat.S_IRWXO | stat.S_IRWXG)
    with suppress(OSError):  # a file system without rights
        folder.chmod(kept)


def read_secret(file: Path, what: str, error: type[ParibusError]) -> str:
    """Return the text of a file without the blanks around it.

    Args:
        file: holds the secret and nothing else.
        what: what it is, for messages.
        error: what to raise.

    Raises:
        ParibusError: the file is empty or can't be read; of the class ``error``.
    """
    try:
        secret = file.read_text().strip()
    except (OSError, UnicodeDecodeError) as trouble:
        raise error(f"cannot read the {what} in {file}: {trouble}") from trouble
    if not secret:
        raise error(f"the file {file} is empty: write the {what} into it.")
    return secret


def _has_access_list(folder: Path) -> bool:
    try:
        return "system.posix_acl_access" in os.listxattr(folder)
    except (AttributeError, OSError):  # not on Linux, or a file system without attributes
        return False


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
