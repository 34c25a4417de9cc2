"""From what is wrong with a run to the study that tests what to try: each remedy alone, against the recipe as it is."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from paribus.errors import ParibusError
from paribus.health.diagnose import Diagnosis
from paribus.health.finding import Remedy
from paribus.health.remedies import patched
from paribus.recipe.presets import load_preset, preset_names
from paribus.recipe.recipe import Recipe, difference
from paribus.study.job import Evaluate
from paribus.study.resolve import resolve_base
from paribus.study.resources import Resources
from paribus.study.spec import Base

SEEDS = 5
"""Seeds an arm: a signed-rank test of five pairs is the first that could see anything at a tenth."""


@dataclass(frozen=True, kw_only=True)
class Subject:
    """The run, as far as its remedies are to be run like it.

    Attributes:
        study: name of its study.
        name: what people call the run.
        runner: what trained it.
        recipe: what it trained.
        evaluate: how it was evaluated.
        resources: what it held.
        seed: the first seed that nobody has used.
    """

    study: str
    name: str
    runner: str
    recipe: Recipe
    evaluate: Evaluate
    resources: Resources
    seed: int


@dataclass(frozen=True, kw_only=True)
class RemedyStudy:
    """A study file to be.

    Attributes:
        content: keys of the file; empty if no remedy has a patch.
        reasons: what each trick is and who says so; then the remedies without a patch.
    """

    content: Mapping[str, Any]
    reasons: tuple[str, ...]


def remedy_study(subject: Subject, diagnosis: Diagnosis) -> RemedyStudy:
    """Return the study that tests the remedies of all findings, the suspected cause's first; equal arms once."""
    tricks: dict[str, Mapping[str, Any]] = {}
    reasons: list[str] = []
    rest: list[str] = []
    seen: dict[str, Recipe] = {}
    for finding in diagnosis.raised:
        for remedy in finding.remedies:
            after = patched(subject.recipe, remedy.patch) if remedy.patch else None
            said = f"for {finding.detector} [{remedy.evidence}]: {remedy.text} ({remedy.source})"
            if after is None:
                rest.append(f"not a matter of the recipe, {said}")
            elif after not in seen.values():
                name = _name(remedy)
                seen[name], tricks[name] = after, dict(remedy.patch)
                reasons.append(f"{name}, {said}")
    content = _content(subject, tricks) if tricks else {}
    return RemedyStudy(content=content, reasons=(*reasons, *dict.fromkeys(rest)))


def _name(remedy: Remedy) -> str:
    """Return e.g. ``clip_high_0_28``."""
    words = (f"{path}_{value}" for path, value in remedy.patch.items())
    return re.sub(r"[^A-Za-z0-9]+", "_", "_".join(words)).strip("_")[:64]


def _content(subject: Subject, tricks: Mapping[str, Any]) -> dict[str, Any]:
    evaluate = subject.evaluate.model_dump(mode="json", exclude_defaults=True)
    resources = subject.resources.model_dump(mode="json", exclude_defaults=True)
    return {
        "study": f"{subject.study[:55]}-remedies",
        "question": f"Which remedy helps against what was found in {subject.name}?",
        "runner": subject.runner,
        "base": base_of(subject.recipe),
        "tricks": dict(tricks),
        "designs": {"remedies": {"kind": "add_one"}},
        "seeds": {"n": SEEDS, "start": subject.seed},
        **({"evaluate": evaluate} if evaluate else {}),
        **({"resources": resources} if resources else {}),
    }


def base_of(recipe: Recipe) -> dict[str, Any]:
    """Return the nearest preset with the patch that makes it this recipe.

    Raises:
        ParibusError: no patch does.
    """
    presets = {name: load_preset(name).recipe for name in preset_names()}
    preset = min(presets, key=lambda name: len(difference(presets[name], recipe)))
    old, new = presets[preset].model_dump(mode="json"), recipe.model_dump(mode="json")
    patch: dict[str, Any] = {}
    for factor, value in new.items():
        if value == old.get(factor):
            continue
        if _alike(old.get(factor), value):
            patch |= {f"{factor}.{key}": inner for key, inner in value.items() if inner != old[factor][key]}
        else:
            patch[factor] = value
    found = resolve_base(Base(preset=preset, set=patch))
    if found.recipe != recipe:
        raise ParibusError(f"no patch of the preset `{preset}` gives the recipe of this run: write the study by hand")
    return {"preset": preset, **({"set": patch} if patch else {})}


def _alike(old: Any, new: Any) -> bool:
    """Tell whether two factors differ by numbers alone."""
    return isinstance(old, dict) and isinstance(new, dict) and old.keys() == new.keys() and _kind(old) == _kind(new)


def _kind(factor: Mapping[str, Any]) -> Any:
    return factor.get("kind")
