"""`--export`: the same pages in one file, opened without a server and without a network."""

import re
import subprocess
import sys

import pytest

MOST_BYTES = 5_000_000
ELSEWHERE = re.compile(r"""\b(?:src|href|action|poster|data)\s*=\s*["']?\s*(?:https?:)?//""", re.IGNORECASE)


@pytest.fixture(scope="module")
def exported(home, tmp_path_factory):
    """The file of the made-up study."""
    file = tmp_path_factory.mktemp("export") / "made-up.html"
    command = [sys.executable, "-m", "paribus", "dashboard", "--home", home, "--study", "made-up", "--export", file]
    done = subprocess.run([*map(str, command)], capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return file


def test_a_file_is_small_and_leads_nowhere(exported):
    """It stays below five megabytes, and nothing in it is loaded from or leads to another machine."""
    assert exported.stat().st_size < MOST_BYTES
    assert ELSEWHERE.findall(exported.read_text()) == []


def test_a_file_shows_every_page_offline(exported, watch_file, accessible):
    """Every page of the navigation is there with all its charts; a link, Back and a reload of the address work."""
    look = watch_file(exported, color_scheme="dark", offline=True)
    page = look.open("")
    links = "all => all.filter(a => a.offsetParent).map(a => a.getAttribute('href'))"
    addresses = page.eval_on_selector_all("header nav a", links)
    assert len(addresses) == 7
    for address in addresses:
        page.locator(f"header nav a[href='{address}']:visible").click()
        page.wait_for_function(
            "at => document.querySelector('.page:not([hidden])').dataset.at === at.slice(1)", arg=address
        )
        page.wait_for_function(NEXT)
        assert page.locator("h1:visible").count() == 1
        accessible(page)
    page.go_back()
    assert page.evaluate("location.hash") == addresses[-2]
    page.reload()
    page.wait_for_function(
        "at => document.querySelector('.page:not([hidden])').dataset.at === at.slice(1)", arg=addresses[-2]
    )


NEXT = """() => {
    const next = [...document.querySelectorAll('.chart:not([data-drawn])')].find(c => c.offsetParent);
    next?.scrollIntoView();
    return !next;
}"""
"""Brings the next chart of the page into view; true when all are drawn."""
