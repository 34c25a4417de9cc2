"""What users import is declared, typed, documented, stable and light; a missing part is answered in one line."""

from __future__ import annotations

import inspect
import os
import subprocess
import sys
import typing
from pathlib import Path

import pytest

import paribus
from paribus.errors import MissingExtra

GOLDEN = Path(__file__).resolve().parents[2] / "golden" / "notebook" / "signatures.txt"
PAGES = [Path(__file__).resolve().parents[3] / "docs" / "howto" / name for name in ("notebook.md", "track.md")]

SNIPPET = """
from pathlib import Path

import paribus

study: paribus.Study = paribus.load(Path("x.yaml"))
made = paribus.Study("x", base={"preset": "grpo"}, designs={"solo": {"kind": "add_one"}}, seeds={"n": 3})
plan: paribus.StudyPlan = made.plan()
reveal_type(plan.fingerprint)
results: paribus.Results = study.run(home="h", slots=2)
again = paribus.results(study, home=Path("h"))
reveal_type(again)
reveal_type(paribus.results("x", archive="x.paribus").answer)
try:
    again.curves("policy/entropy").groupby("arm")
    again.plot("accuracy").show()
    print(paribus.studies().columns, paribus.__version__)
except paribus.ParibusError as error:
    print(error.code)
paribus.results(3)
paribus.resluts("x")
"""


def members() -> list[str]:
    """Return the signature of each public function, class, method and property."""
    found = []
    for name in paribus.__all__:
        thing = getattr(paribus, name)
        if not callable(thing):
            found.append(f"{name}: {type(thing).__name__}")
            continue
        made = name in ("ParibusError", "Results", "StudyPlan", "TrackedRun")  # users don't make them
        shown = "(...)" if made else str(inspect.signature(thing))
        found.append(f"{name}{shown}")
        if inspect.isclass(thing) and name != "ParibusError":
            for member, value in sorted(vars(thing).items()):
                if member.startswith("_") and member != "_repr_html_":
                    continue
                if isinstance(value, property):
                    found.append(f"{name}.{member} -> {inspect.signature(value.fget).return_annotation}")
                elif inspect.isfunction(value):
                    found.append(f"{name}.{member}{inspect.signature(value)}")
    return found


def test_signatures_are_stable() -> None:
    """A change to a public name is a change to a golden file, and so to the changelog."""
    text = "\n".join(members()) + "\n"
    if os.environ.get("PARIBUS_UPDATE_GOLDEN"):
        GOLDEN.parent.mkdir(parents=True, exist_ok=True)
        GOLDEN.write_text(text)
    assert GOLDEN.read_text() == text


def test_every_public_name_is_documented() -> None:
    """Each has a docstring, and the page for users names each function, method and property."""
    page = "".join(path.read_text() for path in PAGES)
    for name in paribus.__all__:
        thing = getattr(paribus, name)
        if not inspect.isclass(thing):
            assert name == "__version__" or (inspect.getdoc(thing) and f"paribus.{name}" in page), name
            continue
        assert inspect.getdoc(thing), name
        assert f"paribus.{name}" in page, name
        for member, value in vars(thing).items():
            if (
                name != "ParibusError"
                and not member.startswith("_")
                and (callable(value) or isinstance(value, property))
            ):
                assert inspect.getdoc(value), f"{name}.{member}"
                assert f".{member}" in page, f"{name}.{member} is on no page"


def test_importing_the_package_takes_no_time() -> None:
    """Neither `import paribus` nor a look at its names imports numpy, pandas or a database; loading no pandas."""
    heavy = ("pandas", "plotly", "numpy", "scipy", "sqlalchemy", "torch", "pydantic", "jinja2")
    code = "import sys, paribus; dir(paribus); print(*[m for m in sys.argv[1:] if m in sys.modules])"
    assert run(code, *heavy).split() == []
    code = "import sys, paribus; paribus.load, paribus.results; print(*[m for m in sys.argv[1:] if m in sys.modules])"
    assert not {"pandas", "plotly", "torch"} & set(run(code, *heavy).split())


def run(code: str, *arguments: str) -> str:
    """Return what Python prints."""
    command = [sys.executable, "-c", code, *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=300).stdout


def test_an_unknown_name_lists_the_names() -> None:
    """A typing error is an AttributeError that says what there is; `from paribus import x` an ImportError."""
    with pytest.raises(AttributeError, match=r"no attribute 'resluts'.*results"):
        paribus.resluts  # noqa: B018
    with pytest.raises(ImportError):
        from paribus import resluts  # noqa: F401
    assert set(paribus.__all__) <= set(dir(paribus))


def test_annotations_can_be_resolved() -> None:
    """What editors and type checkers read of each public function means something."""
    for thing in (paribus.load, paribus.Study.save, paribus.Study.to_yaml):
        assert "return" in typing.get_type_hints(thing)


@pytest.mark.slow
def test_a_type_checker_knows_the_names(tmp_path: Path) -> None:
    """mypy, strict, on a user's file: right calls pass, wrong ones are errors."""
    (tmp_path / "mine.py").write_text(SNIPPET)
    (tmp_path / "mypy.ini").write_text(
        "[mypy]\nstrict = true\nfollow_imports = silent\nignore_missing_imports = true\n"
    )
    shown = subprocess.run(
        [sys.executable, "-m", "mypy", "--cache-dir", str(tmp_path / "cache"), "mine.py"],
        capture_output=True, text=True, cwd=tmp_path, timeout=600, check=False,
    ).stdout  # fmt: skip
    lines = [line for line in shown.splitlines() if line.startswith("mine.py")]
    notes = [line.partition("note: ")[2].replace("builtins.", "") for line in lines if "note: Revealed" in line]
    assert notes == [
        'Revealed type is "str"',
        'Revealed type is "paribus.notebook.results.Results"',
        'Revealed type is "str"',
    ], shown
    errors = [line for line in lines if " error: " in line]
    assert len(errors) == 2, shown
    assert 'Argument 1 to "results" has incompatible type "int"' in errors[0]
    assert 'has no attribute "resluts"' in errors[1]


@pytest.mark.parametrize(("missing", "asks"), [("pandas", "runs"), ("plotly", "plot")])
def test_a_missing_part_is_one_line_with_what_to_install(home: Path, monkeypatch, missing: str, asks: str) -> None:
    """Without pandas or plotly, the study, its plan and the page of its results still work."""
    results = paribus.results("made-up", home=home)
    for module in [m for m in sys.modules if m.partition(".")[0] == missing]:
        monkeypatch.delitem(sys.modules, module)
    monkeypatch.setitem(sys.modules, missing, None)
    with pytest.raises(MissingExtra) as caught:
        getattr(results, asks)()
    assert "\n" not in str(caught.value)
    assert "needs a part that is not installed. Install it: " in str(caught.value)
    assert "[notebook]" in str(caught.value)
    assert results.answer in " ".join(str(results).split())
    assert "<table>" in results._repr_html_()


def test_a_command_that_fails_is_an_error_with_its_message(capsys, tmp_path, monkeypatch) -> None:
    """Lines before the message are passed on; a status without one shows the last lines; 1 alone is none."""
    from paribus.notebook.run import run_command

    monkeypatch.setenv("PARIBUS_HOME", str(tmp_path / "none"))
    with pytest.raises(paribus.ParibusError, match=r"^there is no store in") as caught:
        run_command(["report", "x"], print)
    assert caught.value.code == "P300"
    assert capsys.readouterr().out == ""
    with pytest.raises(paribus.ParibusError, match=r"`report` ended|`paribus report` ended with exit status 2"):
        run_command(["report"], print)
    run_command(["recipes"], print)
    assert "dr_grpo" in capsys.readouterr().out
