"""The Python API runs studies as the command does, in a process that is never left behind; its page is one notebook."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import paribus
from paribus.engines.process import Identity
from paribus.testing import fake_runner
from support.processes import family
from support.site import PATIENCE_S, Site, until

PAGE = Path(__file__).resolve().parents[2] / "docs" / "howto" / "notebook.md"
BLOCK = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)
KERNEL = """
import sys, paribus
try:
    paribus.load("faked.yaml").run(slots=2)
except KeyboardInterrupt:
    print("interrupted", flush=True)
"""


@pytest.fixture
def site(tmp_path, monkeypatch):
    """A folder with a study for the fake runner; what a test leaves running is ended."""
    for name in [n for n in os.environ if n.startswith(("MLFLOW_", "PARIBUS_"))]:
        monkeypatch.delenv(name)
    made = Site(tmp_path)
    file = Path(made.study())
    file.write_text(f"{file.read_text()}mirror: []\n")  # MLflow has tests of its own
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PARIBUS_HOME", str(made.home))
    yield made
    made.close()


def kernel(site: Site) -> subprocess.Popen[str]:
    """Start a process that runs the study from Python, as far as a few steps, in a group of its own as a kernel is."""
    return subprocess.Popen(
        [sys.executable, "-c", KERNEL],
        cwd=site.path,
        env={**site.environment, "PARIBUS_FAKE": json.dumps({"rules": [site.held()]})},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )


@pytest.mark.slow
def test_a_study_is_run_and_its_results_are_returned(site, capsys):
    """One from Python as its file: lines appear, results are complete, and the second time nothing is trained."""
    study = paribus.load("faked.yaml")
    values = {"base": {"preset": "grpo", "set": {"schedule.steps": 12, "kl": {"kind": "off"}}}, "mirror": ()}
    values |= {"tricks": {"token_level": {"aggregation": "token_batch"}}, "designs": {"solo": {"kind": "add_one"}}}
    values |= {"seeds": {"n": 2}, "evaluate": {"every": 6, "problems": 20, "samples": 2}}
    made = paribus.Study("faked", runner="fake", question="Does it run?", **values)
    assert made == study
    before = set(site.path.iterdir())
    results = made.run(slots=2)
    assert {path.name for path in set(site.path.iterdir()) - before} == {"home", "reports"}
    lines = capsys.readouterr().out
    assert "[seeds]" in lines
    assert "4 succeeded" in lines
    assert results.complete
    assert results.runs()["outcome"].tolist() == ["finished"] * 4
    assert (site.path / "reports" / "faked" / "report.html").is_file()
    site.check("faked")
    assert "reward/mean" in results.metrics()["metric"].tolist()
    study.run(report=False)
    assert "nothing to train" in capsys.readouterr().out
    assert study.plan().runs()["recorded"].all()


@pytest.mark.slow
def test_an_interrupt_stops_it_once_and_leaves_no_process(site):
    """The interrupt of a notebook goes to the kernel's whole group; the runs write a checkpoint, and `run` goes on."""
    process = kernel(site)
    try:
        until(site.training)
        started = [Identity.of(each) for each in family(process.pid)[1:]]
        assert len(started) >= 3  # the command, a supervisor, a runner
        os.killpg(process.pid, signal.SIGINT)
        output, _ = process.communicate(timeout=PATIENCE_S)
    finally:
        process.kill()
        process.communicate()
    assert output.splitlines()[-1] == "interrupted"
    assert "Type the same command to continue" in output
    assert "Traceback" not in output
    until(lambda: not any(each.alive() for each in started))
    assert {a.outcome for a in site.attempts()} <= {"release", "succeed"}
    results = paribus.load("faked.yaml").run(slots=2)
    assert results.complete
    site.check("faked")


@pytest.mark.slow
def test_results_beside_a_kernel_that_is_killed(site):
    """Results are what there is while the study runs; a killed kernel stops it: runs are queued with a checkpoint."""
    process = kernel(site)
    try:
        until(site.training)
        started = [Identity.of(each) for each in family(process.pid)[1:]]
        results = paribus.results("faked")
        assert not results.complete
        assert "RUNNING" in results.runs()["state"].tolist()
        assert results.runs()["step"].max() >= 2
        assert len(results.curves("reward/mean")) >= 2
        assert paribus.studies()["state"].tolist() == ["running"]
    finally:
        process.kill()
        process.communicate()
    until(lambda: not any(each.alive() for each in started))
    outcomes = {a.outcome for a in site.attempts()}
    assert "release" in outcomes
    assert outcomes <= {"release", "succeed"}


def test_what_the_command_refuses_is_raised(site):
    """With its message and code."""
    study = paribus.load("faked.yaml")
    with pytest.raises(paribus.ParibusError) as caught:
        study.run(engine="locl")
    assert "locl" in str(caught.value)
    assert caught.value.code.startswith("P")
    with pytest.raises(paribus.ParibusError, match="exit status 2") as caught:
        study.run(slots=0)
    assert "--slots" in str(caught.value)


@pytest.mark.slow
def test_the_page_is_a_notebook(tmp_path, monkeypatch, capsys):
    """Its blocks run from the first to the last, and the last line of each can be shown; training is made up."""
    fake_runner.install(tmp_path / "native")
    names = next((tmp_path / "native").rglob("entry_points.txt"))
    names.write_text(names.read_text().replace("fake =", "native ="))
    monkeypatch.syspath_prepend(str(tmp_path / "native"))
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path / "native"), os.environ.get("PYTHONPATH", "")]))
    for name in [n for n in os.environ if n.startswith(("MLFLOW_", "PARIBUS_"))]:
        monkeypatch.delenv(name)
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    blocks = BLOCK.findall(PAGE.read_text())
    assert len(blocks) >= 10
    names = {}
    shown = []
    for block in blocks:
        *lines, last = block.rstrip("\n").split("\n")
        exec("\n".join(lines), names)
        try:
            code = compile(last, "<last line>", "eval")
        except SyntaxError:
            exec(block if last.startswith((" ", ")")) else last, names)
            continue
        value = eval(code, names)
        if value is not None:
            page = value._repr_html_()
            assert page.lstrip().startswith("<div"), block
            shown.append(type(value).__name__)
    assert shown.count("DataFrame") >= 7
    assert {"Study", "Results", "Figure"} <= set(shown)
    assert (tmp_path / "here" / "entropy.html").stat().st_size > 10_000
    assert "6 succeeded" in capsys.readouterr().out
