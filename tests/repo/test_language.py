"""The project is written in plain technical English."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = ("platform", "runners", "dashboards", "ablations", "benchmarks")
ENDINGS = (".py", ".html", ".j2", ".js", ".yaml")
FILES = sorted(
    [
        *(
            p
            for folder in FOLDERS
            for p in (ROOT / folder).rglob("*")
            if p.suffix in ENDINGS and "venv/" not in p.as_posix()
        ),
        *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "Makefile", "docs/architecture.md")),
    ]
)
IDIOMS = {
    r"(?<!\.)(?:tell|told)s?\b": "say: reports, says, prints, returns",
    r"anew\b": "say: again",
    r"(?:whoever|nobody|somebody)\b": "name the actor",
    r"com(?:e|es|ing) to (?:its|their|an) end": "say: ends",
    r"(?-i:(?<!there )(?:is|are) none\b(?! of))": "say what is missing",
    r"as far as (?:it|is) (?:is )?known": "say what is known",
    r"lamps?\b": "say: status",
    r"(?:cordon|slot-hour|lookout)\w*": "a private word: see docs/glossary.md",
}
"""Idioms that a native reader stumbles over, each with what to write."""


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(ROOT)))
def test_no_idiom_that_the_field_does_not_use(path):
    """Code and pages use the words of the field."""
    found = [
        f"{path.relative_to(ROOT)}:{number}: {match.group()!r}: {advice}"
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if "sa.Column(" not in line
        and "``lamp``" not in line
        and 'raw, "lamp"' not in line  # names in stored data stay
        for idiom, advice in IDIOMS.items()
        for match in re.finditer(rf"\b{idiom}", line, re.IGNORECASE)
    ]
    assert not found, "\n".join(found)
