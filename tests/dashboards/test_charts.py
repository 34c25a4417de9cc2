"""Charts of arms: what pointing lists, which arms stand out, recorded values, paper; lists, chips, new charts."""

import json
import re
import subprocess
import sys
import time

import pytest
from playwright.sync_api import expect

from paribus.run_folder.folder import MetricLine, RunFolder
from paribus.store.store import Store
from support.plans import small_plan

BOARD = "/study/made-up"


def point(look, chart, across=0.5, down=0.4):
    """Point at a place of the plot of a chart; return its list."""
    page = look.page
    chart.scroll_into_view_if_needed()
    expect(chart).to_have_attribute("data-drawn", "yes")
    box = chart.locator(".nsewdrag").first.bounding_box()
    page.mouse.move(box["x"] + box["width"] * across - 3, box["y"] + box["height"] * down)
    page.mouse.move(box["x"] + box["width"] * across, box["y"] + box["height"] * down)
    tip = chart.locator(".tip")
    expect(tip).to_be_visible()
    return tip


def listed(tip):
    """Return labels and values of a list."""
    rows = tip.locator("div").all()
    return [(r.locator("span").nth(1).inner_text(), float(r.locator("b").inner_text())) for r in rows]


@pytest.mark.parametrize("path", [BOARD, f"{BOARD}/compare", f"{BOARD}/health"])
def test_pointing_at_a_chart_lists_its_arms_by_value(look, path):
    """Each arm once, with its mean at this step, the largest first; the nearest line is bold, others fade."""
    page = look.open(path)
    chart = page.locator(".chart").first
    tip = point(look, chart)
    found = listed(tip)
    legend = page.locator(".legend").first.locator("> button[aria-pressed=true]")
    assert len(found) == legend.count() == len({name for name, _ in found})
    assert [value for _, value in found] == sorted((value for _, value in found), reverse=True)
    expect(tip).to_contain_text("training steps 40")
    (near,) = tip.locator(".near").all()
    assert chart.locator(".trace:not(.faded)").count() < chart.locator(".trace").count()
    assert near.inner_text()
    page.mouse.move(2, 2)
    expect(tip).to_be_hidden()
    expect(chart.locator(".trace.faded")).to_have_count(0)


def test_the_board_shows_the_best_arms_and_others_when_pointed_at(look):
    """An arm that is not among the first is drawn while its row is pointed at, and for good if it is chosen."""
    page = look.open(BOARD)
    chart, legend = page.locator(".chart").first, page.locator(".legend").first
    expect(legend.locator("> button")).to_have_count(6)
    expect(page.locator("[data-note]")).to_contain_text("the base and the 5 best others of 8 arms")
    visible = """() => [...new Set(document.querySelector('.chart')._fullData.filter(t => t.visible === true && t.meta)
        .map(t => t.name))]"""
    assert len(page.evaluate(visible)) == 6
    rest = legend.locator("details button").first.get_attribute("data-arm")
    page.locator(f"tr[data-arm='{rest}'] th").hover()
    page.wait_for_function(f"arm => ({visible})().includes(arm)", arg=rest)
    expect(chart.locator(".trace.faded").first).to_be_attached()
    page.mouse.move(2, 2)
    page.wait_for_function(f"arm => !({visible})().includes(arm)", arg=rest)
    legend.locator("summary").click()
    legend.locator("details button").first.click()
    page.mouse.move(2, 2)
    page.wait_for_function(f"() => ({visible})().length === 7")
    expect(legend.locator("details button").first).to_have_attribute("aria-pressed", "true")


@pytest.mark.parametrize("path", [f"{BOARD}/compare", f"{BOARD}/health"])
def test_recorded_values_are_one_click_away(look, path):
    """The switch is in the address: a reload keeps it, Back undoes it; scores have nothing to switch."""
    page = look.open(path)
    second = page.locator(".chart[data-raw]").first
    second.scroll_into_view_if_needed()
    expect(second).to_have_attribute("data-drawn", "yes")
    values = "() => JSON.stringify(document.querySelector('.chart[data-raw]').data.map(t => t.y))"
    smooth = page.evaluate(values)
    box = page.locator("input[data-raw-switch]")
    with page.expect_response(re.compile("raw=yes")):
        box.check()
    page.wait_for_function(f"before => ({values})() !== before", arg=smooth)
    assert look.query() == "?raw=yes"
    page.reload()
    second.scroll_into_view_if_needed()
    expect(box).to_be_checked()
    there = "before => Boolean(document.querySelector('.chart[data-raw]')?.data)"
    page.wait_for_function(f"before => ({there})() && ({values})() !== before", arg=smooth)
    page.go_back()
    expect(box).not_to_be_checked()
    page.wait_for_function(f"before => ({there})() && ({values})() === before", arg=smooth)
    assert page.locator(".chart:not([data-raw])").count() >= 1


def test_a_choice_of_arms_keeps_recorded_values(look):
    """The form of the page sends the switch along."""
    page = look.open(f"{BOARD}/compare?raw=yes")
    page.locator("input[name=arm]").last.click()
    page.wait_for_url("**arm=*")
    assert "raw=yes" in look.query()
    expect(page.locator("input[data-raw-switch]")).to_be_checked()


def test_the_health_of_a_study_is_on_one_screen(look, picture):
    """The table and all small charts, without scrolling, at 1440 by 900."""
    look.page.set_viewport_size({"width": 1440, "height": 900})
    page = look.open(f"{BOARD}/health")
    page.wait_for_function("() => !document.querySelector('.chart:not([data-drawn])')")
    assert page.locator(".chart").count() == 7
    assert page.evaluate("() => document.documentElement.scrollHeight") <= 900


ROWS = """() => {
    const tops = new Map();
    for (const f of document.querySelectorAll('.curves .grid > figure')) {
        const top = Math.round(f.getBoundingClientRect().top);
        const parts = [f.querySelector('figcaption'), f.querySelector('.chart')];
        const at = parts.map(e => Math.round(e.getBoundingClientRect().top));
        tops.set(top, [...(tops.get(top) || []), at.join()]);
    }
    return [...tops.values()].map(row => new Set(row).size);
}"""
"""How many different heights the titles and plots of each row have."""


def test_titles_and_plots_of_a_row_stand_at_the_same_heights(look):
    """Whatever is above one of them: limits, or a legend of two lines."""
    page = look.open(BOARD)
    look.open(page.locator("a.tile.critical").first.get_attribute("href"))
    page.wait_for_function(
        "() => { const c = document.querySelector('.chart:not([data-drawn])'); c?.scrollIntoView(); return !c }"
    )
    rows = page.evaluate(ROWS)
    assert len(rows) > 2
    assert set(rows) == {1}


def test_a_run_begins_with_its_findings_and_curves(look):
    """What was found, and the first row of curves, are on the first screen; the list of all detectors is folded."""
    look.page.set_viewport_size({"width": 1440, "height": 900})
    page = look.open(BOARD)
    look.open(page.locator("a.tile.critical").first.get_attribute("href"))
    expect(page.locator(".finding").first).to_be_in_viewport()
    box = page.locator(".chart").first.bounding_box()
    assert box["y"] + box["height"] <= 900
    expect(page.locator("details.detectors")).not_to_have_attribute("open", "")


def test_paper_has_two_columns_of_charts(look):
    """While a page is printed its charts have the width of half a page, and then that of the window again."""
    page = look.open(f"{BOARD}/compare")
    wide = page.locator(".chart .main-svg").first.bounding_box()["width"]
    page.evaluate("dispatchEvent(new Event('beforeprint'))")
    column, paper = (page.locator(css).first.bounding_box()["width"] for css in (".chart .main-svg", "main"))
    assert 0.4 * paper < column < 0.5 * paper
    assert column == pytest.approx(page.locator(".chart").first.bounding_box()["width"], abs=1)
    first, second = (page.locator(".grid > figure").nth(i).bounding_box() for i in (0, 1))
    assert first["y"] == second["y"]
    assert first["x"] + first["width"] <= second["x"]
    page.evaluate("dispatchEvent(new Event('afterprint'))")
    page.wait_for_function(
        "wide => Math.abs(document.querySelector('.chart .main-svg').getBoundingClientRect().width - wide) < 2",
        arg=wide,
    )


def test_a_page_is_printed_with_all_its_charts(look):
    """Charts that were never in view are drawn first; a menu that prints at once leaves a line in their place.

    Scrolling requests a chart again while its first answer is on its way: printing waits for the newest.
    """
    page = look.open(f"{BOARD}/compare")
    page.emulate_media(media="print")
    last = page.locator(".chart").last
    expect(last).not_to_have_attribute("data-drawn", "yes")
    assert "Scroll to it" in last.evaluate("chart => getComputedStyle(chart, '::before').content")
    page.emulate_media(media="screen")
    page = look.open(
        f"{BOARD}/compare"
    )  # anew: on paper the page is shorter, so that a slow machine may have drawn more
    last = page.locator(".chart").last
    expect(last).not_to_have_attribute("data-drawn", "yes")
    page.evaluate("window.print = () => { window.left = document.querySelectorAll('.chart:not([data-drawn])').length }")
    asked, source = [], last.get_attribute("data-src")
    page.route(lambda url: url.endswith(source), lambda route: asked.append(route))
    with page.expect_request(lambda request: request.url.endswith(source)):
        page.keyboard.press("Control+p")
    with page.expect_request(lambda request: request.url.endswith(source)):
        last.scroll_into_view_if_needed()
    for route in asked:
        with page.expect_request_finished(lambda request: request.url.endswith(source)):
            route.continue_()
    page.wait_for_function("() => 'left' in window")
    assert page.evaluate("window.left") == 0


def test_the_navigation_of_a_phone_is_one_row_with_the_current_page_in_view(look):
    """It scrolls sideways instead of taking a second row."""
    look.page.set_viewport_size({"width": 390, "height": 844})
    page = look.open(f"{BOARD}/report")
    heights = page.eval_on_selector_all("header nav a", "all => all.map(a => a.getBoundingClientRect().top)")
    assert len(set(heights)) == 1
    expect(page.locator("header nav a[aria-current]")).to_be_in_viewport()


def test_the_list_of_studies_says_how_far_they_are_and_what_is_best(look):
    """Status, best score with its arm, runs done, and the date."""
    page = look.open("/")
    page.wait_for_function("() => !document.querySelector('[data-again]')")
    row = page.locator("table.studies tbody tr")
    expect(row).to_contain_text("running, 1 failed")
    expect(row).to_contain_text("29 of 32")
    expect(row).to_contain_text(re.compile(r"0\.6\d+"))
    expect(row).to_contain_text(re.compile(r"\d{4}-\d{2}-\d{2} \d{2}:\d{2} UTC"))


@pytest.fixture
def begun(tmp_path):
    """A home with one run that is live and has recorded nothing; return it and what appends lines to the run."""
    home = tmp_path / "home"
    with Store.open(home) as store:
        study = store.add_study(small_plan("begun", arms=2, seeds=1, steps=100))
        claim = store.claim(study.id, engine="local", worker="here")
        store.start(claim.run_id, claim.token)
    folder = RunFolder.of(home, claim.fingerprint, claim.token)
    folder.path.mkdir(parents=True)

    def append(first, last, **values):
        now = time.time()
        for step in range(first, last + 1):
            named = {name.replace("__", "/"): value for name, value in values.items()}
            folder.append_metrics(MetricLine(step=step, time_ms=int(1000 * (now - last + step)), values=named))

    return home, claim.fingerprint[:12], append


def test_chips_say_how_fast_a_run_goes_and_when_it_is_done(begun, serve, watch, accessible):
    """They count by themselves between the polls, and are gone when the run has ended."""
    home, run, append = begun
    append(0, 20, reward__mean=0.5)
    look = watch(serve(home))
    page = look.open(f"/study/begun/health?run={run}")
    chips = page.locator("p.facts")
    expect(chips).to_contain_text("1 step/s")
    expect(chips).to_contain_text(re.compile(r"ETA (\d\d? s|1 min)"))
    age = chips.locator("[data-since]")
    expect(age).to_have_text(re.compile(r"last line \d+ s ago"))
    before = age.inner_text()
    page.wait_for_function("before => document.querySelector('[data-since]').textContent !== before", arg=before)
    accessible(page)
    with Store.open(home) as store:
        (claimed,) = [r for r in store.runs_of(1) if r.token]
        store.finish(claimed.id, claimed.token, {"status": "succeeded"})
    expect(age).to_have_count(0)
    expect(chips).not_to_contain_text("ETA")


@pytest.mark.parametrize("path", ["health", "health?run=", "compare"])
def test_an_open_page_gets_the_charts_that_come_later(begun, serve, watch, path):
    """Opened before the first line, it draws a chart with the first metric and another one with the next."""
    home, run, append = begun
    look = watch(serve(home))
    page = look.open(f"/study/begun/{path}{run if path.endswith('=') else ''}")
    expect(page.locator(".none-yet")).to_be_visible()
    page.evaluate("window.never = 'reloaded'")
    append(0, 5, reward__correct_frac=0.5, reward__mean=0.5)
    expect(page.locator(".curves .chart[data-drawn]")).to_have_count(1)
    expect(page.locator(".none-yet")).to_be_hidden()
    page.evaluate("document.querySelector('.curves .chart').before = true")
    append(6, 9, reward__correct_frac=0.5, reward__mean=0.5, policy__entropy=0.4)
    expect(page.locator(".curves .chart[data-drawn]")).to_have_count(2)
    assert page.evaluate("document.querySelectorAll('.curves .chart')[0].before")
    assert page.evaluate("window.never") == "reloaded"


def test_a_file_has_a_legend_and_recorded_values(home, tmp_path, watch_file):
    """The page of comparisons offline: arms are switched off, pointed at, and shown as recorded."""
    file = tmp_path / "all.html"
    command = [sys.executable, "-m", "paribus", "dashboard", "--home", home, "--study", "made-up", "--export", file]
    done = subprocess.run([*map(str, command)], capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    look = watch_file(file, offline=True)
    page = look.open(f"#{BOARD}/compare")
    shown = page.locator(".page:not([hidden])")
    assert shown.locator(".legend").first.locator("button").count() == 6
    chart = shown.locator(".chart[data-raw]").first
    found = listed(point(look, chart))
    assert len(found) == 6
    shown.locator(".legend button").first.click()
    page.wait_for_function(
        "() => document.querySelector('.page:not([hidden]) .chart[data-raw]').data.some(t => t.visible === false)"
    )
    values = "() => JSON.stringify(document.querySelector('.page:not([hidden]) .chart[data-raw]').data.map(t => t.y))"
    smooth = page.evaluate(values)
    shown.locator("input[data-raw-switch]").check()
    page.wait_for_function(f"before => ({values})() !== before", arg=smooth)
    assert page.evaluate("location.hash").endswith("?raw=yes")
    assert json.loads(smooth)
