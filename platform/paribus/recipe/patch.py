"""Patches: what a trick changes in a recipe. Pure, on plain values; mistakes are returned, not raised.

A patch maps dotted paths or nested mappings, equal in meaning, to values. For a factor with levels, a text or a mapping
with ``kind`` puts that level with its defaults in place of the current one; a path to a parameter, or a mapping without
``kind``, changes the current level, which must have that parameter. The order of keys has no meaning.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from paribus.errors import did_you_mean
from paribus.recipe.shape import Choice, Leaf, Named, Record, Shape, paths, recipe_shape
from paribus.recipe.trainer_names import translate, translate_level
from paribus.yaml_file.messages import number_or, shown


@dataclass(frozen=True, kw_only=True)
class Setting:
    """One value that a patch sets.

    Attributes:
        path: where in the recipe; ends with ``kind`` where a level is chosen.
        value: the new value.
        source: the keys inside the patch, as written, that lead to the value.
        short: the last key of ``path`` was left out: a bare text stands for a mapping.
    """

    path: tuple[str, ...]
    value: Any
    source: tuple[str, ...]
    short: bool = False


@dataclass(frozen=True, kw_only=True)
class PatchFault:
    """One mistake in a patch.

    Attributes:
        source: the keys inside the patch, as written, that lead to it.
        message: what is wrong and what is allowed.
        at_key: the key is wrong, not its value.
        lacking: path of a parameter that the level lacks which the recipe has there; empty for all other mistakes.
    """

    source: tuple[str, ...]
    message: str
    at_key: bool = True
    lacking: tuple[str, ...] = ()


@dataclass(frozen=True)
class Patched:
    """What became of a patch: the new values, the settings that were applied, and the mistakes."""

    values: dict[str, Any]
    settings: tuple[Setting, ...]
    faults: tuple[PatchFault, ...]


def apply(raw: Mapping[str, Any], patch: Mapping[str, Any]) -> Patched:
    """Apply a patch to the plain values of a recipe.

    Args:
        raw: all values of a recipe, e.g. of ``Recipe().model_dump()``; not changed.
        patch: as written in a study file.
    """
    settings, faults = read_patch(patch)
    values = _copy(raw)
    applied: list[Setting] = []
    for setting in settings:
        message = _place(values, setting)
        if message:
            faults.append(PatchFault(source=setting.source, message=message, lacking=setting.path))
        else:
            applied.append(setting)
    return Patched(values, tuple(applied), tuple(faults))


def _copy(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return new mappings with the same values; the values themselves are never changed."""
    return {key: _copy(value) if isinstance(value, Mapping) else value for key, value in values.items()}


def read_patch(patch: Mapping[str, Any]) -> tuple[list[Setting], list[PatchFault]]:
    """Return what a patch sets, levels before their parameters, and the mistakes that need no recipe to be seen."""
    faults: list[PatchFault] = []
    found = list(_walk(recipe_shape(), (), patch, (), faults))
    settings: dict[tuple[str, ...], Setting] = {}
    for setting in found:
        if setting.path in settings:
            first = ".".join(settings[setting.path].source)
            message = f"sets the same value as `{first}`: keep one"
            faults.append(PatchFault(source=setting.source, message=message))
        else:
            settings[setting.path] = setting
    return sorted(settings.values(), key=lambda s: (len(s.path), s.path[-1] != "kind", s.path)), faults


def with_numbers(path: str, value: Any) -> Any:
    """Return a value for a path, with a number for text such as ``1e-4`` if the path takes one."""
    target = _follow(recipe_shape(), (), path.split("."))
    return number_or(value) if not isinstance(target, str) and _is_numeric(target[0]) else value


def _is_numeric(shape: Shape) -> bool:
    return isinstance(shape, Leaf) and shape.numeric


def _walk(
    shape: Shape, path: tuple[str, ...], value: Any, source: tuple[str, ...], faults: list[PatchFault]
) -> Iterator[Setting]:
    """Yield the settings in ``value``, which is meant for ``shape`` at ``path``."""
    if isinstance(shape, Leaf):
        yield Setting(path=path, value=number_or(value) if shape.numeric else value, source=source)
    elif isinstance(value, Mapping) and path == ("reward",) and "kind" in value:
        yield from _walk_functions(shape, value, path, source, faults)
    elif isinstance(value, Mapping):
        yield from _walk_mapping(shape, value, path, source, faults)
    elif isinstance(shape, Named):
        message = f"expects names, each with a mapping of some of: {_names(shape.item.fields)}"
        faults.append(PatchFault(source=source, message=message, at_key=False))
    elif isinstance(shape, Choice):
        message = _unknown_level(shape, path, value)
        if message:
            faults.append(PatchFault(source=source, message=message, at_key=False))
        else:
            yield Setting(path=(*path, "kind"), value=value, source=source)
    elif shape.shorthand is not None and isinstance(value, str):
        yield Setting(path=(*path, shape.shorthand), value=value, source=source, short=True)
    elif shape.optional and value is None:
        yield Setting(path=path, value=None, source=source)
    else:
        message = f"expects a mapping with some of: {_names(shape.fields)}"
        faults.append(PatchFault(source=source, message=message, at_key=False))


def _walk_functions(
    shape: Shape, value: Mapping[str, Any], path: tuple[str, ...], source: tuple[str, ...], faults: list[PatchFault]
) -> Iterator[Setting]:
    """Yield the settings of ``reward: {kind: function, ...}``: functions are the whole reward, the verdict has no part.

    ``path`` and the other parameters of a function beside ``kind`` are those of a single one, named as in its path.
    """
    assert isinstance(shape, Record)
    named = shape.fields["functions"]
    assert isinstance(named, Named)
    if value["kind"] != "function":
        message = f"{shown(value['kind'])} is not allowed. Allowed: `function`; without `kind`, the verdict counts."
        faults.append(PatchFault(source=(*source, "kind"), message=message, at_key=False))
        return
    if not any(key.split(".")[0] == "weights" for key in value):
        for part in ("correct", "format"):
            yield Setting(path=(*path, "weights", part), value=0.0, source=(*source, "kind"))
    yield Setting(path=(*path, "functions"), value={}, source=(*source, "kind"))  # those set before are no part of it
    own = {key: inner for key, inner in value.items() if key in named.item.fields}
    rest = {key: inner for key, inner in value.items() if key not in own and key != "kind"}
    if own or "functions" not in {key.split(".")[0] for key in rest}:
        name = str(own.get("path", "function")).rpartition(".")[2]
        if "path" not in own:
            faults.append(PatchFault(source=(*source, "kind"), message="needs `path`: `module.function`", at_key=False))
        yield from _walk_mapping(named.item, own, (*path, "functions", name), source, faults)
    yield from _walk_mapping(shape, rest, path, source, faults)


def _walk_mapping(
    shape: Record | Choice | Named,
    value: Mapping[str, Any],
    path: tuple[str, ...],
    source: tuple[str, ...],
    faults: list[PatchFault],
) -> Iterator[Setting]:
    if isinstance(shape, Choice) and "kind" in value:
        message = _unknown_level(shape, path, value["kind"])
        if message:  # what the parameters would belong to is not known
            faults.append(PatchFault(source=(*source, "kind"), message=message, at_key=False))
            return
    for key, inner in value.items():
        names = tuple(key.split("."))
        target = _follow(shape, path, names)
        if isinstance(target, str) and (known := translate(key, inner)):
            faults += [PatchFault(source=(*source, key, *inside), message=message) for inside, message in known]
        elif isinstance(target, str):
            faults.append(PatchFault(source=(*source, key), message=target))
        elif names[-1] == "kind" and isinstance(inner, Mapping):
            message = "expects the name of a level, and this is a mapping"
            faults.append(PatchFault(source=(*source, key), message=message, at_key=False))
        else:
            yield from _walk(*target, inner, (*source, key), faults)


def _follow(shape: Shape, path: tuple[str, ...], names: Sequence[str]) -> tuple[Shape, tuple[str, ...]] | str:
    """Return the shape and the path that a dotted key leads to, or what is wrong with the key.

    A final ``kind`` leads to the choice itself: ``clip.kind: ppo_min`` is ``clip: ppo_min``.
    """
    for place, name in enumerate(names):
        here = ".".join(path)
        if isinstance(shape, Leaf):
            return f"`{here}` is a single value and has no part `{name}`"
        if isinstance(shape, Choice):
            if name == "kind" and place == len(names) - 1:
                return shape, path
            kinds = shape.having(name)
            known = _parameters(shape)
            if not kinds:
                return f"no level of `{here}` has a parameter `{name}`.{_known(name, [*known, 'kind'])}"
            shape = known[name]
        elif isinstance(shape, Named):
            shape = shape.item
        elif name in shape.fields:
            shape = shape.fields[name]
        elif not path:
            return f"a recipe has no part `{name}`.{_known_path(names, shape)}"
        else:
            return f"`{here}` has no part `{name}`.{_known(name, shape.fields)}"
        path = (*path, name)
    return shape, path


def _parameters(choice: Choice) -> dict[str, Shape]:
    """Return the parameters of all levels; where they differ, the mapping, of which a text is the short form."""
    found: dict[str, Shape] = {}
    for level in choice.levels.values():
        found |= {n: shape for n, shape in level.fields.items() if not isinstance(found.get(n), Record)}
    return found


def _place(values: dict[str, Any], setting: Setting) -> str:
    """Put one setting into the values; return what is wrong with it, or an empty text."""
    shape: Shape = recipe_shape()
    node = values
    for depth, name in enumerate(setting.path):
        if isinstance(shape, Choice):
            if name == "kind":
                node.clear()
                break
            kind = node.setdefault("kind", shape.default)
            if name not in shape.levels[kind].fields:
                return _missing_parameter(shape, kind, setting.path[:depth], name)
            shape = shape.levels[kind]
        assert isinstance(shape, Record | Named)
        shape = shape.item if isinstance(shape, Named) else shape.fields[name]
        if depth < len(setting.path) - 1:
            if isinstance(shape, Leaf):  # a mapping at another level of the same choice
                if not setting.short:
                    here = ".".join(setting.path[: depth + 1])
                    return f"`{here}` is a single value here and has no part `{setting.path[depth + 1]}`"
                node[name] = setting.value
                return ""
            if node.get(name) is None:
                node[name] = {}
            node = node[name]
    node[setting.path[-1]] = _copy(setting.value) if isinstance(setting.value, Mapping) else setting.value
    return ""


def _unknown_level(choice: Choice, path: tuple[str, ...], value: object) -> str:
    """Return what is wrong with the name of a level, or an empty text."""
    here = ".".join(path)
    if isinstance(value, str):
        if value in choice.levels:
            return ""
        return translate_level(here, value) or f"`{here}` has no level `{value}`.{_known(value, choice.levels)}"
    empty = {"off", "none"} & set(choice.levels) if value is False or value is None else set()
    remedy = f" Write {_names(empty)}." if empty else ""
    return f"`{here}` expects the name of a level. Allowed: {_names(choice.levels)}.{remedy}"


def _missing_parameter(choice: Choice, kind: str, path: tuple[str, ...], name: str) -> str:
    own = choice.levels[kind].fields
    has = f"its parameters are {_names(own)}" if own else "it has none"
    return (
        f"the level `{kind}` of `{'.'.join(path)}` has no parameter `{name}` ({has}). "
        f"Levels that have it: {_names(choice.having(name))}.{did_you_mean(name, own)}"
    )


def _known_path(names: Sequence[str], shape: Record) -> str:
    """Return the nearest full path, or the nearest part of a recipe."""
    every = [".".join(path) for path, _ in paths(shape)]
    return did_you_mean(".".join(names), every) or _known(names[0], shape.fields)


def _known(name: str, allowed: Collection[str]) -> str:
    return f"{did_you_mean(name, allowed)} Allowed: {_names(allowed)}."


def _names(names: Collection[str]) -> str:
    return ", ".join(f"`{n}`" for n in names)
