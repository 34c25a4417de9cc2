"""The errors that a user can meet: one base class, stable codes, messages that say the remedy."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from dataclasses import dataclass

from paribus.masking import mask


class ParibusError(Exception):
    """Something that the user can mend. The command line prints it without a traceback.

    Attributes:
        code: stable identifier, e.g. ``P001``; documented in ``docs/reference/errors.md``.
        exit_code: exit status of the command that ends with this error.
    """

    code = "P000"
    exit_code = 1

    def __str__(self) -> str:
        """Return the message without credentials."""
        return mask(super().__str__())


@dataclass(frozen=True, kw_only=True)
class Problem:
    """One thing that is wrong in a file of the user, and what to do about it.

    Attributes:
        message: what is wrong, what is allowed, what to do; one or two sentences.
        path: dotted path inside the file, e.g. ``tricks.clip_higher.clip.high``; empty for the whole file.
        line: line, from 1; 0 where the file has no such place.
        column: column, from 1; 0 where the file has no such place.
    """

    message: str
    path: str = ""
    line: int = 0
    column: int = 0


class StudyFileError(ParibusError):
    """A study, recipe or options file has problems; all of them are listed."""

    code = "P100"
    exit_code = 2

    def __init__(self, file: str, problems: Iterable[Problem]) -> None:
        self.file = file
        self.problems = tuple(sorted(problems, key=lambda p: (p.line, p.column, p.path, p.message)))
        super().__init__("\n".join(self._line(p) for p in self.problems))

    def _line(self, problem: Problem) -> str:
        place = ":".join([self.file, *(str(x) for x in (problem.line, problem.column) if x)])
        path = f" {problem.path}:" if problem.path else ""
        line = f"{place}:{path} {problem.message}"
        return "".join(c if c.isprintable() else "?" for c in line)  # keys of a file may hold terminal escapes


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


class MissingExtra(ParibusError):
    """An optional part of Paribus is not installed; the message names the pip line."""

    code = "P200"

    def __init__(self, extra: str, why: str) -> None:
        super().__init__(f"{why} needs a part that is not installed. Install it: pip install 'paribus[{extra}]'")


class StoreError(ParibusError):
    """The database cannot be used as it is."""

    code = "P300"


class LostLease(ParibusError):
    """This attempt no longer owns its run: another one holds a newer fence token. Stop at once."""

    code = "P310"


class RunFolderError(ParibusError):
    """A run folder lacks a file, or holds one that cannot be read."""

    code = "P400"


class RunnerError(ParibusError):
    """The training program ended without a result."""

    code = "P500"


class EngineError(ParibusError):
    """An engine is not there, or does not take a job as it is."""

    code = "P600"


class DashboardError(ParibusError):
    """The dashboard cannot be served or written as it was asked for."""

    code = "P700"


def did_you_mean(name: str, allowed: Iterable[str]) -> str:
    """Return `` Did you mean `x`?`` for the nearest allowed name, or an empty text."""
    near = difflib.get_close_matches(name, list(allowed), n=1, cutoff=0.6)
    return f" Did you mean `{near[0]}`?" if near else ""
