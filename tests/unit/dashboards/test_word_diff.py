"""Differences of texts, and texts as HTML."""

from __future__ import annotations

import html
import re
import unicodedata

from hypothesis import given, settings
from hypothesis import strategies as st

from paribus_dashboards.format import one_line
from paribus_dashboards.samples.visible_text import visible
from paribus_dashboards.samples.word_diff import _script, difference

WORDS = st.lists(st.sampled_from(["a", "b", "cat", " ", "\n", "."]), max_size=14).map("".join)


@settings(max_examples=150, deadline=None)
@given(before=st.one_of(WORDS, st.text(max_size=12)), after=st.one_of(WORDS, st.text(max_size=12)))
def test_parts_make_both_texts(before: str, after: str) -> None:
    """What is not new is the earlier text, what is not gone the later one; equal texts share everything."""
    found = difference(before, after)
    assert "".join(p.text for p in found.parts if p.kind != "new") == before
    assert "".join(p.text for p in found.parts if p.kind != "gone") == after
    assert (found.shared == 1.0) == (before == after)


@settings(max_examples=150, deadline=None)
@given(one=st.text("ab", max_size=9), two=st.text("ab", max_size=9))
def test_script_is_shortest(one: str, two: str) -> None:
    """No script has fewer edits: as many as the longest common subsequence leaves over."""
    longest = [[0] * (len(two) + 1) for _ in range(len(one) + 1)]
    for i, a in enumerate(one):
        for j, b in enumerate(two):
            longest[i + 1][j + 1] = longest[i][j] + 1 if a == b else max(longest[i][j + 1], longest[i + 1][j])
    script = _script(one, two)
    assert script is not None
    assert sum(kind != "same" for kind, _ in script) == len(one) + len(two) - 2 * longest[-1][-1]


def test_texts_without_anything_in_common_are_not_aligned() -> None:
    """Long texts that differ throughout come back as gone and new, with their common ends, and say so."""
    found = difference("start " + "a b " * 3000 + "end", "start " + "c d " * 3000 + "end")
    assert found.whole
    assert [p.kind for p in found.parts] == ["same", "gone", "new", "same"]


@settings(max_examples=150, deadline=None)
@given(text=st.text(st.characters(), max_size=20))
def test_shown_text_is_the_text(text: str) -> None:
    """Without its marks the HTML is the text, but for ends of lines and characters without ink, and can be sent."""
    shown = str(visible(text))
    shown.encode()
    plain = html.unescape(re.sub(r"<b [^>]*>[^<]*</b>|</?i[^>]*>", "", shown))
    inkless = {"Cc", "Cf", "Cs", "Co", "Cn", "Zs", "Zl", "Zp"}
    kept = [c for c in re.sub("\r\n?", "\n", text) if c in " \n\t" or unicodedata.category(c) not in inkless]
    assert plain == "".join(kept)


def test_marks_name_what_cannot_be_seen() -> None:
    """Spaces at the ends, tabs, ends of lines, control and zero-width characters are marked, and HTML stays text."""
    shown = str(visible(" a  b\t\x1b\u200b\r\n<i>"))
    assert shown == (
        '<i data-mark="·"> </i>a<i data-mark="··">  </i>b<i data-mark="⇥">\t</i>'
        '<b title="U+001B">␛</b><b title="U+200B zero width space">U+200B</b><i data-mark="␍↵"></i>\n&lt;i&gt;'
    )


def test_long_prompts_are_cut_for_the_list() -> None:
    """A prompt is one line of at most so many characters, and shows that it goes on."""
    assert one_line("a\n b", 10) == "a b"
    assert one_line("x" * 50, 10) == "x" * 9 + "…"
    assert one_line("a" + " " * 100 + "b", 10).endswith("…")
