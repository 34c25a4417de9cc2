"""Every page, in light and dark: drawn without a word on the console, usable by everybody, from this server alone."""

import pytest
from playwright.sync_api import expect

BOARD = "/study/made-up"
PAGES = {
    "studies": "/",
    "board": BOARD,
    "verdicts": f"{BOARD}/health",
    "compare": f"{BOARD}/compare",
    "samples": f"{BOARD}/samples?set=train",
    "heatmap": f"{BOARD}/heatmap",
    "queue": f"{BOARD}/queue",
    "report": f"{BOARD}/report",
}
ASIDE = ("studies",)  # not in the navigation of a study


def test_the_navigation_leads_to_every_page(look):
    """The pages that are tried here are those that there are."""
    page = look.open(BOARD)
    links = page.eval_on_selector_all("header nav a", "all => all.map(a => a.getAttribute('href'))")
    assert links == [address.partition("?")[0] for name, address in PAGES.items() if name not in ASIDE]


FAULTS = """() => {
    const all = css => [...document.querySelectorAll(css)];
    const beyond = e => !e.closest('.scroll, svg, [hidden]') && e.getBoundingClientRect().right > innerWidth + 1;
    return [
        ...all('th:not([scope])').map(e => `a header without scope: ${e.innerText}`),
        ...all('.chart:not([aria-label])').map(e => `nothing is said of ${e.dataset.src}`),
        ...all('.chart:not([data-drawn]), .chart.failed').map(e => `not drawn: ${e.dataset.src}`),
        ...['h1', 'main', 'title'].filter(s => all(s).length !== 1).map(s => `not one ${s}`),
        ...all('body *').filter(beyond).slice(0, 3).map(e => `wider than the window: ${e.tagName} ${e.className}`),
    ];
}"""

NEXT = """() => {
    const next = document.querySelector('.chart:not([data-drawn])');
    next?.scrollIntoView();
    return !next;
}"""
"""Brings the next chart into view; true when all are drawn."""


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("name", PAGES)
def test_a_page_is_whole(look, accessible, picture, name, scheme):
    """It has a heading and landmarks, all its charts are drawn, and nothing of it is hard to see or to reach."""
    page = look.open(PAGES[name])
    page.wait_for_function("() => !document.querySelector('[data-again]')")  # what is made meanwhile is polled for
    picture(page, name if scheme == "light" else f"{name}-dark", keep=scheme == "light" or name == "board")
    page.wait_for_function(NEXT)
    assert page.evaluate(FAULTS) == []
    accessible(page)


@pytest.mark.parametrize("name", PAGES)
def test_a_page_fits_a_narrow_window(look, name):
    """At 500 pixels nothing but its own boxes has to be moved sideways."""
    look.page.set_viewport_size({"width": 500, "height": 900})
    page = look.open(PAGES[name])
    assert [f for f in page.evaluate(FAULTS) if "wider" in f] == []


def test_text_of_a_model_is_no_part_of_the_page(look):
    """What looks like HTML in a response is shown as it was written."""
    page = look.open(f"{BOARD}/samples?set=heldout")
    expect(page.locator(".group pre").last).to_contain_text("<b id=")
    assert page.locator("#said").count() == 0
