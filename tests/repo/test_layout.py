"""The house keeps its shape: source roots, file sizes, light imports, links and commands that exist."""

import ast
import platform
import re
import subprocess
import sys
from pathlib import Path

import pytest

from paribus.study.spec import WARNING_CODES

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


SMALL = {
    "platform/paribus/cli/archive.py": "one file a command",
    "platform/paribus/cli/healthcheck.py": "one file a command",
    "platform/paribus/cli/scheduler.py": "one file a command",
    "platform/paribus/cli/schema.py": "one file a command",
    "runners/paribus_runners/tasks/tools.py": "studies name its functions by this path",
    "platform/paribus/atomic.py": "ten files of all layers write by it",
    "platform/paribus/text.py": "terminals, reports and pages write times alike, and share no other file",
}
"""Files below 40 lines that may stay, each with its reason."""


@pytest.mark.parametrize(
    "path", [p for p in PYTHON if not p.name.startswith("__")], ids=lambda p: str(p.relative_to(ROOT))
)
def test_no_file_is_a_drawer(path):
    """A file below 40 lines belongs into its user, but for the objective's levels, which have a file each."""
    name = path.relative_to(ROOT).as_posix()
    if name not in SMALL and "/objective/" not in name and "/factors/" not in name:
        assert path.read_text().count("\n") >= 40, f"{name} is small: fold it into its user, or give a reason in SMALL"


@pytest.mark.parametrize("path", [p for p in PYTHON if p.name == "__init__.py"], ids=lambda p: str(p.relative_to(ROOT)))
def test_every_package_says_what_lives_there(path):
    """The docstring of a package says in a few lines what lives there and what may not."""
    docstring = ast.get_docstring(ast.parse(path.read_text())) or ""
    assert len(docstring.splitlines()) >= 2, f"{path.relative_to(ROOT)}: say what lives there, and what may not"


STEP = re.compile(r"\[`?([^\]`]+)`?\]\(([^)\s]+\.py)\)(?:,? `(\w+(?:\.\w+)?)`)?")


def test_the_map_leads_to_code_that_exists():
    """Each file that the map links exists, and so does the function or class that it names beside."""
    page = ROOT / "docs/architecture.md"
    steps = STEP.findall(page.read_text())
    assert len(steps) > 30
    for _, target, name in steps:
        path = (page.parent / target).resolve()
        assert path.is_file(), target
        for part in name.split(".") if name else ():
            assert re.search(rf"^\s*(?:async )?(?:def|class) {part}\b|^{part}\b.*=", path.read_text(), re.MULTILINE), (
                f"{target} has no {name}"
            )


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
        "from paribus.contract import Options, load_runner\nfrom paribus.recipe.recipe import Recipe\n"
        "r = load_runner('native')\nfor ask in (r.support, r.requirements, r.hashes): ask(Recipe(), Options())"
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
    assert re.findall(r"^\| `(\w+)` \|", table, re.MULTILINE) == list(WARNING_CODES)


def test_the_makefile_keeps_the_environment_of_its_user():
    """What make assigns to a variable that it has inherited reaches every command, such as Slurm's daemons."""
    assigned = set(re.findall(r"^([A-Z_]+) *[:?]?=", (ROOT / "Makefile").read_text(), re.MULTILINE))
    usual = {"USER", "LOGNAME", "HOME", "PATH", "SHELL", "LANG", "TERM", "PWD", "TMPDIR", "HOSTNAME", "DISPLAY", "MAIL"}
    assert not assigned & usual
