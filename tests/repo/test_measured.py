"""Each figure and measured table of the documentation has a line with script, date and machine, of its own content."""

import importlib.util
import re
from datetime import date
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SPEC = importlib.util.spec_from_file_location("measured", ROOT / "docs" / "measured.py")
measured = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(measured)
LINES = measured.read()


def test_every_picture_and_every_page_of_a_script_is_listed():
    """None is without a line, and every page of the reference is written by something that its first lines name."""
    pieces = set(measured.pieces())
    assert len(pieces) > 25
    assert pieces <= set(LINES), "run `python docs/measured.py`"
    for page in (ROOT / "docs" / "reference").glob("*.md"):
        assert "<!-- Written by " in page.read_text()[:300], page


@pytest.mark.parametrize("piece", LINES)
def test_a_line_is_of_the_content_that_it_names(piece):
    """Script and date are right in form, the script is there, and what has changed since has a new date."""
    line = LINES[piece]
    assert isinstance(line["date"], date)
    assert re.match(r"\d+ cores?, \S", line["machine"])
    for path in re.findall(r"\S+\.py", line["script"]):
        assert (ROOT / path).is_file()
    for target in re.findall(r"^make (?:-C benchmarks )?(?=[a-z])([a-z-]+)", line["script"]):
        makefile = ROOT / ("benchmarks" if "-C" in line["script"] else "") / "Makefile"
        assert re.search(rf"^{target}:", makefile.read_text(), re.MULTILINE), target
    assert line["digest"] == measured.digest(piece), f"{piece} has changed: run `python docs/measured.py && make docs`"
