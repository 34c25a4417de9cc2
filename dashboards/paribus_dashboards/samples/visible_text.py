"""Shows a text exactly: invisible characters get a mark, and nothing is read as HTML."""

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
    """Return the text as HTML, with marks for line ends, tabs and spaces that one would not see.

    The stylesheet writes the marks, so that copying the shown text gives the original text. Other characters without a
    visible glyph, and those that HTML cannot contain, appear as their symbol or their code, e.g. ``U+200B``.
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
