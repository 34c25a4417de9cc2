"""The JSON Schema takes what the loader takes, and refuses misspelt keys."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from paribus.home import data_root
from paribus.study.schema import study_schema
from paribus.yaml_file.document import plain, read_document

SCHEMA = study_schema()
STUDIES = sorted((data_root("ablations") / "studies").glob("*.yaml"))
TYPES: dict[str, Any] = {
    "object": dict, "array": tuple, "string": str, "integer": int, "number": (int, float), "boolean": bool,
    "null": type(None),
}  # fmt: skip


def fits(value: Any, schema: dict[str, Any]) -> bool:
    """Tell whether a value fits a schema: the part of JSON Schema that is used here."""
    if "$ref" in schema and not fits(value, SCHEMA["$defs"][schema["$ref"].rsplit("/", 1)[1]]):
        return False
    if "anyOf" in schema and not any(fits(value, option) for option in schema["anyOf"]):
        return False
    if "oneOf" in schema and not any(fits(value, option) for option in schema["oneOf"]):
        return False
    if value not in schema.get("enum", [value]) or value != schema.get("const", value):
        return False
    if isinstance(value, str) and not re.search(schema.get("pattern", ""), value):
        return False
    kind = schema.get("type")
    if kind is not None and (not isinstance(value, TYPES[kind]) or (isinstance(value, bool) and kind != "boolean")):
        return False
    if isinstance(value, dict):
        return fits_mapping(value, schema)
    return not isinstance(value, tuple) or all(fits(item, schema.get("items", {})) for item in value)


def fits_mapping(value: dict[str, Any], schema: dict[str, Any]) -> bool:
    """Tell whether all keys are known and required ones are there."""
    if not set(schema.get("required", ())) <= set(value):
        return False
    for key, inner in value.items():
        known = [schema["properties"][key]] if key in schema.get("properties", {}) else []
        known += [s for pattern, s in schema.get("patternProperties", {}).items() if re.search(pattern, key)]
        other = schema.get("additionalProperties", True)
        if not known and (other is False or (isinstance(other, dict) and not fits(inner, other))):
            return False
        if not all(fits(inner, one) for one in known):
            return False
    return True


@pytest.mark.parametrize("path", STUDIES, ids=lambda path: path.stem)
def test_shipped_studies_fit(path: Path) -> None:
    """Editors do not mark what the loader takes."""
    assert fits(plain(read_document(path).checked()), SCHEMA)


def study(**parts: Any) -> dict[str, Any]:
    """Return a small study with parts replaced."""
    return {"study": "s", "base": {"preset": "grpo"}, "designs": {"d": {"kind": "add_one"}}, **parts}


@pytest.mark.parametrize(
    "patch",
    [
        {"clip": "ppo_min"}, {"clip.kind": "ppo_min"}, {"clip": {"kind": "ppo_dual", "c": 2.0}},
        {"clip": {"high": 0.3}}, {"filter": {"kind": "refill", "metric": "correct"}},
        {"model": "tiny"}, {"task": "search"}, {"length.rule.soft_start": 3}, {"auxiliary": {"value": None}},
        {"baseline": {"kind": "critic_gae", "policy_lambda.value": 0.9}}, {"clip.low": 1.5},
        {"reward.functions.a": "m.f"}, {"reward.functions.a.weight": 0.5}, {"reward.functions": {"a": {"path": "m.f"}}},
        {"reward": {"functions.a.weight": 1.0}}, {"reward": {"kind": "function", "path": "m.f", "weight": 2.0}},
    ],
)  # fmt: skip
def test_short_forms_fit(patch: dict[str, Any]) -> None:
    """Dotted paths, nested mappings and bare levels are all in the schema."""
    assert fits(study(tricks={"a": patch}), SCHEMA)


@pytest.mark.parametrize(
    "wrong",
    [
        study(questoin="x"), study(tricks={"a": {"clip.hihg": 1.0}}), study(tricks={"a": {"clip": "ppomin"}}),
        study(tricks={"a": {"clip": {"kind": "none", "high": 1.0}}}), study(base={"preset": "grpp"}),
        study(designs={"d": {"kind": "grid", "over": {"clop": (1,)}}}), study(tricks={"a": {"schedule.steps": "x"}}),
        {"study": "s", "base": {"preset": "grpo"}}, {"study": "s", "base": {"set": {}}, "designs": {}},
        study(seeds={"n": "${SEEDS"}), study(study="no/name"), {"include": 3},
        study(tricks={"a": {"reward.functions.a.weigth": 1.0}}), study(tricks={"a": {"reward": {"kind": "verdict"}}}),
    ],
)  # fmt: skip
def test_mistakes_do_not_fit(wrong: dict[str, Any]) -> None:
    """Unknown keys, levels and presets are marked while they are typed."""
    assert not fits(wrong, SCHEMA)


@pytest.mark.parametrize(
    "parts",
    [
        {"include": "base.yaml"}, {"include": "base.yaml", "study": "s", "base": {"set": {"clip.high": 0.3}}},
        study(seeds={"n": "${SEEDS:-3}", "paired": "${PAIRED}"}), study(study="run-${NUMBER}"),
        study(base={"preset": "${PRESET}", "set": {"clip": {"high": "${HIGH:-0.28}"}, "kl": "${KL}"}}),
        study(designs={"d": {"kind": "grid", "over": {"clip.high": (0.2, "${HIGH}")}}}),
    ],
)  # fmt: skip
def test_included_files_and_variables_fit(parts: dict[str, Any]) -> None:
    """An editor can't know what they bring, so it marks nothing there."""
    assert fits(parts, SCHEMA)
