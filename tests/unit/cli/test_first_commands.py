"""What a new user types first: `paribus init`, `paribus studies`, and the line that installs a missing part."""

import json
import shlex
import sys
from importlib import metadata
from importlib.resources import files
from pathlib import Path
from types import SimpleNamespace

import pytest
from click.testing import CliRunner, Result

from paribus import errors
from paribus.cli import paribus
from paribus.home import data_root
from paribus.study.expand import draft_file

STUDIES = data_root("ablations") / "studies"


@pytest.fixture
def typed(tmp_path, monkeypatch):
    """A function that runs the command line in an empty folder."""
    monkeypatch.chdir(tmp_path)

    def run(*arguments: str) -> Result:
        return CliRunner().invoke(paribus, list(arguments))

    return run


@pytest.fixture
def installed(monkeypatch):
    """A function that pretends that Paribus was installed from a place: the content of `direct_url.json` (PEP 610)."""
    found = metadata.distribution("paribus")
    monkeypatch.setattr(errors, "_installer", lambda: "pip install")

    def pretend(origin: object) -> None:
        text = json.dumps(origin) if isinstance(origin, dict) else origin
        package = SimpleNamespace(requires=found.requires, read_text={"direct_url.json": text}.get)
        monkeypatch.setattr(metadata, "distribution", {"paribus": package}.__getitem__)

    return pretend


# ---- init ----------------------------------------------------------------------------------------


def test_init_writes_a_study_that_plans_on_a_cpu(typed, tmp_path):
    """The study has no mistake and no warning but on its two seeds, and its next command is printed."""
    shown = typed("init", "my study")
    assert shown.exit_code == 0, shown.output
    folder = tmp_path / "my study"
    assert sorted(p.name for p in folder.iterdir()) == [".gitignore", "README.md", "study.yaml"]
    assert "cd 'my study' && paribus run study.yaml" in shown.output
    assert "paribus run study.yaml" in (folder / "README.md").read_text()
    assert ".paribus/" in (folder / ".gitignore").read_text().splitlines()
    plan = draft_file(folder / "study.yaml").checked()
    assert {note.code for note in plan.warnings} <= {"seeds"}
    assert (folder / "study.yaml").read_bytes() == (STUDIES / "first.yaml").read_bytes()


def test_init_here_prints_the_command_without_cd(typed, tmp_path):
    """Without an argument the files are written into the current folder."""
    shown = typed("init")
    assert shown.exit_code == 0, shown.output
    assert (tmp_path / "study.yaml").is_file()
    assert "Next: paribus run study.yaml" in shown.output


def test_init_overwrites_nothing(typed, tmp_path):
    """A study that exists ends the command before anything is written; other files keep what they hold."""
    (tmp_path / "study.yaml").write_text("mine\n")
    shown = typed("init")
    assert isinstance(shown.exception, errors.ParibusError)
    assert "study.yaml exists and is not overwritten" in str(shown.exception)
    assert [p.name for p in tmp_path.iterdir()] == ["study.yaml"]

    (tmp_path / "study.yaml").unlink()
    (tmp_path / "README.md").write_text("# Mine\n")
    (tmp_path / ".gitignore").write_text("build/\n.paribus/")
    shown = typed("init")
    assert shown.exit_code == 0, shown.output
    assert (tmp_path / "README.md").read_text() == "# Mine\n"
    assert (tmp_path / ".gitignore").read_text() == "build/\n.paribus/\n/reports/\n"
    assert "README.md" not in shown.output.partition("Wrote")[2].partition("\n")[0]


def test_init_into_a_file_is_refused(typed, tmp_path):
    """A folder that cannot be made is an error with its reason, not a traceback."""
    (tmp_path / "f").write_text("")
    shown = typed("init", "f")
    assert isinstance(shown.exception, errors.ParibusError)
    assert "f" in str(shown.exception)


def test_init_makes_no_folder_with_the_name_of_a_file(typed, tmp_path):
    """The template for the file was forgotten: the command that writes it is named."""
    shown = typed("init", "grid.yaml")
    assert shown.exit_code == 2
    assert "paribus init --template NAME grid.yaml" in " ".join(shown.output.split())
    assert not list(tmp_path.iterdir())


# ---- studies -------------------------------------------------------------------------------------


def test_studies_lists_each_with_a_sentence(typed):
    """Every shipped study appears with its question."""
    shown = typed("studies")
    assert shown.exit_code == 0, shown.output
    words = " ".join(shown.output.split())
    for path in STUDIES.glob("*.yaml"):
        assert path.stem in shown.output
    assert "Which of DAPO's tricks carries the gain" in words


@pytest.mark.parametrize("name", sorted(p.stem for p in STUDIES.glob("*.yaml")))
def test_a_shipped_study_can_be_copied(typed, tmp_path, name):
    """The copy is the file; its name is kept unless another is given, and a folder takes it under its name."""
    (tmp_path / "folder").mkdir()
    source = (STUDIES / f"{name}.yaml").read_bytes()
    for to, path in ((), f"{name}.yaml"), (("mine.yaml",), "mine.yaml"), (("folder",), f"folder/{name}.yaml"):
        shown = typed("studies", "copy", name, *to)
        assert shown.exit_code == 0, shown.output
        assert (tmp_path / path).read_bytes() == source
        assert f"paribus plan {path}" in shown.output


@pytest.mark.parametrize("arguments", [("studies", "copy", "smoke"), ("recipes", "show", "grpo")])
def test_json_before_and_after_the_inner_command_is_the_same(typed, tmp_path, arguments):
    """A group with `--json` passes it on."""
    found = []
    for group, *rest in ((*arguments, "--json"), (arguments[0], "--json", *arguments[1:])):
        (tmp_path / "smoke.yaml").unlink(missing_ok=True)
        found.append(json.loads(typed(group, *rest).output))
    assert found[0] == found[1]
    assert found[0] == {"study": "smoke", "file": "smoke.yaml"} or found[0]["name"] == "grpo"


def test_copy_refuses_to_overwrite_and_names_near_studies(typed, tmp_path):
    """A file that exists stays, and an unknown name gets a suggestion."""
    (tmp_path / "smoke.yaml").write_text("mine\n")
    shown = typed("studies", "copy", "smoke")
    assert "exists and is not overwritten" in str(shown.exception)
    assert (tmp_path / "smoke.yaml").read_text() == "mine\n"
    shown = typed("studies", "copy", "quickstat")
    assert isinstance(shown.exception, errors.ParibusError)
    assert "Did you mean `quickstart`?" in str(shown.exception)
    assert "No such file" in str(typed("studies", "copy", "smoke", "no/such/folder.yaml").exception)


# ---- the line that installs a missing part -------------------------------------------------------


def test_the_line_for_a_missing_part_fits_the_installation(installed, tmp_path, monkeypatch):
    """A name works only from an index: checkouts, wheels and repositories are named as they were installed."""
    here = tmp_path / "a checkout"
    here.mkdir()
    editable = {"url": here.as_uri(), "dir_info": {"editable": True}}
    installed(editable)
    assert errors.install_command("ray") == f"pip install -e '{here}[ray]'"
    monkeypatch.chdir(here)
    assert errors.install_command("ray") == "pip install -e '.[ray]'"
    installed({"url": here.as_uri(), "dir_info": {}})
    assert errors.install_command("ray") == "pip install '.[ray]'"

    wheel = here / "paribus-0.1.0-py3-none-any.whl"
    wheel.touch()
    installed({"url": wheel.as_uri(), "archive_info": {}})
    assert errors.install_command("ray") == f"pip install 'paribus[ray] @ {wheel.as_uri()}'"
    wheel.unlink()
    assert errors.install_command("mlflow") == "pip install 'mlflow<3.18,>=3.5'"
    installed({"url": "https://example.org/paribus.whl", "archive_info": {}})
    assert errors.install_command("ray") == "pip install 'paribus[ray] @ https://example.org/paribus.whl'"
    git = {"url": "https://example.org/p.git", "vcs_info": {"vcs": "git", "commit_id": "abc"}, "subdirectory": "x"}
    installed(git)
    line = "pip install 'paribus[ray] @ git+https://example.org/p.git@abc#subdirectory=x'"
    assert errors.install_command("ray") == line
    for from_an_index in (None, "", "{", "[]", '{"url": 5}'):
        installed(from_an_index)
        assert errors.install_command("ray") == "pip install 'paribus[ray]'"
    assert errors.install_command("ray") in str(errors.MissingExtra("ray", "This"))


def test_the_line_uses_the_pip_of_this_environment(tmp_path, monkeypatch):
    """A `pip` on the path that belongs to another Python is not named."""
    (tmp_path / "pip").touch(mode=0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    program = shlex.split(errors.install_command("ray"))[0]
    assert program in (sys.executable, "uv")
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    assert shlex.split(errors.install_command("ray"))[0] == "pip"


def test_every_message_about_a_part_takes_the_line_from_one_place():
    """No source spells the line out, but for the function that makes it."""
    packages = [Path(str(files(name))) for name in ("paribus", "paribus_runners", "paribus_dashboards")]
    sources = [p for package in packages for ending in ("py", "j2") for p in package.rglob(f"*.{ending}")]
    assert len(sources) > 100
    assert [p.name for p in sources if "pip install" in p.read_text()] == ["errors.py"]


def test_a_gitignore_in_another_encoding_is_extended(tmp_path):
    """Its bytes stay as they are."""
    (tmp_path / ".gitignore").write_bytes(b"caf\xe9/\n")
    assert CliRunner().invoke(paribus, ["init", str(tmp_path)]).exit_code == 0
    assert (tmp_path / ".gitignore").read_bytes().startswith(b"caf\xe9/\n.paribus/\n")
