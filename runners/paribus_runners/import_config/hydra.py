"""Options of Hydra: overrides such as ``data.seed=3``, the files that Hydra writes, and scripts that call a trainer.

Pure. A script is read and not run: variables that it sets itself are put in, its conditions are not decided.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any

from paribus.errors import ParibusError
from paribus_runners.import_config.given import brief
from paribus_runners.import_config.shell import commands

WORDS = {"null": None, "none": None, "true": True, "false": False}
NUMBER = re.compile(r"[-+]?(\d[\d_]*)?(\.\d*)?(e[-+]?\d+)?", re.IGNORECASE)
REFERENCE = re.compile(r"\$\{(?:oc\.select:)?([\w.]+)(?:, *([^{}]*))?\}")
TOKEN = re.compile(r"""\s*("(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*'|[][{},:])""")
CONFIG = re.compile(r"--config-name(?:=(.*))?")
DEFAULT_CONFIG = "ppo_trainer"


def options_of_words(words: Sequence[str]) -> dict[str, Any]:
    """Return the values of overrides by dotted name; ``+`` and ``++`` before a name are left out.

    Args:
        words: e.g. ``["data.seed=3", "+a.b=[1,2]"]``; options of Hydra itself, such as ``--config-path``, are skipped.

    Raises:
        ParibusError: a word is no override, or it names a configuration whose defaults are unknown.
    """
    found, rest = dict[str, Any](), list(words)
    while rest:
        word = rest.pop(0)
        if config := CONFIG.fullmatch(word):
            name = config[1] or (rest.pop(0) if rest else "")
            if name.removesuffix(".yaml") != DEFAULT_CONFIG:
                raise ParibusError(
                    f"`--config-name {brief(name)}`: its defaults are unknown here. Give the configuration that Hydra "
                    "wrote when this was trained, e.g. outputs/DAY/TIME/.hydra/config.yaml"
                )
            continue
        if word.startswith("-"):
            if "=" not in word and rest and "=" not in rest[0]:
                rest.pop(0)  # the value of --config-path
            continue
        name, equals, text = word.lstrip("+").partition("=")
        if not equals or not re.fullmatch(r"[\w.@/-]+", name):
            deleted = " Deletions have no counterpart: leave it out." if word.startswith("~") else ""
            raise ParibusError(
                f"`{brief(word)}` is no option: write `name=value`, e.g. data.train_batch_size=64.{deleted}"
            )
        found[name] = value_of(text)
    return found


def options_of_file(content: object, place: str) -> dict[str, Any]:
    """Return the options of a file of Hydra: sections of a configuration, or a list of overrides.

    References such as ``${data.max_response_length}`` are resolved within the file, and left out where they lead
    elsewhere.

    Raises:
        ParibusError: it is neither.
    """
    if isinstance(content, (list, tuple)) and all(isinstance(word, str) for word in content):
        return options_of_words(content)
    if not isinstance(content, Mapping):
        raise ParibusError(
            f"{place}: expects sections such as `data:` and `actor_rollout_ref:`, or a list of overrides"
        )
    flat = dict(_flat(content, ""))
    found = {}
    for name, value in flat.items():
        seen = set[str]()
        while isinstance(value, str) and (link := REFERENCE.fullmatch(value)):
            known = link[1] in flat and link[1] not in seen  # references may lead round in a circle
            seen.add(link[1])
            value = flat[link[1]] if known else value_of(link[2]) if link[2] is not None else ...
        if value is not ... and not name.endswith("_target_"):
            found[name] = value
    return found


def options_of_script(text: str, place: str) -> tuple[dict[str, Any], bool]:
    """Return the options that a shell script gives ``main_ppo``, and whether its conditions were passed over.

    Raises:
        ParibusError: it has no such call, or cannot be read.
    """
    called, branches = None, False
    for words in commands(text, place):
        branches = branches or words[0] in ("if", "case", "for", "while", "elif")
        for k, word in enumerate(words):
            if re.search(r"\bmain_(ppo|dapo)(\.py)?$", word):
                called = [w for w in words[k + 1 :] if "=" in w or w.startswith("-")]
    if called is None:
        raise ParibusError(
            f"{place}: no call of `verl.trainer.main_ppo` found. Give its arguments, `name=value`, one by one"
        )
    return options_of_words(called), branches


def value_of(text: str) -> Any:
    """Return what a value says in Hydra's grammar: null, a truth value, a number, a list, a mapping, or text."""
    text = text.strip()
    if text[:1] in ("[", "{", '"', "'"):
        try:
            value, rest = _read(text)
        except (ValueError, IndexError, RecursionError):
            return text
        return text if rest.strip() else value
    return _scalar(text)


def _scalar(text: str) -> Any:
    if text.lower() in WORDS:
        return WORDS[text.lower()]
    if any(c.isdigit() for c in text) and NUMBER.fullmatch(text):
        with suppress(ValueError):  # `e5`, `1__2`, and one of more digits than Python reads
            return int(text) if re.fullmatch(r"[-+]?[\d_]+", text) else float(text)
    return text


def _read(text: str) -> tuple[Any, str]:
    """Return the value with which a text begins, and what follows it."""
    token = TOKEN.match(text)
    if token is None or token[1] in (",", ":", "]", "}"):
        end = re.search(r"[][{},:]", text)
        word = text[: end.start()] if end else text
        return _scalar(word.strip()), text[len(word) :]
    rest = text[token.end() :]
    if (mark := token[1][0]) in "\"'":
        return re.sub(rf"(\\+)(?={mark}|$)", lambda m: "\\" * (len(m[1]) // 2), token[1][1:-1]), rest
    return _items(rest, "]", []) if token[1] == "[" else _pairs(rest)


def _items(rest: str, end: str, found: list[Any]) -> tuple[list[Any], str]:
    while not rest.lstrip().startswith(end):
        value, rest = _read(rest)
        found.append(value)
        rest = _next(rest, end)
    return found, rest.lstrip()[1:]


def _pairs(rest: str) -> tuple[dict[str, Any], str]:
    found: dict[str, Any] = {}
    while not rest.lstrip().startswith("}"):
        key, rest = _read(rest)
        rest = rest.lstrip()
        if not rest.startswith(":"):
            raise ValueError(rest)
        found[str(key)], rest = _read(rest[1:])
        rest = _next(rest, "}")
    return found, rest.lstrip()[1:]


def _next(rest: str, end: str) -> str:
    """Return what follows a comma, or stands at the end."""
    rest = rest.lstrip()
    if rest.startswith(","):
        return rest[1:]
    if not rest.startswith(end):
        raise ValueError(rest)
    return rest


def _flat(values: Mapping[str, Any], above: str) -> Iterator[tuple[str, Any]]:
    for name, value in values.items():
        if isinstance(value, Mapping) and value:
            yield from _flat(value, f"{above}{name}.")
        else:
            yield f"{above}{name}", value
