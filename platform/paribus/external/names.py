"""Which arm and seed a log belongs to: by a pattern over its path, or by a table."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from paribus.contract import STUDY_NAME
from paribus.errors import ImportFailed
from paribus.study.spec import ALPHABETS, LABEL

MOST_SEED = 2**31 - 1
LONGEST_LABEL = 64
COLUMNS = ("path", "arm", "seed")
"""Columns of a table."""

_PARTS = re.compile(r"(\{arm\}|\{seed\}|\*)")
_MEANING = {"{arm}": r"(?P<arm>[^/]+?)", "{seed}": r"(?P<seed>\d+)", "*": "[^/]*"}
_ENDING = r"(?:\.[A-Za-z]+)*"  # runs/grpo-s1.jsonl.gz
EXAMPLE = "{arm}-s{seed}"


@dataclass(frozen=True, kw_only=True)
class NamedLog:
    """A log, and the run that it is of.

    Attributes:
        target: path of a file or folder, or an MLflow run.
        arm: name of the arm.
        seed: the seed.
        shown: what messages call it: the name of an MLflow run, else the path.
    """

    target: str
    arm: str
    seed: int
    shown: str


def by_pattern(targets: Iterable[tuple[str, str]], pattern: str) -> tuple[NamedLog, ...]:
    """Return the logs with the arms and seeds that a pattern finds in their names.

    Args:
        targets: each log, and the path or name in which the pattern is looked for; the last place counts.
        pattern: whole parts of a path, with ``{arm}``, ``{seed}`` and ``*`` for anything.

    Raises:
        ImportFailed: the pattern lacks one of them, or does not fit some logs; all of them are listed.
    """
    compiled = _compiled(pattern)
    found, strange = [], []
    for target, shown in targets:
        fits = list(compiled.finditer(shown))
        if not fits:
            strange.append(shown)
            continue
        found.append(_named(target, fits[-1]["arm"], fits[-1]["seed"], shown))
    if strange:
        listed = "\n  ".join(strange)
        raise ImportFailed(
            f"the pattern `{pattern}` does not fit:\n  {listed}\nIt is compared with whole parts of a path: {EXAMPLE} "
            f"fits runs/grpo-s1/ and runs/grpo-s1.jsonl. Change --name, or say arms and seeds with --table."
        )
    return _distinct(found)


def _compiled(pattern: str) -> re.Pattern[str]:
    for part in ("{arm}", "{seed}"):
        if pattern.count(part) != 1:
            raise ImportFailed(f"the pattern `{pattern}` must have `{part}` once, as in `{EXAMPLE}`.")
    text = "".join(_MEANING.get(part, re.escape(part)) for part in _PARTS.split(pattern.strip("/")))
    return re.compile(rf"(?:(?<=/)|^){text}{_ENDING}(?=/|$)")


def by_table(file: Path) -> tuple[NamedLog, ...]:
    """Return the logs of a CSV file with the columns ``path``, ``arm`` and ``seed``; paths begin at its folder.

    Raises:
        ImportFailed: it cannot be read or has other columns, or a row is wrong; the message names the line.
    """
    try:
        text = file.read_text(encoding="utf-8-sig")
        rows = list(csv.reader(io.StringIO(text, newline="")))
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise ImportFailed(f"{file}: cannot be read as a CSV file: {error}") from error
    header = [name.strip() for name in rows[0]] if rows else []
    if sorted(header) != sorted(COLUMNS):
        raise ImportFailed(f"{file}: its first line must be `{','.join(COLUMNS)}`, and is `{','.join(header)[:100]}`.")
    found = []
    for number, row in enumerate(rows[1:], 2):
        if not any(cell.strip() for cell in row):
            continue
        if len(row) != len(header):
            raise ImportFailed(f"{file}:{number}: has {len(row)} cells, not {len(header)}.")
        cells = dict(zip(header, (cell.strip() for cell in row), strict=True))
        target = cells["path"]
        outside = target.startswith("mlflow:")
        found.append(
            _named(target if outside else str(file.parent / target), cells["arm"], cells["seed"], f"{file}:{number}")
        )
    if not found:
        raise ImportFailed(f"{file}: names no log: each line after the first is one.")
    return _distinct(found)


def _named(target: str, arm: str, seed: str, shown: str) -> NamedLog:
    if not seed.isascii() or not seed.isdigit() or int(seed) > MOST_SEED:
        raise ImportFailed(f"{shown}: the seed is `{seed[:40]}`; it must be a whole number from 0 to {MOST_SEED}.")
    return NamedLog(target=target, arm=checked_label(arm, shown), seed=int(seed), shown=shown)


def checked_label(arm: str, shown: str) -> str:
    """Return the name of an arm.

    Raises:
        ImportFailed: it cannot stand in a table.
    """
    if not 0 < len(arm) <= LONGEST_LABEL or not re.fullmatch(LABEL, arm) or arm != arm.strip():
        text = "".join(c if c.isprintable() else "?" for c in arm[:LONGEST_LABEL])
        raise ImportFailed(f"{shown}: `{text}` is no name of an arm: {ALPHABETS[LABEL]}, at most {LONGEST_LABEL}.")
    return arm


def checked_study(name: str) -> str:
    """Return the name of a study.

    Raises:
        ImportFailed: no study can have it.
    """
    if not re.fullmatch(STUDY_NAME, name) or len(name) > LONGEST_LABEL:
        raise ImportFailed(f"`{name}` is no name of a study: {ALPHABETS[STUDY_NAME]}, at most {LONGEST_LABEL}.")
    return name


def _distinct(found: Sequence[NamedLog]) -> tuple[NamedLog, ...]:
    """Return the logs; refuse two of one run."""
    twice = list(_twice(found))
    if twice:
        listed = "\n  ".join(f"{a.shown} and {b.shown}: arm `{a.arm}`, seed {a.seed}" for a, b in twice)
        raise ImportFailed(f"several logs are of one run:\n  {listed}\nLeave one out, or change the pattern.")
    return tuple(found)


def _twice(found: Sequence[NamedLog]) -> Iterator[tuple[NamedLog, NamedLog]]:
    first: dict[tuple[str, int], NamedLog] = {}
    for log in found:
        if (log.arm, log.seed) in first:
            yield first[log.arm, log.seed], log
        first.setdefault((log.arm, log.seed), log)
