"""Addresses that were mistyped or changed by hand: an answer in words, never a failure of the server."""

from __future__ import annotations

import re
from html import escape

import pytest

RUN, ARMS = (
    "/data/study/made-up/health/{panel}.json?run={run}",
    "/data/study/made-up/compare/curve.json?metric={metric}",
)
CHARTS = {
    "score": (RUN, {"panel": "score"}),
    "entropy": (RUN, {"panel": "entropy"}),
    "compared": (ARMS, {"metric": "policy/entropy"}),
    "by tokens": (f"{ARMS}&x=tokens", {"metric": "policy/entropy"}),
}


@pytest.fixture(params=CHARTS)
def chart(request, home):
    """The address of a chart."""
    address, names = CHARTS[request.param]
    return address.format(run=home.study("made-up").runs[0].fingerprint, **names)


@pytest.mark.parametrize("part", ["first=nan&last=5", "first=inf", "last=-inf", "first=x", "first=5&last=2"])
def test_a_part_that_is_none_is_refused_in_words(client, chart, part):
    """The sentence names what was asked for."""
    answer = client.get(f"{chart}&{part}")
    assert answer.status_code == 404
    assert re.search("must(?: not)? be", answer.text)


@pytest.mark.parametrize("part", ["first=-1e300&last=1e300", "first=-3", "first=&last=", "first=0&last=1e300"])
def test_a_part_that_goes_too_far_is_the_whole(client, chart, part):
    """As an empty one is."""
    answer = client.get(f"{chart}&{part}")
    assert answer.status_code == 200
    assert answer.json()["data"] == client.get(chart).json()["data"] != []


@pytest.mark.parametrize(
    "address", ["/", "/study/made-up", "/static/live.js", "/data/study/made-up/score.json", "/nope"]
)
def test_head_is_get_without_the_body(client, address):
    """A monitor or a proxy that asks with HEAD learns what GET would answer."""
    whole, head, later = client.get(address), client.head(address), client.get(address)
    assert (head.status_code, head.content) == (whole.status_code, b"")
    assert dict(head.headers) in (dict(whole.headers), dict(later.headers))  # a page may show the time


@pytest.mark.parametrize("address", ["/nope", "/study/made-up/nope", "/data/nope.json", "/<b>"])
def test_an_address_that_is_none_is_told_on_a_page(client, address):
    """With a way back, as an unknown study is."""
    answer = client.get(address)
    assert answer.status_code == 404
    assert answer.headers["content-type"].startswith("text/html")
    assert f"there is no page <code>{escape(address)}</code>" in answer.text
    assert '<a href="/">All studies</a>' in answer.text
