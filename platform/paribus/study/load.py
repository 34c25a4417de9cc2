"""Reads study files: a :class:`~paribus.study.spec.Study`, or all problems at once with their places."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from paribus.errors import Problem, StudyFileError, did_you_mean
from paribus.recipe.document import Node, locate, plain, read_document
from paribus.recipe.messages import explain, fields_at, plain_location, shown
from paribus.recipe.presets import unknown_preset
from paribus.study.design_faults import design_faults, tricks_of
from paribus.study.designs import Draft, Step, expand
from paribus.study.published import unknown_published
from paribus.study.resolve import Fault, resolve, resolve_base, resolve_row, written_faults
from paribus.study.spec import ALPHABETS, DESIGN_KINDS, Listed, Study

_EVAL_NAMES = ("truncated_frac", "length_mean", "length_mean_correct", "length_mean_incorrect")


def load_study(path: Path) -> Study:
    """Return the study in a file, checked: every trick alone and every arm of every design is a valid recipe.

    Raises:
        StudyFileError: the file is not a valid study; every problem is listed with its place and a remedy.
    """
    document = read_document(path)
    root = document.root
    raw = plain(root)
    if not isinstance(raw, dict):
        message = "a study is a mapping that begins with `study: <name>`: see docs/studies.md"
        problem = Problem(message=message, line=root.mark.line, column=root.mark.column)
        raise StudyFileError(str(path), [*document.problems, problem])
    study, faults = _parse(raw)
    if study is not None:
        faults += _meaning(study, defined=tuple(_mapping(raw.get("tricks"))))
    known = {(p.line, p.column) for p in document.problems}  # what stands there has no meaning that could be wrong
    meant = (_problem(root, fault) for fault in faults)
    problems = {*document.problems, *(p for p in meant if (p.line, p.column) not in known)}
    if study is None or problems:
        raise StudyFileError(str(path), problems)
    return study


def _parse(raw: Mapping[str, Any]) -> tuple[Study | None, list[Fault]]:
    """Return as much of the study as can be read, and what cannot.

    Parts with errors are left out, so that the rest is still checked for its meaning; ``None`` where the base is wrong.
    """
    try:
        return Study.model_validate(raw), []
    except ValidationError as error:
        errors = error.errors(include_url=False)
    faults = [_syntax_fault(e, raw) for e in errors]
    kept = dict(raw)
    for fault in faults:
        top = fault.place[0] if fault.place else ""
        if top in ("tricks", "designs") and len(fault.place) > 1 and isinstance(kept.get(str(top)), Mapping):
            kept[str(top)] = {k: v for k, v in kept[str(top)].items() if k != fault.place[1]}
        else:
            kept.pop(str(top), None)
    kept = {"study": "x", **kept, "designs": kept.get("designs") or {"base": _NOTHING}}
    try:
        return Study.model_validate(kept), faults
    except ValidationError:  # the base is wrong or missing: nothing can be said about arms
        return None, faults


_NOTHING = {"kind": "list", "arms": {"-": {}}}


def _syntax_fault(error: ErrorDetails, raw: Mapping[str, Any]) -> Fault:
    path = plain_location(error, raw)
    kind = error["type"]
    if kind == "extra_forbidden":
        return Fault(place=path, message=explain(error, fields_at(Study, error["loc"])), at_key=True)
    if kind == "string_pattern_mismatch":
        message = f"{shown(error['input'])} is not a name: a name here has {ALPHABETS[error['ctx']['pattern']]}"
        at_key = path[-1] == "[key]"
        return Fault(place=path[:-1] if at_key else path, message=message, at_key=at_key)
    if path and path[-1] == "[key]":
        return Fault(place=path[:-1], message=f"as a name, {explain(error)}", at_key=True)
    if kind == "missing":
        return Fault(place=path[:-1], message=f"`{path[-1]}` is missing", at_key=True)
    if kind == "union_tag_not_found":
        return Fault(place=path, message=f"a design needs a `kind`: {', '.join(DESIGN_KINDS)}", at_key=True)
    if kind == "union_tag_invalid":
        return Fault(place=(*path, "kind"), message=explain(error))
    return Fault(place=path, message=explain(error))


def _meaning(study: Study, defined: Sequence[str]) -> list[Fault]:
    """Return what is wrong in a study whose syntax is right; ``defined`` are all names under ``tricks``."""
    faults = [*_evaluate_faults(study), *_preset_faults(study), *_published_faults(study)]
    usable = {}
    for name, design in study.designs.items():
        found = design_faults(name, study, defined)
        faults += found
        if not found and all(trick in study.tricks for trick in tricks_of(design, defined)):
            usable[name] = design
    tricks = [Step(place=("tricks", name), patch=patch) for name, patch in study.tricks.items()]
    if unknown_preset(study.base.preset):
        steps = (Step(place=("base", "set"), patch=study.base.set), *tricks)
        return [*faults, *(fault for step in steps for fault in written_faults(step))]
    base = resolve_base(study.base)
    faults += base.faults
    of_base = {fault.message for fault in base.faults}
    for step in tricks:
        resolved = resolve(base.values, (step,), step.place)
        faults += [fault for fault in resolved.faults if fault.message not in of_base]
    if not base.faults:
        for name, design in usable.items():
            faults += _row_faults(base.values, expand(name, design, study.tricks), known=faults)
    return faults


def _row_faults(base: Mapping[str, Any], rows: Sequence[Draft], known: Sequence[Fault]) -> list[Fault]:
    """Return what is wrong with rows made of tricks that are right by themselves."""
    broken = {fault.place[1] for fault in known if fault.place[0] == "tricks"}
    sound = (row for row in rows if not broken & set(row.tricks))
    return [f for row in sound if _preset_known(row) for f in resolve_row(base, row).faults]


def _preset_known(row: Draft) -> bool:
    return row.preset is None or not unknown_preset(row.preset)


def _evaluate_faults(study: Study) -> Iterator[Fault]:
    primary, samples = study.evaluate.primary, study.evaluate.samples
    allowed = [f"eval/heldout/{stem}_at_{samples}" for stem in ("avg", "pass", "maj")]
    allowed += [f"eval/heldout/{name}" for name in _EVAL_NAMES]
    if primary and primary not in allowed:
        message = (
            f"`{primary}` is not measured with `samples: {samples}`.{did_you_mean(primary, allowed)} "
            f"Allowed: {', '.join(allowed)}"
        )
        yield Fault(place=("evaluate", "primary"), message=message)


def _preset_faults(study: Study) -> Iterator[Fault]:
    if message := unknown_preset(study.base.preset):
        yield Fault(place=("base", "preset"), message=message)
    for name, design in study.designs.items():
        if isinstance(design, Listed):
            for label, arm in design.arms.items():
                if arm.preset is not None and (message := unknown_preset(arm.preset)):
                    yield Fault(place=("designs", name, "arms", label, "preset"), message=message)


def _published_faults(study: Study) -> Iterator[Fault]:
    for k, name in enumerate(study.report.published):
        if message := unknown_published(name):
            yield Fault(place=("report", "published", k), message=message)


def _problem(root: Node, fault: Fault) -> Problem:
    mark = locate(root, fault.place, key=fault.at_key)
    path = ".".join(str(part + 1) if isinstance(part, int) else part for part in fault.place)
    return Problem(message=fault.message, path=path, line=mark.line, column=mark.column)


def _mapping(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}
