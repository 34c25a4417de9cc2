"""``paribus import`` on real output folders of TRL, and what every other command then says of the study."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from paribus.audit.invariants import audit
from paribus.audit.snapshot import snapshot
from paribus.cli import paribus
from paribus.run_folder.folder import RunFolder, read_json
from paribus.store.reader import Reader
from paribus.store.store import Store
from support.studies import Shape, made_up_study
from support.trl_runs import trl_folders

NAME = ("--study", "six", "--name", "{arm}-s{seed}")


def typed(*arguments: object, code: int = 0) -> str:
    """Type a command; return what it printed."""
    done = CliRunner().invoke(paribus, [str(a) for a in arguments])
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        raise done.exception
    assert done.exit_code == code, done.output
    return done.output


def refused(*arguments: object) -> str:
    """Type a command that a user error ends; return the message."""
    done = CliRunner().invoke(paribus, [str(a) for a in arguments])
    assert done.exit_code, done.output
    return str(done.exception)


@pytest.fixture
def at(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with the six runs of TRL below ``runs``, which is the current one; its home folder is the usual one."""
    trl_folders(tmp_path / "runs")
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("PARIBUS_HOME", raising=False)
    return tmp_path


def logs(at: Path) -> list[str]:
    """Return the paths of the six runs, as a shell writes them."""
    return sorted(str(p.relative_to(at)) for p in (at / "runs").iterdir())


def test_one_command_makes_a_study_of_six_folders(at: Path) -> None:
    """Two arms and three seeds stand in status, health and report, marked, with a score that is not called ours."""
    shown = typed("import", *logs(at), *NAME, "--base", "grpo")
    assert "six: 6 imported; 6 runs in 2 arms now" in shown
    assert "the trainer's own `eval_reward`; it is not an evaluation by Paribus" in shown
    assert typed("status", "six").count("succeeded") == 6
    assert "6 runs:" in typed("health", "six")
    report = typed("report", "six")
    words = " ".join(report.split())
    assert "Not trained by Paribus: imported from logs of trl. The score is the trainer's own `eval_reward`" in words
    assert "no counts per problem, so intervals show the spread of seeds alone" in words
    assert "Exploratory: the arm had results before this plan was declared" in words
    assert "exploratory, imported" in words
    assert "held-out accuracy (proxy in `grpo` and `dr_grpo`)" in words
    assert "learning_rate" not in report  # recipes are not known, and none is made up
    provenance = json.loads((at / "reports/six/report.json").read_text())["provenance"]
    assert provenance["evaluation"] == "the trainer's own: not known"
    assert "max new tokens" not in provenance
    assert provenance["checkpoint rule"] == "mean_of_last_3, applied afterwards"


def test_all_numbers_of_the_trainer_are_kept(at: Path) -> None:
    """Canonical metrics have their sources, and every number of TRL's log stands unchanged under its own name."""
    typed("import", "runs/grpo-s1", *NAME)
    with Reader.open(at / ".paribus") as reader:
        (run,) = reader.runs_of(reader.study("six").id)
    folder = RunFolder.of(at / ".paribus", run.fingerprint, 1)
    lines = {line.step: line for line in folder.read_metrics()}
    history = json.loads((at / "runs/grpo-s1/trainer_state.json").read_text())["log_history"]
    for record in history:
        for name, value in record.items():
            if name != "step" and isinstance(value, int | float):
                assert f"native/trl/{name}" in lines[record["step"]].values, name
    first = next(r for r in history if "reward" in r)
    line = lines[first["step"]]
    assert line.values["reward/mean"] == first["reward"] == line.values["native/trl/reward"]
    assert "reward/mean" not in line.sources  # exact
    evaluated = next(line for line in lines.values() if "eval/heldout/avg_at_1" in line.values)
    assert evaluated.sources["eval/heldout/avg_at_1"] == "proxy"
    assert read_json(folder.environment)["trainer"] == "trl"


def test_the_same_logs_again_change_nothing(at: Path) -> None:
    """Whole or in parts, runs are recorded once; the plan stays the same one."""
    typed("import", *logs(at)[:3], *NAME)
    typed("import", *logs(at), *NAME)
    done = json.loads(typed("import", *logs(at), *NAME, "--json"))
    assert (done["added"], done["known"], done["replaced"]) == ([], 6, 0)
    with Reader.open(at / ".paribus") as reader:
        assert len(reader.studies()) == 2
        assert len(reader.runs_of(reader.study("six").id)) == 6
        assert audit(snapshot(reader)) == ()
    assert len(list((at / ".paribus/runs").glob("*/a*"))) == 6


def test_a_log_that_changed_is_told(at: Path) -> None:
    """Nothing is recorded until the user says so; then it takes the place of the old record, which stays."""
    typed("import", *logs(at), *NAME)
    file = at / "runs/grpo-s2/trainer_state.json"
    state = json.loads(file.read_text())
    state["log_history"] = state["log_history"][:40]
    file.write_text(json.dumps(state))
    message = refused("import", *logs(at), *NAME)
    assert "runs/grpo-s2: arm `grpo`, seed 2" in message
    assert "--replace" in message
    assert "1 imported, 5 were there already, 1 in place of earlier records; 6 runs" in typed(
        "import", *logs(at), *NAME, "--replace"
    )
    with Reader.open(at / ".paribus") as reader:
        plans = [study.plan for study in reader.studies()]
        assert len({run.fingerprint for plan in plans for run in plan.runs}) == 7
        assert audit(snapshot(reader)) == ()


def test_a_table_and_terms(at: Path) -> None:
    """A CSV names arms; base, score, pairs and question are the user's, and are kept by the next import."""
    rows = "".join(f"runs/{a}-s{s},{a.upper()},{s}\n" for a in ("grpo", "dr_grpo") for s in (1, 2))
    (at / "runs.csv").write_text(f"path,arm,seed\n{rows}")
    terms = ("--base", "DR_GRPO", "--primary", "reward/mean", "--paired", "--question", "Which is better?")
    typed("import", "--study", "six", "--table", "runs.csv", *terms)
    (at / "more.csv").write_text("path,arm,seed\nruns/grpo-s3,GRPO,3\n")
    done = json.loads(typed("import", "--study", "six", "--table", "more.csv", "--json"))
    assert (done["base"], done["primary"]) == ("DR_GRPO", "reward/mean")
    with Reader.open(at / ".paribus") as reader:
        plan = reader.study("six").plan
    assert (plan.paired, plan.question, plan.seeds) == (True, "Which is better?", (1, 2, 3))
    assert "as the trainer measured it, mean of the last 3 values" in (
        typed("report", "six") and (at / "reports/six/report.md").read_text()
    )


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--base", "gpro"], "there is no arm `gpro`. Did you mean `grpo`?"),
        (["--primary", "response/length_p95"], "is missing in"),
        (["--primary", "native/trl/reward"], "is no metric of docs/reference/metrics.md"),
        (["--study", "Six"], "is no name of a study"),
        (["--trainer", "verl"], "has no metric of verl"),
    ],
)
def test_mistakes_record_nothing(at: Path, arguments: list[str], message: str) -> None:
    """The message says what is allowed, and there is no study afterwards."""
    assert message in refused("import", *logs(at), *NAME, *arguments)
    assert not (at / ".paribus/runs").exists()


def test_logs_that_cannot_be_read_are_all_named(at: Path) -> None:
    """One of them is enough that nothing is imported."""
    (at / "runs/grpo-s7").mkdir()
    (at / "runs/grpo-s8").mkdir()
    (at / "runs/grpo-s8/trainer_state.json").write_text("{")
    message = refused("import", *logs(at), *NAME)
    assert "runs/grpo-s7: no log of a trainer" in message
    assert "not JSON" in message
    assert not (at / ".paribus").exists()


def test_trained_and_imported_studies_stay_apart(at: Path) -> None:
    """Neither takes the other's name, and nothing of one is compared with the other."""
    data = made_up_study(Shape(seeds=2, steps=8, tricks=("clip_higher",), designs=("add_one",)))
    with Store.open(at / ".paribus") as store:
        store.add_study(data.plan)
    message = refused("import", *logs(at), "--study", data.plan.study, "--name", "{arm}-s{seed}")
    assert "is a study that Paribus trains" in message
    typed("import", *logs(at), *NAME)
    assert "Paribus did not train these runs" in refused("report", "--compare", "six", data.plan.study)
    assert "cannot start them again" in refused("retry", "six")
    with Store.open(at / ".paribus") as store, pytest.raises(Exception, match="imported or tracked"):
        store.add_study(made_up_study(Shape(seeds=2, steps=8, study="six")).plan)


def test_two_trainers_are_compared_where_both_are_exact(at: Path) -> None:
    """A proxy of one trainer is not compared with that of another; what both measure as defined is."""
    for seed in (1, 2, 3):
        lines = [
            {"step": s, "actor/entropy": 1 + s / 99, "critic/score/mean": 0.5 + s / 99, "response_length/mean": 30 + s}
            for s in range(1, 20)
        ]
        (at / f"runs/verl-s{seed}.jsonl").write_text("\n".join(map(json.dumps, lines)))
    typed("import", *logs(at), *NAME, "--base", "grpo", "--primary", "reward/mean")
    words = " ".join(typed("report", "six").split())
    assert "Not compared between arms, because trainers measure it in other ways: reward" in words
    rows = _rows(at, "effects")
    assert rows["verl"]["entropy"] == "n/a"  # a proxy of verl, exact in TRL
    assert rows["verl"]["length"].startswith("+")
    assert rows["dr_grpo"]["entropy"] != "n/a"


def _rows(at: Path, key: str) -> dict[str, dict[str, str]]:
    """Return row to column to text of a table of the report."""
    tables = json.loads((at / "reports/six/report.json").read_text())["tables"]
    table: Any = next(t for t in tables if t["key"] == key)
    columns = [c["key"] for c in table["columns"]]
    return {r["label"]: dict(zip(columns, (c["text"] for c in r["cells"]), strict=True)) for r in table["rows"]}


def test_the_study_is_kept_like_any_other(at: Path) -> None:
    """Export, restore, gc, doctor's invariants, and the dashboard's file take it; the report of the copy is equal."""
    typed("import", *logs(at), *NAME)
    typed("report", "six")
    first = (at / "reports/six/report.csv").read_text()
    typed("export", "six", "--to", "six.tar")
    shutil.rmtree(at / "reports")
    assert "6 runs, 6 with a result" in typed("restore", "six.tar", "--home", "copy")
    typed("report", "six", "--home", "copy")
    assert (at / "reports/six/report.csv").read_text() == first
    assert "nothing to delete" in typed("gc")
    assert "dr_grpo" in typed("dashboard", "--export", "pages.html") + (at / "pages.html").read_text()
    for home in (".paribus", "copy"):
        with Reader.open(at / home) as reader:
            assert audit(snapshot(reader)) == ()


def test_what_a_killed_import_left_is_replaced(at: Path) -> None:
    """Run folders are written before the store knows them; the same import again ends in whole ones."""
    typed("import", *logs(at), *NAME)
    left = list((at / ".paribus/runs").glob("*/a1"))
    for name in ("paribus.db", "paribus.db-wal", "paribus.db-shm"):
        (at / ".paribus" / name).unlink(missing_ok=True)
    for folder in left:
        (folder / "result.json").unlink()
        (folder / "metrics.jsonl").write_text('{"step": ')
    typed("import", *logs(at), *NAME)
    assert all((folder / "result.json").is_file() for folder in left)
    with Reader.open(at / ".paribus") as reader:
        assert audit(snapshot(reader)) == ()
    assert "6 of 6 runs ended, 6 finished" in typed("report", "six")


@pytest.mark.filterwarnings("ignore")  # of MLflow itself
def test_an_experiment_of_mlflow_and_a_run_of_tensorboard(at: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All runs of an experiment are found by its name, and arms and seeds in the names of its runs."""
    mlflow = pytest.importorskip("mlflow")
    uri = f"sqlite:///{at}/mlflow.db"
    monkeypatch.setenv("MLFLOW_TRACKING_URI", uri)
    client = mlflow.MlflowClient(tracking_uri=uri)
    experiment = client.create_experiment("grpo on tiny")
    for arm in ("a", "b"):
        for seed in (1, 2):
            run = client.create_run(experiment, run_name=f"{arm}-s{seed}")
            for step in range(1, 12):
                client.log_metric(run.info.run_id, "reward", step / 20, step=step)
                client.log_metric(run.info.run_id, "completions/mean_length", 30 + seed, step=step)
            client.set_terminated(run.info.run_id)
    done = json.loads(typed("import", "mlflow:grpo on tiny", *NAME, "--json"))
    assert [(x["arm"], x["seed"], x["steps"]) for x in done["added"]] == [
        ("a", 1, 11), ("b", 1, 11), ("a", 2, 11), ("b", 2, 11)
    ]  # fmt: skip
    writers = pytest.importorskip("torch.utils.tensorboard")
    with writers.SummaryWriter(str(at / "tb/c-s1")) as writer:
        for step in range(1, 12):
            writer.add_scalar("train/reward", step / 20, step)
    assert "1 imported; 5 runs in 3 arms" in typed("import", "tb/c-s1", *NAME)
