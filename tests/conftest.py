"""What holds for all suites: slow files first, warmed-up models once, and signals that reach what the tests start."""

import importlib.util
import os
import signal
from pathlib import Path

import pytest

# a suite that runs in the background inherits ignored signals
for number, handler in ((signal.SIGINT, signal.default_int_handler), (signal.SIGHUP, signal.SIG_DFL)):
    if signal.getsignal(number) is signal.SIG_IGN:
        signal.signal(number, handler)

# Triton reads it when it is imported, and Transformers imports it. vLLM has kernels of its own
if importlib.util.find_spec("vllm") is None:
    os.environ.setdefault("TRITON_INTERPRET", "1")

# CI says something about a change: Hypothesis draws the same inputs until a test changes, here others each time
if os.environ.get("PARIBUS_CI") and importlib.util.find_spec("hypothesis"):
    from hypothesis import settings

    if settings.get_current_profile_name() == "default":  # mutants have a profile of their own
        settings.load_profile("ci")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Start with the files that have slow tests, so that no process is left with one of them at the end."""
    slow = {item.path for item in items if item.get_closest_marker("slow")}
    items.sort(key=lambda item: item.path not in slow)


@pytest.fixture(scope="session")
def warm_models(pytestconfig: pytest.Config) -> Path:
    """Return the folder `cache` of a home, for warmed-up models: one for all suites of a checkout, each made once.

    The hash of the code that makes a model is in its name, so none is older than its code.
    """
    folder = pytestconfig.rootpath / "build" / "cache"
    folder.mkdir(parents=True, exist_ok=True)
    return folder
