"""Errors as JSON, so that a mistake in a study file reads the same whether it was found here or on a server."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from paribus.errors import ParibusError, Problem, StudyFileError
from paribus.masking import mask
from paribus.run_folder.json_text import field_of, fields, listed, text, whole

_CODE = re.compile(r"P[0-9]{3}")


def error_to_json(error: ParibusError, *folders: Path) -> dict[str, Any]:
    """Return an error as JSON.

    Args:
        error: the error.
        folders: of the server, for temporary files, the inner ones first: no message shows them.
    """
    found: dict[str, Any] = {"code": error.code, "exit_code": error.exit_code, "message": _without(str(error), folders)}
    if isinstance(error, StudyFileError):
        found["problems"] = [{**asdict(p), "message": _without(p.message, folders)} for p in error.problems]
    return found


def error_from_json(raw: Mapping[str, Any], file: str = "") -> ParibusError:
    """Return the error that a server has sent.

    Args:
        raw: of :func:`error_to_json`.
        file: the study file as the user named it, for the places of its problems.

    Raises:
        ValueError: it is no such error.
    """
    code, message = text(field_of(raw, "code"), "code"), text(field_of(raw, "message"), "message")
    if not _CODE.fullmatch(code):
        raise ValueError("it has no code")
    if file and "problems" in raw:
        found: ParibusError = StudyFileError(file, [_problem(row) for row in listed(raw["problems"], "problems")])
    else:
        found = ParibusError(message)
    found.code = code
    found.exit_code = whole(field_of(raw, "exit_code"), "exit_code", 1, 125)
    return found


def _problem(row: object) -> Problem:
    raw = fields(row)
    return Problem(
        message=text(field_of(raw, "message"), "message"),
        path=text(field_of(raw, "path"), "path"),
        line=whole(field_of(raw, "line"), "line", 0),
        column=whole(field_of(raw, "column"), "column", 0),
    )


def _without(message: str, folders: Iterable[Path]) -> str:
    for folder in folders:
        message = message.replace(f"{folder}/", "")
    return mask(message)
