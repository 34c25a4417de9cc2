"""What must fit: the leading table of a report beside its figure, and the words of a tile of the board."""

from dataclasses import replace

import pytest

from paribus.report.build import build_report
from paribus.report.render.html import to_html
from support.studies import Shape, made_up_study

LOST = (("+ clip_higher", 1, "failed"), ("+ token_level", 1, "stopped_early"), ("+ token_level", 2, "pending"))
OVER = "e => e.scrollWidth - e.clientWidth"
PUT = """(tile, words) => [...tile.children].filter(e => e.tagName === 'SPAN').forEach((e, i) => {
    e.textContent = words[i]
})"""


@pytest.mark.parametrize(
    ("lost", "noise", "script"), [((), 0.25, "//"), (LOST, 1.0, "//"), (LOST, 0.25, "//"), (LOST, 0.25, None)]
)
def test_the_leading_table_of_a_ladder_fits_beside_its_figure(lost, noise, script, chromium, tmp_path):
    """At 1,200 pixels its last column is in view, also with three decimals, a status of many words, or no figure."""
    shape = replace(Shape(), outcomes=lost, noise=noise, problems=200 if noise == 1 else 4000)
    file = tmp_path / "report.html"
    file.write_text(to_html(build_report(made_up_study(shape)), script))
    page = chromium.new_page(viewport={"width": 1200, "height": 900})
    page.goto(file.as_uri())
    assert page.eval_on_selector(".first .scroll", OVER) <= 0
    assert page.evaluate("document.documentElement.scrollWidth") <= 1200
    page.close()


@pytest.mark.parametrize("width", [1200, 390])
def test_a_tile_holds_its_words(width, look):
    """Also those of a critical run that was stopped after many steps; only the name of a finding may be cut."""
    page = look.open("/study/made-up")
    page.set_viewport_size({"width": width, "height": 900})
    page.locator(".tile").first.evaluate(
        PUT, ["■ clip saturation high", "stopped early", "0.0475", "1200/1200", "1,234 GPU-h"]
    )
    tiles = page.eval_on_selector_all(".tile", f"all => all.map({OVER})")
    assert len(tiles) > 1
    assert max(tiles) <= 0
