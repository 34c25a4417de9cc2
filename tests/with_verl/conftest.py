"""What verl and its libraries warn of is not ours."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

os.environ["HF_HUB_OFFLINE"] = "1"  # a model that isn't there is an error at once


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Let warnings of verl and its libraries pass."""
    for item in items:
        if item.path.is_relative_to(Path(__file__).parent):
            item.add_marker(pytest.mark.filterwarnings("default"))
