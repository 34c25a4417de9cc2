"""Where each figure and measured number of the documentation comes from: script, date and machine, in `measured.yaml`.

A digest says which content they belong to. `python docs/measured.py` gives what has changed since today's date and this machine;
a test finds what has changed without it, and what is not listed.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import yaml

DOCS = Path(__file__).resolve().parent
DATA = DOCS / "measured.yaml"
MARKER = re.compile(
    r"<!-- Written by `?(?!docs/generate)([^:`]*?)`?(?:\.| from what it (?:did|measured)[^>]*|: do not edit\.) -->"
)


def pieces() -> Iterator[str]:
    """Yield every piece that needs a line: pictures, pages that a script writes, and their sections."""
    yield from sorted(path.relative_to(DOCS).as_posix() for path in (DOCS / "images").iterdir())
    for page in sorted((DOCS / "reference").glob("*.md")):
        name = page.relative_to(DOCS).as_posix()
        found = MARKER.findall(page.read_text())
        yield from (name if "make " in script or "python " in script else f"{name}: {script}" for script in found)


def content(piece: str) -> bytes:
    """Return what a piece holds; ``page: script`` is the section that the script writes, ``page#words`` one under a heading.

    Raises:
        ValueError: the page has no such section.
    """
    page, script = piece.partition(": ")[::2]
    page, heading = page.partition("#")[::2]
    data = (DOCS / page).read_bytes()
    if script:
        begin = f"<!-- Written by {script}. -->".encode()
        data = data[data.index(begin) :]
        return data[: data.index(b"<!-- End of")]
    if heading:
        text = data.decode()
        found = re.search(rf"^#+ {re.escape(heading.replace('-', ' '))}$.*?(?=^## |\Z)", text, re.M | re.S | re.I)
        if found is None:
            raise ValueError(f"{page} has no section `{heading}`")
        return found[0].encode()
    return data


def digest(piece: str) -> str:
    """Return ten hexadecimal digits of a piece's content."""
    return hashlib.sha256(content(piece)).hexdigest()[:10]


def read() -> dict[str, dict[str, Any]]:
    """Return the lines by piece."""
    found: dict[str, dict[str, Any]] = yaml.safe_load(DATA.read_text())
    return found


def machine() -> str:
    """Return this machine in words: cores, and the processor's name."""
    names = re.findall(r"^model name\s*: (.*)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    return f"{os.cpu_count()} cores, {names[0] if names else 'unknown processor'}"


def page() -> str:
    """Return the page of the reference."""
    lines = [
        "# Where figures and numbers come from\n",
        "Every picture, and every table whose numbers were measured or simulated: what writes it, when it was last written, and on which machine. Other pages of",
        "the reference are written from the code by `make docs`, and have no date. A test holds each line to the content that it is about: who writes one of them",
        "anew runs `python docs/measured.py`. Dates up to 26 November 2026 were read from the history of git: the day on which the content was committed, perhaps",
        "a day after it was measured. The machine beside them is the one on which Paribus was developed, and was not noted at the time.\n",
        "| figure or table | written by | on | machine |",
        "|---|---|---|---|",
    ]
    for piece, line in read().items():
        target, _, section = piece.partition(": ")
        shown = f"{target.rpartition('/')[2]}{f' ({section})' if section else ''}"
        lines.append(f"| [{shown}](../{target}) | `{line['script']}` | {line['date']} | {line['machine']} |")
    return "\n".join(lines) + "\n"


def main() -> None:
    """Write today's date and this machine to the lines whose content has changed; a new piece needs its script by hand."""
    lines = read()
    for piece in pieces():
        lines.setdefault(piece, {"script": piece.partition(": ")[2] or "write here what makes it"})
    for piece, line in lines.items():
        if line.get("digest") != digest(piece):
            line |= {"date": datetime.now(UTC).date(), "machine": machine(), "digest": digest(piece)}
            print(f"{piece}: {line['date']}, {line['machine']}")
    DATA.write_text(yaml.safe_dump(lines, sort_keys=False, width=200))


if __name__ == "__main__":
    main()
