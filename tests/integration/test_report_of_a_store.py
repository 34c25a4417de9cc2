"""From a store and run folders to a written report."""

from __future__ import annotations

import json
import statistics
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner

from paribus.cli.audit import command as audit_command
from paribus.cli.report import command
from paribus.contract import Hashes
from paribus.errors import StoreError
from paribus.health.diagnose import diagnose
from paribus.health.finding import Finding, to_json
from paribus.monitor.status import page_of
from paribus.report.analysis.analysis import Analysis
from paribus.report.analysis.measures import score_steps, series
from paribus.report.assumptions import mixed_versions
from paribus.report.build import build_report
from paribus.report.collect import read_study
from paribus.report.inputs import RunData
from paribus.report.sentences import warnings
from paribus.report.write import write_report
from paribus.run_folder.folder import RunFolder, write_json
from paribus.store.reader import Reader
from paribus.store.states import RunState
from support.homes import fill, with_steps
from support.studies import Shape, made_up_study

SHAPE = Shape(
    seeds=3,
    steps=4,
    tricks=("soft_overlong",),
    designs=("cumulative",),
    outcomes=(("base", 1, "failed"), ("+ soft_overlong", 2, "stopped_early"), ("+ soft_overlong", 1, "pending")),
)


def metrics(run: RunData) -> dict[str, list[tuple[int, float]]]:
    """Every point that a run recorded, by metric."""
    return {name: series(run, name) for name in run.recorded.names}


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A home folder with one study: finished, failed, stopped and unfinished runs."""
    folder = tmp_path_factory.mktemp("home")
    fill(folder, made_up_study(SHAPE))
    return folder


def test_other_initial_weights_under_one_model_are_named(tmp_path: Path) -> None:
    """The provenance has the weights that runs began with, and says where runs of one model began with others."""
    fill(tmp_path, made_up_study(SHAPE))
    for differ, begins in ((False, "aaaaaaaaaaaa"), (True, "DIFFERENT between runs of one model: aaaaaaaaaaaa / bbb")):
        for k, path in enumerate(sorted(tmp_path.glob("runs/*/a*/environment.json"))):
            write_json(path, {"initial_weights": ("b" if k % 2 and differ else "a") * 64})
        with Reader.open(tmp_path) as reader:
            assert read_study(reader, "made-up").provenance["initial weights"].startswith(begins)


def test_runs_of_another_environment_are_named(tmp_path: Path) -> None:
    """A report warns where versions or devices differ, with arms and counts, and of nothing else that differs."""
    fill(tmp_path, made_up_study(SHAPE))
    paths = sorted(tmp_path.glob("runs/*/a*/environment.json"))
    usual = {"torch": "2.13.0", "device": "cpu", "initial_weights": "a" * 64}
    for k, path in enumerate(paths):
        write_json(path, {**usual, "threads": k, "platform": f"linux-{k}"})
    with Reader.open(tmp_path) as reader:
        data = read_study(reader, "made-up")
        first = min(data.environments)
        assert not mixed_versions(Analysis(data))
        write_json(next(p for p in paths if p.parent.parent.name == first[:12]), {**usual, "torch": "2.14.1"})
        analysis = Analysis(read_study(reader, "made-up"))
    arm = analysis.label(next(r.arm for r in data.runs if r.fingerprint == first))
    total = len(data.environments)
    (text,) = mixed_versions(analysis)
    assert text.endswith(f"arms differ: torch 2.13.0 in {total - 1} of {total} runs, 2.14.1 in `{arm}` (1).")
    assert text in warnings(analysis)


def test_what_was_written_is_read(home: Path) -> None:
    """Plan, metrics and the evaluations of the score come back as they were; states and reasons become outcomes."""
    wanted = made_up_study(SHAPE)
    with Reader.open(home) as reader:
        data = read_study(reader, "made-up")
    want_plan = wanted.plan
    assert data.plan == want_plan
    for got, want in zip(data.runs, wanted.runs, strict=True):
        assert (got.fingerprint, got.arm, got.seed) == (want.fingerprint, want.arm, want.seed)
        if want.outcome == "pending":
            assert (got.outcome, metrics(got)) == ("pending", {})
            continue
        assert metrics(got) == metrics(want)
        score = {s for s, _ in score_steps(want, want_plan.evaluate)} if want.outcome != "failed" else set()
        assert got.evaluations == tuple(e for e in want.evaluations if score and e.step in {0, *score})
    by_outcome = {r.outcome: r for r in data.runs}
    assert by_outcome["failed"].reason == "out of memory"
    assert by_outcome["failed"].attempts >= 1
    assert by_outcome["stopped_early"].reason == "nan in optim/loss"
    assert data.provenance["git commit"] == "abc123"
    assert "torch.version 2.13" in data.provenance["environment"]


def test_a_run_that_was_stopped_at_its_last_step_has_finished(tmp_path: Path) -> None:
    """It has all its steps and its score: tables count it as finished, say where it stopped, and keep the reason."""
    whole = with_steps(made_up_study(replace(SHAPE, outcomes=())), SHAPE.steps)
    stopped = ("+ soft_overlong", 2)
    label = {a.key: a.label for a in whole.plan.arms}
    runs = [
        replace(r, outcome="stopped_early", reason="nan in optim/loss") if (label[r.arm], r.seed) == stopped else r
        for r in whole.runs
    ]
    fill(tmp_path, replace(whole, runs=tuple(runs)))
    with Reader.open(tmp_path) as reader:
        data = read_study(reader, "made-up")
        (run,) = (r for r in data.runs if r.state == "STOPPED_EARLY")
        status = page_of(reader, "made-up", states=[RunState.STOPPED_EARLY])
    assert (run.outcome, run.stopped_at_end) == ("finished", True)
    assert [(e["fingerprint"], e["stopped_at_end"]) for e in status["runs"]] == [(run.fingerprint, True)]
    model = build_report(data)
    tables = {t.key: t for t in model.tables}
    assert [row.cells[0].text for row in tables["ladder.score"].rows] == ["3/3", "3/3"]
    assert [row.cells[-1].text for row in tables["ladder.score"].rows] == ["ok", "1 stopped at the last step"]
    (lost,) = tables["losses"].rows
    assert [c.text for c in lost.cells] == [
        "2",
        "stopped at the last step (STOPPED_EARLY)",
        "1",
        "4",
        "nan in optim/loss",
    ]
    assert "sensitivity" not in tables
    assert not any("stopped early" in text for text in model.warnings)


def test_newest_attempt_with_records_counts(home: Path, tmp_path: Path) -> None:
    """A second attempt that died before its first step does not hide what the first one recorded."""
    data = made_up_study(SHAPE)
    fill(tmp_path, data)
    with Reader.open(tmp_path) as reader:
        (failed,) = (r for r in read_study(reader, "made-up").runs if r.state in ("QUARANTINED", "FAILED"))
    assert failed.attempts == 2
    folder = RunFolder.of(tmp_path, failed.fingerprint, 2)
    for path in (folder.metrics, *folder.evals.glob("*")):
        path.unlink(missing_ok=True)
    with Reader.open(tmp_path) as reader:
        (again,) = (r for r in read_study(reader, "made-up").runs if r.fingerprint == failed.fingerprint)
    assert metrics(again) == metrics(failed)
    assert len(metrics(again)["policy/entropy"]) > 0


def test_lost_or_damaged_records_are_told(tmp_path: Path) -> None:
    """A finished run whose records are gone or damaged counts as lost, with the reason, not as a smaller n."""
    data = made_up_study(Shape(seeds=2, steps=4, tricks=("soft_overlong",), designs=("cumulative",)))
    fill(tmp_path, data)
    first, second = (RunFolder.of(tmp_path, r.fingerprint, 1) for r in data.runs[:2])
    first.metrics.unlink()
    with second.metrics.open("ab") as file:
        file.write(b"no metric line\n")
    with Reader.open(tmp_path) as reader:
        runs = read_study(reader, "made-up").runs
    assert [r.outcome for r in runs] == ["failed", "failed", "finished", "finished"]
    assert "they are missing" in runs[0].reason
    assert "metrics.jsonl:6" in runs[1].reason


def test_all_files_and_a_table(home: Path, tmp_path: Path) -> None:
    """The report is written in all formats; the text for the terminal shows the ladder and the losses."""
    with Reader.open(home) as reader:
        written = write_report(reader, "made-up", tmp_path)
    names = {f"report.{x}" for x in ("html", "md", "csv", "tex", "json")}
    assert {p.name for p in written.paths} == names | {"report_appendix.md"}
    assert all(p.is_file() for p in written.paths)
    assert "+ soft_overlong" in written.text
    assert "incomplete" in written.text.lower()
    assert max(map(len, written.text.splitlines())) <= 120


def test_verdicts_are_an_outcome_in_every_format(tmp_path: Path) -> None:
    """What the supervisors left in ``health.json`` is a table and a sentence; a damaged verdict is none, no error."""
    data = made_up_study(Shape(seeds=3, steps=4, tricks=("soft_overlong",), designs=("cumulative",)))
    fill(tmp_path, data)
    folders = {(r.arm == data.plan.base, r.seed): RunFolder.of(tmp_path, r.fingerprint, 1) for r in data.runs}
    collapsed = Finding(detector="entropy_collapse", state="critical", step_onset=2)
    cut_off = Finding(detector="truncation", state="warn", step_onset=1)
    fine = Finding(detector="zero_variance", state="ok")
    left = {(True, 0): [fine], (True, 1): [fine, cut_off], (False, 0): [fine, cut_off, collapsed], (False, 1): [fine]}
    for key, findings in left.items():
        line = data.runs[0].lines[-1]
        write_json(folders[key].health, to_json(diagnose(findings), line, "default 1 (abc)"))
    folders[False, 2].health.write_text('{"status": "crit')
    with Reader.open(tmp_path) as reader:
        written = write_report(reader, "made-up", tmp_path / "out")
    text = {p.suffix: p.read_text() for p in written.paths}
    text[".md"] += (tmp_path / "out" / "report_appendix.md").read_text()
    rows = {t["key"]: t["rows"] for t in json.loads(text[".json"])["tables"]}["health"]
    assert [[c["text"] for c in r["cells"]] for r in rows] == [
        ["3/3", "0", "1", "1", "1", "warning: truncation in 1 since step 1"],
        ["3/3", "1", "0", "1", "1", "critical: entropy_collapse in 1 since step 2"],
    ]
    assert "health,soft_overlong,critical,runs,1,,1.0,,,2,,,,,\n" in text[".csv"]
    assert "| base | 3/3 | 0 | 1 | 1 | 1 | warning: truncation in 1 since step 1 |" in text[".md"]
    assert r"critical: entropy\_collapse in 1 since step 2" in text[".tex"]
    assert 'id="health"' in text[".html"]
    assert "critical: entropy_collapse in 1 since step 2<small>warning: truncation in 1" in text[".html"]
    told = "1 of 3 runs of `soft_overlong` (2 checked) had a critical finding: entropy_collapse since step 2."
    assert told in text[".md"]


def test_report_command(home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`paribus report NAME` prints tables and paths, and writes below reports/<study> by default."""
    monkeypatch.chdir(tmp_path)
    done = CliRunner().invoke(command, ["made-up", "--home", str(home)])
    assert done.exit_code == 0, done.output
    assert "Ladder `ladder`" in done.output
    assert (tmp_path / "reports" / "made-up" / "report.html").is_file()


def test_a_home_that_cannot_be_written_loses_no_report(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The text and the paths are printed all the same, and one message says what the home folder does not note."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("paribus.study.study_files.FOLDER", "made-up.txt")
    (home / "made-up.txt").write_text("a file where a folder is needed")
    done = CliRunner().invoke(command, ["made-up", "--home", str(home)])
    assert done.exit_code == 0, done.output
    assert "Ladder `ladder`" in done.output
    assert done.stderr.count("MLflow gets no copy of this report") == 1


def test_published_tables_are_those_of_the_study_unless_others_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`paribus report NAME` shows what the study file named when it was run; a file is asked for what it names now."""
    monkeypatch.chdir(tmp_path)
    data = made_up_study(Shape(seeds=1, steps=4, tricks=("soft_overlong",), designs=("add_one",)))
    fill(tmp_path / "home", replace(data, plan=replace(data.plan, published=("dapo_table1",))))
    file = tmp_path / "made-up.yaml"
    file.write_text("study: made-up\nbase: {preset: grpo}\ndesigns: {a: {kind: list, arms: {one: {}}}}\n")
    asked = {"made-up": True, str(file): False}
    for study, shown in asked.items():
        done = CliRunner().invoke(command, [study, "--home", str(tmp_path / "home")])
        assert done.exit_code == 0, done.output
        assert ("2503.14476" in (tmp_path / "reports" / "made-up" / "report.md").read_text()) is shown


@pytest.mark.parametrize("hashes", [None, Hashes(code="c0de" * 16, data="da7a" * 16, model="40de" * 16)])
def test_a_report_needs_no_runner(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, hashes: Hashes | None) -> None:
    """The plan keeps the hashes, so that a report can be written after an upgrade and without the runner's package."""
    data = made_up_study(Shape(seeds=1, steps=4, tricks=("soft_overlong",), designs=("cumulative",)))
    arms = tuple(replace(arm, hashes=hashes) for arm in data.plan.arms)
    fill(tmp_path / "home", replace(data, plan=replace(data.plan, arms=arms, runner="not-installed")))
    for name in [m for m in sys.modules if m.partition(".")[0] == "paribus_runners"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "paribus_runners", None)
    with Reader.open(tmp_path / "home") as reader:
        written = write_report(reader, "made-up", tmp_path / "out")
    provenance = json.loads(next(p for p in written.paths if p.suffix == ".json").read_text())["provenance"]
    found = [provenance[name] for name in ("code", "data", "initial model")]
    missing = "not recorded by the version that planned the study"
    assert found == ([missing] * 3 if hashes is None else [text[:12] for text in vars(hashes).values()])


def test_study_that_is_not_there(home: Path) -> None:
    """An unknown name is an error that lists the studies and the nearest name."""
    with Reader.open(home) as reader, pytest.raises(StoreError, match="Did you mean `made-up`"):
        read_study(reader, "madeup")


def test_an_audit_assumes_the_spread_of_a_study(tmp_path: Path) -> None:
    """`paribus audit --seed-sd-from` pools the spread over the arms, in points; one seed an arm has none."""
    data = made_up_study(Shape(seeds=3, steps=4, tricks=("soft_overlong",), designs=("add_one",)))
    fill(tmp_path / "home", data)
    with Reader.open(tmp_path / "home") as reader:
        found = Analysis(read_study(reader, "made-up"))
    spreads = [statistics.variance(found.values(arm.key, found.score).values()) for arm in found.plan.arms]
    asked = ["dapo_table1", "--json", "--seed-sd-from", "made-up", "--home"]
    done = CliRunner().invoke(audit_command, [*asked, str(tmp_path / "home")])
    assert done.exit_code == 0, done.output
    assert json.loads(done.output)["assumed"] == pytest.approx([100 * statistics.mean(spreads) ** 0.5])
    fill(tmp_path / "one", made_up_study(Shape(seeds=1, steps=4, tricks=("soft_overlong",), designs=("add_one",))))
    done = CliRunner().invoke(audit_command, [*asked, str(tmp_path / "one")])
    assert "use --seed-sd" in str(done.exception)


def test_an_audit_assumes_no_spread_that_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Scores that all agree have no spread, whatever rounding makes of their mean, and a length is no score."""
    data = made_up_study(Shape(seeds=3, steps=4, tricks=("soft_overlong",), designs=("add_one",)))
    fill(tmp_path / "home", data)
    asked = ["dapo_table1", "--seed-sd-from", "made-up", "--home", str(tmp_path / "home")]
    base = data.plan.base
    one = {0: 0.3, 1: 0.4, 2: 0.5}
    equal = dict.fromkeys(range(3), 0.1)  # their mean is not 0.1
    monkeypatch.setattr(Analysis, "values", lambda _, arm, __: equal)
    done = CliRunner().invoke(audit_command, asked)
    assert "has measured no spread" in str(done.exception)
    monkeypatch.setattr(Analysis, "values", lambda _, arm, __: one if arm == base else equal)
    done = CliRunner().invoke(audit_command, asked)
    assert done.exit_code == 0, done.output
    assert "in 1 of 2 arms" in done.stderr
    assert f"sd {100 * (0.02 / 4) ** 0.5:.3g}" in done.stdout
    evaluate = data.plan.evaluate.model_copy(update={"primary": "eval/heldout/length_mean"})
    fill(tmp_path / "long", replace(data, plan=replace(data.plan, evaluate=evaluate)))
    done = CliRunner().invoke(audit_command, [*asked[:-1], str(tmp_path / "long")])
    assert "`eval/heldout/length_mean`, which is no fraction" in str(done.exception)
