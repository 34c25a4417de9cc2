"""The script that compares the ranges of pyproject.toml with the package index."""

import importlib.util
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def bounds():
    """The script as a module."""
    spec = importlib.util.spec_from_file_location("bounds", ROOT / "tests" / "repo" / "bounds.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_a_release_beyond_a_range_is_named(bounds):
    """A newer major is one line; a release inside its range, and a package that is not asked for, add no line."""
    known = {
        name: Requirement(line) for name, line in {"mlflow": "mlflow>=3.5,<3.18", "sci-py": "sci_py>=1,<2"}.items()
    }
    assert bounds.beyond(known, "mlflow==3.18.0\nsci-py==1.9\nother==7.0\n") == [
        "mlflow 3.18.0 is out; pyproject.toml asks for <3.18,>=3.5"
    ]


def test_every_range_has_both_ends(bounds):
    """Each package of the project has a lowest version that is tried and an end before a major that is not known."""
    for name, asked in bounds.ranges().items():
        operators = {specifier.operator for specifier in asked.specifier}
        assert {">=", "<"} <= operators, name


def test_the_tried_parts_exist(bounds):
    """`make test-lowest` names parts of pyproject.toml."""
    parts = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    assert set(bounds.TRIED) <= parts.keys()
