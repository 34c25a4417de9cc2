"""Clicks, filters, zooms, deep links, reloads, Back and keys: whatever was chosen is in the address of the page."""

import re

import pytest
from playwright.sync_api import expect

BOARD = "/study/made-up"
CHART = ".chart[data-zoom]"
RANGE = "() => document.querySelector('.chart[data-zoom]').layout.xaxis.range"
ZOOMED = re.compile(r"[?&]first=([\d.]+)&last=([\d.]+)")
POINTS = "() => document.querySelector('.chart[data-zoom]').data.reduce((n, t) => n + t.x.length, 0)"


def zoom(look):
    """Drag over the middle third of the first chart; return what is in the address and on its axis then."""
    page = look.page
    page.locator(CHART).first.scroll_into_view_if_needed()
    page.wait_for_selector(f"{CHART}[data-drawn]")
    box = page.locator(f"{CHART} .nsewdrag").first.bounding_box()
    middle = box["y"] + box["height"] / 2
    with page.expect_response(ZOOMED):
        page.mouse.move(box["x"] + box["width"] / 3, middle)
        page.mouse.down()
        page.mouse.move(box["x"] + box["width"] * 2 / 3, middle, steps=4)
        page.mouse.up()
    first, last = map(float, ZOOMED.search(look.query()).groups())
    assert 0 < first < last < 80
    assert page.evaluate(RANGE) == pytest.approx([first, last], abs=1)
    return first, last


@pytest.mark.parametrize("path", [f"{BOARD}/compare", "run"])
def test_a_zoom_is_in_the_address(look, watch, server, path):
    """A drag zooms; a reload and a link show the same, and a double click goes back."""
    page = look.open(BOARD)
    path = page.locator("a.tile").first.get_attribute("href") if path == "run" else path
    page = look.open(path)
    first, last = zoom(look)
    page.reload()
    look.drawn()
    page.wait_for_function(POINTS)
    assert page.evaluate(RANGE) == [first, last]
    linked = watch(server)
    assert linked.open(page.url.removeprefix(server.origin)).evaluate(RANGE) == [first, last]
    page.locator(f"{CHART} .nsewdrag").first.dblclick()
    page.wait_for_function("() => !location.search.includes('first=')")


@pytest.mark.parametrize("path", [f"{BOARD}/compare", "run"])
def test_a_zoom_needs_no_mouse(look, path):
    """Two fields do what a drag does, follow it, and a button leads back; what a drag has zoomed, too."""
    page = look.open(BOARD)
    look.open(page.locator("a.tile").first.get_attribute("href") if path == "run" else path)
    page.locator(CHART).first.scroll_into_view_if_needed()
    page.wait_for_selector(f"{CHART}[data-drawn]")
    first, last = (page.locator(f"form[data-span] input[name={name}]") for name in ("first", "last"))
    whole, complaint = page.locator("form[data-span] button"), page.locator("form[data-span] [role=status]")
    every = page.evaluate(RANGE)
    expect(whole).to_be_hidden()
    first.focus()
    page.keyboard.type("20")
    last.click()  # it is that of the chart now, and what is typed takes its place
    page.wait_for_function("() => location.search.includes('first=20&last=')")
    page.keyboard.type("10")
    page.keyboard.press("Enter")
    expect(complaint).to_contain_text("must be smaller than the last")
    last.fill("40")
    page.keyboard.press("Enter")
    page.wait_for_function("() => location.search.endsWith('first=20&last=40')")
    page.wait_for_function(f"() => String(({RANGE})()) === '20,40'")
    expect(complaint).to_be_empty()
    page.reload()
    look.drawn()
    assert (first.input_value(), last.input_value(), page.evaluate(RANGE)) == ("20", "40", [20, 40])
    dragged = zoom(look)
    assert (float(first.input_value()), float(last.input_value())) == dragged
    page.wait_for_timeout(300)
    whole.press("Enter")
    expect(first).to_be_focused()
    expect(whole).to_be_hidden()
    assert "first=" not in look.query()
    page.wait_for_function(f"whole => String(({RANGE})()) === String(whole)", arg=every)


def test_a_chart_that_cannot_be_drawn_says_why(look):
    """An invalid zoom shows the server's message in place of the chart."""
    look.expected += ["404"]
    page = look.open(f"{BOARD}/compare?first=nan&last=5")
    expect(page.locator(".not-drawn").first).to_have_text(re.compile("Not drawn: first must be a number.*NaN"))
    assert page.locator(".chart").first.bounding_box()["height"] == 0


def test_a_filter_is_in_the_address(look):
    """A filter hides tiles at once, survives reload and deep link, stays while tiles are polled, and Back undoes it."""
    page = look.open(BOARD)
    shown = page.locator("a.tile:visible")
    every, well = shown.count(), page.locator("a.tile[data-status=ok]").count()
    both = page.locator("tr[data-arm*=token] a.tile[data-status=ok]").count()
    assert 0 < both < well < every
    page.select_option("select[name=status]", "ok")
    expect(shown).to_have_count(well)
    assert "status=ok" in look.query()
    with page.expect_response(re.compile("/tiles")):
        pass  # the next poll
    expect(shown).to_have_count(well)
    page.reload()
    expect(shown).to_have_count(well)
    page.locator("input[name=arm]").press_sequentially("token")
    expect(shown).to_have_count(both)
    page.go_back()  # over the word, not over its last letter
    expect(shown).to_have_count(well)
    expect(page.locator("input[name=arm]")).to_have_value("")
    look.open(f"{BOARD}?status=ok")
    expect(shown).to_have_count(well)
    page.select_option("select[name=status]", "")
    expect(shown).to_have_count(every)
    page.go_back()
    expect(shown).to_have_count(well)


def test_a_tile_leads_to_its_run_and_back(look, accessible, picture):
    """The sick run says what is wrong and since when, and Back returns to the same board."""
    page = look.open(f"{BOARD}?status=critical")
    sick = page.locator("a.tile:visible")
    expect(sick).to_have_count(1)
    sick.click()
    page.wait_for_url("**/health?run=*")
    expect(page.locator("h1")).to_contain_text("entropy")
    expect(page.locator("main")).to_contain_text(re.compile("since step [0-9]+"))
    picture(look.drawn(), "health")
    accessible(page)
    page.go_back()
    expect(sick).to_have_count(1)


def test_what_is_compared_is_in_the_address(look):
    """Arms, axis and form of the comparison are chosen in a form, and another axis keeps the arms."""
    page = look.open(f"{BOARD}/compare")
    page.locator("input[name=arm]").last.click()
    page.wait_for_url("**arm=*")
    look.drawn()
    before = page.eval_on_selector_all("input[name=arm]:checked", "all => all.map(a => a.value)")
    page.select_option("select[name=x]", "tokens")
    page.wait_for_url("**x=tokens*")
    look.drawn()
    assert page.eval_on_selector_all("input[name=arm]:checked", "all => all.map(a => a.value)") == before
    assert "token" in page.evaluate("() => document.querySelector('.chart').layout.xaxis.title.text")
    page.select_option("select[name=show]", "difference")
    page.wait_for_url("**show=difference*")
    look.drawn()
    page.go_back()
    page.wait_for_url("**x=tokens*")
    expect(page.locator("select[name=show]")).to_have_value("value")


def test_an_arm_is_switched_off_in_the_legend(look):
    """The legend is made of buttons that say whether the arm is shown."""
    page = look.open(BOARD)
    page.locator(".chart").first.scroll_into_view_if_needed()
    button = page.locator(".legend button").first
    button.click()
    expect(button).to_have_attribute("aria-pressed", "false")
    page.wait_for_function("() => document.querySelector('.chart').data.some(t => t.visible === false)")


def test_samples_are_walked_through(look):
    """Another step and another prompt are in the address, and a reload shows them again."""
    page = look.open(f"{BOARD}/samples")
    page.locator(".prompts a.entry").nth(1).click()
    page.wait_for_url("**problem=*")
    chosen = page.locator(".group h2").inner_text()
    page.locator("a[rel=prev], a[rel=next]").first.click()
    page.wait_for_url("**step=*")
    expect(page.locator(".group h2")).to_have_text(chosen)
    step = page.locator("output").inner_text()
    page.reload()
    expect(page.locator("output")).to_have_text(step)
    expect(page.locator(".group h2")).to_have_text(chosen)


def test_a_cell_of_the_map_leads_to_its_samples(look):
    """A click on the map, and a link of the table below it, lead to a prompt at a step."""
    page = look.open(f"{BOARD}/heatmap")
    page.locator("svg.heatmap").click(position={"x": 260, "y": 60})
    page.wait_for_url("**/samples?*problem=*")
    page.go_back()
    page.locator("details.numbers summary").click()
    page.locator(".heat-table th a").first.click()
    page.wait_for_url("**/samples?*problem=*")


def test_everything_is_reached_by_keys(look):
    """Digits, j, k, Enter, /, ? and Escape do what the list of keys says, and typed text is left alone."""
    page = look.open(BOARD)
    page.keyboard.press("j")
    page.keyboard.press("j")
    focused = "() => document.activeElement.getAttribute('href')"
    second = page.locator("main .entry").nth(1).get_attribute("href")
    assert page.evaluate(focused) == second
    with page.expect_response(re.compile("/tiles")):
        pass
    page.wait_for_timeout(100)
    assert page.evaluate(focused) == second, "a poll has taken the focus"
    page.keyboard.press("k")
    page.keyboard.press("/")
    assert page.evaluate("() => document.activeElement.tagName") in ("INPUT", "SELECT")
    page.locator("input[name=arm]").focus()
    page.keyboard.type("j2?")
    expect(page.locator("input[name=arm]")).to_have_value("j2?")
    page.evaluate("document.activeElement.blur()")
    page.keyboard.press("?")
    expect(page.locator("dialog.help")).to_be_visible()
    page.keyboard.press("Escape")
    expect(page.locator("dialog.help")).to_be_hidden()
    look.open(BOARD)
    page.keyboard.press("j")
    first = page.evaluate(focused)
    page.keyboard.press("Enter")
    page.wait_for_url(f"**{first}")
    page.keyboard.press("3")
    page.wait_for_url("**/compare")
    page.keyboard.press("Tab")
    expect(page.locator("a.skip")).to_be_focused()


def test_single_keys_can_be_switched_off(look):
    """In the list of keys, for this and every other page, and on again."""
    page = look.open(BOARD)
    switch = page.get_by_label("Use single-key shortcuts")
    page.keyboard.press("?")
    switch.press("Space")
    page.keyboard.press("Escape")
    for again in (False, True):
        if again:
            look.open(BOARD)
        for key in "3j/?":
            page.keyboard.press(key)
        page.wait_for_timeout(200)
        assert page.evaluate("location.pathname + document.activeElement.tagName") == f"{BOARD}BODY"
        expect(page.locator("dialog.help")).to_be_hidden()
    page.locator(".help-button").click()
    expect(switch).not_to_be_checked()
    switch.press("Space")
    page.keyboard.press("Escape")
    page.keyboard.press("3")
    page.wait_for_url("**/compare")
