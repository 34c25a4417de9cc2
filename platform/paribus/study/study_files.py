"""Files of a study for copies, such as MLflow's: the study file without credentials, and the newest report.

Nothing is computed from them. The text of the study file is in the plan, and so in the store, which each
submission writes: a server for a team has its home folder for reading alone. ``study_files/STUDY/report`` in the home
folder names the folder of the newest report. Earlier versions kept the study file there, too, as ``study.yaml``.
"""

from __future__ import annotations

import os
import re
from contextlib import suppress
from pathlib import Path

from paribus.masking import HIDDEN, mask

FOLDER = "study_files"
"""Folder of these files in the home folder."""

STUDY_FILE, POINTER = "study.yaml", "report"
"""Name of the copy of the study file; the path of the folder of the report."""

REPORTS = ("report.md", "report.html")
"""Files of a report that are copied."""


_SECRET = re.compile(
    r"""(?<![\w-])(["']?(?:[\w-]*(?:password|passwd|secret|api_?key|access_?key)|(?:[\w-]*(?:auth|access|api|hf)_)?token)"""
    r"""["']?\s*:\s*)(?![$\s])("[^"\n]*"|'[^'\n]*'|[^,}\s#]+)""",
    re.IGNORECASE,
)


_SCRIPT = re.compile(r"(<script\b.*?</script>)", re.DOTALL)
_LIBRARY = 1 << 20
"""A longer script in a report is the code that draws the figures, in which an assignment is no secret."""


def without_secrets(text: str) -> str:
    """Return the text of a study file without what :func:`mask` hides, and without values under names of secrets."""
    return _SECRET.sub(rf"\g<1>{HIDDEN}", mask(text))


def keep_report(home: Path, study: str, folder: Path) -> str:
    """Note the folder of a study's newest report.

    Returns:
        Why MLflow won't get it, as a message: the home folder cannot be written. Empty if it will.
    """
    try:
        _write(home / FOLDER / study / POINTER, str(folder.resolve()))
    except OSError as error:
        return f"MLflow gets no copy of this report: {home / FOLDER} cannot be written ({error.strerror or error})"
    return ""


def files_of(home: Path, study: str) -> tuple[Path, ...]:
    """Return the newest report, and the study file that an earlier version kept, as far as they can be read."""
    found, pointer = [home / FOLDER / study / STUDY_FILE], home / FOLDER / study / POINTER
    with suppress(OSError, ValueError):  # there is none, or it is not ours
        found += [Path(pointer.read_text(encoding="utf-8")) / name for name in REPORTS]
    return tuple(path for path in found if _readable(path))


def write_text(file: Path, text: str) -> Path:
    """Write the text of a study file without what :func:`mask` hides, and return the file.

    Raises:
        OSError: the disk cannot be written.
    """
    _write(file, mask(text))
    return file


def masked_copy(file: Path, folder: Path) -> Path:
    """Copy one of these files into a folder without credentials, and return the copy.

    Raises:
        OSError: the file cannot be read, or the disk cannot be written.
        UnicodeDecodeError: it is no text.
    """
    text = file.read_text(encoding="utf-8")
    parts = _SCRIPT.split(text) if file.suffix == ".html" else [text]
    _write(
        folder / file.name,
        "".join(part if part.startswith("<script") and len(part) > _LIBRARY else mask(part) for part in parts),
    )
    return folder / file.name


def _readable(path: Path) -> bool:
    try:
        return path.is_file() and os.access(path, os.R_OK)
    except OSError:  # it is in a folder that this account can't enter
        return False


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    temporary.write_text(text, encoding="utf-8")
    temporary.replace(path)
