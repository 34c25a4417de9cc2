"""SIGTERM that comes twice: once to the group, once from the launcher."""

from __future__ import annotations

import subprocess
import sys

import pytest

PROGRAM = """
import faulthandler, signal, sys
from contextlib import ExitStack
from {module} import termination

faulthandler.dump_traceback_later(60, exit=True)
stack = ExitStack()
asked = stack.enter_context(termination())
asked.begun = True

def again(frame, event, argument):
    if event == "return":
        sys.setprofile(None)
        signal.raise_signal(signal.SIGTERM)  # while the first one is being noted

sys.setprofile(again)
signal.raise_signal(signal.SIGTERM)
sys.setprofile(None)
print(asked.is_set())
"""


@pytest.mark.parametrize("module", ["paribus_runners.native.stopping", "paribus_runners.program.attempt"])
def test_a_second_signal_while_the_first_is_noted_blocks_nothing(module: str) -> None:
    """A lock of an event would be held by the first, for ever."""
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM.format(module=module)], capture_output=True, text=True, timeout=300, check=False
    )
    assert (done.returncode, done.stdout) == (0, "True\n"), done.stderr
