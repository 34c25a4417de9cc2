"""TRL's environment, which `make test-trl` installs; without it these tests are skipped."""

from __future__ import annotations

from pathlib import Path

import pytest

from paribus_runners.trl import runner

HERE = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip these tests where TRL's environment is missing; warnings of TRL's are not ours."""
    state, wrong = runner.environment().state()
    for item in items:
        if item.path.is_relative_to(HERE):
            item.add_marker(pytest.mark.filterwarnings("default"))
            if wrong and not item.path.is_relative_to(HERE / "inside"):
                item.add_marker(pytest.mark.skip(reason=f"TRL's environment is {state}: `make test-trl`"))
