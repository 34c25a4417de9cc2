"""Text that a model wrote, on one line and without a character that a reader would not see."""

from __future__ import annotations

import unicodedata

HEAD, TAIL = 240, 160
"""Characters of a longer text that are shown of its begin and of its end."""

MARKS = {"\n": "↵ ", "\r": "␍", "\t": "⇥", "`": "'"}

_INKLESS = frozenset({"Cc", "Cf", "Cs", "Co", "Cn", "Zs", "Zl", "Zp"})

_IGNORED = (
    (0x034F, 0x034F),
    (0x115F, 0x1160),
    (0x17B4, 0x17B5),
    (0x180B, 0x180F),
    (0x2800, 0x2800),
    (0x3164, 0x3164),
    (0xFE00, 0xFE0F),
    (0xFFA0, 0xFFA0),
    (0xE0100, 0xE01EF),
)
"""Characters of other categories without ink: joiners, fillers, variation selectors, the empty braille pattern."""

MOST_MARKS = 3
"""Combining marks in a row; further ones, which would cover the lines above, are shown as codes."""


def shown(text: str) -> str:
    """Return the text in quotation marks on one line, shortened in its middle, with codes for inkless characters.

    Line ends are ↵, tabs ⇥, two spaces or more are dots; every other control, format or zero-width character is its
    code, e.g. ⟨U+202E⟩. A backquote, which marks names in reports, is an apostrophe.
    """
    if len(text) <= HEAD + TAIL:
        return f"“{_line(text)}”"
    left = len(text) - HEAD - TAIL
    return f"“{_line(text[:HEAD])}” … {left} characters … “{_line(text[-TAIL:])}”"


def _line(text: str) -> str:
    found, marks, before = [], 0, ""
    for k, one in enumerate(text):
        marks = marks + 1 if unicodedata.category(one) in ("Mn", "Me") else 0
        after = text[k + 1 : k + 2]
        found.append(_one(one, alone=before != " " and after != " " and bool(before) and bool(after), marks=marks))
        before = one
    return "".join(found)


def _one(one: str, *, alone: bool, marks: int) -> str:
    if one == " ":
        return " " if alone else "·"
    if one in MARKS:
        return MARKS[one]
    code = ord(one)
    if unicodedata.category(one) in _INKLESS or marks > MOST_MARKS or any(a <= code <= b for a, b in _IGNORED):
        return f"⟨U+{code:04X}⟩"
    return one
