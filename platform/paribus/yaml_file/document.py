"""A YAML document as plain values that know their place, read without ever building an object.

Text is taken literally where YAML 1.1 guesses: only ``true`` and ``false`` are truth values, so that ``kl: off`` is the
name of a level; dates, ``040`` and ``1:30`` stay text. The document is built from parse events in one pass without
recursion, so that no nesting can exhaust the stack, and aliases cannot grow beyond a fixed size.
"""

from __future__ import annotations

import re
import stat
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from paribus.errors import Problem, StudyFileError, did_you_mean
from paribus.yaml_file.variables import ANY, has_variable, replace_variables

YAML_ENDINGS = (".yaml", ".yml")
"""How the names of YAML files end."""

MAX_BYTES = 1_000_000
MAX_DEPTH = 24
MAX_NODES = 50_000
MAX_PROBLEMS = 100

_INT = re.compile(r"[-+]?(?:0|[1-9][0-9_]*)$")
_FLOAT = re.compile(r"[-+]?(?:[0-9][0-9_]*\.[0-9_]*|\.[0-9][0-9_]*)(?:[eE][-+][0-9]+)?$|[-+]?\.(?:inf|nan)$", re.I)
_HALF = re.compile("[\ud800-\udfff]")
_BOOL = {"true": True, "True": True, "TRUE": True, "false": False, "False": False, "FALSE": False}
_NULL = frozenset({"", "~", "null", "Null", "NULL"})


@dataclass(frozen=True, slots=True)
class Mark:
    """A place in a file; line and column count from 1.

    ``file`` is empty in the file that was read first: it names an included file or an option of the command line.
    """

    line: int
    column: int
    file: str = ""


@dataclass(frozen=True, slots=True)
class Node:
    """A value with its place.

    Attributes:
        value: a scalar, a tuple of nodes, or a mapping of text to :class:`Entry`.
        mark: where the value begins.
        size: nodes in it, aliases expanded.
        depth: levels of nesting in it, aliases expanded.
    """

    value: Any
    mark: Mark
    size: int = 1
    depth: int = 0


@dataclass(frozen=True, slots=True)
class Entry:
    """One key of a mapping: the place of the key, and the value."""

    mark: Mark
    node: Node


@dataclass(frozen=True)
class Document:
    """A YAML document that could be read to its end.

    Attributes:
        file: its name in messages.
        root: its values; where a key stands twice, the first counts.
        problems: what is wrong all the same, such as keys that stand twice.
    """

    file: str
    root: Node
    problems: tuple[Problem, ...]

    def checked(self) -> Node:
        """Return the root.

        Raises:
            StudyFileError: the document has problems; all are listed.
        """
        if self.problems:
            raise StudyFileError(self.file, self.problems)
        return self.root


def read_document(
    path: Path, environment: Mapping[str, str] | None = None, literal: Collection[tuple[str, ...]] = ()
) -> Document:
    """Return the YAML document in a file.

    Args:
        path: the file.
        environment: values of ``${NAME}``; ``None`` leaves such text as it is.
        literal: keys that lead to values in which ``${NAME}`` stays as it is.

    Raises:
        StudyFileError: the file cannot be read, or not to its end as YAML; everything found is listed.
    """
    return parse_document(read_text(path), str(path), environment, literal)


def read_text(path: Path) -> str:
    """Return the text of a regular file of at most :data:`MAX_BYTES`.

    Raises:
        StudyFileError: it is no such file, cannot be read, or is not UTF-8.
    """
    file = str(path)
    try:
        status = path.stat()
        if stat.S_ISDIR(status.st_mode):
            raise StudyFileError(file, [Problem(message="this is a folder: name the YAML file in it")])
        if not stat.S_ISREG(status.st_mode):
            raise StudyFileError(file, [Problem(message="this is not a regular file")])
        if status.st_size > MAX_BYTES:
            message = f"the file has {status.st_size / 1e6:.1f} MB; at most {MAX_BYTES / 1e6:.0f} MB is read"
            raise StudyFileError(file, [Problem(message=message)])
        content = path.read_bytes()
    except OSError as error:
        beside = yaml_files(path.parent) if isinstance(error, FileNotFoundError) else ()
        near = did_you_mean(path.name, [each.name for each in beside])
        raise StudyFileError(
            file, [Problem(message=f"cannot be read: {error.strerror or error}{near and '.'}{near}")]
        ) from error
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        column = error.start - content.rfind(b"\n", 0, error.start)
        problem = Problem(message="this is not UTF-8 text: save the file as UTF-8", line=line, column=column)
        raise StudyFileError(file, [problem]) from error


def yaml_files(folder: Path) -> list[Path]:
    """Return the YAML files of a folder in alphabetical order, without hidden ones, which are temporary."""
    with suppress(OSError):
        return sorted(
            each
            for each in folder.iterdir()
            if each.suffix in YAML_ENDINGS and not each.name.startswith(".") and each.is_file()
        )
    return []


def parse_document(
    text: str, file: str, environment: Mapping[str, str] | None = None, literal: Collection[tuple[str, ...]] = ()
) -> Document:
    """Return the YAML document in a text; ``file`` names it in messages, the others are as in :func:`read_document`.

    Raises:
        StudyFileError: the text cannot be read to its end as one plain YAML document; everything found is listed.
    """
    builder = _Builder(environment, literal)
    try:
        builder.read(yaml.SafeLoader(text))
    except _Stop:
        raise StudyFileError(file, builder.problems) from None
    except yaml.MarkedYAMLError as error:
        place = error.problem_mark or error.context_mark
        mark = _mark(place) if place else Mark(0, 0)
        remedy = _variable_remedy(text, mark) or _yaml_remedy(error)
        problem = _problem(mark, f"not valid YAML: {error.problem or error.context}{remedy}")
        raise StudyFileError(file, [*builder.problems, problem]) from error
    except yaml.reader.ReaderError as error:
        before = text[: error.position]
        mark = Mark(before.count("\n") + 1, error.position - (before.rfind("\n") + 1) + 1)
        message = f"the character U+{error.character:04X} is not allowed in YAML: is this a text file?"
        raise StudyFileError(file, [*builder.problems, _problem(mark, message)]) from error
    if builder.root is None:
        raise StudyFileError(file, [*builder.problems, _problem(Mark(1, 1), "the file is empty")])
    return Document(file, builder.root, tuple(builder.problems))


def _yaml_remedy(error: yaml.MarkedYAMLError) -> str:
    """Return what to do about an error of the YAML parser whose own words don't say it; empty for others."""
    problem = str(error.problem)
    if "mapping values are not allowed" in problem:
        return (
            ": is it indented like the lines that it belongs to? Keys of one mapping begin in the same column, and a "
            "text with `: ` in it stands in quotes"
        )
    if "but found '<scalar>'" in problem:
        return ": text goes on behind a quote that ends it. Put the whole text into the other kind of quotes"
    if "expected <block end>" in problem:
        return ": is it indented like the lines that it belongs to? Keys of one mapping begin in the same column"
    if error.context_mark is not None and "while parsing a flow" in str(error.context):
        opened = _mark(error.context_mark)
        return f": what is opened in line {opened.line}, column {opened.column}, is not closed, or lacks a comma"
    return ": indent with spaces, not tabs" if "'\\t'" in problem else ""


def _variable_remedy(text: str, mark: Mark) -> str:
    """Return what to do where YAML stops at the brace of a variable; empty elsewhere."""
    line = next(iter(text.splitlines()[max(mark.line - 1, 0) :]), "")
    found = ANY.match(line, max(mark.column - 2, 0))
    return f': between braces and brackets, put a variable in double quotes: "{found[0]}"' if found else ""


def plain(node: Node) -> Any:
    """Return the value without places: scalars, tuples, dictionaries."""
    if isinstance(node.value, dict):
        return {key: plain(entry.node) for key, entry in node.value.items()}
    if isinstance(node.value, tuple):
        return tuple(plain(item) for item in node.value)
    return node.value


def locate(root: Node, path: Sequence[str | int], *, key: bool = False) -> Mark:
    """Return the place of the value at a path, or of its key; the nearest that exists where the path does not."""
    node, mark = root, root.mark
    for part in path:
        if isinstance(node.value, dict) and part in node.value:
            entry: Entry = node.value[part]
            node, mark = entry.node, entry.mark if key else entry.node.mark
        elif isinstance(node.value, tuple) and isinstance(part, int) and part < len(node.value):
            node = node.value[part]
            mark = node.mark
        elif node is not root:
            return mark
        else:
            return root.mark
    return mark


@dataclass(frozen=True, kw_only=True)
class Fault:
    """Something wrong in a file.

    Attributes:
        place: keys that lead to it in the file.
        message: what is wrong and what is allowed.
        at_key: the key is wrong, not its value.
    """

    place: tuple[str | int, ...]
    message: str
    at_key: bool = False

    def problem(self, root: Node | None) -> Problem:
        """Return the problem with line and column in the file's content; without them if there is no file."""
        mark = Mark(0, 0) if root is None else locate(root, self.place, key=self.at_key)
        path = ".".join(str(part + 1) if isinstance(part, int) else part for part in self.place)
        return Problem(message=self.message, path=path, line=mark.line, column=mark.column, file=mark.file)


class _Stop(Exception):
    """Nothing after this place can be understood."""


@dataclass
class _Open:
    """A mapping or a sequence that is being read."""

    mark: Mark
    anchor: str | None
    entries: dict[str, Entry] | None
    items: list[Node] = field(default_factory=list)
    key: Node | None = None
    size: int = 1
    depth: int = 0

    def close(self) -> Node:
        value = tuple(self.items) if self.entries is None else self.entries
        return Node(value, self.mark, self.size, self.depth + 1)


class _Builder:
    def __init__(self, environment: Mapping[str, str] | None, literal: Collection[tuple[str, ...]]) -> None:
        self._environment = environment
        self._literal = literal
        self.problems: list[Problem] = []
        self.root: Node | None = None
        self._stack: list[_Open] = []
        self._anchors: dict[str, Node] = {}
        self._nodes = 0

    def say(self, mark: Mark, message: str) -> None:
        self.problems.append(_problem(mark, message))
        if len(self.problems) >= MAX_PROBLEMS:
            raise _Stop

    def read(self, loader: yaml.SafeLoader) -> None:
        try:
            for event in _events(loader):
                self._take(event)
        finally:
            loader.dispose()

    def _take(self, event: yaml.Event) -> None:
        mark = _mark(event.start_mark)
        if isinstance(event, yaml.DocumentStartEvent) and self.root is not None:
            self._stop(mark, "a second document begins here: keep one in a file")
        if isinstance(event, yaml.NodeEvent):
            self._check(event, mark)
        if isinstance(event, yaml.ScalarEvent):
            self._add(self._scalar(event, mark), event.anchor)
        elif isinstance(event, yaml.AliasEvent):
            self._add(self._aliased(str(event.anchor), mark), None)
        elif isinstance(event, yaml.CollectionStartEvent):
            entries: dict[str, Entry] | None = {} if isinstance(event, yaml.MappingStartEvent) else None
            self._stack.append(_Open(mark, event.anchor, entries))
        elif isinstance(event, yaml.CollectionEndEvent):
            opened = self._stack.pop()
            self._add(opened.close(), opened.anchor)

    def _check(self, event: yaml.NodeEvent, mark: Mark) -> None:
        self._nodes += 1
        if self._nodes > MAX_NODES:
            self._stop(mark, f"more than {MAX_NODES:,} values: this is not a study file")
        if len(self._stack) > MAX_DEPTH:
            self._stop(mark, f"nested more than {MAX_DEPTH} levels deep")
        tag = getattr(event, "tag", None)
        if tag is not None:
            shown = str(tag).replace("tag:yaml.org,2002:", "!!")[:40]
            self.say(mark, f"tags such as `{shown}` are not used here: leave it out")

    def _scalar(self, event: yaml.ScalarEvent, mark: Mark) -> Node:
        if half := _HALF.search(event.value):  # no file, name or message can hold it
            self.say(mark, f"`\\u{ord(half[0]):04x}` is half of a character: write the character itself")
            return Node(_HALF.sub("\N{REPLACEMENT CHARACTER}", event.value), mark)
        if self._environment is not None and event.style != "'" and has_variable(event.value) and self._at_value():
            return Node(self._replaced(event, self._environment, mark), mark)
        return Node(event.value if event.style else self._resolve(event.value, mark), mark)

    def _at_value(self) -> bool:
        """Whether what is read now is a value, and none that is taken literally."""
        top = self._stack[-1] if self._stack else None
        if top is not None and top.entries is not None and top.key is None:
            return False
        return tuple(opened.key.value for opened in self._stack if opened.key is not None) not in self._literal

    def _replaced(
        self, event: yaml.ScalarEvent, environment: Mapping[str, str], mark: Mark
    ) -> str | int | float | bool | None:
        """Return a text with the values of its variables; without quotes it has the type that it then looks like.

        So has a single variable in double quotes: between braces YAML takes no ``${NAME}`` without them.
        """
        found, faults = replace_variables(event.value, environment)
        for fault in faults:
            self.say(mark, fault)
        return self._resolve(found, mark) if not event.style or ANY.fullmatch(event.value) else found

    def _resolve(self, text: str, mark: Mark) -> str | int | float | bool | None:
        if text in _BOOL:
            return _BOOL[text]
        if text in _NULL:
            return None
        try:
            if _INT.match(text):
                return int(text.replace("_", ""))
        except ValueError:
            self.say(mark, f"a number of {len(text)} digits is too long")
            return 0
        if _FLOAT.match(text):
            return float(text.replace("_", "").lower().replace(".inf", "inf").replace(".nan", "nan"))
        return text

    def _aliased(self, anchor: str, mark: Mark) -> Node:
        if any(opened.anchor == anchor for opened in self._stack):
            self._stop(mark, f"`*{anchor}` stands inside `&{anchor}`: the value would contain itself")
        if anchor not in self._anchors:
            self._stop(mark, f"there is no anchor `&{anchor}` before this place: write the value out")
        node = self._anchors[anchor]
        self._nodes += node.size
        if self._nodes > MAX_NODES:
            self._stop(mark, f"with its aliases expanded the file has more than {MAX_NODES:,} values")
        if len(self._stack) + node.depth > MAX_DEPTH:
            self._stop(mark, f"with its aliases expanded the file is nested more than {MAX_DEPTH} levels deep")
        return Node(node.value, mark, node.size, node.depth)

    def _add(self, node: Node, anchor: str | None) -> None:
        if anchor is not None:
            self._anchors[anchor] = node
        if not self._stack:
            self.root = node
            return
        top = self._stack[-1]
        top.size += node.size
        top.depth = max(top.depth, node.depth)
        if top.entries is None:
            top.items.append(node)
        elif top.key is None:
            top.key = node
        else:
            self._enter(top.entries, top.key, node)
            top.key = None

    def _enter(self, entries: dict[str, Entry], key: Node, node: Node) -> None:
        name = key.value
        if not isinstance(name, str):
            shown = "a list or mapping" if isinstance(name, (tuple, dict)) else f"`{_yaml_text(name)}`"
            self.say(key.mark, f"keys are text, and this one is {shown}: put it in quotes if it is a name")
        elif name == "<<":
            self.say(key.mark, "merge keys (`<<`) are not used here: write the values out")
        elif name in entries:
            self.say(key.mark, f"the key `{name}` appears twice, first on line {entries[name].mark.line}: keep one")
        else:
            entries[name] = Entry(key.mark, node)

    def _stop(self, mark: Mark, message: str) -> None:
        self.say(mark, message)
        raise _Stop


def _events(loader: yaml.SafeLoader) -> Iterator[yaml.Event]:
    while loader.check_event():
        yield loader.get_event()  # type: ignore[no-untyped-call]  # the stubs leave it untyped


def _problem(mark: Mark, message: str) -> Problem:
    return Problem(message=message, line=mark.line, column=mark.column)


def _mark(mark: Any) -> Mark:
    return Mark(mark.line + 1, mark.column + 1)


def _yaml_text(value: object) -> str:
    """Return a scalar as YAML writes it."""
    if value is None:
        return "null"
    return str(value).lower() if isinstance(value, bool) else str(value)
