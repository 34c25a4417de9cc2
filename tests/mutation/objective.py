"""Puts one plausible mistake after the other into the objective; each time some test must fail.

A test that passes with every mistake guards nothing. Run by `make test-mutants`.
"""

from __future__ import annotations

import os
import sys

from formulas import MUTANTS, TESTS, Mutant, TableError
from trial import ROOT, Trial, arguments, table

PRELOADED = ["torch", "transformers.modeling_utils", "transformers.models.qwen2_moe.modeling_qwen2_moe",
             "transformers.models.llama.modeling_llama", "tokenizers", "safetensors.torch", "pydantic", "yaml",
             "hypothesis", "pytest"]  # fmt: skip


def _trial(mutant: Mutant) -> Trial:
    """Return how to try a mutant.

    Raises:
        TableError: it does not fit the code.
    """
    changed = {str(mutant.path): mutant.applied(ROOT)}
    return Trial(f"{mutant.file}: {mutant.mimics}", changed, _paths(TESTS[mutant.file]))


def _paths(names: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(f"tests/unit/native/test_{name}" for name in names)


def main() -> int:
    """Return 0 if the tests pass, and fail with every mutant."""
    asked = arguments(__doc__)
    os.environ["TRITON_INTERPRET"] = "1"  # as in tests/conftest.py, before Transformers is loaded
    chosen = [m for m in MUTANTS if asked.only in m.file or asked.only in m.mimics]
    try:
        trials = [_trial(mutant) for mutant in chosen]
    except TableError as error:
        print(error)
        return 1
    if asked.check:
        return 0
    return table(trials, PRELOADED, asked)


if __name__ == "__main__":
    sys.exit(main())
