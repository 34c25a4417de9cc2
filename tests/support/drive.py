"""Lets Hypothesis drive a check: as many inputs as were asked for, the same ones with the same seed."""

from __future__ import annotations

import warnings
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st
from hypothesis.configuration import set_hypothesis_home_dir
from hypothesis.errors import HypothesisWarning

from support.damage import COUNT, SEED

_T = TypeVar("_T")


def drive(
    name: str, inputs: st.SearchStrategy[_T], check: Callable[[_T], None], workspace: Path, *, share: float = 1.0
) -> None:
    """Give inputs to a check until one fails, then look for the smallest that does.

    Args:
        name: of the check; each begins at another place.
        inputs: what can be drawn.
        check: raises an error if something is wrong.
        workspace: folder for Hypothesis.
        share: of the usual number of inputs.
    """
    set_hypothesis_home_dir(workspace / ".hypothesis")

    @seed(zlib.crc32(f"{SEED}/{name}".encode()))
    @settings(
        max_examples=max(1, int(COUNT * share)),
        deadline=None,
        database=None,
        phases=(Phase.generate, Phase.shrink),
        suppress_health_check=list(HealthCheck),
    )
    @given(inputs)
    def driven(value: _T) -> None:
        check(value)

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", HypothesisWarning)  # of a long input that fails, in place of its error
        driven()
