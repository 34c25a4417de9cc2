"""The commands of a shell script as lists of words: read, never run.

Variables and arrays that the script sets are put in, with ``${NAME:-default}`` and sums such as ``$((1024 * 2))``.
Others stay as ``${NAME}``. Conditions and loops are passed over: the last assignment counts.
"""

from __future__ import annotations

import ast
import operator
import re
from collections.abc import Callable, Iterator, Mapping

from paribus.errors import ParibusError

ASSIGNED = re.compile(r"([A-Za-z_]\w*)=(.*)", re.DOTALL)
SUMS: Mapping[type[ast.operator], Callable[[int, int], int]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.floordiv,
    ast.Mod: operator.mod,
}
MOST_PUT = 1_000_000
"""Most characters that all variables of a script stand for."""

BRANCHES = ("then", "else", "do")
BEFORE = ("export", "local", "declare", "readonly")


def commands(text: str, place: str) -> Iterator[list[str]]:
    """Yield the commands of a script, the assignments among them put into those that follow.

    Raises:
        ParibusError: a quote or a bracket is not closed.
    """
    reader = _Reader(text.replace("\\\n", " "), place)
    while (words := _next(reader)) is not None:
        while words and words[0] in BRANCHES:
            del words[0]
        assigned = words[1:] if words and words[0] in BEFORE else words
        if assigned and all(ASSIGNED.fullmatch(word) for word in assigned):
            for word in assigned:
                name, _, value = word.partition("=")
                reader.variables[name] = value
        elif words:
            yield words


def _next(reader: _Reader) -> list[str] | None:
    try:
        return reader.command()
    except RecursionError:
        raise ParibusError(f"{reader.place}: its `${{name:-...}}` stand too deep in each other") from None


class _Reader:
    """Reads a script from its beginning to its end.

    Args:
        text: the script, its continued lines joined.
        place: its name, for messages.
    """

    def __init__(self, text: str, place: str) -> None:
        self.variables: dict[str, str] = {}
        self.arrays: dict[str, list[str]] = {}
        self.place = place
        self._text, self._at, self._put = text, 0, 0

    def command(self) -> list[str] | None:
        """Return the words of the next command, without words for an array; ``None`` at the end."""
        words: list[str] = []
        while self._at < len(self._text):
            c = self._text[self._at]
            if c in " \t\r":
                self._at += 1
            elif c == "#":
                self._at = self._find("\n", or_end=True)
            elif c in "\n;&|()<>":
                self._at += 1
                if words and c not in "<>":
                    return words
            elif found := re.compile(r"([A-Za-z_]\w*)\+?=\(").match(self._text, self._at):
                self._at = found.end()
                more = self._array()
                kept = self.arrays.get(found[1], []) if "+=" in found[0] else []
                self.arrays[found[1]] = kept + more
            else:
                words += self._word()
        return words or None

    def _array(self) -> list[str]:
        found: list[str] = []
        while self._at < len(self._text) and self._text[self._at] != ")":
            c = self._text[self._at]
            if c.isspace() or c in ";&|(<>":
                self._at += 1
            elif c == "#":
                self._at = self._find("\n", or_end=True)
            else:
                found += self._word()
        if self._at >= len(self._text):
            raise ParibusError(f"{self.place}: a bracket `(` of an array is not closed")
        self._at += 1
        return found

    def _word(self) -> list[str]:
        """Return the next word: several where it is a whole array, none where it is `$@`."""
        if found := re.compile(r'"?\$(?:\{(\w+)\[[@*]\]\}|[@*])"?').match(self._text, self._at):
            self._at = found.end()
            array = self.arrays.get(found[1] or "", [])
            self._count(sum(len(word) + 1 for word in array))
            return list(array)
        done = ""
        while self._at < len(self._text) and (c := self._text[self._at]) not in " \t\r\n;&|()<>":
            if c == "'":
                end = self._find("'", self._at + 1)
                done += self._text[self._at + 1 : end]
                self._at = end + 1
            elif c == '"':
                self._at += 1
                done += self._quoted()
            else:
                done += self._expanded()
        return [done]

    def _quoted(self) -> str:
        done = ""
        while self._at < len(self._text):
            if self._text[self._at] == '"':
                self._at += 1
                return done
            done += self._expanded(quoted=True)
        raise ParibusError(f"{self.place}: a quote is not closed")

    def _expanded(self, *, quoted: bool = False) -> str:
        """Return the next character, or what a variable, a sum or an escaped character stands for."""
        text, at = self._text, self._at
        if text[at] == "\\" and at + 1 < len(text):
            self._at += 2
            return text[at + 1] if not quoted or text[at + 1] in '"\\$`' else text[at : at + 2]
        if text.startswith("$((", at) and (end := text.find("))", at)) >= 0:
            self._at = end + 2
            return self._sum(text[at + 3 : end], text[at : end + 2])
        if found := re.compile(r"\$\([^()]*\)|`[^`]*`").match(text, at):
            self._at = found.end()
            return found[0]
        if found := re.compile(r"\$(\w+)").match(text, at):
            self._at = found.end()
            return self._value(found[1], f"${{{found[1]}}}")
        if found := re.compile(r"\$\{(\w+)\}").match(text, at):
            self._at = found.end()
            return self._value(found[1], found[0])
        if found := re.compile(r"\$\{(\w+):?-").match(text, at):
            self._at = found.end()
            default = ""
            while self._at < len(text) and text[self._at] != "}":
                if text[self._at] == '"':
                    self._at += 1
                else:
                    default += self._expanded(quoted=quoted)
            self._at += 1
            return self._value(found[1], default)
        self._at += 1
        return text[at]

    def _sum(self, text: str, whole: str) -> str:
        inner = re.sub(r"\$?\{?([A-Za-z_]\w*)\}?", lambda m: self._value(m[1], m[0]), text)
        try:
            return str(_number(ast.parse(inner.strip(), mode="eval").body))
        except (SyntaxError, ValueError, ZeroDivisionError, RecursionError, MemoryError):
            return whole

    def _value(self, name: str, default: str) -> str:
        """Return what a variable stands for."""
        value = self.variables.get(name, default)
        self._count(len(value))
        return value

    def _count(self, characters: int) -> None:
        self._put += characters
        if self._put > MOST_PUT:  # a few lines such as `a=$a$a` would fill the memory
            raise ParibusError(f"{self.place}: its variables stand for more than {MOST_PUT:,} characters")

    def _find(self, mark: str, at: int | None = None, *, or_end: bool = False) -> int:
        end = self._text.find(mark, self._at if at is None else at)
        if end < 0 and not or_end:
            raise ParibusError(f"{self.place}: a quote is not closed")
        return end if end >= 0 else len(self._text)


def _number(node: ast.expr) -> int:
    """Return a sum of whole numbers.

    Raises:
        ValueError: it is something else.
    """
    if isinstance(node, ast.Constant) and isinstance(node.value, int):
        return node.value
    if isinstance(node, ast.BinOp) and type(node.op) in SUMS:
        return SUMS[type(node.op)](_number(node.left), _number(node.right))
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        return -_number(node.operand)
    raise ValueError
