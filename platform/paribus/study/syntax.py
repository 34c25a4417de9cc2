"""Reads the syntax of a study: what stands in it, as far as it can be read, and what is wrong with the rest."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from difflib import get_close_matches
from typing import Any

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from paribus.contract import unknown_runner
from paribus.recipe.resolve import UNKNOWN_PRESET
from paribus.recipe.trainer_names import translate
from paribus.study.spec import ALPHABETS, DESIGN_KINDS, DESIGN_SYNONYMS, Study
from paribus.yaml_file.document import Fault
from paribus.yaml_file.messages import explain, fields_at, plain_location, shown, validate


def parse(raw: Mapping[str, Any]) -> tuple[Study | None, list[Fault]]:
    """Return as much of the study as can be read, and what cannot.

    Parts with errors are left out, so that the rest is still checked for its meaning; ``None`` where the base is wrong.
    """
    try:
        return validate(Study, raw), []
    except ValidationError as error:
        errors = error.errors(include_url=False)
    faults = [fault for e in errors for fault in _syntax_faults(e, raw)]
    for whole in (False, True):  # more may be wrong with a design than was left out
        with suppress(ValidationError):
            return validate(Study, _stand_in(raw, faults, whole=whole)), faults
    return None, faults


def _stand_in(raw: Mapping[str, Any], faults: Sequence[Fault], *, whole: bool) -> Mapping[str, Any]:
    """Return the study without what is wrong: of a design with ``whole`` all, else its wrong entries."""
    kept = dict(raw)
    for fault in faults:
        top = str(fault.place[0]) if fault.place else ""
        inside = _mapping(kept.get(top))
        if fault.place[:2] == ("evaluate", "sets") and len(fault.place) > 2:
            kept[top] = _without_set(inside, str(fault.place[2]))
        elif top == "designs" and len(fault.place) > 2 and not whole:
            name = str(fault.place[1])
            design = _without_entry(_mapping(inside.get(name)), fault)
            kept[top] = {k: design if k == name else v for k, v in inside.items() if k != name or design}
        elif top in ("base", "tricks", "designs") and len(fault.place) > 1:
            kept[top] = {k: v for k, v in inside.items() if k != fault.place[1]}
        elif top != "base" or not inside:  # else a key of the base is missing
            kept.pop(top, None)
    base = {"preset": UNKNOWN_PRESET, **_mapping(kept.get("base"))}
    return {"study": "x", **kept, "base": base, "designs": kept.get("designs") or {"base": _NOTHING}}


def _without_entry(design: Mapping[str, Any], fault: Fault) -> Mapping[str, Any]:
    """Return a design without an entry of `over` or of `arms`, or with the key that was meant; empty: leave it out."""
    key, inside = str(fault.place[2]), _mapping(design.get(str(fault.place[2])))
    if key in ("over", "arms") and len(fault.place) > 3:
        left = {k: v for k, v in inside.items() if k != fault.place[3]}
        return {**design, key: left} if left else {}
    known = fields_at(Study, ("designs", "", str(design.get("kind")), ""))
    if not fault.at_key or len(fault.place) > 3 or key in known:
        return {}
    meant = {k: k for k in design} | {key: next(iter(get_close_matches(key, [*known], n=1)), "")}
    return {meant[k]: v for k, v in design.items() if k != key or (meant[k] and meant[k] not in design)}


def _without_set(evaluate: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    """Return the section ``evaluate`` without a set that is wrong, and without a primary metric on it."""
    sets = {key: value for key, value in _mapping(evaluate.get("sets")).items() if key != name}
    on_it = str(evaluate.get("primary")).startswith(f"eval/{name}/")
    return {key: value for key, value in {**evaluate, "sets": sets}.items() if key != "primary" or not on_it}


_NOTHING = {"kind": "list", "arms": {"-": {}}}
_MAPPINGS: Mapping[str, tuple[tuple[type, ...], str]] = {
    "base": ((str,), "{{preset: {0}}}"),
    "path": ((str,), "{{to: {0}}}"),
    "seeds": ((int,), "{{n: {0}}}"),
    "evaluate": ((int,), "{{every: {0}}}"),
    "budget": ((int, float), "{{gpu_hours: {0}}}"),
    "resources": ((int, float), "{{gpus: {0}}}"),
    "checkpoint": ((int,), "{{every: {0}}}"),
}
"""Sections that are often written as one value: its type, and what it is in full."""


def _syntax_faults(error: ErrorDetails, raw: Mapping[str, Any]) -> list[Fault]:
    """Return the fault that an error means; of an option of another trainer, one for each value in it."""
    path = plain_location(error, raw)
    if path[:2] == ("evaluate", "sets") and path[3:5] == ("task", "train") and error["type"] != "extra_forbidden":
        given = _mapping(_mapping(_mapping(_mapping(raw.get("evaluate")).get("sets")).get(str(path[2]))).get("task"))
        if "train" not in given:
            return []  # a set needs no training problems: what is wrong is said of `heldout`
        return [Fault(place=path[:5], message="a set is not trained on: remove `train`", at_key=True)]
    if path[:2] == ("evaluate", "sets") and (path[3:4], path[-1], error["type"]) == (("task",), "train", "missing"):
        return []  # of a task that is no more than its name
    if path[:2] == ("evaluate", "sets") and path[3:] == ("task",) and error["type"] == "value_error":
        parts = [text for text in explain(error).split("; ") if not text.startswith("`task.train")]
        return [Fault(place=path, message=text) for text in parts]
    of_recipe = path[0] == "base" or (len(path) == 1 and bool(unknown_runner(str(path[0]))))
    if error["type"] == "extra_forbidden" and of_recipe and (known := translate(str(path[-1]), error["input"])):
        return [Fault(place=(*path, *inside), message=message, at_key=True) for inside, message in known]
    return [_syntax_fault(error, path)]


_NO_RESOURCES: Mapping[tuple[str | int, ...], str] = {
    ("resources", "gpu_memory_gib"): (
        "write a fraction of a GPU instead, e.g. `gpus: 0.25`, which puts four runs on one"
    ),
}


def _syntax_fault(error: ErrorDetails, path: tuple[str | int, ...]) -> Fault:
    kind = error["type"]
    if kind == "extra_forbidden" and len(path) == 1 and not unknown_runner(str(path[0])):
        message = f"this section is for the runner `{path[0]}`, which this study does not use: remove it, or write "
        return Fault(place=path, message=message + f"`runner: {path[0]}`", at_key=True)
    if kind == "extra_forbidden" and path in _NO_RESOURCES:
        return Fault(place=path, message=_NO_RESOURCES[path], at_key=True)
    if kind == "extra_forbidden":
        return Fault(place=path, message=explain(error, fields_at(Study, error["loc"])), at_key=True)
    if kind == "string_pattern_mismatch":
        message = _no_name(str(error["input"]), error["ctx"]["pattern"])
        at_key = path[-1] == "[key]"
        return Fault(place=path[:-1] if at_key else path, message=message, at_key=at_key)
    if path and path[-1] == "[key]":
        return Fault(place=path[:-1], message=f"as a name, {explain(error)}", at_key=True)
    if kind == "missing":
        return Fault(place=path[:-1], message=f"`{path[-1]}` is missing{_example(error, path)}", at_key=True)
    if kind == "union_tag_not_found" and path[0] == "designs":
        return Fault(place=path, message=f"a design needs a `kind`: {', '.join(DESIGN_KINDS)}", at_key=True)
    if kind == "union_tag_invalid" and path[0] == "designs":
        given = str(error["ctx"]["tag"])
        meant = DESIGN_SYNONYMS.get(given.lower().replace("-", "_").replace(" ", "_"))
        message = f"{shown(given)} is not allowed. Did you mean `{meant}`? Allowed: {', '.join(DESIGN_KINDS)}."
        return Fault(place=(*path, "kind"), message=message if meant else explain(error))
    more = _in_full(error, path) or _mixed_up(error, path) or _example(error, path)
    return Fault(place=path, message=_plain_message(error, path) + more)


def _no_name(given: str, pattern: str) -> str:
    """Return that a text is no name, with the nearest that is one."""
    near = re.sub(r"[^A-Za-z0-9]+", "-", given).strip("-")
    near = next((f": write `{name}`" for name in (near, near.lower()) if re.fullmatch(pattern, name)), "")
    return f"{shown(given)} is not a name: a name here has {ALPHABETS[pattern]}{near}"


def _plain_message(error: ErrorDetails, path: tuple[str | int, ...]) -> str:
    """Return what is wrong, without a remedy that would not help at this place."""
    if path == ("base",) and error["input"] is None:  # it is required, so that it can't be left out
        return "expects a mapping, and null is not"
    if path[:1] == ("conflicts",) and error["type"] == "tuple_type":  # one list more is lacking
        return f"expects a list of tricks, and {shown(error['input'])} is not"
    return explain(error, model=Study)


def _in_full(error: ErrorDetails, path: tuple[str | int, ...]) -> str:
    """Return how a section is written that was given as one value; empty if that is not clear."""
    given = error["input"]
    if error["type"] != "model_type" or len(path) != 1 or path[0] not in _MAPPINGS or isinstance(given, bool):
        return ""
    types, full = _MAPPINGS[str(path[0])]
    return f": write {full.format(given)}" if isinstance(given, types) else ""


def _mixed_up(error: ErrorDetails, path: tuple[str | int, ...]) -> str:
    """Return which of the two keys of the name ``checkpoint`` was meant; empty if that is not clear."""
    given = error["input"]
    if path == ("checkpoint",) and given in ("final", "mean_of_last_3"):
        return f": write `evaluate: {{checkpoint: {given}}}` for the evaluations that make the score"
    if path == ("evaluate", "checkpoint") and not isinstance(given, str):
        return " When runs write checkpoints stands beside `evaluate`: `checkpoint: {every: ..., keep: ...}`."
    return ""


_EXAMPLES: Mapping[tuple[str, ...], str] = {
    ("study",): "study: my-study",
    ("base",): "base: {preset: grpo}",
    ("base", "preset"): "preset: grpo",
    ("base", "set"): "set: {clip.high: 0.28}",
    ("path", "to"): "to: dapo",
    ("tricks",): "tricks: {higher: {clip.high: 0.28}}",
    ("tricks", "*"): "{clip.high: 0.28}",
    ("needs",): "needs: {second: [first]}",
    ("conflicts",): "conflicts: [[first, second]]",
    ("conflicts", "*"): "conflicts: [[first, second]]",
    ("designs",): "designs: {solo: {kind: add_one}}",
    ("designs", "*"): "{kind: add_one}",
    ("designs", "*", "arms"): "arms: {wide: {set: {clip.high: 0.28}}}",
    ("designs", "*", "arms", "*"): "{set: {clip.high: 0.28}}",
    ("designs", "*", "over"): "over: {clip.high: [0.2, 0.28]}",
    ("designs", "*", "over", "*"): "clip.high: [0.2, 0.28]",
    ("designs", "*", "trials"): "trials: 8",
    ("designs", "*", "resolution"): "resolution: 3",
    ("seeds",): "seeds: {n: 3}",
    ("evaluate",): "evaluate: {every: 10}",
    ("evaluate", "sets"): "sets: {cool: {temperature: 0.5}}",
    ("evaluate", "sets", "*"): "{samples: 8}",
    ("checkpoint",): "checkpoint: {every: 20}",
    ("timeouts",): "timeouts: {reward: 600.0}",
    ("health",): "health: {stop_on: [nan]}",
    ("budget",): "budget: {gpu_hours: 10.0}",
    ("budget", "prior"): "prior: {low: 0.5, expected: 1.0, high: 2.0}",
    ("report",): "report: {symptom_correction: holm}",
    ("resources",): "resources: {gpus: 1}",
}
"""How parts of a study are written, where something else stands there or nothing."""

_IN_SEARCH = {
    ("designs", "*", "over"): "over: {clip.high: {low: 0.2, high: 0.3}}",
    ("designs", "*", "over", "*"): "{low: 0.2, high: 0.3}",
}


def _example(error: ErrorDetails, path: tuple[str | int, ...]) -> str:
    """Return an example of what stands at a place, for one that has a value of another kind, or none."""
    kind, given = error["type"], error["input"]
    if given is None and kind != "missing" and path != ("base",):
        return ""  # it is said that the key may be left out
    scalar = kind == "tuple_type" and not isinstance(given, (Mapping, list, tuple)) and path[0] != "conflicts"
    if scalar or kind not in ("missing", "model_type", "model_attributes_type", "dict_type", "tuple_type", "too_short"):
        return ""  # of a single value in place of a list is said how it becomes one
    tables = (_IN_SEARCH, _EXAMPLES) if path[:1] == ("designs",) and "search" in error["loc"] else (_EXAMPLES,)
    found = (
        example
        for table in tables
        for place, example in table.items()
        if len(place) == len(path) and all(a in ("*", b) for a, b in zip(place, path, strict=True))
    )
    example = next(found, "")
    return f": write e.g. `{example}`" if example else ""


def _mapping(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}
