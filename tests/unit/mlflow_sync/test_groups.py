"""Parent runs in MLflow's own SQLite store: study > arm > run, whatever is killed, refused, deleted or moved."""

import errno
import json
import shutil
import sqlite3
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from paribus.audit.doctor import mlflow_names
from paribus.home import UP_FILE
from paribus.mlflow_sync.client import NOTE_TAG, PARENT_TAG, REFUSALS, MlflowWriter, tracking_uri
from paribus.mlflow_sync.database_file import prepared
from paribus.mlflow_sync.groups import PUBLIC_URL
from paribus.mlflow_sync.offsets import identity_of, refused_groups, replay
from paribus.store.store import Store
from paribus.study.study_files import keep_report, without_secrets
from support.mlflow_case import Case, write
from support.plans import small_plan

pytest.importorskip("mlflow")

pytestmark = pytest.mark.filterwarnings("ignore")  # MLflow's own


@pytest.fixture
def case(tmp_path, empty, monkeypatch):
    """A case with MLflow in the home folder."""
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    monkeypatch.delenv(PUBLIC_URL, raising=False)
    (tmp_path / "home").mkdir()
    shutil.copy(empty, tmp_path / "home" / "mlflow.db")
    made = Case(tmp_path / "home", lambda home: MlflowWriter(tracking_uri(home), home))
    yield made
    made.close()


def rows(home, query):
    """Return rows of MLflow's file."""
    with closing(sqlite3.connect(home / "mlflow.db")) as database:
        return database.execute(query).fetchall()


def tags(home, identity):
    """Return the tags of a run in MLflow."""
    return dict(rows(home, f"SELECT key, value FROM tags WHERE run_uuid = '{identity}'"))


def groups(home):
    """Return name to id and status of the parent runs that are not deleted."""
    query = """
        SELECT runs.name, runs.run_uuid, runs.status FROM runs JOIN tags ON tags.run_uuid = runs.run_uuid
        WHERE tags.key = 'paribus.group' AND lifecycle_stage = 'active'
    """
    found = rows(home, query)
    assert len({name for name, *_ in found}) == len(found), "a group is there twice"
    return {name: (identity, status) for name, identity, status in found}


def artifacts(case, identity):
    """Return the artifacts at the top of a run by MLflow's own client."""
    return {file.path for file in case.connect(case.home)._client.list_artifacts(identity)}


def copied(case, identity, name, folder):
    """Return the text of an artifact."""
    return Path(case.connect(case.home)._client.download_artifacts(identity, name, str(folder))).read_text()


def test_a_run_is_below_its_arm_below_its_study(case):
    """With a status that follows the study, a description, and the samples beside the other files of the run."""
    folder, sync = case.attempt(), case.sync()
    write(folder, range(3))
    folder.samples.write_text('{"step": 1}\n')
    assert sync.turn() == 0
    known = groups(case.home)
    assert {name: status for name, (_, status) in known.items()} == {"small": "RUNNING", "arm 0": "RUNNING"}
    run = identity_of(case.home, case.run)
    assert tags(case.home, run)[PARENT_TAG] == known["arm 0"][0]
    assert tags(case.home, known["arm 0"][0])[PARENT_TAG] == known["small"][0]
    assert PARENT_TAG not in tags(case.home, known["small"][0])
    assert "Does the upper clip bound matter?" in tags(case.home, known["small"][0])[NOTE_TAG]
    assert tags(case.home, known["arm 0"][0])[NOTE_TAG] == "Base of the study `small`."
    case.finish()
    assert sync.turn() == 0
    assert {status for _, status in groups(case.home).values()} == {"FINISHED"}
    assert "samples.jsonl" in artifacts(case, run)


def test_a_new_process_and_a_lost_ledger_make_no_second_group(case):
    """Groups are found again by their key, and runs keep their parents."""
    write(case.attempt(), range(3))
    case.sync().turn()
    before = groups(case.home)
    case.sync().turn()
    for file in case.home.glob("shipper.db*"):
        file.unlink()
    case.finish()
    assert case.sync().turn() == 0
    assert {name: known[0] for name, known in groups(case.home).items()} == {n: k[0] for n, k in before.items()}
    assert tags(case.home, identity_of(case.home, case.run))[PARENT_TAG] == before["arm 0"][0]


def test_a_kill_after_any_call_doubles_and_loses_nothing(case, monkeypatch):
    """The process dies after each call in turn, before it could note what MLflow has done."""
    write(case.attempt(), range(3))
    case.finish()
    calls = {"open_group", "show_group", "tag", "open_run", "describe", "attach", "close_run", "log"}
    left = [0]

    def dying(name):
        method = getattr(MlflowWriter, name)

        def call(self, *arguments, **named):
            found = method(self, *arguments, **named)
            left[0] -= 1
            if left[0] < 0:
                raise SystemExit
            return found

        return call

    for name in calls:
        monkeypatch.setattr(MlflowWriter, name, dying(name))
    deaths = 0
    for allowed in range(40):
        left[0] = allowed // 3
        try:
            done = case.sync().turn() == 0
        except SystemExit:
            deaths += 1
            continue
        if done:
            break
    assert deaths > 8
    assert done
    known, run = groups(case.home), identity_of(case.home, case.run)
    assert {name: status for name, (_, status) in known.items()} == {"small": "FINISHED", "arm 0": "FINISHED"}
    assert tags(case.home, run)[PARENT_TAG] == known["arm 0"][0]
    steps = rows(case.home, f"SELECT step FROM metrics WHERE run_uuid = '{run}' ORDER BY step")
    assert steps == [(0,), (1,), (2,)]
    assert rows(case.home, "SELECT COUNT(*) FROM tags WHERE key = 'paribus.run'") == [(1,)]


class Refused(Exception):
    """What a server answers."""

    error_code = "INVALID_PARAMETER_VALUE"


@pytest.mark.parametrize("arm", ["", "arm 0"])
def test_a_refused_group_blocks_no_run_and_is_tried_again_by_a_replay(case, monkeypatch, arm):
    """The run is complete without it, doctor names it, and after the replay the run is below it."""
    opened, refusing = MlflowWriter.open_group, [True]

    def refuse(self, card):
        if refusing and card.arm == arm:
            raise Refused("no such group")
        return opened(self, card)

    monkeypatch.setattr(MlflowWriter, "open_group", refuse)
    write(case.attempt(), range(3))
    case.finish()
    sync = case.sync()
    for _ in range(4 * REFUSALS):
        case.now += 100
        behind = sync.turn()
    assert behind == 0
    run = identity_of(case.home, case.run)
    assert rows(case.home, f"SELECT status FROM runs WHERE run_uuid = '{run}'") == [("FINISHED",)]
    named = "arm arm 0 of study small" if arm else "study small"
    assert refused_groups(case.home) == {named: "Refused: no such group"}
    (check,) = mlflow_names(case.home)
    assert (check.level, named in check.message, "--replay" in check.remedy) == ("warn", True, True)
    refusing.clear()
    assert replay(case.home) == 1
    assert sync.turn() == 0
    known = groups(case.home)
    assert tags(case.home, run)[PARENT_TAG] == known["arm 0"][0]
    assert tags(case.home, known["arm 0"][0])[PARENT_TAG] == known["small"][0]
    assert (refused_groups(case.home), list(mlflow_names(case.home))) == ({}, [])


def test_a_server_that_is_down_for_groups_alone_is_waited_out(case, monkeypatch):
    """The run goes on meanwhile, and no refusal is noted."""
    opened, down = MlflowWriter.open_group, [True]

    def fail(self, card):
        if down:
            raise ConnectionError("down")
        return opened(self, card)

    monkeypatch.setattr(MlflowWriter, "open_group", fail)
    write(case.attempt(), range(3))
    case.finish()
    sync = case.sync()
    for _ in range(5):
        case.now += 100
        assert sync.turn() > 0
    assert "down" in sync.trouble
    run = identity_of(case.home, case.run)
    assert rows(case.home, f"SELECT status FROM runs WHERE run_uuid = '{run}'") == [("FINISHED",)]
    assert refused_groups(case.home) == {}
    down.clear()
    case.now += 100
    assert (sync.turn(), sync.trouble) == (0, "")
    assert tags(case.home, run)[PARENT_TAG] == groups(case.home)["arm 0"][0]


def test_runs_of_an_earlier_version_get_their_groups(case):
    """They were complete before there were any."""
    write(case.attempt(), range(3))
    case.finish()
    case.sync().turn()
    run, old = identity_of(case.home, case.run), groups(case.home)
    for identity, _ in old.values():
        case.connect(case.home)._client.delete_run(identity)
    case.connect(case.home)._client.delete_tag(run, PARENT_TAG)
    with closing(sqlite3.connect(case.home / "shipper.db")) as database:
        database.executescript("DROP TABLE parent; DROP TABLE child; DROP TABLE refused_group;")
    assert case.sync().turn() == 0
    assert tags(case.home, run)[PARENT_TAG] == groups(case.home)["arm 0"][0]
    assert groups(case.home).keys() == old.keys()


def test_the_study_has_its_file_and_its_newest_report(case, tmp_path):
    """The file without credentials; the report again when it was written again."""
    file = "study: small\nquestion: see https://ada:c4nary@host/x\nhf_token: c4nary9\n"
    case.store.add_study(replace(case.study.plan, text=without_secrets(file)))
    write(case.attempt(), range(3))
    case.finish()
    sync = case.sync()
    sync.turn()
    study = groups(case.home)["small"][0]
    assert artifacts(case, study) == {"study.yaml"}
    report = tmp_path / "reports" / "small"
    report.mkdir(parents=True)
    for text in ("first", "second, longer"):
        (report / "report.md").write_text(text)
        assert keep_report(case.home, "small", report) == ""
        assert sync.turn() == 0
        assert artifacts(case, study) == {"study.yaml", "report.md"}
        assert copied(case, study, "report.md", tmp_path) == text
    assert "https://ada:***@host/x\nhf_token: ***\n" in copied(case, study, "study.yaml", tmp_path)


def test_a_study_of_an_earlier_version_has_the_file_beside_its_plan(case, tmp_path):
    """The plan has no text then; once the study is submitted again, MLflow has the plan's."""
    (case.home / "study_files" / "small").mkdir(parents=True)
    (case.home / "study_files" / "small" / "study.yaml").write_text("study: small # old\n")
    write(case.attempt(), range(3))
    sync = case.sync()
    sync.turn()
    study = groups(case.home)["small"][0]
    assert "# old" in copied(case, study, "study.yaml", tmp_path)
    case.store.add_study(replace(case.study.plan, text="study: small # new\n"))
    sync.turn()
    assert "# new" in copied(case, study, "study.yaml", tmp_path)


def test_descriptions_follow_the_newest_plan(case):
    """A study that was submitted again with more arms, and one that the store lacked at first."""
    write(case.attempt(), range(3))
    sync = case.sync()
    sync.turn()
    study = groups(case.home)["small"][0]
    assert "1 arm, 1 seed" in tags(case.home, study)[NOTE_TAG]
    case.store.add_study(small_plan(arms=3, seeds=2))
    sync.turn()
    assert "3 arms, 2 seeds" in tags(case.home, study)[NOTE_TAG]


def test_a_report_that_cannot_be_read_ends_no_turn(case, tmp_path, monkeypatch, caplog):
    """In a folder that this account can't enter, deleted in between, or no text: the rest is copied."""
    write(case.attempt(), range(3))
    case.finish()
    sync = case.sync()
    report = tmp_path / "reports"
    report.mkdir()
    (report / "report.md").write_text("first")
    keep_report(case.home, "small", report)
    real = Path.stat

    def closed(path, **options):
        if path.parent == report:
            raise PermissionError(errno.EACCES, "Permission denied", str(path))
        return real(path, **options)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "stat", closed)
        assert (sync.turn(), sync.trouble) == (0, "")
    study = groups(case.home)["small"][0]
    assert artifacts(case, study) == set()
    (case.home / "study_files" / "small" / "report").write_text("/" + "x" * 300)
    assert (sync.turn(), sync.trouble) == (0, "")
    (case.home / "study_files" / "small" / "report").write_bytes(b"\xff\0")
    assert (sync.turn(), sync.trouble) == (0, "")
    keep_report(case.home, "small", report)
    with monkeypatch.context() as patch:  # between the look at the file and its copy
        patch.setattr("paribus.mlflow_sync.groups.masked_copy", lambda path, _: path.unlink() or path.read_text())
        assert (sync.turn(), sync.trouble) == (0, "")
    (report / "report.html").write_bytes(b"\xff")
    (report / "report.md").write_text("again")
    assert (sync.turn(), sync.trouble) == (0, "")
    assert artifacts(case, study) == {"report.md"}
    assert [record.getMessage().split(":")[0] for record in caplog.records] == [
        "report.md is not copied to MLflow", "report.html is not copied to MLflow",
    ]  # fmt: skip


def test_a_home_that_cannot_be_written_notes_no_report(tmp_path):
    """The report itself is written: a message says that MLflow has no copy."""
    (tmp_path / "study_files").write_text("")
    said = keep_report(tmp_path, "small", tmp_path)
    assert said.startswith(f"MLflow gets no copy of this report: {tmp_path / 'study_files'} cannot be written")


def test_values_under_names_of_secrets_are_hidden_and_others_stay():
    """Also inside braces; a variable of the environment is no secret."""
    text = "runner: {kind: mine, api_key: abc, n: 3}\nPassword: 'a b'\ntoken: ${X}\nmax_tokens: 5\neos_token: </s>\n"
    shown = "runner: {kind: mine, api_key: ***, n: 3}\nPassword: ***\ntoken: ${X}\nmax_tokens: 5\neos_token: </s>\n"
    assert without_secrets(text) == shown


def test_descriptions_link_to_the_dashboard_where_its_address_is_known(case, monkeypatch):
    """That of `paribus up` or of the environment, without its token; it stays when the dashboard ends."""
    (case.home / UP_FILE).write_text(json.dumps({"dashboard": "http://127.0.0.1:8765/"}))
    write(case.attempt(), range(3))
    sync = case.sync()
    sync.turn()
    run, study = identity_of(case.home, case.run), groups(case.home)["small"][0]
    page = "http://127.0.0.1:8765/study/small"
    assert tags(case.home, run)[NOTE_TAG] == f"[Dashboard]({page}/health?run={case.run[:12]})"
    assert f"[Dashboard]({page})" in tags(case.home, study)[NOTE_TAG]
    (case.home / UP_FILE).unlink()
    sync.turn()
    assert f"[Dashboard]({page})" in tags(case.home, study)[NOTE_TAG]
    monkeypatch.setenv(PUBLIC_URL, "https://ada:c4nary@gpu.example/paribus/")
    sync.turn()
    assert "[Dashboard](https://ada:***@gpu.example/paribus/study/small)" in tags(case.home, study)[NOTE_TAG]


def test_a_home_that_moved_has_its_artifacts(case, tmp_path, monkeypatch):
    """By MLflow's own client, for old and new runs; a folder that is still there is left alone."""
    write(case.attempt(), range(3))
    case.finish()
    case.sync().turn()
    run = identity_of(case.home, case.run)
    before = rows(case.home, "SELECT artifact_uri FROM runs")
    with prepared(case.home / "mlflow.db"):
        pass
    assert rows(case.home, "SELECT artifact_uri FROM runs") == before
    rows(case.home, "PRAGMA wal_checkpoint(TRUNCATE)")
    case.close()
    monkeypatch.delenv("MLFLOW_TRACKING_URI")  # MLflow has set it for its child processes
    moved = tmp_path / "moved here"
    case.home.rename(moved)
    case.home, case.offsets = moved, []
    case.store = Store.open(moved)
    assert "job.json" in artifacts(case, run)
    query = "SELECT artifact_uri FROM runs UNION SELECT artifact_location FROM experiments WHERE name = 'small'"
    assert all(place.startswith(moved.as_uri()) for (place,) in rows(moved, query))
    assert case.sync().turn() == 0
    assert groups(moved).keys() == {"small", "arm 0"}


def test_a_study_that_began_beside_a_server_goes_on_without_it(case):
    """Artifacts go to where the server of `paribus up` looks for them."""
    case.connect(case.home)._client.create_experiment("small", artifact_location="mlflow-artifacts:/1")
    write(case.attempt(), range(3))
    case.finish()
    sync = case.sync()
    assert (sync.turn(), sync.trouble) == (0, "")
    run = identity_of(case.home, case.run)
    assert (case.home / "mlartifacts" / "1" / run / "artifacts" / "job.json").is_file()
