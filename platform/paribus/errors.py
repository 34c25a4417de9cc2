"""The errors that a user can meet: one base class, stable codes, messages that say the remedy."""

from __future__ import annotations

import difflib
import json
import os
import re
import shlex
import shutil
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from paribus.masking import mask
from paribus.text import printable


class ParibusError(Exception):
    """Something that the user can mend. The command line prints it without a traceback.

    Attributes:
        code: stable identifier, e.g. ``P001``; documented in ``docs/reference/errors.md``.
        exit_code: exit status of the command that ends with this error.
    """

    code = "P000"
    exit_code = 1

    def __str__(self) -> str:
        """Return the message without credentials, and without the numbers of errors of the operating system."""
        return _ERRNO.sub("", mask(super().__str__()))


_ERRNO = re.compile(r"\[Errno -?\d+\] ")
"""What Python prints before the operating system's own words."""


@dataclass(frozen=True, kw_only=True)
class Problem:
    """One thing that is wrong in a file of the user, and what to do about it.

    Attributes:
        message: what is wrong, what is allowed, what to do; one or two sentences.
        path: dotted path inside the file, e.g. ``tricks.clip_higher.clip.high``; empty for the whole file.
        line: line, from 1; 0 where the file has no such place.
        column: column, from 1; 0 where the file has no such place.
        file: the file, or the option of the command line, if it is another than the study file; empty otherwise.
    """

    message: str
    path: str = ""
    line: int = 0
    column: int = 0
    file: str = ""


_LONGEST = 1500
"""Characters of a problem that are shown."""


class StudyFileError(ParibusError):
    """A study, recipe or options file has problems; all of them are listed."""

    code = "P100"
    exit_code = 2

    def __init__(self, file: str, problems: Iterable[Problem]) -> None:
        self.file = file
        self.problems = tuple(sorted(problems, key=lambda p: (p.file, p.line, p.column, p.path, p.message)))
        super().__init__("\n".join(self._line(p) for p in self.problems))

    def _line(self, problem: Problem) -> str:
        place = ":".join([problem.file or self.file, *(str(x) for x in (problem.line, problem.column) if x)])
        path = f" {problem.path}:" if problem.path else ""
        line = f"{place}:{path} {problem.message}"
        line = line if len(line) <= _LONGEST else f"{line[:_LONGEST]}…"  # what is wrong may be a whole file in a word
        return printable(line)  # keys of a file may hold terminal escapes


class UnknownPreset(ParibusError):
    """There is no preset of this name, or the name means several things or none."""

    code = "P101"
    exit_code = 2


class BatchFileError(StudyFileError):
    """A file of responses has problems; all of them are listed."""

    code = "P102"


class UnsupportedRecipe(ParibusError):
    """The runner cannot train what the study asks for; all that is missing is listed."""

    code = "P110"
    exit_code = 2


class UnreadableInput(ParibusError):
    """Data or a model that a study names cannot be read; all that is unreadable is listed."""

    code = "P111"
    exit_code = 2


class TooLarge(ParibusError):
    """Each run of the study asks for more than there will ever be on the engine; nothing is submitted."""

    code = "P120"
    exit_code = 2

    def __init__(self, asked: str, there: str, remedy: str) -> None:
        super().__init__(f"each run, in every arm, asks for {asked}; {there}. {remedy}")


class LogFileError(ParibusError):
    """A training log cannot be read, or holds no metric that is known."""

    code = "P130"
    exit_code = 2


class ImportFailed(ParibusError):
    """Logs cannot become runs of a study; nothing was recorded."""

    code = "P131"
    exit_code = 2


class MissingExtra(ParibusError):
    """An optional part of Paribus is not installed; the message has the line that installs it."""

    code = "P200"

    def __init__(self, extra: str, why: str) -> None:
        super().__init__(f"{why} needs a part that is not installed. Install it: {install_command(extra)}")


class StoreError(ParibusError):
    """The database cannot be used as it is."""

    code = "P300"


class LostLease(ParibusError):
    """This attempt no longer owns its run: another one holds a newer fence token. Stop at once."""

    code = "P310"


class RunFolderError(ParibusError):
    """A run folder lacks a file, or holds one that cannot be read."""

    code = "P400"


class ArchiveError(ParibusError):
    """An archive of a study is damaged, or cannot be written or restored here."""

    code = "P410"


class RunnerError(ParibusError):
    """The training program ended without a result."""

    code = "P500"


class StaleSampler(RunnerError):
    """The sampler does not have the learner's weights, so that a run would train on responses of another policy."""

    code = "P501"


class EngineError(ParibusError):
    """An engine is not there, or does not take a job as it is."""

    code = "P600"


class DashboardError(ParibusError):
    """The dashboard cannot be served or written as it was asked for."""

    code = "P700"


class ServiceError(ParibusError):
    """A service around the home folder does not work, or cannot be started."""

    code = "P800"


class ServerError(ParibusError):
    """The server of a team cannot be reached, refuses a request, or has no such token."""

    code = "P810"


def did_you_mean(name: str, allowed: Iterable[str]) -> str:
    """Return `` Did you mean `x`?`` for the nearest allowed name, or an empty text."""
    near = difflib.get_close_matches(name, list(allowed), n=1, cutoff=0.6)
    return f" Did you mean `{near[0]}`?" if near else ""


def no_folder(folder: Path) -> str:
    """Return ``, and there is no folder x.`` with the nearest one, if a name of the hub's form may mean a folder."""
    above = folder.parent
    readable = above.is_dir() and os.access(above, os.R_OK | os.X_OK)
    near = did_you_mean(str(folder), [str(x) for x in above.iterdir() if x.is_dir()]) if readable else ""
    return f", and there is no folder {folder}.{near}" if near or (above.name and above.is_dir()) else ""


def install_command(extra: str) -> str:
    """Return the shell command that adds an optional part to this installation.

    ``paribus[...]`` alone is right only where Paribus came from a package index. A checkout, a wheel and a repository
    are named as they were installed, which ``direct_url.json`` records (PEP 610).

    Args:
        extra: a name under ``[project.optional-dependencies]``.
    """
    from importlib.metadata import PackageNotFoundError, distribution  # slow to import, and rarely needed

    try:
        package = distribution("paribus")
        origin = json.loads(package.read_text("direct_url.json") or "{}")
        needs = package.requires or []
    except (PackageNotFoundError, ValueError):
        origin, needs = {}, []
    packages = [
        x.partition(";")[0].strip() for x in needs if x.endswith((f"extra == '{extra}'", f'extra == "{extra}"'))
    ]
    return f"{_installer()} {_origin_with(extra, origin, packages)}"


def _installer() -> str:
    """Return the install command of this environment; a ``pip`` on the path can belong to another Python."""
    if starts_here("pip"):
        return "pip install"
    python = shlex.quote(sys.executable)
    return f"{python} -m pip install" if find_spec("pip") else f"uv pip install --python {python}"


def starts_here(program: str) -> bool:
    """Return whether the name of a program, typed in a shell, starts the one beside this Python."""
    found = shutil.which(program)
    return found is not None and Path(found).parent == Path(sys.executable).parent


def _origin_with(extra: str, origin: Mapping[str, Any], packages: Sequence[str]) -> str:
    """Return what to install, quoted for a shell; the extra's packages if a local wheel has been deleted since."""
    if not isinstance(origin, dict) or not isinstance(address := origin.get("url"), str):
        return f"'paribus[{extra}]'"
    url = urlsplit(address)
    local = Path(unquote(url.path)) if url.scheme == "file" else None
    if local is not None and "dir_info" in origin:
        option = "-e " if origin["dir_info"].get("editable") else ""
        return option + _quoted(f"{'.' if local == Path.cwd() else local}[{extra}]")
    if local is not None and not local.exists() and packages:
        return " ".join(map(_quoted, packages))
    if "vcs_info" in origin:
        vcs = origin["vcs_info"]
        folder = f"#subdirectory={origin['subdirectory']}" if "subdirectory" in origin else ""
        return _quoted(f"paribus[{extra}] @ {vcs['vcs']}+{address}@{vcs['commit_id']}{folder}")
    return _quoted(f"paribus[{extra}] @ {address}")


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "'\"'\"'") + "'"
