"""Long lists as pages: what a page shows is bounded, links lead to the rest, and the number is in the address."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar
from urllib.parse import urlencode

from starlette.datastructures import QueryParams

from paribus_dashboards.choices import Link

T = TypeVar("T")

_DIGITS = 6  # of a page's number in an address


@dataclass(frozen=True, kw_only=True)
class Pager:
    """The place of a page in a list.

    Attributes:
        what: what is listed, e.g. ``arms``.
        first: number of the first shown entry, from 1.
        last: number of the last one.
        total: length of the list.
        pages: number of pages.
        before: address of the page before; empty on the first page.
        after: address of the next page; empty on the last page.
        links: the first page, those around this one, and the last page; a link without a text stands for a gap.
    """

    what: str
    first: int
    last: int
    total: int
    pages: int
    before: str
    after: str
    links: tuple[Link, ...]


def paged(
    found: Sequence[T], size: int, address: str, query: QueryParams, *, what: str, name: str = "page"
) -> tuple[Sequence[T], Pager]:
    """Return one page of a list, and its place. An unknown or too large number is the nearest page.

    Args:
        found: the list.
        size: entries of a page.
        address: address of the page without its query.
        query: query of the request; other parameters are kept.
        what: what is listed, in the plural.
        name: parameter that holds the number.
    """
    pages = max(1, -(-len(found) // size))
    asked = query.get(name, "")
    number = min(pages, max(1, int(asked))) if asked.isdecimal() and len(asked) <= _DIGITS else 1
    rest = [(k, v) for k, v in query.multi_items() if k != name and v]

    def to(n: int) -> str:
        text = urlencode(sorted([*rest, (name, str(n))] if n > 1 else rest))
        return f"{address}?{text}" if text else address

    near = sorted({n for n in (1, number - 1, number, number + 1, pages) if 1 <= n <= pages})
    links: list[Link] = []
    for before, n in zip([0, *near], near, strict=False):
        links += [Link(href="", text="")] if n > before + 1 else []
        links.append(Link(href=to(n), text=str(n), chosen=n == number))
    start = (number - 1) * size
    shown = found[start : start + size]
    return shown, Pager(
        what=what,
        first=start + 1 if shown else 0,
        last=start + len(shown),
        total=len(found),
        pages=pages,
        before=to(number - 1) if number > 1 else "",
        after=to(number + 1) if number < pages else "",
        links=tuple(links),
    )


def every_page(address: str, length: int, size: int, name: str = "page") -> list[str]:
    """Return the addresses of all pages of a list but the first, for an export."""
    return [f"{address}?{name}={n}" for n in range(2, -(-length // size) + 1)]
