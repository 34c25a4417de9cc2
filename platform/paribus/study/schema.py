"""The JSON Schema of study files, with the short forms of patches, for completion in editors."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import TypeAdapter
from pydantic.fields import FieldInfo

from paribus.contract import available
from paribus.recipe.presets import preset_names
from paribus.recipe.shape import Choice, Leaf, Record, Shape, paths, recipe_shape
from paribus.study.published import published_names
from paribus.study.spec import Study

DIALECT = "https://json-schema.org/draft/2020-12/schema"
_PATCH = {"$ref": "#/$defs/Patch"}


def study_schema() -> dict[str, Any]:
    """Return the schema: all keys of a study, and in patches every path of the recipe, dotted or nested."""
    schema = Study.model_json_schema()
    parts = schema["$defs"]
    for runner in available():
        section = {"type": "object", "description": f"settings that the runner `{runner.name}` passes through"}
        schema["properties"].setdefault(runner.name, section)
    parts["Patch"] = patch_schema()
    for owner in ("Base", "ListedArm"):
        parts[owner]["properties"]["set"] |= _PATCH
        parts[owner]["properties"]["set"].pop("additionalProperties", None)
        parts[owner]["properties"]["set"].pop("type", None)
    parts["Base"]["properties"]["preset"] |= {"enum": list(preset_names())}
    parts["Report"]["properties"]["published"]["items"] |= {"enum": list(published_names())}
    tricks = schema["properties"]["tricks"]
    tricks["patternProperties"] = dict.fromkeys(tricks.get("patternProperties", {".*": {}}), _PATCH)
    tricks.pop("additionalProperties", None)
    tricks["additionalProperties"] = False
    values = {path: {"type": "array", "minItems": 1, "items": item} for path, item in _dotted(recipe_shape()).items()}
    for owner in ("Grid", "OneAtATime"):
        parts[owner]["properties"]["over"] |= {"properties": values, "additionalProperties": False}
    ranges = {path: {"$ref": "#/$defs/Range"} for path in values}
    parts["Search"]["properties"]["over"] |= {"properties": ranges, "additionalProperties": False}
    return {"$schema": DIALECT, **schema}


def patch_schema() -> dict[str, Any]:
    """Return the schema of a patch of a recipe."""
    return {
        "type": "object",
        "description": "changes of the recipe: dotted paths or nested mappings to values",
        "properties": _dotted(recipe_shape()),
        "additionalProperties": False,
    }


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
    return {
        "type": "object",
        "properties": {**extra, **_dotted(record)},
        "required": list(extra),
        "additionalProperties": False,
    }


def _leaf(field: FieldInfo) -> dict[str, Any]:
    annotated: Any = field.annotation
    for rule in field.metadata:
        annotated = Annotated[annotated, rule]
    schema = TypeAdapter(annotated).json_schema()
    if field.description:
        schema["description"] = field.description
    return schema
