"""The source of reward functions: the files that a module and its imports come from, found without importing them."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from paribus.errors import ParibusError
from paribus.recipe.recipe import Recipe

MOST_BYTES = 1_000_000
"""Most bytes of one source file: a plan holds the files beside its study."""

MOST_PARTS = 100
"""Most parts of a dotted name: Python's parser joins those of an import again for each part, and a line of 800 kB
takes more memory than a machine has."""

_TOO_MANY_PARTS = re.compile(rf"(?:\.[\s\\]*\w+[\s\\]*){{{MOST_PARTS}}}")


@dataclass(frozen=True)
class Source:
    """A Python file.

    Attributes:
        path: its path from the folder that it was looked for in, with ``/``.
        text: its content.
    """

    path: str
    text: str


Find = Callable[[str], Source | None]
"""Takes the dotted name of a module and returns its file; ``None`` if it isn't there."""


def beside(folder: Path) -> Find:
    """Return a function that finds modules in a folder.

    Raises:
        ParibusError: a file is there, but cannot be read.
    """

    def find(module: str) -> Source | None:
        place = folder.joinpath(*module.split("."))
        for path in (place / "__init__.py", place.with_name(f"{place.name}.py")):
            try:
                there = path.is_file()
            except OSError:  # no file can have such a name
                continue
            if there:
                return Source(path.relative_to(folder).as_posix(), read(path))
        return None

    return find


def read(path: Path) -> str:
    """Return the text of a source file.

    Raises:
        ParibusError: it cannot be read as UTF-8, or is too large for one.
    """
    try:
        raw = path.read_bytes()
        if len(raw) > MOST_BYTES:
            raise ParibusError(f"{path} has {len(raw):,} bytes, more than {MOST_BYTES:,}: keep data out of the source")
        return raw.decode("utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise ParibusError(f"cannot read {path}: {error}") from error


def follow(modules: Iterable[str], find: Find) -> dict[str, str]:
    """Return the files of modules and of everything that they import, by path, as far as ``find`` finds them.

    A package comes with each module in it. A file that is no valid Python has no imports.
    """
    found: dict[str, str] = {}
    seen: set[str] = set()
    waiting = [name for module in modules for name in _with_packages(module)]
    while waiting:
        name = waiting.pop()
        if name in seen:
            continue
        seen.add(name)
        source = find(name)
        if source is not None and source.path not in found:
            found[source.path] = source.text
            package = name if source.path.endswith("__init__.py") else name.rpartition(".")[0]
            waiting += [part for other in imported(source.text, package) for part in _with_packages(other)]
    return dict(sorted(found.items()))


def _with_packages(module: str) -> list[str]:
    parts = module.split(".")
    return [".".join(parts[:k]) for k in range(1, len(parts) + 1)]


def parse(text: str) -> ast.Module:
    """Return the syntax tree of a Python file.

    Raises:
        SyntaxError: it is no valid Python, or takes more depth or memory than it may.
    """
    if found := _TOO_MANY_PARTS.search(text):
        line = text.count("\n", 0, found.start()) + 1
        raise SyntaxError(f"a name has more than {MOST_PARTS} parts", ("", line, None, None))
    try:
        return ast.parse(text)
    except (ValueError, RecursionError, MemoryError) as error:
        raise SyntaxError(str(error) or "it is too deep") from None


def not_python(path: str, error: BaseException) -> str:
    """Return that a file is no valid Python, and where, from what :func:`parse` raised."""
    line, column = getattr(error, "lineno", None) or 1, getattr(error, "offset", None)
    return f"{path}:{line}{f':{column}' if column else ''} is not valid Python: {getattr(error, 'msg', None) or error}"


def imported(text: str, package: str) -> Iterator[str]:
    """Yield the modules that a file may import, in any of its scopes; what is imported from one may be a module.

    Args:
        text: its content; one that is no valid Python has no imports.
        package: dotted name of the package that it lies in, where its relative imports begin.
    """
    try:
        tree = parse(text)
    except SyntaxError:
        return
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            parts = package.split(".") if package and node.level else []
            above = parts[: len(parts) - node.level + 1] if node.level else []
            base = ".".join([*above, *([node.module] if node.module else [])])
            if base:
                yield base
            yield from (f"{base}.{alias.name}" if base else alias.name for alias in node.names if alias.name != "*")


def beside_study(folder: Path, recipes: Iterable[Recipe]) -> dict[str, str]:
    """Return the files in the study's folder that the functions of its recipes come from, by path.

    Raises:
        ParibusError: one of them cannot be read.
    """
    paths = {function.path for recipe in recipes for function in recipe.functions}
    return follow(sorted({path.rpartition(".")[0] for path in paths}), beside(folder))
