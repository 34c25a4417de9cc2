"""Shows a text exactly: what has no ink gets a mark, and nothing is read as HTML."""

from __future__ import annotations

import re
import unicodedata

from markupsafe import Markup, escape

_SPECIAL = re.compile(
    r"(?P<line>\r\n|\r|\n)|(?P<tab>\t+)|(?P<spaces>(?:^|(?<=\n)) +| +(?=$|[\r\n])| {2,})|(?P<other>[^ -~])"
)
_SHOWN = {"\r\n": "\u240d\u21b5", "\r": "\u240d", "\n": "\u21b5"}
_INKLESS = frozenset({"Cc", "Cf", "Cs", "Co", "Cn", "Zs", "Zl", "Zp"})


def visible(text: str) -> Markup:
    """Return the text as HTML: ends of lines, tabs and spaces that one cannot see get marks, and stay what they are.

    The marks are written by the style sheet, so that a copy of the shown text is the text. Characters without ink, and
    those that HTML cannot hold, are shown by their picture or their code, e.g. ``U+200B``.
    """
    found, end = list[Markup](), 0
    for match in _SPECIAL.finditer(text):
        shown = _special(match)
        if shown is not None:
            found += [escape(text[end : match.start()]), shown]
            end = match.end()
    return Markup("").join([*found, escape(text[end:])])


def _special(match: re.Match[str]) -> Markup | None:
    one = match.group()
    if match.lastgroup == "line":
        return Markup('<i data-mark="{}"></i>\n').format(_SHOWN[one])
    if match.lastgroup == "tab":
        return Markup('<i data-mark="{}">{}</i>').format("\u21e5" * len(one), one)
    if match.lastgroup == "spaces":
        return Markup('<i data-mark="{}">{}</i>').format("\u00b7" * len(one), one)
    if unicodedata.category(one) not in _INKLESS:
        return None
    return Markup('<b title="{}">{}</b>').format(_name(one), _picture(one))


def _name(one: str) -> str:
    return f"U+{ord(one):04X} {unicodedata.name(one, '').lower()}".rstrip()


def _picture(one: str) -> str:
    if ord(one) < 0x20:
        return chr(0x2400 + ord(one))
    return "\u2421" if one == "\x7f" else f"U+{ord(one):04X}"


def one_line(text: str, most: int) -> str:
    """Return the beginning of a text on one line, for a list: runs of space as one, ``\u2026`` where it goes on."""
    words = " ".join(text[: 4 * most].split())
    return words if len(words) <= most and len(text) <= 4 * most else words[: most - 1] + "\u2026"
