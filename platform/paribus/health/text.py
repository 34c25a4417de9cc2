"""Rules on what the responses say: repetition, and text that is none."""

from __future__ import annotations

import math

from paribus.health.detector import FINE, Detector, Verdict, above
from paribus.health.signals import DEGENERATE, DISTINCT, REPETITIVE
from paribus.health.view import View


def _repetition(v: View) -> Verdict | None:
    share = v.value(REPETITIVE)
    if share is None or not math.isfinite(share):
        return None
    return above(share, v.p["warn"], v.p["critical"], f"{share:.0%} of the samples repeat themselves")


def _degenerate(v: View) -> Verdict | None:
    single, distinct = v.value(DEGENERATE), v.value(DISTINCT)
    if single is None:
        return None
    if single > v.p["single"]:
        says = f"{single:.0%} of the samples are one character over and over"
        return Verdict(state="critical", says=says, numbers={"share": single, "limit": v.p["single"]})
    if distinct is not None and distinct < v.p["distinct"]:
        says = f"samples of different prompts are the same: {distinct:.0%} are distinct"
        return Verdict(state="warn", says=says, numbers={"distinct": distinct, "limit": v.p["distinct"]})
    return FINE


DETECTORS = (
    Detector(
        name="repetition",
        looks_for="responses repeat themselves",
        needs=(REPETITIVE,),
        rule=_repetition,
        points=(2, 2),
    ),
    Detector(
        name="degenerate_text",
        looks_for="responses are no text, or the same for different prompts",
        needs=(DEGENERATE,),
        uses=(DISTINCT,),
        rule=_degenerate,
        points=(2, 2),
    ),
)
