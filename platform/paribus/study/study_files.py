"""Files of a study for copies, such as MLflow's: the study file without known secrets, and the newest report.

Nothing is computed from them. The text of the study file is in the plan, and so in the store, which each
submission writes: a server for a team has its home folder for reading alone. ``study_files/STUDY/report`` in the home
folder names the folder of the newest report. Earlier versions kept the study file there, too, as ``study.yaml``.
"""

from __future__ import annotations

import os
import re
from contextlib import suppress
from itertools import pairwise
from pathlib import Path

import yaml

from paribus.atomic import write_whole
from paribus.masking import HIDDEN, mask

FOLDER = "study_files"
"""Folder of these files in the home folder."""

STUDY_FILE, POINTER = "study.yaml", "report"
"""Name of the copy of the study file; the path of the folder of the report."""

REPORTS = ("report.md", "report.html")
"""Files of a report that are copied."""


_NAME = (  # one run of characters, so that a long text is searched in one pass
    r"[\w.-]*(?:password|passwd|secret|(?:api|access|secret|private)[ _-]?key|(?<!\w)(?<!\w-)token"
    r"|(?:auth|access|api|hf|hub|huggingface|bearer|refresh|github|gitlab|wandb|mlflow)[_-]token)"
)
_NAMED = re.compile(_NAME, re.IGNORECASE)
_OPTION = re.compile(rf"--?{_NAME}", re.IGNORECASE)
_VARIABLE = re.compile(r"\$\{\w+\}")
_NOTHING = r"""["']?\$\{\w+\}|(?:~|null|""|'')(?![^\s,}])|(?:[&!]\S*\s+)*[\s{\[]"""
"""Variables, empty values, and mappings and lists, which have names of their own."""
_WRITTEN = re.compile(  # in a comment, or in a text: the values of YAML are found by its parser
    rf"""(?<![\w.-])(["']?{_NAME}["']?[ \t]*:[ \t]*)(?!{_NOTHING})("[^"\n]*"|'[^'\n]*'|[^,}}\s#]+)""", re.IGNORECASE
)
_GIVEN = re.compile(rf"""((?<![\w.-])(?:(?:--?)?{_NAME}=|--?{_NAME}[ \t]+))(?![$-])([^\s"',\]}}]+)""", re.IGNORECASE)


_SCRIPT = re.compile(r"(<script\b.*?</script>)", re.DOTALL)
_LIBRARY = 1 << 20
"""A longer script in a report is the code that draws the figures, in which an assignment is no secret."""


def without_secrets(text: str) -> str:
    """Return the text of a study file without what :func:`mask` hides, and without values under names of secrets.

    Those of YAML are found by their places, however they are written; those in comments and in texts by their form.
    """
    with suppress(yaml.YAMLError):
        for start, end in sorted(_secrets(yaml.compose(text, yaml.SafeLoader)), reverse=True):
            text = text[:start] + HIDDEN + text[start + len(text[start:end].rstrip()) :]
    text = _WRITTEN.sub(rf"\g<1>{HIDDEN}", mask(text))
    return _GIVEN.sub(rf"\g<1>{HIDDEN}", text)


def _secrets(root: yaml.Node | None) -> set[tuple[int, int]]:
    """Return where values under names of secrets begin and end; aliases lead to what they stand for, once."""
    found: list[yaml.Node] = []
    left, seen = [root], set[int]()
    while left:
        node = left.pop()
        if id(node) in seen:
            continue
        seen.add(id(node))
        if isinstance(node, yaml.MappingNode):
            for key, value in node.value:
                left += [key, value]
                if isinstance(key, yaml.ScalarNode) and _NAMED.fullmatch(key.value):
                    found += value.value if isinstance(value, yaml.SequenceNode) else [value]
        elif isinstance(node, yaml.SequenceNode):
            left += node.value
            for option, value in pairwise(node.value):  # of a command
                if isinstance(option, yaml.ScalarNode) and _OPTION.fullmatch(option.value):
                    found += [] if str(value.value).startswith("-") else [value]
    return {
        (node.start_mark.index, node.end_mark.index)
        for node in found
        if isinstance(node, yaml.ScalarNode)
        and node.tag != "tag:yaml.org,2002:null"
        and node.value
        and not _VARIABLE.fullmatch(node.value)
    }


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
    write_whole(path, text)
