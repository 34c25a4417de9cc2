"""A YAML document made of several files and of values from the command line; every value keeps its place.

``include: base.yaml`` at the top of a file puts that file's values below its own: mappings are merged key by key, other
values are replaced, and a mapping with a ``kind`` of its own is replaced whole. Values of ``--set PATH=VALUE`` go last.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from paribus.errors import Problem, StudyFileError
from paribus.yaml_file.document import Document, Entry, Mark, Node, parse_document, read_document
from paribus.yaml_file.messages import shown

INCLUDE = "include"
MAX_INCLUDES = 5
"""Most files in a row that include each other."""


def read_composed(
    path: Path, environment: Mapping[str, str] | None, literal: Collection[tuple[str, ...]] = ()
) -> Document:
    """Return the document in a file with the values of the files that it includes, and of variables.

    Args:
        path: the file.
        environment: values of ``${NAME}``. ``None``: neither variables nor ``include`` are looked at; for a file that
            comes from another machine.
        literal: keys that lead to values in which ``${NAME}`` stays as it is.

    Raises:
        StudyFileError: a file cannot be read, or not to its end as YAML, or files include each other in a circle.
    """
    if environment is None:
        return read_document(path)
    return _read(path, environment, literal, ())


def _read(
    path: Path, environment: Mapping[str, str], literal: Collection[tuple[str, ...]], above: tuple[Path, ...]
) -> Document:
    document = read_document(path, environment, literal)
    if above:
        document = Document(document.file, _placed(document.root, str(path)), _named(document.problems, str(path)))
    root = document.root
    if not isinstance(root.value, dict) or INCLUDE not in root.value:
        return document
    entry: Entry = root.value[INCLUDE]
    own = replace(root, value={key: each for key, each in root.value.items() if key != INCLUDE})
    named = _included(entry.node, path, (*above, path.resolve()), document.file)
    below = _read(named, environment, literal, (*above, path.resolve()))
    if not isinstance(below.root.value, dict):
        problem = Problem(message=f"{named} holds no mapping, and so nothing to include")
        raise StudyFileError(document.file, [_at(entry.node.mark, problem)])
    return Document(document.file, merged(below.root, own), (*below.problems, *document.problems))


def _included(node: Node, path: Path, above: Sequence[Path], file: str) -> Path:
    """Return the file that is included.

    Raises:
        StudyFileError: the value is no relative path of a file, or the files include each other.
    """
    name = node.value
    found = path.parent / name if isinstance(name, str) else path
    if not isinstance(name, str) or not name:
        message = f"expects the path of one YAML file, relative to this one, and {shown(name)} is not"
    elif Path(name).is_absolute():
        message = f"`{name}` is an absolute path: write it relative to this file, so that both can move together"
    elif found.resolve() in above:
        chain = " -> ".join(each.name for each in (*above, found))
        message = f"the files include each other in a circle: {chain}"
    elif len(above) > MAX_INCLUDES:
        message = f"more than {MAX_INCLUDES} files include each other in a row"
    elif not found.is_file():
        message = f"there is no file {found}"
    else:
        return found
    raise StudyFileError(file, [_at(node.mark, Problem(message=message, path=INCLUDE))])


def _at(mark: Mark, problem: Problem) -> Problem:
    return replace(problem, line=mark.line, column=mark.column, file=mark.file)


def _named(problems: Sequence[Problem], file: str) -> tuple[Problem, ...]:
    return tuple(replace(problem, file=file) for problem in problems)


def _placed(node: Node, file: str) -> Node:
    """Return a value whose places name their file."""
    mark = replace(node.mark, file=file)
    if isinstance(node.value, dict):
        entries = {
            key: Entry(replace(each.mark, file=file), _placed(each.node, file)) for key, each in node.value.items()
        }
        return replace(node, value=entries, mark=mark)
    if isinstance(node.value, tuple):
        return replace(node, value=tuple(_placed(item, file) for item in node.value), mark=mark)
    return replace(node, mark=mark)


def merged(below: Node, above: Node) -> Node:
    """Return a mapping with the values of two; where both have a value, the one ``above`` goes first."""
    found: dict[str, Entry] = dict(below.value)
    for key, entry in above.value.items():
        old = found.get(key)
        both = old is not None and isinstance(old.node.value, dict) and isinstance(entry.node.value, dict)
        if old is not None and both and "kind" not in entry.node.value:
            found[key] = Entry(entry.mark, merged(old.node, entry.node))
        else:
            found[key] = entry
    return replace(above, value=found)


# ---- values from the command line ----------------------------------------------------------------


def read_assignment(text: str, option: str = "--set") -> tuple[tuple[str, ...], Node]:
    """Return the path and the value of ``PATH=VALUE``; the value is read as YAML, and its place is the option.

    Raises:
        StudyFileError: the text has another form, or its value is no YAML.
    """
    place = f"{option} {text}"
    path, equals, value = text.partition("=")
    parts = tuple(path.strip().split("."))
    if not equals or not all(parts):
        raise StudyFileError(place, [Problem(message=f"`{text}` is not PATH=VALUE, such as clip.high=0.28")])
    if not value.strip():
        raise StudyFileError(place, [Problem(message="there is no value after `=`: write `null` for none")])
    try:
        document = parse_document(value, place)
        return parts, _option(document.checked(), place)
    except StudyFileError as error:  # line and column are those of the value: they'd lead nowhere
        raise StudyFileError(place, [replace(each, line=0, column=0) for each in error.problems]) from None


def _option(node: Node, place: str) -> Node:
    """Return a value whose place is an option of the command line."""
    mark = Mark(0, 0, place)
    if isinstance(node.value, dict):
        return replace(node, value={k: Entry(mark, _option(e.node, place)) for k, e in node.value.items()}, mark=mark)
    if isinstance(node.value, tuple):
        return replace(node, value=tuple(_option(item, place) for item in node.value), mark=mark)
    return replace(node, mark=mark)


def with_value(node: Node, path: Sequence[str], value: Node, shorthands: Collection[str] = ("kind", "name")) -> Node:
    """Return a mapping in which a path has another value, whether its keys are nested or dotted there.

    Args:
        node: a mapping.
        path: keys that lead to the value; those that are missing are added.
        value: the new value, with its place.
        shorthands: last keys of a path that a bare text above them stands for, as `model: tiny` for `model.name`.

    Raises:
        StudyFileError: the path leads into a value that has no keys.
    """
    entries: dict[str, Entry] = {}
    done = False
    for key, entry in node.value.items():
        parts = key.split(".")
        ahead, rest = tuple(path[: len(parts)]) == tuple(parts), path[len(parts) :]
        if tuple(parts[: len(path)]) == tuple(path):  # the path itself, or what it replaces
            if not done:
                entries[".".join(path)] = Entry(value.mark, value)
            done = True
        elif ahead and not done and isinstance(entry.node.value, dict):
            entries[key] = Entry(entry.mark, with_value(entry.node, rest, value, shorthands))
            done = True
        elif ahead and not done and isinstance(entry.node.value, str) and tuple(rest) in {(s,) for s in shorthands}:
            entries[key] = Entry(value.mark, value)
            done = True
        elif ahead and not done and isinstance(entry.node.value, tuple):
            problem = Problem(message=f"`{key}` is a list: set it as a whole, as in {key}=[...]")
            raise StudyFileError(value.mark.file, [problem])
        else:
            entries[key] = entry
    return replace(node, value=entries if done else {**entries, **_added(entries, path, value)})


def _added(entries: Mapping[str, Entry], path: Sequence[str], value: Node) -> dict[str, Entry]:
    """Return the entry for a path that is not there: nested, as no section of a study has dotted keys but patches."""
    if path[0] in entries:  # a level without parameters, such as `scale: none`
        return {".".join(path): Entry(value.mark, value)}
    node = value
    for key in reversed(path[1:]):
        node = Node({key: Entry(value.mark, node)}, value.mark)
    return {path[0]: Entry(value.mark, node)}
