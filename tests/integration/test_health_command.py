"""``paribus health`` as a user types it: with a run, a study, a log, and anything else."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from paribus.cli.health import FAILED, UNJUDGED, command
from paribus.contract import Job
from paribus.errors import LogFileError, ParibusError, RunFolderError, StoreError, StudyFileError
from paribus.health.diagnose import DETECTORS, diagnose
from paribus.health.finding import Finding, to_json
from paribus.health.profile import load_profile
from paribus.report.inputs import StudyData
from paribus.run_folder.folder import MetricLine, RunFolder, write_json
from paribus.store.reader import Reader
from paribus.store.store import Store
from paribus.study.rules import read_rule
from support.studies import Shape, made_up_study


def health(*arguments: object, fails: bool = False) -> Result:
    """Type the command; errors of the user come out as they are."""
    done = CliRunner().invoke(command, [str(a) for a in arguments], catch_exceptions=True)
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        raise done.exception
    assert done.exit_code == (FAILED if fails else 0), done.output
    return done


@pytest.fixture
def study(tmp_path: Path) -> tuple[Path, StudyData]:
    """Return the home of a study of two arms and two seeds; the first run collapses."""
    data = made_up_study(Shape(seeds=2, steps=40, tricks=("clip_higher",), designs=("add_one",)))
    with Store.open(tmp_path) as store:
        added = store.add_study(data.plan)
        first = True
        while (claim := store.claim(added.id, engine="inline", worker="test")) is not None:
            store.start(claim.run_id, claim.token)
            folder = RunFolder.of(tmp_path, claim.fingerprint, claim.token)
            folder.path.mkdir(parents=True)
            for step in range(1, 41):
                entropy = 0.01 if first and step > 20 else 0.6
                values = {"policy/entropy": entropy, "reward/correct_frac": step / 50}
                folder.append_metrics(MetricLine(step=step, time_ms=0, values=values))
            store.finish(claim.run_id, claim.token, {"status": "succeeded"}, stopped_early=False)
            first = False
    return tmp_path, data


def test_a_study_is_a_table_of_its_runs(study: tuple[Path, StudyData]) -> None:
    """One row a run; the run that collapsed is critical and named, and the exit status says so if asked."""
    home, data = study
    done = health(data.plan.study, "--home", home)
    assert done.output.count("ENTROPY_COLLAPSE") == 1
    assert "4 runs: 1 critical, 3 ok" in done.output
    health(data.plan.study, "--home", home, "--fail-on", "critical", fails=True)


def test_what_is_damaged_or_lost_is_not_healthy(study: tuple[Path, StudyData]) -> None:
    """Lines that cannot be read, and a file that is gone, are shown in the table and fail a gate."""
    home, data = study
    runs = json.loads(health(data.plan.study, "--home", home, "--json").output)["runs"]
    fine = next(r for r in runs if r["health"] == "ok")
    [metrics] = home.glob(f"runs/**/{fine['run']}*/a1/metrics.jsonl")
    lines = metrics.read_text().splitlines(keepends=True)
    for kept in (5, 0):
        metrics.write_text("".join(lines[:kept]) + "garbage\n")
        assert "Some records cannot be read (" in health(fine["run"], "--home", home).output
    table = health(data.plan.study, "--home", home).output
    assert "metrics.jsonl:1: not a metric line" in table
    assert "4 runs: 1 critical, 2 ok, 1 unknown" in table
    for _ in ("damaged", "lost"):
        gate = CliRunner().invoke(command, [fine["run"], "--home", str(home), "--fail-on", "critical"])
        assert gate.exit_code == UNJUDGED
        metrics.unlink(missing_ok=True)
    health(data.plan.study, "--home", home, "--fail-on", "critical", fails=True)


def test_a_run_is_judged_by_the_profile_of_its_study(tmp_path: Path) -> None:
    """As the status that it shows while it trains; --profile overrides it. A run that waits keeps no gate shut."""
    plan = replace(made_up_study(Shape(seeds=1, tricks=(), designs=("add_one",))).plan, profile="base_model")
    with Store.open(tmp_path) as store:
        store.add_study(plan)
    done = health(plan.study, "--home", tmp_path, "--json", "--fail-on", "warn")
    judged = json.loads(done.output)
    assert judged["profile"] == judged["runs"][0]["profile"] == load_profile("base_model").identity
    other = json.loads(health(plan.study, "--home", tmp_path, "--json", "--profile", "default").output)
    assert other["profile"] == load_profile("default").identity


def test_a_run_is_found_by_its_first_digits(study: tuple[Path, StudyData]) -> None:
    """Verdict, evidence, remedies with patch and source; JSON holds the same and all detectors."""
    home, data = study
    runs = json.loads(health(data.plan.study, "--home", home, "--json").output)["runs"]
    [bad] = [r for r in runs if r["health"] == "critical"]
    done = health(bad["run"], "--home", home)
    assert "Critical: entropy_collapse since step" in done.output
    assert "{clip.high: 0.28}" in done.output
    assert "DAPO" in done.output
    [alone] = json.loads(health(bad["run"], "--home", home, "--json").output)["runs"]
    [collapse] = [f for f in alone["findings"] if f["detector"] == "entropy_collapse"]
    assert 20 < collapse["step_onset"] <= collapse["step_detected"] <= 30
    assert collapse["profile"].startswith("default 1 (")
    [fine] = [r for r in runs if r["health"] == "ok"][:1]
    health(fine["run"], "--home", home, "--fail-on", "warn")


def test_a_log_of_trl_is_judged(tmp_path: Path) -> None:
    """The sentence, the trainer, what is only near; a profile of one's own moves the verdict."""
    rows = [{"step": s, "completions/clipped_ratio": 0.4, "kl": 0.001 * s, "reward": 0.01 * s, "rewards/math/mean": 0,
             "completions/mean_length": 90.0, "epoch": 0.1}
            for s in range(1, 61)]  # fmt: skip
    log = tmp_path / "trainer_state.json"
    log.write_text(json.dumps({"log_history": rows}))
    done = health(log, "--all")
    assert "60 steps, log of trl" in done.output
    assert "Warning: truncation since step" in done.output
    assert "kl/ref_k3" in done.output
    assert "Not understood, and perhaps needed: rewards/math/mean" in done.output
    assert "Not used: epoch" in done.output
    assert "The cause is not known" in done.output
    assert "not recorded: optim/grad_norm" in done.output
    health(log, "--fail-on", "critical")
    health(log, "--fail-on", "warn", fails=True)
    lax = tmp_path / "lax.yaml"
    lax.write_text(
        "version: 1\nabout: long\nextends: default\nthresholds: {truncation: {warn: {value: 0.5, source: x}}}\n"
    )
    assert "Healthy" in health(log, "--profile", lax).output


def test_a_console_says_how_steps_were_counted_and_what_cannot_be_read(tmp_path: Path) -> None:
    """Both before the verdict; with a line that cannot be read, `--fail-on` exits as for a run that is not judged."""
    row = "{{'loss': {0}, 'reward': 0.5, 'completions/mean_length': 9.{1}, 'grad_norm': 0.{1}}}"
    lines = [row.format(0.1, 100 + i) for i in range(20)]
    (tmp_path / "train.log").write_text("\n".join(lines) + "\n")
    done = health(tmp_path / "train.log", "--fail-on", "warn")
    assert "steps are the 20 counted lines of training" in done.output
    (tmp_path / "train.log").write_text("\n".join([*lines, row.format("<lost>", 1)]) + "\n")
    bad = CliRunner().invoke(command, [str(tmp_path / "train.log"), "--fail-on", "warn"])
    assert bad.exit_code == UNJUDGED
    assert f"some records cannot be read: 1 entry looks like metrics: {tmp_path / 'train.log'}:21" in bad.output
    assert "Healthy" not in bad.output


def test_a_run_folder_needs_no_store(tmp_path: Path, study: tuple[Path, StudyData]) -> None:
    """A folder with its job is judged with the recipe; what the recipe excludes does not apply."""
    _, data = study
    folder = RunFolder(tmp_path / "a1")
    folder.path.mkdir()
    arm = data.plan.arm(data.plan.base)
    job = Job(run="0" * 64, study="s", arm="base", runner="native", seed=1, token=1, recipe=arm.recipe,
              evaluate=data.plan.evaluate, cache=".", profile="moe")  # fmt: skip
    folder.job.write_text(job.model_dump_json())
    folder.samples.write_text('{"step": 1, "response": "x"}\nhalf a li')
    for step in range(1, 41):
        folder.append_metrics(MetricLine(step=step, time_ms=0, values={"optim/grad_norm": 1.0}))
    done = health(folder.path, "--all")
    assert "base, seed 1" in done.output
    assert "Healthy" in done.output
    assert "no reference is loaded" in done.output
    judged = json.loads(health(folder.path, "--json").output)
    named = {judged["profile"], *(f["profile"] for f in judged["runs"][0]["findings"])}
    assert named == {load_profile("moe").identity}
    folder.evals.mkdir()
    (folder.evals / "heldout-000001.json").write_text("[1]")
    with pytest.raises(RunFolderError, match="is not an evaluation"):
        health(folder.path)
    folder.job.write_text("{}")
    with pytest.raises(RunFolderError, match=r"job\.json"):
        health(folder.path)


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        (["nothing"], StoreError, "nothing"),
        (["abcd1234"], StoreError, "no study `abcd1234`, and no run has a fingerprint that starts with `abcd1234`"),
        (["missing.csv"], LogFileError, "cannot be read"),
        (["./missing"], LogFileError, "neither a run folder"),
        (["mlflow:0"], LogFileError, "this file does not exist"),
        (["x", "--profile", "defalt"], StudyFileError, "Did you mean `default`"),
    ],
)
def test_what_is_nothing_ends_in_a_message(
    study: tuple[Path, StudyData],
    monkeypatch: pytest.MonkeyPatch,
    arguments: list[str],
    error: type[ParibusError],
    message: str,
) -> None:
    """An error of the user, with what was wrong; never a traceback, and no file is made."""
    home, _ = study
    monkeypatch.chdir(home)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{home}/none.db")
    with pytest.raises(error, match=message):
        health(*arguments, "--home", home)
    assert not (home / "none.db").exists()


def test_a_trainer_goes_with_a_log_alone(study: tuple[Path, StudyData]) -> None:
    """Of a run of a study Paribus knows who wrote it; an option that does nothing is refused."""
    home, data = study
    done = CliRunner().invoke(command, [data.plan.study, "--trainer", "trl", "--home", str(home)])
    assert done.exit_code == 2
    assert "--trainer says who wrote a log" in done.output


def test_an_unknown_trainer_is_refused_with_those_that_are_known() -> None:
    """The names stand in the message."""
    done = CliRunner().invoke(command, ["x.csv", "--trainer", "tlr"])
    assert done.exit_code == 2
    assert "trl, verl, prime_rl" in done.output


RULE = """
name: low_entropy
metric: policy/entropy
test: {kind: below, limit: 0.3}
window: 5
level: critical
"""


def test_a_rule_is_tried_over_all_runs_that_have_ended(study: tuple[Path, StudyData]) -> None:
    """How often it fires, in which arm, since when, and in how many of the runs that are fine."""
    home, data = study
    (home / "rule.yaml").write_text(RULE)
    tried = health("--try-rule", home / "rule.yaml", "--home", home).output
    assert "low_entropy: policy/entropy below (limit 0.3), window 5 points, critical" in tried
    assert "Fired in 1 of 4 runs (25%; 95% interval 5% to 70%)" in tried
    assert "The detectors of Paribus" not in tried  # no supervisor has judged these runs
    assert "policy/entropy is 0.01 (mean of 5 points), the limit is 0.3" in tried
    of_study = json.loads(health(data.plan.study, "--try-rule", home / "rule.yaml", "--home", home, "--json").output)
    assert (of_study["judged"], of_study["fired"]) == (4, 1)
    [fired] = [r for r in of_study["runs"] if r["finding"]["state"] == "critical"]
    assert fired["finding"]["step_onset"] == 21
    (home / "rule.yaml").write_text(RULE.replace("policy/entropy", "kl/ref_k3"))
    nothing = health("--try-rule", home / "rule.yaml", "--home", home).output
    assert "None of 4 runs that have ended can be judged: not recorded: kl/ref_k3." in nothing


def test_a_rule_that_cannot_be_tried_says_why(study: tuple[Path, StudyData], tmp_path: Path) -> None:
    """A wrong file, an unknown detector, options of another command, a home without runs."""
    home, _ = study
    (home / "rule.yaml").write_text(RULE.replace("below", "under"))
    with pytest.raises(StudyFileError, match=r"rule.yaml:4:7: test: `under` is not allowed"):
        health("--try-rule", home / "rule.yaml", "--home", home)
    with pytest.raises(ParibusError, match="no package brings a detector `mine`"):
        health("--try-rule", "mine", "--home", home)
    (home / "rule.yaml").write_text(RULE)
    used = CliRunner().invoke(command, ["--try-rule", str(home / "rule.yaml"), "--fail-on", "warn"])
    assert (used.exit_code, "--try-rule goes with" in used.output) == (2, True)
    assert CliRunner().invoke(command, []).exit_code == 2
    with Store.open(tmp_path / "empty") as store:
        store.add_study(made_up_study(Shape(seeds=1, tricks=(), designs=("add_one",))).plan)
    with pytest.raises(StoreError, match="has ended: there is nothing to try the rule on"):
        health("--try-rule", home / "rule.yaml", "--home", tmp_path / "empty")


def test_a_run_is_judged_by_the_rules_of_its_study(tmp_path: Path) -> None:
    """They are in its plan, whatever becomes of the file."""
    (tmp_path / "rule.yaml").write_text(RULE)
    plan = replace(
        made_up_study(Shape(seeds=1, steps=40, tricks=(), designs=("add_one",))).plan,
        rules=(read_rule(tmp_path / "rule.yaml"),),
    )
    with Store.open(tmp_path) as store:
        added = store.add_study(plan)
        claim = store.claim(added.id, engine="inline", worker="test")
        assert claim is not None
        store.start(claim.run_id, claim.token)
        folder = RunFolder.of(tmp_path, claim.fingerprint, claim.token)
        folder.path.mkdir(parents=True)
        for step in range(1, 41):
            values = {"policy/entropy": 0.28 if step > 20 else 0.6, "reward/correct_frac": step / 50}
            folder.append_metrics(MetricLine(step=step, time_ms=0, values=values))
        store.finish(claim.run_id, claim.token, {"status": "succeeded"}, stopped_early=False)
    (tmp_path / "rule.yaml").unlink()
    judged = health(claim.fingerprint[:8], "--home", tmp_path, "--fail-on", "critical", fails=True).output
    assert "Critical: low_entropy since step 21" in judged
    assert "critical low_entropy, since step 21" in judged


def test_false_alarms_of_a_rule_are_counted_without_the_rule(study: tuple[Path, StudyData]) -> None:
    """A run in which a rule of one's own alone has fired is ok for Paribus."""
    home, data = study
    (home / "rule.yaml").write_text(RULE.replace("0.3", "0.7"))
    mine = Finding(detector="low_entropy", state="critical", step_onset=1)
    line = MetricLine(step=40, time_ms=0, values={})
    with Reader.open(home) as reader:
        for run in reader.runs_of(reader.study(data.plan.study).id):
            quiet = [Finding(detector=d.name, state="ok") for d in DETECTORS]
            folder = RunFolder.of(home, run.fingerprint, run.token)
            write_json(folder.health, to_json(diagnose([*quiet, mine]), line, "default"))
    tried = json.loads(health("--try-rule", home / "rule.yaml", "--home", home, "--json").output)
    assert (tried["ok"], tried["fired_in_ok"]) == (4, 4)
