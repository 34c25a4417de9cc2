"""``paribus gradients``: a table, JSON, a file beside the study, a part of its report, and errors that help."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner, Result

from paribus.cli import paribus
from paribus.report.build import build_report
from paribus.report.collect import read_study
from paribus.store.untouched import open_untouched


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory, chain_model: Path) -> tuple[Path, Path]:
    """A home folder with a trained study, and the file of the study."""
    folder = tmp_path_factory.mktemp("gradients")
    study: dict[str, Any] = {
        "study": "probe",
        "base": {
            "preset": "grpo",
            "set": {
                "model": str(chain_model), "task": "chain", "kl": "off", "optimizer.learning_rate": 1e-3,
                "schedule": {"steps": 2, "prompts_per_step": 6, "group_size": 8, "max_new_tokens": 12},
            },
        },
        "tricks": {
            "loo": {"baseline": "group_loo"},
            "higher": {"clip.high": 0.4},
            "mean": {"aggregation": "token_batch"},
            "slow": {"optimizer.learning_rate": 1e-4},
            "refill": {"filter": {"kind": "refill"}},
        },
        "designs": {"solo": {"kind": "add_one"}},
        "seeds": {"n": 1},
        "evaluate": {"every": 2, "problems": 10, "samples": 2},
        "mirror": [],
        "allow": ["seeds", "inert", "rescaled", "few_problems", "confounded", "cost", "limit", "magnitude"],
    }  # fmt: skip
    file = folder / "probe.yaml"
    file.write_text(yaml.safe_dump(study))
    done = called("run", str(file), "--engine", "inline", "--home", str(folder / "home"), "--no-report")
    assert done.exit_code == 0, done.output
    return folder / "home", file


def called(*arguments: str) -> Result:
    """Call the command line."""
    return CliRunner().invoke(paribus, arguments)


def state_of(home: Path) -> dict[str, tuple[bytes, int]]:
    """Return content and time of all files of a home folder but those of probes."""
    found = (p for p in sorted(home.rglob("*")) if p.is_file() and "gradients" not in p.parts)
    return {str(p): (p.read_bytes(), p.stat().st_mtime_ns) for p in found}


def base_run(home: Path) -> str:
    """Return the fingerprint of the run of the base."""
    with open_untouched(home) as reader:
        study = reader.study("probe")
        return next(r.fingerprint for r in reader.runs_of(study.id) if r.arm == study.plan.base)


def test_a_probe_names_what_changes_and_touches_no_run(trained: tuple[Path, Path]) -> None:
    """The table gives each arm a verdict, the JSON its numbers; files of runs and store stay as they are."""
    home, file = trained
    run, before = base_run(home), state_of(home)
    shown = called("gradients", "probe", "--at", f"{run[:8]}:2", "--home", str(home))
    assert shown.exit_code == 0, shown.output
    assert "`+ mean` changes the direction of the gradient" in shown.output.replace("\n", " ")
    assert "`optimizer.learning_rate` is not visible here" in shown.output
    done = called("gradients", str(file), "--at", f"{run[:8]}:2", "--home", str(home), "--json")
    found = json.loads(done.output)
    arms = {arm["label"]: arm for arm in found["arms"]}
    verdicts = {label: arm["verdict"] for label, arm in arms.items()}
    assert verdicts["base"] == "base"
    assert {k: verdicts[f"+ {k}"] for k in ("loo", "higher", "mean", "slow")} == {
        "loo": "scale", "higher": "identical", "mean": "direction", "slow": "hidden",
    }  # fmt: skip
    assert arms["+ loo"]["gradient"]["ratio"] == pytest.approx(8 / 7, rel=1e-4)
    assert arms["+ higher"]["gradient"]["cosine"] == arms["+ higher"]["gradient"]["ratio"] == 1
    assert "filter.kind" in arms["+ refill"]["partly"]
    assert (found["run"], found["gradients"]["step"], found["code"]) == (run, 2, found["run_code"])
    assert found["checkpoint"].endswith("step-000002")
    assert Path(found["kept"]).is_file()
    assert state_of(home) == before


def test_a_report_has_the_probe_and_its_provenance(trained: tuple[Path, Path]) -> None:
    """The report has a table a probe, with run, step, checkpoint and code; without a probe it has none."""
    home, _ = trained
    run = base_run(home)
    for file in (home / "study_files" / "probe" / "gradients").glob("*"):
        file.unlink()
    with open_untouched(home) as reader:
        assert not [t for t in build_report(read_study(reader, "probe")).tables if t.key.startswith("gradients.")]
    assert called("gradients", "probe", "--at", f"{run}:2", "--after-updates", "--home", str(home)).exit_code == 0
    with open_untouched(home) as reader:
        model = build_report(read_study(reader, "probe"))
    (table,) = [t for t in model.tables if t.key.startswith("gradients.")]
    assert table.title == "Gradient probe at step 2 of base, seed 0"
    assert any("step-000002" in note and run[:12] in note for note in table.notes)
    assert any("after 1 update " in note for note in table.notes)
    rows = {row.label: [cell.text for cell in row.cells] for row in table.rows}
    assert rows["base"][:3] == ["1", "1", "the base"]
    assert rows["+ slow"][:3] == ["—", "—", "not visible here"]


def test_the_base_can_be_probed_before_anything_is_trained(trained: tuple[Path, Path], tmp_path: Path) -> None:
    """With `--at 0` and a file, no store is needed: the weights are those that the base begins with."""
    _, file = trained
    done = called("gradients", str(file), "--at", "0", "--home", str(tmp_path / "new"), "--json")
    assert done.exit_code == 0, done.output
    found = json.loads(done.output)
    assert (found["checkpoint"], found["gradients"]["step"]) == ("", 0)
    assert not (tmp_path / "new" / "paribus.db").exists()


def test_a_home_folder_that_cannot_be_written_costs_the_file_alone(trained: tuple[Path, Path], tmp_path: Path) -> None:
    """The table is printed all the same, and says that the report will not have it."""
    _, file = trained
    (tmp_path / "study_files").write_text("no folder")
    done = called("gradients", str(file), "--at", "0", "--home", str(tmp_path))
    assert done.exit_code == 0, done.output
    assert "change the direction" in " ".join(done.output.split()) or "changes the direction" in done.output
    assert "not kept for the report" in done.output


@pytest.mark.parametrize(
    ("at", "message"),
    [
        ("{run}:1", "no checkpoint of step 1: the steps that can be probed are 0, 2"),
        ("{run}:x", "is not RUN:STEP, such as 3f2a:40, nor 0"),
        ("3", "is not RUN:STEP, such as 3f2a:40, nor 0"),
        ("ffffffffffff:2", "no run has a fingerprint that starts with `ffffffffffff`"),
        ("zzzz:2", "lists the runs of a study. Studies: probe."),
    ],
)
def test_what_cannot_be_probed_is_said(trained: tuple[Path, Path], at: str, message: str) -> None:
    """A step without checkpoint, a wrong argument and an unknown run each get an error with what is allowed."""
    home, _ = trained
    done = called("gradients", "probe", "--at", at.format(run=base_run(home)), "--home", str(home))
    assert done.exit_code != 0
    said = " ".join(f"{done.output} {done.exception}".split())
    assert message in said
    assert "no study" not in said


def test_a_run_of_another_task_is_refused(trained: tuple[Path, Path], tmp_path: Path) -> None:
    """Its gradient says nothing of the study, so that the message names both."""
    home, file = trained
    other = tmp_path / "other.yaml"
    other.write_text(file.read_text().replace("task: chain", "task: {kind: chain, careful: 0.4}"))
    done = called("gradients", str(other), "--at", f"{base_run(home)}:2", "--home", str(home))
    assert done.exit_code != 0
    assert "name a run of the same model and task" in " ".join(f"{done.output} {done.exception}".split())


def test_a_damaged_probe_is_named(trained: tuple[Path, Path]) -> None:
    """A report stops at a file that is no probe, and says which to delete."""
    home, _ = trained
    file = home / "study_files" / "probe" / "gradients" / "x.json"
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("{}")
    done = called("report", "probe", "--home", str(home), "--out", str(home.parent / "again"))
    file.unlink()
    assert "x.json is not a gradient probe: delete it, or probe again" in f"{done.output} {done.exception}"
