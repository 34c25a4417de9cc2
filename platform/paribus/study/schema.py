"""The JSON Schema of study files, with the short forms of patches, for completion in editors."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Annotated, Any

from pydantic import TypeAdapter
from pydantic.fields import FieldInfo

from paribus.contract import available
from paribus.published.tables import published_names
from paribus.recipe.presets import preset_names
from paribus.recipe.shape import Choice, Leaf, Named, Record, Shape, paths, recipe_shape
from paribus.study.spec import Study
from paribus.yaml_file.compose import INCLUDE

DIALECT = "https://json-schema.org/draft/2020-12/schema"
_PATCH = {"$ref": "#/$defs/Patch"}
_NAME = "[A-Za-z_][A-Za-z0-9_]*"


def study_schema() -> dict[str, Any]:
    """Return the schema: all keys of a study, and in patches every path of the recipe, dotted or nested."""
    schema = Study.model_json_schema()
    about = "a YAML file, relative to this one, whose values go below those of this file"
    schema["properties"][INCLUDE] = {"type": "string", "minLength": 1, "description": about}
    parts = schema["$defs"]
    for runner in available():
        section = {"type": "object", "description": f"settings that the runner `{runner.name}` passes through"}
        schema["properties"].setdefault(runner.name, section)
    parts["Patch"] = patch_schema()
    for owner in ("Base", "ListedArm", "PresetPath"):
        parts[owner]["properties"]["set"] |= _PATCH
        parts[owner]["properties"]["set"].pop("additionalProperties", None)
        parts[owner]["properties"]["set"].pop("type", None)
    parts["Base"]["properties"]["preset"] |= {"enum": list(preset_names())}
    parts["PresetPath"]["properties"]["to"] |= {"enum": list(preset_names())}
    parts["Report"]["properties"]["published"]["items"] |= {"enum": list(published_names())}
    _allow_sets_without_training(parts)
    tricks = schema["properties"]["tricks"]
    tricks["patternProperties"] = dict.fromkeys(tricks.get("patternProperties", {".*": {}}), _PATCH)
    tricks.pop("additionalProperties", None)
    tricks["additionalProperties"] = False
    every = _members(recipe_shape())
    for owner in ("Grid", "OneAtATime"):
        parts[owner]["properties"]["over"] |= _each(every, lambda item: {"type": "array", "minItems": 1, "items": item})
    parts["Search"]["properties"]["over"] |= _each(every, lambda _: {"$ref": "#/$defs/Range"})
    whole = {"required": schema.pop("required"), "properties": {"base": {"required": parts["Base"].pop("required")}}}
    schema["anyOf"] = [whole, {"required": [INCLUDE]}]  # what is missing may stand in the included file
    schema = _with_variables(schema)
    schema["$defs"]["Variable"] = {"type": "string", "pattern": r"\$\{.+\}", "description": "with a variable in it"}
    return {"$schema": DIALECT, **schema}


def _with_variables(schema: dict[str, Any]) -> dict[str, Any]:
    """Return a schema in which a text with a variable may stand for a number, a truth value, a name or a choice."""
    found = dict(schema)
    for part in ("properties", "patternProperties", "$defs"):
        if part in schema:
            found[part] = {key: _with_variables(inner) for key, inner in schema[part].items()}
    for part in ("items", "additionalProperties"):
        if isinstance(schema.get(part), dict):
            found[part] = _with_variables(schema[part])
    for part in ("anyOf", "oneOf"):
        if part in schema:
            found[part] = [_with_variables(inner) for inner in schema[part]]
    if schema.get("type") not in ("integer", "number", "boolean") and not {"enum", "pattern"} & schema.keys():
        return found
    about: dict[str, Any] = {key: found.pop(key) for key in ("title", "description", "default") if key in found}
    return {**about, "anyOf": [found, {"$ref": "#/$defs/Variable"}]}


def _allow_sets_without_training(parts: dict[str, Any]) -> None:
    """Let an evaluation set name a task, or describe one without ``train``, as the loader does."""
    task = parts["EvaluationSet"]["properties"]["task"]
    kinds, tasks = task["anyOf"][0]["discriminator"]["mapping"], []
    for kind, reference in kinds.items():
        part = parts[reference.rpartition("/")[2]]
        members = {key: member for key, member in part["properties"].items() if key != "train"}
        if kind == "dataset":
            members["heldout"] = {"anyOf": [members["heldout"], {"type": "string"}]}
        required = [key for key in part.get("required", ()) if key != "train"]
        tasks.append({**part, "properties": members, "required": required})
    parts["EvaluationSet"]["properties"]["task"] = {
        "description": task["description"],
        "anyOf": [{"enum": list(kinds)}, *tasks, {"type": "null"}],
        "default": None,
    }


def patch_schema() -> dict[str, Any]:
    """Return the schema of a patch of a recipe."""
    schema = {
        "type": "object",
        "description": "changes of the recipe: dotted paths or nested mappings to values",
        **_members(recipe_shape()),
    }
    reward = recipe_shape().fields["reward"]
    assert isinstance(reward, Record)
    functions = reward.fields["functions"]
    assert isinstance(functions, Named)
    of_one = _dotted(functions.item)  # beside `kind: function`
    alone = _mapping(reward, {"kind": {"const": "function"}})
    alone["properties"] |= of_one
    schema["properties"]["reward"] = {"anyOf": [schema["properties"]["reward"], alone]}
    return schema


def _each(members: dict[str, Any], change: Callable[[Any], Any]) -> dict[str, Any]:
    """Return members of a mapping, each with its schema changed."""
    kinds = ("properties", "patternProperties")
    changed = {kind: {k: change(v) for k, v in members[kind].items()} for kind in kinds if kind in members}
    return {**members, **changed}


def _members(record: Record) -> dict[str, Any]:
    """Return what a mapping that changes a record may hold: its paths, and those below names that a study chooses."""
    patterns = {}
    for path, shape in paths(record):
        if isinstance(shape, Named):
            prefix = rf"^{re.escape('.'.join(path))}\.{_NAME}"
            patterns[f"{prefix}$"] = _schema(shape.item)
            patterns |= {rf"{prefix}\.{inner}$": schema for inner, schema in _dotted(shape.item).items()}
    named = {"patternProperties": patterns} if patterns else {}
    return {"properties": _dotted(record), **named, "additionalProperties": False}


def _dotted(record: Record) -> dict[str, Any]:
    """Return every path below a record with its schema; what differs between levels is a choice."""
    found: dict[str, list[Any]] = {}
    for path, shape in paths(record):
        schemas = found.setdefault(".".join(path), [])
        if (schema := _schema(shape)) not in schemas:
            schemas.append(schema)
        if isinstance(shape, Choice):
            found[".".join((*path, "kind"))] = [{"enum": list(shape.levels)}]
    return {path: schemas[0] if len(schemas) == 1 else {"anyOf": schemas} for path, schemas in found.items()}


def _schema(shape: Shape) -> dict[str, Any]:
    if isinstance(shape, Leaf):
        return _leaf(shape.field)
    if isinstance(shape, Named):
        names = {"patternProperties": {f"^{_NAME}$": _schema(shape.item)}, "additionalProperties": False}
        return {"type": "object", **names}
    if isinstance(shape, Choice):
        with_kind = [_mapping(level, {"kind": {"const": kind}}) for kind, level in shape.levels.items()]
        without_kind = [_mapping(level, {}) for level in shape.levels.values() if level.fields]
        return {"anyOf": [{"enum": list(shape.levels)}, *with_kind, *without_kind]}
    forms = [_mapping(shape, {})]
    if shape.shorthand is not None:
        forms.append({"type": "string"})
    if shape.optional:
        forms.append({"type": "null"})
    return forms[0] if len(forms) == 1 else {"anyOf": forms}


def _mapping(record: Record, extra: dict[str, Any]) -> dict[str, Any]:
    members = _members(record)
    return {"type": "object", **members, "properties": {**extra, **members["properties"]}, "required": list(extra)}


def _leaf(field: FieldInfo) -> dict[str, Any]:
    annotated: Any = field.annotation
    for rule in field.metadata:
        annotated = Annotated[annotated, rule]
    schema = TypeAdapter(annotated).json_schema()
    if field.description:
        schema["description"] = field.description
    return schema
