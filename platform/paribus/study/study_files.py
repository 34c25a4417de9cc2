"""What the home folder keeps of a study beside its plan: the newest study file, and where its report is.

They are for copies, such as MLflow's: nothing is computed from them. ``study_files/STUDY/study.yaml`` has no
credentials; ``study_files/STUDY/report`` names the folder of the newest report.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

from paribus.masking import HIDDEN, mask

FOLDER = "study_files"
"""Folder of these files in the home folder."""

STUDY_FILE, POINTER = "study.yaml", "report"
"""A copy of the study file; the path of the folder of the report."""

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


def keep_study_file(home: Path, study: str, file: Path) -> None:
    """Keep a copy of a study file, without credentials.

    Raises:
        OSError: the file cannot be read, or the disk cannot be written.
    """
    _write(home / FOLDER / study / STUDY_FILE, without_secrets(file.read_text(encoding="utf-8")))


def keep_report(home: Path, study: str, folder: Path) -> None:
    """Note the folder of a study's newest report.

    Raises:
        OSError: the disk cannot be written.
    """
    _write(home / FOLDER / study / POINTER, str(folder.resolve()))


def keep_report_if_possible(home: Path, study: str, folder: Path) -> tuple[str, ...]:
    """Note the folder of a study's newest report; return a message where the home folder cannot be written."""
    try:
        keep_report(home, study, folder)
    except OSError as error:
        why = error.strerror or str(error)
        return (f"the report is written, but MLflow will not get it: {home / FOLDER / study} cannot be written: {why}",)
    return ()


def files_of(home: Path, study: str) -> tuple[Path, ...]:
    """Return the study file and the newest report, as far as they exist."""
    found, pointer = [home / FOLDER / study / STUDY_FILE], home / FOLDER / study / POINTER
    if pointer.is_file():
        found += [Path(pointer.read_text(encoding="utf-8")) / name for name in REPORTS]
    return tuple(path for path in found if path.is_file())


def masked_copy(file: Path, folder: Path) -> Path:
    """Copy one of these files into a folder without credentials, and return the copy.

    Raises:
        OSError: the file cannot be read, or the disk cannot be written.
    """
    text = file.read_text(encoding="utf-8")
    parts = _SCRIPT.split(text) if file.suffix == ".html" else [text]
    _write(
        folder / file.name,
        "".join(part if part.startswith("<script") and len(part) > _LIBRARY else mask(part) for part in parts),
    )
    return folder / file.name


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    temporary.write_text(text, encoding="utf-8")
    temporary.replace(path)
