"""Notes: what a plan shows to be pointless or unresolvable before any compute is spent."""

from __future__ import annotations

from collections.abc import Sequence

from paribus.study.plan import Arm, Note, Row
from paribus.study.spec import Seeds


def notes_of(arms: Sequence[Arm], rows: Sequence[Row], seeds: Seeds) -> tuple[Note, ...]:
    """Return the notes on a plan, each distinct one once."""
    return ()
