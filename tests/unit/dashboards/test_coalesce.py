"""One answer for all who ask the same at the same time."""

import asyncio

from hypothesis import given, settings
from hypothesis import strategies as st

from paribus_dashboards.server.coalesce import KEEP_S, Coalesce


class Slow:
    """An application that takes a while, counts, and fails for the path `/broken`."""

    def __init__(self):
        self.asked = []

    async def __call__(self, scope, receive, send):
        """Answer `ok`."""
        self.asked.append(scope["path"])
        await asyncio.sleep(0)
        if scope["path"] == "/broken":
            raise ValueError("broken")
        headers = [(b"etag", b'"1"'), (b"content-length", b"2")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": b"ok"})


async def ask(app, path, tag=None):
    """Return status, headers and body of a request."""
    sent = []

    async def send(message):
        sent.append(message)

    headers = [(b"if-none-match", tag)] if tag else []
    await app({"type": "http", "method": "GET", "path": path, "query_string": b"", "headers": headers}, None, send)
    return sent[0]["status"], dict(sent[0]["headers"]), sent[1].get("body", b"")


@settings(max_examples=25, deadline=None)
@given(waits=st.lists(st.floats(0, 3), max_size=8))
def test_an_answer_is_made_at_most_once_a_second(waits):
    """However many ask at once, and whenever they ask again, one answer is made for all of a second."""
    inner, now = Slow(), [0.0]
    app = Coalesce(inner, clock=lambda: now[0])
    made = []

    async def readers():
        for wait in [0.0, *waits]:
            now[0] += wait
            if not made or now[0] >= made[-1] + KEEP_S:
                made.append(now[0])
            assert await asyncio.gather(*[ask(app, "/x") for _ in range(3)]) == [await ask(app, "/x")] * 3

    asyncio.run(readers())
    assert len(inner.asked) == len(made)


def test_who_has_the_answer_is_told_so_and_others_get_it():
    """The tag of a reader decides for this reader alone, and trouble is told to all and not kept."""
    inner = Slow()
    app = Coalesce(inner, clock=lambda: 0.0)

    async def readers():
        assert (await ask(app, "/x", b'"1"'))[::2] == (304, b"")
        assert (await ask(app, "/x", b'"0"'))[::2] == (200, b"ok")
        found = await asyncio.gather(*[ask(app, "/broken") for _ in range(2)], return_exceptions=True)
        assert [str(e) for e in found] == ["broken"] * 2
        assert isinstance((await asyncio.gather(ask(app, "/broken"), return_exceptions=True))[0], ValueError)

    asyncio.run(readers())
    assert inner.asked == ["/x", "/broken", "/broken"]
