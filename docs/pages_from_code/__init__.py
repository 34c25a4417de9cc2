"""Pages that docs/generate.py writes from the code, a module for each subject.

Here is what they share. No page is kept here, and none is written: their functions return texts.
"""

from __future__ import annotations

import inspect
from pathlib import Path

REFERENCE = Path(__file__).parents[1] / "reference"


def first_paragraph(thing: object) -> str:
    """Return the first paragraph of a docstring on one line."""
    return " ".join((inspect.getdoc(thing) or "").split("\n\n")[0].split()).replace("``", "`")


def cell(text: str) -> str:
    """Return text that is safe inside a Markdown table."""
    return text.replace("|", "\\|")
