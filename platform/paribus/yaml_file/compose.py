"""A YAML document made of several files and of values from the command line; every value keeps its place.

``include: base.yaml`` at the top of a file puts that file's values below its own: mappings are merged key by key, other
values are replaced, and a mapping with a ``kind`` of its own is replaced whole. Values of ``--set PATH=VALUE`` go last.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from paribus.errors import Problem, StudyFileError, did_you_mean
from paribus.yaml_file.document import Document, Entry, Mark, Node, parse_document, read_document, yaml_files
from paribus.yaml_file.messages import shown

INCLUDE = "include"
MAX_INCLUDES = 5
"""Most files in a row that include each other."""


def read_composed(
    path: Path,
    environment: Mapping[str, str] | None,
    literal: Collection[tuple[str, ...]] = (),
    dotted: Collection[tuple[str, ...]] = (),
) -> Document:
    """Return the document in a file with the values of the files that it includes, and of variables.

    Args:
        path: the file.
        environment: values of ``${NAME}``. ``None``: neither variables nor ``include`` are looked at; for a file that
            comes from another machine.
        literal: keys that lead to values in which ``${NAME}`` stays as it is.
        dotted: keys that lead to mappings in which ``a.b: 1`` is ``a: {b: 1}``; ``*`` stands for any key.

    Raises:
        StudyFileError: a file cannot be read, or not to its end as YAML, or files include each other in a circle.
    """
    if environment is None:
        return read_document(path)
    return _read(path, lambda file: read_document(file, environment, literal), dotted, ())


def _read(
    path: Path, reader: Callable[[Path], Document], dotted: Collection[tuple[str, ...]], above: tuple[Path, ...]
) -> Document:
    document = reader(path)
    if above:
        root = placed(document.root, lambda mark: replace(mark, file=str(path)))
        document = Document(document.file, root, _named(document.problems, str(path)))
    root = document.root
    if not isinstance(root.value, dict) or INCLUDE not in root.value:
        return document
    entry: Entry = root.value[INCLUDE]
    own = replace(root, value={key: each for key, each in root.value.items() if key != INCLUDE})
    try:
        named = _included(entry.node, path, (*above, path.resolve()), document.file)
        below = _read(named, reader, dotted, (*above, path.resolve()))
        if not isinstance(below.root.value, dict):
            problem = Problem(message=f"{named} holds no mapping, and so nothing to include")
            raise StudyFileError(document.file, [*below.problems, _at(entry.node.mark, problem)])
    except StudyFileError as error:  # what is wrong with this file is listed, too
        elsewhere = error.file if error.file != document.file else ""
        inside = (replace(each, file=each.file or elsewhere) for each in error.problems)
        raise StudyFileError(document.file, [*document.problems, *inside]) from error
    return Document(document.file, merged(below.root, own, dotted), (*below.problems, *document.problems))


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
        message = f"the files include each other in a circle: {chain}. Remove one `include`"
    elif len(above) > MAX_INCLUDES:
        message = f"more than {MAX_INCLUDES} files include each other in a row"
    elif not found.is_file():
        near = did_you_mean(found.name, [each.name for each in yaml_files(found.parent)])
        message = f"there is no file {found}{near and '.'}{near}"
    else:
        return found
    raise StudyFileError(file, [_at(node.mark, Problem(message=message, path=INCLUDE))])


def _at(mark: Mark, problem: Problem) -> Problem:
    return replace(problem, line=mark.line, column=mark.column, file=mark.file)


def _named(problems: Sequence[Problem], file: str) -> tuple[Problem, ...]:
    return tuple(replace(problem, file=file) for problem in problems)


def placed(node: Node, place: Callable[[Mark], Mark]) -> Node:
    """Return a value in which each place is replaced by another."""
    value = node.value
    if isinstance(value, dict):
        value = {key: Entry(place(entry.mark), placed(entry.node, place)) for key, entry in value.items()}
    elif isinstance(value, tuple):
        value = tuple(placed(item, place) for item in value)
    return replace(node, value=value, mark=place(node.mark))


def merged(below: Node, above: Node, dotted: Collection[tuple[str, ...]] = (), at: tuple[str, ...] = ()) -> Node:
    """Return a mapping with the values of two; where both have a value, the one ``above`` goes first.

    Args:
        below: a mapping.
        above: another.
        dotted: as in :func:`read_composed`.
        at: keys that lead to both.
    """
    if any(len(keys) == len(at) and all(k in ("*", key) for k, key in zip(keys, at, strict=True)) for keys in dotted):
        return _merged_paths(below, above)
    found: dict[str, Entry] = dict(below.value)
    for key, entry in above.value.items():
        old = found.get(key)
        both = old is not None and isinstance(old.node.value, dict) and isinstance(entry.node.value, dict)
        if old is not None and both and "kind" not in entry.node.value:
            found[key] = Entry(entry.mark, merged(old.node, entry.node, dotted, (*at, key)))
        else:
            found[key] = entry
    return replace(above, value=found)


def _merged_paths(below: Node, above: Node) -> Node:
    """Return a mapping with the values of two in which a path is one key with dots, or several nested ones."""
    leaves = list(_leaves(above, ()))
    if len({path for path, _ in leaves}) < len(leaves):  # one of them says a thing twice, which is reported
        return merged(below, above)
    node = replace(above, value=below.value)
    for path, entry in sorted(leaves, key=lambda leaf: not _has_kind(leaf[1].node)):
        node = _with_entry(node, path, entry)
    return node


def _leaves(node: Node, path: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], Entry]]:
    """Yield what a mapping sets, with its path: values, and mappings with a ``kind``, which are replaced whole."""
    for key, entry in node.value.items():
        inside = (*path, *key.split("."))
        if isinstance(entry.node.value, dict) and not _has_kind(entry.node):
            yield from _leaves(entry.node, inside)
        elif inside[-1] == "kind" and len(inside) > 1:
            yield inside[:-1], Entry(entry.mark, Node({"kind": entry}, entry.node.mark))
        else:
            yield inside, entry


def _has_kind(node: Node) -> bool:
    return isinstance(node.value, dict) and "kind" in node.value


# ---- values from the command line ----------------------------------------------------------------


def read_assignment(text: str) -> tuple[tuple[str, ...], Node]:
    """Return the path and the value of ``PATH=VALUE``; the value is read as YAML, and its place is ``--set``.

    Raises:
        StudyFileError: the text has another form, or its value is no YAML.
    """
    place = f"--set {text}"
    path, equals, value = text.partition("=")
    parts = tuple(path.strip().split("."))
    if not equals or not all(parts):
        raise StudyFileError(place, [Problem(message=f"`{text}` is not PATH=VALUE, such as clip.high=0.28")])
    if not value.strip():
        raise StudyFileError(place, [Problem(message="there is no value after `=`: write `null` for none")])
    try:
        document = parse_document(value, place)
        return parts, placed(document.checked(), lambda _: Mark(0, 0, place))
    except StudyFileError as error:  # line and column are those of the value: they'd lead nowhere
        raise StudyFileError(place, [replace(each, line=0, column=0) for each in error.problems]) from None


def with_value(node: Node, path: Sequence[str], value: Node) -> Node:
    """Return a mapping in which a path has another value, whether its keys are nested or dotted there.

    Args:
        node: a mapping.
        path: keys that lead to the value; those that are missing are added.
        value: the new value, with its place.

    Raises:
        StudyFileError: the path leads into a list.
    """
    if name := _list_on(node, path):
        problem = Problem(message=f"`{name}` is a list: set it as a whole, as in {name}=[...]")
        raise StudyFileError(value.mark.file, [problem])
    return _with_entry(node, path, Entry(value.mark, value))


def _list_on(node: Node, path: Sequence[str]) -> str:
    """Return the path of a list that a path leads into; empty if there is none."""
    for key, entry in node.value.items():
        parts = key.split(".")
        if len(parts) < len(path) and list(path[: len(parts)]) == parts:
            if isinstance(entry.node.value, tuple):
                return str(key)
            if isinstance(entry.node.value, dict) and (inside := _list_on(entry.node, path[len(parts) :])):
                return f"{key}.{inside}"
    return ""


def _with_entry(node: Node, path: Sequence[str], new: Entry) -> Node:
    """Return a mapping in which a path has the value of an entry; a text there may stand for the mapping."""
    entries: dict[str, Entry] = {}
    done = False
    for key, entry in node.value.items():
        parts = key.split(".")
        ahead, rest = list(path[: len(parts)]) == parts, path[len(parts) :]
        if parts[: len(path)] == list(path):  # the path itself, or what it replaces
            if not done:
                entries[".".join(path)] = new
            done = True
        elif ahead and not done and isinstance(entry.node.value, dict):
            entries[key] = Entry(entry.mark, _with_entry(entry.node, rest, new))
            done = True
        elif ahead and not done and isinstance(entry.node.value, str) and tuple(rest) in _SHORT:
            entries[key] = new
            done = True
        else:
            entries[key] = entry
    return replace(node, value=entries if done else {**entries, **_added(entries, path, new)})


_SHORT = {("kind",), ("name",)}
"""Last keys of a path that a text above them stands for, as `model: tiny` for `model.name`."""


def _added(entries: Mapping[str, Entry], path: Sequence[str], new: Entry) -> dict[str, Entry]:
    """Return the entry for a path that is not there: nested, as no section of a study has dotted keys but patches."""
    if path[0] in entries:  # a level without parameters, such as `scale: none`
        return {".".join(path): new}
    entry = new
    for key in reversed(path[1:]):
        entry = Entry(new.mark, Node({key: entry}, new.mark))
    return {path[0]: entry}
