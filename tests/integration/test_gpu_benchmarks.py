"""The benchmarks for a GPU run on a CPU with small models, notice mistakes, and the page has what they found."""

import importlib
import json
import os
import re
import statistics
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from paribus_runners.native import log_probabilities
from paribus_runners.native.head import Head
from paribus_runners.native.rollout import torch as torch_sampler

ROOT = Path(__file__).resolve().parents[2]
BENCHMARKS = ROOT / "benchmarks"
SIZES = {"0.5b": 494_032_768, "1.5b": 1_543_714_304, "7b": 7_615_616_512}
"""Parameters of Qwen2.5, by the cards of the models."""


@pytest.fixture
def gpu(monkeypatch):
    """Return a function that imports a module of the benchmarks."""
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    return lambda name: importlib.import_module(f"gpu.{name}")


def ran(gpu, script, out, *more):
    """Run a script with small models; return its exit status and the rows of its file, by name."""
    status = gpu(script).main(["--tiny", "--out", str(out), *more])
    record = json.loads((out / f"{script}.json").read_text())
    assert record["tiny"]
    assert {row["device"] for row in record["rows"]} == {"CPU"}
    assert re.fullmatch(r"20\d\d-\d\d-\d\d", record["date"])
    assert record["machine"]["torch"] == torch.__version__
    return status, {row["name"]: row for row in record["rows"]}


def test_the_learner_agrees_with_transformers(gpu, tmp_path, capsys):
    """In float32 to rounding, in bfloat16 as Transformers does; passes add up; the sampler knows its probabilities."""
    status, rows = ran(gpu, "equal", tmp_path)
    assert status == 0
    assert tuple(rows) == gpu("cases").EQUAL
    kernels = [row for name, row in rows.items() if "Triton" in name]
    assert len(kernels) == 4
    assert {row["status"] for row in kernels} == {"not available"}
    assert {row["status"] for row in rows.values() if row not in kernels} == {"measured"}
    assert rows["log-probabilities, float32"]["error"] < 1e-6
    assert rows["gradient, float32"]["error"] < 1e-5
    assert 1e-4 < rows["gradient, bfloat16"]["error"] < 2e-2  # it is bfloat16
    assert rows["sampler and learner, float32"]["largest_nats"] < 1e-4
    assert "| gradient, float32 | " in capsys.readouterr().out


def test_without_a_gpu_the_rows_of_kernels_say_so(gpu, monkeypatch):
    """What is missing is named: Triton, a GPU, or kernels that are compiled."""
    measure = gpu("measure")
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    monkeypatch.setattr(measure, "versions", lambda *names: {"triton": "3.7.1"})
    with pytest.raises(measure.Unavailable, match="interpreted here"):
        measure.need_kernels()
    monkeypatch.delenv("TRITON_INTERPRET")
    with pytest.raises(measure.Unavailable, match="needs an NVIDIA GPU, and this run has none"):
        measure.need_kernels()
    monkeypatch.setattr(measure, "versions", lambda *names: {})
    with pytest.raises(measure.Unavailable, match="Triton is not installed"):
        measure.need_kernels()


def test_the_rows_of_kernels_agree_with_transformers(gpu, monkeypatch):
    """Where they can run they are compared like the others."""
    pytest.importorskip("triton")
    equal = gpu("equal")
    monkeypatch.setattr(equal, "need_kernels", lambda: None)
    batch = equal.Batch.drawn(gpu("models").configuration("tiny")["vocab_size"], prompts=2, copies=2, mean=6)
    rows = equal.with_kernels("tiny", batch)
    assert tuple(sorted(rows)) == tuple(sorted(gpu("cases").EQUAL[8:]))
    assert rows["gradient, head by Triton, float32"]["error"] < 1e-5
    assert not any("wrong" in row for row in rows.values())


def warmer(self, hidden, targets, temperature, *, was=Head.score, **more):
    """Score at a temperature that is one percent too high."""
    return was(self, hidden, targets, 1.01 * temperature, **more)


def elsewhere(*given, was=log_probabilities.pack, **more):
    """Lay sequences out with tokens twice as far apart."""
    layout = was(*given, **more)
    known = {"scatter": layout.scatter, "positions": 2 * layout.positions}  # who attends to whom stays right
    layout.__dict__.update(known)
    return layout


def optimistic(*given, was=torch_sampler.draw, **more):
    """Draw tokens, and say of each that it was a little more likely."""
    drawn = was(*given, **more)
    return drawn._replace(logp=drawn.logp + 1e-3)


@pytest.mark.parametrize(
    ("place", "fault", "noticed"),
    [
        ((Head, "score"), warmer, {"log-probabilities, float32", "gradient, float32", "sampler and learner, float32"}),
        ((log_probabilities, "pack"), elsewhere, {"log-probabilities, bfloat16", "gradient, bfloat16"}),
        ((torch_sampler, "draw"), optimistic, {"sampler and learner, float32"}),
    ],
    ids=["temperature", "positions", "sampler"],
)
def test_a_mistake_in_the_runner_is_noticed(gpu, tmp_path, monkeypatch, place, fault, noticed):
    """The rows that a fault in head, layout or sampler concerns are wrong, and the exit status is 1."""
    monkeypatch.setattr(*place, fault)
    status, rows = ran(gpu, "equal", tmp_path)
    assert status == 1
    assert noticed <= {name for name, row in rows.items() if row["status"] == "wrong"}
    assert "gradient in several passes, float32" not in {n for n, row in rows.items() if row["status"] == "wrong"}


def test_a_row_that_cannot_be_measured_says_why(gpu, tmp_path, capsys):
    """No memory, no time, something missing and a mistake end their row alone; only a mistake is a failure."""
    measure = gpu("measure")

    def raised(error):
        raise error

    report = measure.Report("update", measure.Options(tmp_path, 5.0, True))
    report.run("a", lambda: raised(torch.cuda.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")))
    report.run("b", lambda: raised(measure.Unavailable("no such thing")))
    report.run("c", lambda: {"tokens_per_s": 1234.5})
    assert report.finish() == 0
    report.run(("d", "e"), lambda: raised(ValueError("x | y")))
    assert report.finish() == 1
    late = measure.Report("update", measure.Options(tmp_path, -1.0, True))
    late.run("f", lambda: raised(AssertionError("began")))
    assert late.finish() == 0
    shown = capsys.readouterr().out
    for cell in (
        "| a | out of memory (",
        "| b | not available (no such thing)",
        "| c | 1,234 |",
        "| f | no time left (",
    ):
        assert cell in shown
    assert shown.count("failed (ValueError: x / y)") == 2
    assert [row["status"] for row in json.loads((tmp_path / "update.json").read_text())["rows"]] == ["no time left"]


@pytest.mark.slow
def test_updates_have_a_speed_and_the_predicted_memory(gpu, tmp_path):
    """MFU is a share of the measured limit; the peak is that of the plan within a fifth, adapters train few numbers."""
    command = [sys.executable, "-m", "gpu.update", "--tiny", "--out", str(tmp_path)]
    environment = {**os.environ, **gpu("update").RETURNS, "PYTHONPATH": str(BENCHMARKS)}  # else it starts itself again
    subprocess.run(command, env=environment, check=True, stdout=subprocess.DEVNULL)
    rows = json.loads((tmp_path / "update.json").read_text())["rows"]
    assert len(rows) == 5
    *rows, kernels = rows
    assert kernels["status"] == "not available"
    for row in rows:
        assert row["status"] == "measured", row
        assert 0 < row["mfu"] < 1.5
        assert row["tokens"] / row["seconds"] == pytest.approx(row["tokens_per_s"])
        if "host memory" not in row["name"]:  # on a CPU that is the device's
            assert abs(row["error"]) < 0.2, row
    kept, again, adapters, half = rows
    assert half["trained"] == kept["trained"]
    assert again["measured_gib"] < kept["measured_gib"]
    assert adapters["trained"] < kept["trained"] / 5


def test_samplers_have_a_speed_beside_the_limit_and_transformers(gpu, tmp_path, capsys):
    """The model ends its texts as often as it was made to; a sampler that is not installed is named."""
    status, rows = ran(gpu, "rollout", tmp_path)
    assert status == 0
    (row,) = rows.values()
    (case,) = gpu("cases").TINY_ROLLOUTS
    assert case.mean / 2 < row["mean"] < 2 * case.mean
    assert row["longest"] > 1.5 * row["mean"]  # ragged
    assert 0 < row["share"] < 1
    assert row["transformers"] > 0
    assert "vLLM is not installed" in row["vllm_why"]
    assert "Transformers, tokens/s" in capsys.readouterr().out


@pytest.mark.slow
def test_a_killed_run_goes_on_to_the_same_weights(gpu, tmp_path):
    """Shares of a step's phases add up; after SIGKILL the run goes on from its checkpoint, on a CPU to the bit."""
    status, rows = ran(gpu, "steps", tmp_path)
    assert status == 0
    steps, resumed, sampled = rows.values()
    assert sum(steps[name] for name in ("rollout", "reward", "update", "sync", "rest")) == pytest.approx(1)
    assert min(steps["rollout"], steps["update"]) > 0.05
    assert steps["tokens_per_s"] > 0
    assert (resumed["resumed_at"], resumed["ended_at"], resumed["drift"]) == (2, 3, 0)
    assert (sampled["status"], sampled["why"]) == ("not available", "vLLM is not installed")


def test_without_trl_its_row_says_so(gpu, tmp_path, monkeypatch):
    """The row says what installs TRL, and that is no failure."""
    monkeypatch.setenv("PARIBUS_ENVIRONMENTS", str(tmp_path))
    status, rows = ran(gpu, "trl", tmp_path)
    (row,) = rows.values()
    assert (status, row["status"]) == (0, "not available")
    assert "paribus runners install trl" in row["why"]


@pytest.mark.parametrize("size", SIZES)
def test_the_configurations_are_those_of_qwen(gpu, size):
    """A model of each size has as many parameters as the published one."""
    models = gpu("models")
    values = models.configuration(size)
    config = models.AutoConfig.for_model(values.pop("model_type"), **values)
    with torch.device("meta"):
        model = models.AutoModelForCausalLM.from_config(config)
    assert sum(p.numel() for p in model.parameters()) == SIZES[size]


def test_lengths_are_log_normal_and_cut(gpu):
    """Their mean is the one asked for, their median that of the distribution, and none is above the limit."""
    drawn = gpu("models").lengths(20_000, 300, 10**6)
    assert statistics.mean(drawn) == pytest.approx(300, rel=0.05)
    assert statistics.median(drawn) == pytest.approx(300 * 2.718281828**-0.5, rel=0.05)
    assert max(gpu("models").lengths(1000, 300, 512)) == 512


def test_what_is_packed_is_what_a_machine_with_torch_lacks(gpu):
    """Paribus' and TRL's own needs, without what is large and there; more on request."""
    names = {line.partition("==")[0] for line in gpu("pack").wanted([])}
    assert {"pydantic", "pydantic-core", "sqlalchemy", "trl", "datasets"} <= names
    assert not names & {"torch", "transformers", "numpy", "scipy"}
    assert "numpy" in {line.partition("==")[0] for line in gpu("pack").wanted(["numpy"])}


def record(gpu, folder, device, name=None, **more):
    """Write a result of updates with one measured row, by default the first."""
    name = name or gpu("cases").UPDATES[0].name
    row = {"name": name, "device": "H200", "status": "measured", "why": "", "tokens_per_s": 31234.5, "mfu": 0.4321}
    machine = {"device": device, "name": "NVIDIA H200", "memory_gib": 139.0, "cores": 16, "processor": "Xeon"}
    machine |= {"torch": "2.11.0", "transformers": "5.17.0", "python": "3.12.3", "commit": "abc"}
    values = {
        "script": "update",
        "tiny": False,
        "date": "2027-01-02",
        "seconds": 61.0,
        "machine": machine,
        "rows": [row],
    }
    folder.mkdir()
    (folder / "update.json").write_text(json.dumps({**values, **more}))


def test_the_page_says_what_was_not_measured(gpu, tmp_path):
    """Without a result each row says so; a result of a GPU brings numbers, date and card, one of a CPU nothing."""
    page, figures = gpu("page"), [each.beside for each in gpu("published").FIGURES]
    assert {each for each in figures if each} <= set(page.SCRIPTS["update"].rows)
    rows = sum(len(script.rows) for script in page.SCRIPTS.values()) + sum(each is not None for each in figures)
    assert rows > 25
    assert page.page(tmp_path).count("| not measured |") == rows
    record(gpu, tmp_path / "laptop", "cpu")
    record(gpu, tmp_path / "small", "cuda", tiny=True)
    assert page.page(tmp_path).count("| not measured |") == rows
    record(gpu, tmp_path / "h200", "cuda")
    text = page.page(tmp_path)
    assert text.count("| not measured |") == rows - 1
    assert "| 31,234 | 43.2% |" in text
    assert "2027-01-02, NVIDIA H200 (139.0 GiB)" in text


def test_published_figures_stand_beside_our_closest_row(gpu, tmp_path):
    """Once it is measured, the table of other trainers' figures has its numbers."""
    published = gpu("published")
    record(gpu, tmp_path / "h200", "cuda", published.SMALL)
    _, _, section = gpu("page").page(tmp_path).partition("## Beside published figures")
    assert section.count(f"| {published.SMALL} | 31,234 | 43.2% |") == 2
    assert section.count(f"| {published.LARGE} | not measured |  |") == 2
    assert "| 1 H100 | 11,900 | 11.1% | 12.5 |" in section
