"""What a validation error means, in plain words with the remedy."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from functools import cache
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from paribus.errors import StudyFileError, did_you_mean
from paribus.yaml_file.document import parse_document, plain

# digits can match in one way only: with `\d+\.?\d*` a text of 70,000 digits took 15 s
_NUMBER = re.compile(r"[-+]?(?:\d+(?:\.\d*)?|\.\d+)[eE][-+]?\d+", re.ASCII)
_PERCENT = re.compile(r"([-+]?\d+(?:\.\d*)?) ?%", re.ASCII)
_M = TypeVar("_M", bound=BaseModel)
_NUMBERS = ("float_type", "int_type")
_WORDS = {"no": "false", "off": "false", "n": "false", "yes": "true", "on": "true", "y": "true"}
_BOUNDS = {"greater_than": ">", "greater_than_equal": ">=", "less_than": "<", "less_than_equal": "<="}


class WrongPart(ValueError):
    """What a validator has against one part of the values that it checks together; the place is that part's.

    Args:
        message: what is wrong and what is allowed.
        at: keys that lead from these values to the part.
    """

    def __init__(self, message: str, *at: str) -> None:
        super().__init__(message)
        self.at = at


def number_or(value: Any) -> Any:
    """Return the number that a text such as ``1e-4`` is, where a number is expected; anything else unchanged.

    YAML 1.1 reads ``1e-4`` as text and YAML 1.2 as a number; so what is expected decides.
    """
    return float(value) if isinstance(value, str) and _NUMBER.fullmatch(value) else value


def validate(model: type[_M], raw: Any) -> _M:
    """Return the values as a model; text such as ``1e-4`` is a number wherever the model expects one.

    Raises:
        ValidationError: the values do not fit the model.
    """
    try:
        return model.model_validate(raw)
    except ValidationError as error:
        places = [plain_location(e, raw) for e in error.errors(include_url=False) if e["type"] in _NUMBERS]
        numbers = with_numbers(raw, places)
        if numbers == raw:
            raise
    return model.model_validate(numbers)


def with_numbers(raw: Any, places: Iterable[Sequence[str | int]]) -> Any:
    """Return the values with numbers at the places that hold text such as ``1e-4``."""
    for place in places:
        raw = _with_number(raw, place)
    return raw


def _with_number(raw: Any, place: Sequence[str | int]) -> Any:
    if not place:
        return number_or(raw)
    first, rest = place[0], place[1:]
    if isinstance(raw, Mapping) and first in raw:
        return {**raw, first: _with_number(raw[first], rest)}
    if isinstance(raw, (tuple, list)) and isinstance(first, int) and first < len(raw):
        return (*raw[:first], _with_number(raw[first], rest), *raw[first + 1 :])
    return raw


def explain(error: ErrorDetails, allowed: Sequence[str] = (), model: type[BaseModel] | None = None) -> str:
    """Return one sentence for one validation error.

    Args:
        error: an item of :meth:`pydantic.ValidationError.errors`.
        allowed: names that are known where the error is, for unknown keys.
        model: knows what the entries of a list are, where one is expected.
    """
    kind, given, context = error["type"], error["input"], error.get("ctx", {})
    if kind == "missing":
        return "is missing"
    if kind == "extra_forbidden":
        name = str(error["loc"][-1])
        return f"unknown key `{name}`.{did_you_mean(name, allowed)} Allowed: {_names(allowed)}."
    if kind == "value_error":
        return str(context["error"])
    if kind in _BOUNDS:
        limit = next(iter(context.values()))
        return f"must be {_BOUNDS[kind]} {limit}, and {shown(given)} is not"
    if kind in ("union_tag_invalid", "literal_error"):
        names = re.findall(r"'([^']*)'", str(context.get("expected_tags") or context["expected"])) or [
            text.strip("`") for text in re.split(", | or ", str(context["expected"]))
        ]
        value = str(context.get("tag", given))
        return (
            f"{shown(context.get('tag', given))} is not allowed.{did_you_mean(value, names)} Allowed: {_names(names)}."
        )
    if kind == "union_tag_not_found":
        return "needs a `kind`"
    expected = _EXPECTED.get(kind)
    if expected == "a list" and isinstance(given, (str, int, float)):
        return f"expects a list, and {shown(given)} is not{_as_list(given, _entries(model, error['loc']))}"
    if expected is not None:
        return f"expects {expected}, and {shown(given)} is not{_remedy(kind, given)}"
    return _length_message(kind, context) or str(error["msg"])


def shown(value: object) -> str:
    """Return a value as a person would write it in YAML, shortened."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, Mapping):
        return "a mapping"
    if isinstance(value, (list, tuple)):
        return "a list"
    text = str(value)
    text = text if len(text) <= 40 else f"{text[:37]}..."
    return f"`{text}`" if isinstance(value, str) else text


def plain_location(error: ErrorDetails, raw: object) -> tuple[str | int, ...]:
    """Return the path of an error in the values as given: pydantic's path without the names of union members.

    It goes on to the part that a :class:`WrongPart` names.
    """
    path: list[str | int] = []
    node: Any = raw
    for part in error["loc"]:
        if isinstance(node, Mapping) and part not in node and node.get("kind") == part:
            continue
        path.append(part)
        if isinstance(node, Mapping):
            node = node.get(part)
        elif isinstance(node, (tuple, list)) and isinstance(part, int) and part < len(node):
            node = node[part]
        else:
            node = None
    cause = error.get("ctx", {}).get("error")
    return (*path, *cause.at) if isinstance(cause, WrongPart) else tuple(path)


def split_errors(error: ValidationError) -> list[ErrorDetails]:
    """Return the errors; a validator of ours that joined several by ``; `` counts as several."""
    found: list[ErrorDetails] = []
    for item in error.errors(include_url=False):
        if item["type"] == "value_error":
            found.extend({**item, "ctx": {"error": text}} for text in str(item["ctx"]["error"]).split("; "))
        else:
            found.append(item)
    return found


def fields_at(model: type[BaseModel], loc: Sequence[str | int]) -> tuple[str, ...]:
    """Return the keys that a model knows at pydantic's location of an unknown key."""
    schema = _schema(model)
    node = schema
    for part in loc[:-1]:
        node = _step(node, part, schema)
    return tuple(_target(node, schema).get("properties", {}))


def _entries(model: type[BaseModel] | None, loc: Sequence[str | int]) -> Mapping[str, Any]:
    """Return the JSON schema of the entries of the list that a model has at pydantic's location; empty if unknown."""
    if model is None:
        return {}
    node = schema = _schema(model)
    for part in loc:
        node = _step(node, part, schema)
    found: dict[str, Any] = _target(node, schema).get("items", {})
    return found


@cache
def _schema(model: type[BaseModel]) -> dict[str, Any]:
    return model.model_json_schema(by_alias=True)


def _step(node: dict[str, Any], part: str | int, schema: dict[str, Any]) -> dict[str, Any]:
    node = _target(node, schema)
    mapping = node.get("discriminator", {}).get("mapping", {})
    if part in mapping:
        return {"$ref": mapping[part]}
    patterns = list(node.get("patternProperties", {}).values())
    inner = node.get("properties", {}).get(part) or node.get("additionalProperties") or node.get("items")
    return inner if isinstance(inner, dict) else next(iter(patterns), {})


def _target(node: dict[str, Any], schema: dict[str, Any]) -> dict[str, Any]:
    while "$ref" in node:
        node = schema["$defs"][node["$ref"].rsplit("/", 1)[1]]
    for option in node.get("anyOf", ()):
        if "$ref" in option or "properties" in option or "discriminator" in option:
            return _target(option, schema)
    return next((option for option in node.get("anyOf", ()) if "items" in option), node)


_EXPECTED = {
    "float_type": "a number", "int_type": "a whole number", "int_from_float": "a whole number",
    "bool_type": "true or false", "string_type": "text", "finite_number": "a finite number",
    "tuple_type": "a list", "list_type": "a list", "dict_type": "a mapping", "model_type": "a mapping",
    "model_attributes_type": "a mapping", "none_required": "null",
}  # fmt: skip


def _length_message(kind: str, context: Mapping[str, Any]) -> str:
    if kind in ("too_short", "string_too_short"):
        least, noun = context["min_length"], "entry" if kind == "too_short" else "character"
        return f"needs at least {least} {noun if least == 1 else {'entry': 'entries'}.get(noun, 'characters')}"
    if kind in ("too_long", "string_too_long"):
        return f"has more than {context['max_length']} {'entries' if kind == 'too_long' else 'characters'}"
    return ""


def _remedy(kind: str, given: object) -> str:
    """Return what to write instead, where YAML read something else than was meant."""
    if isinstance(given, str) and kind == "bool_type" and given.lower() in _WORDS:
        return f": write {_WORDS[given.lower()]}"
    if isinstance(given, str) and kind in ("float_type", "int_type") and re.fullmatch(r"[-+]?[\d_.]+", given):
        return ": write it without quotes and leading zeros"
    if isinstance(given, str) and kind in ("float_type", "int_type") and (share := _PERCENT.fullmatch(given)):
        return f": write {float(share[1]) / 100:g}, as shares and rates are numbers from 0 to 1"
    if isinstance(given, str) and kind in ("float_type", "int_type") and number_or(given) != given:
        return ": write it with a point and a sign, as in 1.0e-6"
    if isinstance(given, float) and kind in ("int_type", "int_from_float") and given.is_integer():
        return f": write {int(given)}"
    if given is None and kind == "model_type":
        return ": fill it or leave the key out"
    return ""


def _as_list(given: str | float, entries: Mapping[str, Any]) -> str:
    """Return how a value becomes a list with it as its only entry; empty if it cannot be one."""
    text = str(given).lower() if isinstance(given, bool) else str(given)
    if names := entries.get("enum", ()):
        return f": write [{text}]" if text in names else f".{did_you_mean(text, names)} Allowed in it: {_names(names)}."
    if entries.get("type") in ("integer", "number"):
        number = math.nan
        with suppress(ValueError):
            number = float(text)  # not `true`
        if number.is_integer():
            return f": write [{number:.0f}]"
        return f": write [{text}]" if math.isfinite(number) and entries["type"] == "number" else ""
    if isinstance(given, float) and not math.isfinite(given) and "type" not in entries:
        return f": write [{text.replace('inf', '.inf').replace('nan', '.nan')}]"
    with suppress(StudyFileError):
        read = plain(parse_document(f"[{text}]", "").root)
        if read == (text,) or ("type" not in entries and len(read) == 1):
            return f": write [{text}]"
    return f": write {json.dumps([text], ensure_ascii=False)}"


def _names(names: Sequence[str]) -> str:
    return ", ".join(f"`{n}`" for n in names)
