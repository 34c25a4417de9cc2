"""The house keeps its shape: source roots, file sizes, light imports, links and commands that exist."""

import ast
import platform
import re
import subprocess
import sys
from pathlib import Path

import pytest

from paribus.study.spec import NOTE_CODES

ROOT = Path(__file__).resolve().parents[2]
SOURCES = ("platform", "runners", "dashboards")
PYTHON = sorted(p for root in SOURCES for p in (ROOT / root).rglob("*.py"))
MARKDOWN = sorted(
    p for p in [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")] if "examples" not in p.relative_to(ROOT).parts
)
HEAVY = ("torch", "transformers", "mlflow", "sqlalchemy", "alembic", "scipy", "numpy", "plotly", "pandas", "optuna")


@pytest.mark.parametrize("root", SOURCES)
def test_no_python_file_lies_directly_in_a_source_root(root):
    """A module directly in `platform/` would hide the standard library's `platform`."""
    assert list((ROOT / root).glob("*.py")) == []
    assert platform.system() != ""


@pytest.mark.parametrize("path", PYTHON, ids=lambda p: str(p.relative_to(ROOT)))
def test_files_and_functions_stay_small(path):
    """A file has at most 600 lines and a function at most 80: beyond, it is more than one noun."""
    text = path.read_text()
    assert text.count("\n") <= 600
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            assert (node.end_lineno or 0) - node.lineno < 80, f"{path.name}:{node.lineno} {node.name}"


def loaded_by(code: str) -> set[str]:
    """Return the top-level modules that a fresh interpreter has loaded after ``code``."""
    shown = subprocess.run(
        [sys.executable, "-c", f"import sys\n{code}\nprint(*sorted({{m.split('.')[0] for m in sys.modules}}))"],
        capture_output=True,
        text=True,
        check=True,
    )
    return set(shown.stdout.split("\n")[-2].split())


def test_help_loads_no_heavy_module():
    """`paribus --help` answers at once."""
    code = "from paribus.cli import paribus\nparibus(['--help'], standalone_mode=False)"
    assert loaded_by(code).isdisjoint(HEAVY)


def test_the_native_runner_is_listed_and_asked_without_torch():
    """Planning a study asks the runner what it can train; that must not load torch."""
    code = (
        "from paribus.study.runner import load_runner\nfrom paribus.recipe.recipe import Recipe\n"
        "r = load_runner('native')\nfor ask in (r.unsupported, r.code_fingerprint, r.model_fingerprint): ask(Recipe())"
    )
    assert loaded_by(code).isdisjoint({"torch", "transformers", "numpy", "mlflow"})


@pytest.mark.parametrize("path", MARKDOWN, ids=lambda p: str(p.relative_to(ROOT)))
def test_relative_links_of_the_documentation_exist(path):
    """A link to a file of the repository leads somewhere."""
    for target in re.findall(r"\]\(([^)#\s]+)(?:#[^)]*)?\)", path.read_text()):
        if "://" not in target and not target.startswith("mailto:"):
            assert (path.parent / target).exists(), f"{path.name} links to {target}"


def test_the_generated_reference_is_current():
    """The pages of docs/reference are what the code says today (`make docs` writes them)."""
    shown = subprocess.run(
        [sys.executable, str(ROOT / "docs/generate.py"), "--check"], capture_output=True, text=True, check=False
    )
    assert shown.returncode == 0, shown.stdout


def test_the_project_names_no_package_index():
    """Where packages come from is the business of the machine that installs them."""
    shown = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True)
    options = ("--extra-index" + "-url", "--index" + "-url")
    for path in (ROOT / name for name in shown.stdout.splitlines()):
        if path.is_file():
            assert not any(option in path.read_text(errors="ignore") for option in options), path


def test_every_note_of_a_plan_is_documented():
    """The guide has one line for each code that `allow` takes, and for no other."""
    guide = (ROOT / "docs" / "studies.md").read_text()
    table = guide.partition("## What a plan tells")[2].partition("\n## ")[0]
    assert re.findall(r"^\| `(\w+)` \|", table, re.MULTILINE) == list(NOTE_CODES)
