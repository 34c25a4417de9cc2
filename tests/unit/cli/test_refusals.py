"""A file that the operating system refuses is one sentence, not a traceback."""

import errno
import os

import click
import pytest
from click.testing import CliRunner

from paribus import cli
from paribus.errors import ParibusError
from paribus.report.build import build_report
from paribus.report.write import write_model
from paribus.store.store import Store
from support.studies import Shape, made_up_study


def _fails(number, *names):
    def command(**_):
        raise OSError(number, os.strerror(number), *names)

    return command


@pytest.mark.parametrize("number", sorted(cli.REFUSALS))
def test_a_refused_file_is_named_with_what_to_do(number, monkeypatch, capsys):
    """File, reason and remedy on one line; the exit status is that of an error."""
    monkeypatch.setattr(cli, "paribus", _fails(number, "home/paribus.db"))
    with pytest.raises(SystemExit) as ended:
        cli.main()
    assert ended.value.code == 1
    assert capsys.readouterr().err == f"error P000: home/paribus.db: {os.strerror(number)}. {cli.REFUSALS[number]}\n"


@pytest.mark.parametrize("failure", [(errno.ENOENT, "gone"), (errno.EACCES,)])
def test_other_errors_keep_their_traceback(failure, monkeypatch):
    """A file that is missing where none may be, and an error without a file, are faults of the program."""
    monkeypatch.setattr(cli, "paribus", _fails(*failure))
    with pytest.raises(OSError, match=os.strerror(failure[0])):
        cli.main()


def test_an_error_has_the_words_of_the_operating_system_without_its_number():
    """Whatever a message quotes of an error of a file."""
    failure = OSError(errno.ENOENT, os.strerror(errno.ENOENT), "x.tar")
    assert str(ParibusError(f"cannot write x: {failure}")) == "cannot write x: No such file or directory: 'x.tar'"


@pytest.mark.parametrize(
    ("typed", "near"),
    [(["pln"], "plan"), (["recipes", "shw"], "show"), (["db", "bakup"], "backup"), (["token", "crate"], "create")],
)
def test_a_misspelt_command_is_answered_with_the_nearest_and_with_all(typed, near):
    """Also below a group of commands."""
    done = CliRunner().invoke(cli.paribus, typed)
    assert done.exit_code == 2
    assert f"there is no command `{typed[-1]}`. Did you mean `{near}`? Commands: " in done.output
    assert near in done.output.partition("Commands: ")[2]


def test_a_shell_that_completes_words_gets_no_error_of_a_misspelt_command():
    """Behind a command that is not there, all commands are proposed."""
    completing = {"_PARIBUS_COMPLETE": "bash_complete", "COMP_WORDS": "paribus pln ", "COMP_CWORD": "2"}
    done = CliRunner().invoke(cli.paribus, prog_name="paribus", env=completing)
    assert (done.exit_code, done.exception) == (0, None)
    assert "plain,plan\n" in done.output


@pytest.mark.parametrize("command", ["plan", "run", "scheduler", "up"])
def test_a_misspelt_engine_is_refused_before_anything_is_done(command, tmp_path):
    """Also by a plan, whose resources are checked with the engine; nothing is written."""
    (tmp_path / "s.yaml").write_text("no study")
    study = [str(tmp_path / "s.yaml")] if command in ("plan", "run") else []
    done = CliRunner().invoke(cli.paribus, [command, *study, "--engine", "lcoal", "--home", str(tmp_path / "home")])
    assert "there is no engine `lcoal`. Did you mean `local`? Installed: inline, local," in str(done.exception)
    assert not (tmp_path / "home").exists()


@pytest.mark.parametrize("command", ["plan", "run", "scheduler", "up"])
@pytest.mark.parametrize(("name", "message"), [("none.yaml", "does not exist"), ("folder", "is a directory")])
def test_a_file_of_engine_options_must_be_there(command, name, message, tmp_path, monkeypatch):
    """Also for an engine without options, and a study that declares no resources."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "folder").mkdir()
    study = ["s.yaml"] if command in ("plan", "run") else []
    done = CliRunner().invoke(cli.paribus, [command, *study, "--engine-options", name])
    assert done.exit_code == 2
    assert f"File '{name}' {message}" in done.output


@pytest.mark.parametrize("command", ["plan", "run", "submit"])
def test_an_empty_study_is_not_the_folder_here(command, monkeypatch, tmp_path):
    """A script whose variable is empty gets to know which argument it is."""
    monkeypatch.chdir(tmp_path)
    assert "the STUDY is empty" in str(CliRunner().invoke(cli.paribus, [command, ""]).exception)


@pytest.mark.parametrize(
    "typed",
    [["status"], ["gc"], ["archive"], ["export"], ["delete"], ["cancel"], ["retry"], ["report"],
     ["gradients", "--at=0"], ["note"], ["note", "--remove"], ["tag"], ["audit", "dapo_table1", "--seed-sd-from"]],
)  # fmt: skip
def test_an_empty_name_is_not_that_of_a_study_nor_of_all(typed, monkeypatch, tmp_path):
    """A store is there, so that each command looks for the study."""
    monkeypatch.setenv("PARIBUS_HOME", str(tmp_path))
    Store.open(tmp_path).close()
    done = CliRunner().invoke(cli.paribus, [*typed, ""])
    assert "the STUDY is empty" in str(done.exception) or "the STUDY or RUN is empty" in str(done.exception)


@pytest.mark.parametrize(
    "typed",
    [["status", "--home"], ["scheduler", "--until-idle", "--reports"], ["export", "x", "--to"],
     ["db", "backup", "--to"], ["report", "x", "--out"], ["init"], ["studies", "copy", "quickstart"],
     ["audit", "dapo_table1", "--html"], ["dashboard", "--export"], ["dashboard", "--token-file"],
     ["import-config", "trl", "--beta=1", "--to"]],
)  # fmt: skip
def test_an_empty_path_is_not_the_folder_here(typed, monkeypatch, tmp_path):
    """Nothing is written there."""
    monkeypatch.chdir(tmp_path)
    done = CliRunner().invoke(cli.paribus, [*typed, ""])
    assert done.exit_code == 2
    assert "the path is empty" in done.output
    assert not [*tmp_path.iterdir()]


def test_an_empty_name_of_a_table_is_answered_with_the_tables():
    """It is no file that has the wrong ending."""
    assert "dapo_table1" in str(CliRunner().invoke(cli.paribus, ["audit", ""]).exception)


@pytest.mark.parametrize("command", [["doctor"], ["run", "s.yaml"], ["status"]])
@pytest.mark.parametrize("named", ["--home", "$PARIBUS_HOME"])
def test_a_home_folder_is_no_file(command, named, monkeypatch, tmp_path):
    """Whichever way it was named; the doctor would find its disk in order, and a run would end in a traceback."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "FILE").write_text("x")
    (tmp_path / "s.yaml").write_text("no study")
    if named == "$PARIBUS_HOME":
        monkeypatch.setenv("PARIBUS_HOME", "FILE")
    else:
        command = [*command, "--home", "FILE"]
    done = CliRunner().invoke(cli.paribus, command)
    assert done.exit_code == 2
    assert f"Invalid value for {named}: `FILE` is a file: name a folder." in done.output


def test_ctrl_c_has_its_own_status(monkeypatch, capsys):
    """It is no error: a script tells it from a study that is wrong, also before `paribus run` has begun to train."""

    def interrupted(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr("paribus.cli.schema.command", click.Command("schema", callback=interrupted))
    monkeypatch.setattr("sys.argv", ["paribus", "schema"])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    assert ended.value.code == cli.INTERRUPTED == 130
    assert capsys.readouterr().err == "\ninterrupted\n"


def test_a_report_that_cannot_be_written_names_the_folder(tmp_path):
    """And the option that names another one."""
    (tmp_path / "file").write_text("")
    model = build_report(made_up_study(Shape(steps=4)))
    with pytest.raises(ParibusError, match=r"cannot be written to .*file/report: Not a directory; .* --out FOLDER"):
        write_model(model, tmp_path / "file" / "report")
