"""Reads rule files: detectors of one's own, named by ``health.rules`` of a study or tried over finished runs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from paribus.contract.rule import RULE_NAME, HealthRule, OwnRule, Rules, windows_overlap
from paribus.errors import ParibusError, Problem, StudyFileError, did_you_mean
from paribus.recipe.patch import read_patch
from paribus.run_folder.metrics import EVAL_METRICS, STEP_METRICS, find_metric
from paribus.study.spec import DETECTORS
from paribus.yaml_file.document import Fault, plain, read_document
from paribus.yaml_file.messages import explain, fields_at, plain_location, shown, validate

GROUP = "paribus.detectors"
"""Entry points of detectors that packages bring."""

SUFFIXES = (".yaml", ".yml")


def read_rule(path: Path) -> HealthRule:
    """Return the rule in a file.

    Raises:
        StudyFileError: the file cannot be read or is no rule; every problem is listed with its place.
    """
    document = read_document(path)
    raw, rule = plain(document.root), None
    try:
        rule = validate(HealthRule, raw)
        faults = list(_meaning(rule))
    except ValidationError as error:
        faults = [_fault(e, raw) for e in error.errors(include_url=False)]
        if isinstance(raw, dict) and isinstance(raw.get("metric"), str) and (unknown := unknown_metric(raw["metric"])):
            faults.append(Fault(place=("metric",), message=unknown))
        faults += _overlap(raw)
    known = {(p.line, p.column) for p in document.problems}
    meant = (fault.problem(document.root) for fault in faults)
    problems = {*document.problems, *(p for p in meant if (p.line, p.column) not in known)}
    if rule is None or problems:
        raise StudyFileError(str(path), problems)
    return rule


def installed() -> Sequence[EntryPoint]:
    """Return the entry points of installed detectors by name, without importing one."""
    return sorted(entry_points(group=GROUP), key=lambda e: e.name)


def find_rule(name: str, folder: Path) -> OwnRule:
    """Return the rule in a file, or the name of an installed detector.

    Args:
        name: a path that ends in ``.yaml`` or ``.yml``, or a name.
        folder: where relative paths begin.

    Raises:
        StudyFileError: the file is no rule.
        ParibusError: no detector of this name is installed.
    """
    return read_rule(folder / name) if name.endswith(SUFFIXES) else find_installed(name).name


def find_installed(name: str) -> EntryPoint:
    """Return the entry point of an installed detector.

    Raises:
        ParibusError: no detector of this name is installed, or its name is that of one of Paribus.
    """
    if name in DETECTORS:
        raise ParibusError(f"{shown(name)} is a detector of Paribus: a package must choose another name")
    entries = {e.name: e for e in installed()}
    if name not in entries:
        known = f"Installed: {', '.join(entries)}." if entries else "None is installed."
        raise ParibusError(
            f"no package brings a detector `{name}`.{did_you_mean(name, list(entries))} {known} The name of a rule "
            "file ends in `.yaml`."
        )
    return entries[name]


def rules_beside(folder: Path, names: Sequence[str]) -> tuple[Rules, list[Fault], list[Problem]]:
    """Return the rules that a study names, what is wrong with the names, and what is wrong in the files.

    Args:
        folder: the study's folder.
        names: ``health.rules`` as written.
    """
    found: dict[str, OwnRule] = {}
    faults: list[Fault] = []
    problems: list[Problem] = []
    for k, name in enumerate(names):
        place = ("health", "rules", k)
        try:
            rule = find_rule(name, folder)
        except StudyFileError as error:
            problems += [replace(p, file=p.file or error.file) for p in error.problems if p.line]
            unread = [p.message for p in error.problems if not p.line]  # the study names a file that can't be read
            faults += [Fault(place=place, message=f"{error.file}: {message}") for message in unread]
            continue
        except ParibusError as error:
            faults.append(Fault(place=place, message=str(error)))
            continue
        own = rule if isinstance(rule, str) else rule.name
        if own in found:
            faults.append(Fault(place=place, message=f"`{own}` is the name of another rule of this study: change one"))
        found[own] = rule
    return tuple(found.values()), faults, problems


def unknown_metric(name: str) -> str:
    """Return that no such metric exists; empty if it is canonical, or may be one that a runner adds.

    Metrics with the first part of a canonical one, such as ``reward/``, are canonical.
    """
    names = [metric.name for metric in STEP_METRICS]
    spaces = {known.partition("/")[0] for known in names} | {"eval"}
    if find_metric(name) is not None or ("/" in name and name.partition("/")[0] not in spaces):
        return ""
    near = did_you_mean(name, [*names, *(f"eval/heldout/{metric.name}" for metric in EVAL_METRICS)])
    return (
        f"{shown(name)} is no metric.{near} docs/reference/metrics.md lists all; a metric that your runner adds "
        "has a first part of its own, as in `mine/tool_calls`"
    )


def _meaning(rule: HealthRule) -> Iterator[Fault]:
    if rule.name in DETECTORS:
        yield Fault(place=("name",), message=f"{shown(rule.name)} is a detector of Paribus: choose another name")
    if message := unknown_metric(rule.metric):
        yield Fault(place=("metric",), message=message)
    if rule.remedy is not None:
        for wrong in read_patch(rule.remedy.patch)[1]:
            yield Fault(place=("remedy", "patch", *wrong.source), message=wrong.message, at_key=wrong.at_key)


def _overlap(raw: object) -> list[Fault]:
    """Return the fault of windows that overlap, in a rule that has other faults, and so is not checked as a whole."""
    test = raw.get("test") if isinstance(raw, dict) else None
    if not isinstance(raw, dict) or not isinstance(test, dict):
        return []
    message = windows_overlap(test.get("over"), raw.get("window", HealthRule.model_fields["window"].default))
    return [Fault(place=("test", "over"), message=message)] if message else []


def _fault(error: ErrorDetails, raw: object) -> Fault:
    path, kind = plain_location(error, raw), error["type"]
    if kind == "missing":
        return Fault(place=path[:-1], message=f"`{path[-1]}` is missing", at_key=True)
    if kind == "extra_forbidden":
        return Fault(place=path, message=explain(error, fields_at(HealthRule, error["loc"])), at_key=True)
    if kind == "string_pattern_mismatch" and error["ctx"]["pattern"] == RULE_NAME:
        message = f"{shown(error['input'])} is not a name: lower-case letters, digits and `_`, beginning with a letter"
        return Fault(place=path, message=message)
    if kind == "union_tag_not_found":
        return Fault(place=path, message="a test needs a `kind`: above, below, grows, shrinks, rises, falls")
    return Fault(place=path, message=explain(error))
