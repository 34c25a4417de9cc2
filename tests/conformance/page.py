"""Writes docs/reference/conformance.md: what agrees with TRL and verl, and what does not and why."""

from __future__ import annotations

import logging
import math
import warnings
from collections.abc import Iterator, Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any

from conformance.row import EPS, PLAIN, TOLERANCE, Row
from conformance.table import ALONE, ROWS

PAGE = Path(__file__).parents[2] / "docs/reference/conformance.md"
LIBRARIES = ("trl", "verl", "transformers", "torch")
INTRO = """\
# Conformance with TRL and verl

<!-- Written by `make test-conformance` from what it measured: change tests/conformance, then run it. -->

{versions}.

Each row runs a library's own code and the native runner's on the same four ragged batches: groups of 2, 4 and 8,
uniform and mixed rewards, responses of 1 to 40 tokens, log-ratios inside and outside of every clip, garbage behind the
end of each response. Advantages, loss and the gradient with respect to the log-probability of every token are compared.
"Agrees to" is the largest relative error of the three, rounded up to a power of ten, and not below {floor}: advantages
and weights are float32 here. A gradient is measured against the largest of its response, a loss against the sum of the
absolute gradients.

What runs is, for TRL, a real trainer of a tiny model, whose sampling, scoring and forward pass alone are replaced by
the batch; for verl, the estimators and losses of `verl.trainer.ppo.core_algos`, its importance correction and its DAPO
reward manager, joined by `verl.workers.utils.losses.ppo_loss`.

Every row starts from GRPO without KL: {plain}.
Standard deviations are of samples (ddof 1) in both libraries, and our `eps` is set to theirs: {eps}.
"""
DEVIATIONS = """
## Deviations

Here the same name means something else in a library. Each is checked twice: our level of that name differs from the
library, and the last column agrees with it to {floor}.
"""


def write() -> None:
    """Measure everything and write the page."""
    PAGE.write_text("\n".join(lines()) + "\n")


def lines() -> Iterator[str]:
    """Yield the lines of the page."""
    yield INTRO.format(
        versions=", ".join(f"{name} {version(name).split('+')[0]}" for name in LIBRARIES),
        floor=power(TOLERANCE),
        plain="; ".join(f"{k}: {listed(v)}" for k, v in PLAIN.items()),
        eps=", ".join(f"{k} {v:g}" for k, v in EPS.items()),
    )
    yield from ("| level | library | option | agrees to | translation |", "|---|---|---|---|---|")
    for row in ROWS:
        if not row.reason:
            yield f"| {named(row)} | {row.library} | {listed(row.options)} | {power(row.errors()[0])} | {row.note} |"
    yield DEVIATIONS.format(floor=power(TOLERANCE))
    yield from ("| level | library | option | deviates how, and why | what it is here |", "|---|---|---|---|---|")
    for row in ROWS:
        if row.reason:
            yield f"| {named(row)} | {row.library} | {listed(row.options)} | {row.reason} | {does(row)} |"
    yield "\n## Nothing to compare with\n\nThe loss code of neither library has these.\n"
    yield from ("| level | why |", "|---|---|")
    yield from (f"| `{level}` | {why} |" for level, why in ALONE.items())


def named(row: Row) -> str:
    """Return the levels of a row."""
    return ", ".join(f"`{level}`" for level in row.levels)


def listed(options: Mapping[str, Any]) -> str:
    """Return options as a library's configuration would have them."""
    return ", ".join(f"`{k}={v:g}`" if isinstance(v, float) else f"`{k}={v}`" for k, v in options.items()) or "as above"


def does(row: Row) -> str:
    """Return what reproduces a deviation."""
    if isinstance(row.does, Mapping):
        return ", ".join(f"`{k}: {flow(v)}`" for k, v in row.does.items())
    return f"no level: {(row.does.__doc__ or '').split(chr(10))[0].rstrip('.').lower()}"


def flow(value: object) -> str:
    """Return a value as YAML on one line."""
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{k}: {flow(v)}" for k, v in value.items()) + "}"
    return str(value).lower() if isinstance(value, bool) else str(value)


def power(error: float) -> str:
    """Return the smallest power of ten that is not below ``error`` nor below the tolerance."""
    return f"1e{math.ceil(math.log10(max(error, TOLERANCE)) - 1e-9)}"


if __name__ == "__main__":
    warnings.filterwarnings("ignore", ".*gradient_checkpointing.*", FutureWarning)
    logging.getLogger("trl").setLevel(logging.ERROR)  # TRL warns of options that rows about deviations choose
    write()
