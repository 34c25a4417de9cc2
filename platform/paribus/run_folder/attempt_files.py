"""Readers of the small JSON files of an attempt: each gives checked values, or a ``RunFolderError`` that says where.

A trainer can write any of these files, also those that the supervisor owns.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from paribus.contract import Job
from paribus.errors import RunFolderError
from paribus.run_folder.folder import RunFolder, read_json
from paribus.run_folder.json_text import field_of, fields, number, shown, text, whole

_STATUSES = ("succeeded", "stopped_early")
_KINDS = ("program", "infrastructure", "storage")
_REPORTS: Mapping[str, tuple[str, ...]] = {
    "finish": ("payload", "stopped_early"),
    "fail": ("kind", "reason", "signature"),
    "release": ("reason", "wait_s"),
    "cancelled": (),
    "lost": (),
}
_LONGEST_WAIT_S = 3600.0
_LONGEST_S = 1e9
_LONGEST = 1 << 22  # bytes of a result.json; a report to the scheduler has four times as many at most


def read_job(path: Path) -> Job:
    """Return the job in ``job.json``.

    Raises:
        RunFolderError: the file is missing, or is not a job.
    """
    try:
        return Job.model_validate_json(path.read_bytes())
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False, include_input=False)[0]
        message = f"`{'.'.join(map(str, first['loc']))}`: {first['msg']}"
        raise RunFolderError(f"{path} is not a job: {shown(message)[1:-1]}") from error
    except (OSError, ValueError, RecursionError) as error:
        raise RunFolderError(f"cannot read {path}: {error}") from error


def read_attempt(folder: RunFolder) -> dict[str, dict[str, Any]]:
    """Return the ``supervisor`` and, once it was started, the ``runner`` in ``attempt.json``, as processes are written.

    Raises:
        RunFolderError: the file is missing, or is not that of an attempt.
    """
    raw = read_json(folder.attempt)
    try:
        return {name: _process(fields(raw)[name], name) for name in ("supervisor", "runner") if name in fields(raw)}
    except ValueError as error:
        raise RunFolderError(f"{folder.attempt} does not name the processes of an attempt: {error}") from error


def _process(value: Any, name: str) -> dict[str, Any]:
    raw = fields(value)
    names = {key: text(field_of(raw, key), f"{name}.{key}") for key in ("start", "boot", "host")}
    return {"pid": whole(field_of(raw, "pid"), f"{name}.pid", 1, (1 << 31) - 1), **names}


def read_result(folder: RunFolder) -> dict[str, Any]:
    """Return the content of ``result.json``.

    Raises:
        RunFolderError: the file is missing or damaged, its status is not one of a result, a number in it is
            not finite, or it has more than four megabytes.
    """
    raw = read_json(folder.result)
    try:
        status = field_of(fields(raw), "status")
        if status not in _STATUSES:
            raise ValueError(f"its status is {shown(status)}, not {' or '.join(_STATUSES)}")
        _check_finite(raw)
        if (size := folder.result.stat().st_size) > _LONGEST:
            raise ValueError(f"it has {size} bytes; at most {_LONGEST} are recorded")
    except (ValueError, OSError) as error:
        raise RunFolderError(f"{folder.result}: {error}") from error
    return fields(raw)


def _check_finite(value: Any) -> None:
    if isinstance(value, float) and not math.isfinite(value):
        raise ValueError(f"it holds the number {value}, which is not finite")
    for part in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        _check_finite(part)


def read_outcome(folder: RunFolder) -> dict[str, Any]:
    """Return the report in ``outcome.json``, which says how the attempt ended, with the token and the seconds it took.

    The other values are as they were written: the store refuses those that it cannot record.

    Raises:
        RunFolderError: the file is missing, or is no report: a part is missing, the kind of failure is unknown, or the
            time to wait is no number of seconds up to an hour.
    """
    raw = read_json(folder.outcome)
    try:
        do = text(field_of(fields(raw), "do"), "do")
        if do not in _REPORTS:
            raise ValueError(f"`do` is {shown(do)}, not one of {', '.join(_REPORTS)}")
        report = {"do": do} | {name: field_of(raw, name) for name in _REPORTS[do]}
        if report.get("kind", "program") not in _KINDS:
            raise ValueError(f"`kind` is {shown(report['kind'])}, not one of {', '.join(_KINDS)}")
        if not 0 <= number(report.get("wait_s", 0), "wait_s") <= _LONGEST_WAIT_S:
            raise ValueError(f"`wait_s` is {shown(report['wait_s'])}, not a number from 0 to {_LONGEST_WAIT_S:.0f}")
        report |= {name: raw[name] for name in ("step", "reached") if do == "release" and name in raw}
        if "token" in raw:
            report["token"] = whole(raw["token"], "token", 1)
        if "seconds" in raw:
            report["seconds"] = number(raw["seconds"], "seconds")
            if not 0 <= report["seconds"] < _LONGEST_S:
                raise ValueError(f"`seconds` is {shown(raw['seconds'])}, not a length of time")
    except ValueError as error:
        raise RunFolderError(f"{folder.outcome} is not the outcome of an attempt: {error}") from error
    return report


def read_environment(folder: RunFolder) -> dict[str, Any]:
    """Return the content of ``environment.json``; empty if there is none.

    Raises:
        RunFolderError: the file is damaged.
    """
    if not folder.environment.exists():
        return {}
    try:
        return fields(read_json(folder.environment))
    except ValueError as error:
        raise RunFolderError(f"{folder.environment}: {error}") from error
