"""What trainers print on the console, as records: verl, transformers with its descendants, and lines of JSON.

A line of transformers is the text of a Python dict, in which numbers can be ``nan``, ``np.float64(0.5)`` or
``tensor(0.5, device='cuda:0')``. It has no step, so lines of training are counted.
"""

from __future__ import annotations

import ast
import math
import re
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from paribus.text import plural

Record = Mapping[str, Any]

_ESCAPES = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")
_VERL = re.compile(r"\bstep:(\d+)( - [^\s:]+:\S.*)")
_ALONE, _PART = re.compile(r"\bstep:\d+\s*$"), re.compile(r"\s*- [^\s:]+:\S")
"""A step of verl whose metrics stand on the lines after it, as job viewers wrap them."""

_CALL = re.compile(r"(\S+?):([A-Za-z_][\w.]*\(.*\))\s*")
_BEGINS = re.compile(r"""\{\s*(?=["'][^"']*["']\s*:)""")
_BAR = re.compile(r"(\d+)/\d+ \[\d")
_METRIC = re.compile(r"loss|reward|score|accura|entropy|(^|[/_])kl|length|grad_norm|learning_rate|clip", re.IGNORECASE)
_NUMBER = re.compile(r"""["']([^"']+)["']\s*:\s*["']?[-+]?(?:\d|\.\d|nan|inf|[A-Za-z_.]+\d*\()""", re.IGNORECASE)
_EVALUATION = ("eval_", "eval/", "test_", "test/")
_SUMMARY = "train_runtime"
_NAMES: Mapping[str, Any] = {"nan": math.nan, "inf": math.inf, "infinity": math.inf, "none": None, "null": None,
                             "true": True, "false": False}  # fmt: skip
_NUMBERS = re.compile(r"b?float\d*_?|u?int\d*_?|complex\d+|tensor|array|parameter|scalar|decimal|item", re.IGNORECASE)
"""The functions whose first argument is the number."""

_SHOWN = 3


@dataclass(frozen=True, kw_only=True)
class Console:
    """What was read of a console.

    Attributes:
        records: the records, with their places.
        notes: what the reader assumed, as sentences.
        trouble: what looks like metrics and cannot be read; empty: nothing.
    """

    records: Sequence[tuple[str, Record]]
    notes: tuple[str, ...] = ()
    trouble: str = ""


@dataclass(frozen=True)
class _Line:
    """A record of a line: ``step`` is the one that is printed, ``bar`` the count of a progress bar before it."""

    place: str
    values: Record
    step: Any = None
    bar: int | None = None


def read_console(text: str, path: object, steps: Sequence[str]) -> Console:
    """Return the records of what verl (`step:3 - actor/entropy:0.3 - ...`) and transformers (`{'loss': 0.1}`) print.

    Args:
        text: of the console.
        path: the file, for places.
        steps: names under which a record has its step.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SyntaxWarning)  # a backslash in a text
        warnings.simplefilter("ignore", DeprecationWarning)  # the same, before Python 3.12
        lines, bad = _lines(text, path, steps)
    records, notes = _placed(lines)
    return Console(records=records, notes=notes, trouble=_trouble(bad))


def _lines(text: str, path: object, steps: Sequence[str]) -> tuple[list[_Line], list[str]]:
    """Return the records of a console, and the places of what looks like metrics and cannot be read."""
    lines: list[_Line] = []
    bad: list[str] = []
    rows = text.splitlines()
    for number, line in _joined(rows):
        place = f"{path}:{number}"
        if hit := _VERL.search(line):
            values, unread = _pairs(hit[2])
            lines.append(_Line(place, values, step=hit[1]))
            bad += [f"{place} (`{name}`)" for name in unread if _METRIC.search(name)]
            continue
        cut = number == len(rows) and not text.endswith(("\n", "\r"))  # it is still being written
        for before, source in _dicts(line):
            found = _parsed(source)
            if found is None:
                bad += [place] if _looks(source) and not cut else []
                continue
            values, unread = found
            bad += [f"{place} (`{name}`)" for name in unread if _METRIC.search(name)]
            bar = _BAR.search(before)
            step = next((values[k] for k in steps if k in values), None)
            lines.append(_Line(place, values, step=step, bar=int(bar[1]) if bar else None))
    return lines, bad


def _joined(rows: Sequence[str]) -> Iterator[tuple[int, str]]:
    """Yield the number of each row and the row without escapes; metrics after a lone step of verl are part of it."""
    held: tuple[int, str] | None = None
    for number, row in enumerate(rows, 1):
        line = _ESCAPES.sub("", row)
        if held and _PART.match(line):
            held = held[0], f"{held[1]} {line.strip()}"
            continue
        if held:
            yield held
        held = (number, line.rstrip()) if _ALONE.search(line) else None
        if held is None:
            yield number, line
    if held:
        yield held


def _trouble(bad: Sequence[str]) -> str:
    if not bad:
        return ""
    more = f" and {len(bad) - _SHOWN} more" if len(bad) > _SHOWN else ""
    look = "entries look" if len(bad) > 1 else "entry looks"
    return f"{len(bad)} {look} like metrics: {', '.join(bad[:_SHOWN])}{more}"


# ---- steps ---------------------------------------------------------------------------------------


def _placed(lines: Sequence[_Line]) -> tuple[list[tuple[str, Record]], tuple[str, ...]]:
    """Return the records with their steps: printed, of a progress bar, or counted; others get the step before."""
    training = [line for line in lines if line.step is None and _is_training(line.values)]
    stepped = any(line.step is not None and _is_training(line.values) for line in lines)
    bars = [line.bar for line in training]
    by_bar = not stepped and len(bars) > 1 and _rises(bars)
    found: list[tuple[str, Record]] = []
    seen: list[tuple[float, int]] = []  # epoch and step
    counted: set[int] = set()
    step: Any = 0
    count = 0  # an evaluation that has a step of its own does not change it
    restart = ""
    for line in lines:
        if line.step is not None:
            step = line.step
        elif by_bar and line.bar is not None and _is_training(line.values):
            step = line.bar
        elif not (stepped or by_bar) and _is_training(line.values):
            epoch = _epoch(line.values)
            if epoch is not None and seen and epoch < seen[-1][0]:  # from a checkpoint: these steps come again
                restart = restart or line.place
                count = max((s for e, s in seen if e < epoch), default=0)
            step = count = count + 1
            counted.add(step)
            seen += [(epoch, step)] if epoch is not None else []
        found.append((line.place, {"step": step, **line.values}))
    notes = []
    if training and by_bar:
        notes.append("No line of training has a step: steps are those of the progress bar before each line.")
    elif training and not stepped:
        notes.append(
            f"No line of training has a step: steps are the {plural(len(counted), 'counted line')} of training (with "
            "`logging_steps: 10` each stands for 10 steps); evaluations take the step of the line before them."
        )
    if restart:
        notes.append(f"The epoch falls at {restart}: taken for a restart, whose lines replace those of the same epoch.")
    return found, tuple(notes)


def _rises(bars: Sequence[int | None]) -> bool:
    known = [b for b in bars if b is not None]
    return len(known) == len(bars) and all(a < b for a, b in pairwise(known))


def _is_training(values: Record) -> bool:
    """Return whether a record is one of a training step, and not of an evaluation or the summary at the end."""
    if _SUMMARY in values:
        return False
    return any(_METRIC.search(k) and not k.startswith(_EVALUATION) and v is not None for k, v in values.items())


def _epoch(values: Record) -> float | None:
    try:
        return float(values["epoch"])
    except (KeyError, OverflowError, TypeError, ValueError):
        return None


# ---- text ----------------------------------------------------------------------------------------


def _pairs(text: str) -> tuple[dict[str, Any], list[str]]:
    """Return the metrics of a line of verl, and the names of those whose value cannot be read."""
    values: dict[str, Any] = {}
    unread = []
    for part in text.split(" - ")[1:]:
        name, _, value = part.rstrip().rpartition(":")
        if call := _CALL.fullmatch(part):
            name, value = call[1], call[2]
        parsed = _scalar(_tree(value))
        if isinstance(parsed, _Unread):
            unread.append(name)
        elif name:
            values[name] = parsed
    return values, unread


def _dicts(line: str) -> Iterator[tuple[str, str]]:
    """Yield what stands before each dict of a line, and the dict; of one that does not end, the rest."""
    at, seen = 0, set[str]()
    while hit := _BEGINS.search(line, at):
        end = _closing(line, hit.start())
        if (source := line[hit.start() : end]) not in seen:  # several processes print the same
            yield line[at : hit.start()], source
        seen.add(source)
        at = end


def _closing(line: str, begin: int) -> int:
    """Return the place after the bracket that closes the one at ``begin``; the end of the line if there is none."""
    depth, quote, skip = 0, "", False
    for i in range(begin, len(line)):
        c = line[i]
        if skip:
            skip = False
        elif quote:
            skip = c == "\\"
            quote = "" if c == quote else quote
        elif c in "\"'":
            quote = c
        elif c in "{[(":
            depth += 1
        elif c in "}])":
            depth -= 1
            if not depth:
                return i + 1
    return len(line)


def _looks(source: str) -> bool:
    """Return whether a text that is no dict has a metric with a number."""
    return any(_METRIC.search(name) for name in _NUMBER.findall(source))


@dataclass(frozen=True)
class _Unread:
    """The place of a value that is no number, and no plain text, list or mapping either."""


_UNREAD = _Unread()


def _tree(source: str) -> ast.expr | None:
    try:
        return ast.parse(source.strip(), mode="eval").body
    except (SyntaxError, ValueError, MemoryError, RecursionError):
        return None


def _parsed(source: str) -> tuple[dict[str, Any], list[str]] | None:
    """Return a dict, and the names whose values cannot be read; ``None`` if the text is no dict."""
    tree = _tree(source)
    return None if not isinstance(tree, ast.Dict) else _mapping(tree)


def _mapping(tree: ast.Dict) -> tuple[dict[str, Any], list[str]] | None:
    values: dict[str, Any] = {}
    unread: list[str] = []
    for key, node in zip(tree.keys, tree.values, strict=True):
        if not isinstance(key, ast.Constant):
            return None
        name = str(key.value)
        if isinstance(node, ast.Dict):
            inner = _mapping(node)
            value: Any = inner[0] if inner else _UNREAD
            unread += inner[1] if inner else []
        else:
            value = _scalar(node)
        if isinstance(value, _Unread):
            unread.append(name)
        else:
            values[name] = value
    return values, unread


def _scalar(node: ast.expr | None) -> Any:
    """Return a number, text or constant; of a list or tuple with one number that, of others ``None``."""
    match node:
        case ast.Constant():
            return node.value
        case ast.Name():
            return _NAMES.get(node.id.lower(), _UNREAD)
        case ast.Attribute():  # np.nan
            return _NAMES.get(node.attr.lower(), _UNREAD)
        case ast.UnaryOp(op=ast.USub() | ast.UAdd()):
            return _signed(node)
        case ast.List() | ast.Tuple():
            return _scalar(node.elts[0]) if len(node.elts) == 1 else None
        case ast.Call():
            name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
            first = node.args[0] if node.args else None
            value = _scalar(first) if first is not None and _NUMBERS.fullmatch(name) else _UNREAD
            return _as_number(value) if isinstance(value, str) else value
    return _UNREAD


def _signed(node: ast.UnaryOp) -> Any:
    value = _UNREAD if isinstance(node.operand, ast.UnaryOp) else _scalar(node.operand)  # one sign: thousands nest
    if isinstance(value, bool) or not isinstance(value, int | float):
        return _UNREAD
    return -value if isinstance(node.op, ast.USub) else value


def _as_number(text: str) -> Any:
    """Return the number of ``float('nan')``."""
    try:
        return float(text)
    except ValueError:
        return _UNREAD
