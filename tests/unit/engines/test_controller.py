"""Questions to a controller that answers late, never, or with an error."""

import threading
import time
from types import SimpleNamespace

import pytest

from paribus.engines import controller as module
from paribus.engines.controller import Away, Controller

PATIENCE_S = 60.0
"""Seconds for an answer that comes at once."""


def fail(error):
    """Raise an error."""
    raise error


def test_an_answer_is_handed_over_in_the_callers_thread():
    """Who asks changes its own state, and needs no locks."""
    heard = []
    controller = Controller(wait_s=PATIENCE_S)
    controller.ask("it", threading.get_ident, lambda answer: heard.append((answer.result(), threading.get_ident())))
    ((asked, handed),) = heard
    assert handed == threading.get_ident() != asked
    assert controller.trouble == ""


def test_a_refusal_is_an_answer():
    """It is raised where the answer is used."""
    with pytest.raises(ValueError, match="no such thing"):
        Controller(wait_s=PATIENCE_S).ask("it", lambda: fail(ValueError("no such thing")))


def test_a_late_answer_is_handed_over_and_nothing_else_is_asked_before():
    """A second question would wait behind the first, and a repeated order could be carried out twice."""
    go_on, heard, controller = threading.Event(), [], Controller(wait_s=0.05)
    with pytest.raises(Away, match="order: no reply in 0 s"):
        controller.ask("order", lambda: go_on.wait(60.0), lambda answer: heard.append(answer.result()))
    for probe in (False, True):
        with pytest.raises(Away):
            controller.ask("look", lambda: heard.append("asked"), probe=probe)
    assert heard == []
    assert controller.trouble == "order: no reply in 0 s"
    go_on.set()
    while not heard:
        controller.turn()
    assert heard == [True]
    assert controller.trouble == ""


def test_while_it_is_away_only_a_probe_is_asked_and_not_at_once(monkeypatch):
    """What could be carried out twice waits until a look has had an answer."""
    monkeypatch.setattr(module, "_PROBE_S", PATIENCE_S)
    controller = Controller(wait_s=PATIENCE_S, retry_s=0.0)
    with pytest.raises(Away, match="refused"):
        controller.ask("order", lambda: fail(Away("refused")))
    asked = []
    with pytest.raises(Away):
        controller.ask("order", lambda: asked.append("order"))
    controller.ask("look", lambda: asked.append("look"), probe=True)
    controller.ask("order", lambda: asked.append("order"))
    assert asked == ["look", "order"]
    controller = Controller(wait_s=PATIENCE_S, retry_s=3600.0)
    with pytest.raises(Away):
        controller.ask("order", lambda: fail(Away("refused")))
    with pytest.raises(Away, match="refused"):
        controller.ask("look", lambda: asked.append("too soon"), probe=True)
    assert asked == ["look", "order"]


def test_a_slow_controller_is_waited_for(monkeypatch):
    """Else each of its answers would be an outage and its end, two lines for the user."""
    now, go_on = [0.0], threading.Event()
    monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: now[0]))
    controller, heard = Controller(wait_s=0.05), []
    with pytest.raises(Away):
        controller.ask("look", lambda: go_on.wait(PATIENCE_S), lambda answer: heard.append("late"))
    now[0] = 10.0
    go_on.set()
    while not heard:
        controller.turn()
    controller.ask("look", lambda: time.sleep(0.1), lambda answer: heard.append("in time"))
    assert heard == ["late", "in time"]
