"""`paribus runners`: lists, shows, and says what is missing."""

import pytest
from click.testing import CliRunner

from paribus.errors import ParibusError
from paribus_runners import environments
from paribus_runners.environments import FOLDER, Environment
from paribus_runners.runners_command import command


@pytest.fixture
def type_(tmp_path, monkeypatch):
    """Return a function that types the command where no environment is installed."""
    monkeypatch.setenv(FOLDER, str(tmp_path / "environments"))

    def typed(*words):
        return CliRunner().invoke(command, words, catch_exceptions=False).output

    return typed


def test_runners_are_listed_with_state_and_versions(type_):
    """A runner of this environment says so; one with its own says what is wrong with it."""
    shown = " ".join(type_().split())
    assert "native this one" in shown
    assert "trl missing" in shown
    assert "trl 1.16.0" in shown


def test_the_matrix_is_shown_with_options_and_reasons(type_):
    """Each level stands with its options; what is not exact with its reason; conventions below."""
    shown = type_("show", "trl")
    assert "loss_type=dr_grpo" in shown
    assert "unsupported" in shown
    assert "conventions" in shown
    assert "gradient_checkpointing" in shown


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("show", "tlr"), "there is no runner `tlr`. Did you mean `trl`?"),
        (("install", "vllm"), "vLLM is no runner: it samples for `native`, with `rollout.engine: vllm`"),
        (("install", "native"), "`native` runs in this environment. With one of their own: trl"),
        (("check", "trl"), "trl: missing: it is not installed: run `paribus runners install trl`"),
    ],
)
def test_mistakes_have_a_remedy(type_, words, message):
    """An unknown runner, one without an environment, and a missing environment are errors for the user."""
    with pytest.raises(ParibusError) as caught:
        type_(*words)
    assert message in str(caught.value)


def test_a_relative_folder_of_environments_is_found_from_everywhere(tmp_path, monkeypatch):
    """Training starts in the folder of a study, so the Python of the environment has an absolute path."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv(FOLDER, "environments")
    assert environments.environments() == tmp_path / "environments"


def test_an_installation_that_fails_is_unfinished(tmp_path, monkeypatch):
    """A package that cannot be had ends it with a message; the state says so until it is repeated."""
    monkeypatch.setenv(FOLDER, str(tmp_path))
    lock = tmp_path / "toy.lock"
    lock.write_text("torch==0.0.0\n")
    made = Environment("toy", lock)

    def fail(words, *, fine=False):
        if "venv" in words:
            made.python.parent.mkdir(parents=True)
            made.python.touch()
            return
        raise ParibusError("pip has failed")

    monkeypatch.setattr(environments, "_run", fail)
    said = []
    with pytest.raises(ParibusError, match="pip has failed"):
        made.install(said.append)
    assert made.state()[0] == "unfinished"
    assert said == [f"making {made.folder}", "installing torch 0.0.0, then 0 packages"]


def test_what_a_killed_pip_left_is_no_package(tmp_path):
    """A folder without metadata; the others are listed."""
    place = tmp_path / "lib" / "python3.11" / "site-packages"
    (place / "torch-2.13.0.dist-info").mkdir(parents=True)
    (place / "trl-1.16.0.dist-info").mkdir()
    (place / "trl-1.16.0.dist-info" / "METADATA").write_text("Metadata-Version: 2.1\nName: trl\nVersion: 1.16.0\n")
    assert environments.installed_versions(tmp_path) == {"trl": "1.16.0"}
