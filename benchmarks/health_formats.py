"""Writes one made-up run as each trainer and tool writes it, and prints what `paribus health` says of each.

    python benchmarks/health_formats.py --page      # into docs/reference/health.md

The run is one of `health_courses.py`, and the forms are those of the trainers' and tools' own writers and of public
logs; no line is copied. What is refused is refused by name. The exit status is 1 if something is neither.
"""

from __future__ import annotations

import argparse
import csv
import gzip
import io
import json
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np
from health_course_names import NAMES, measured
from health_course_plan import base
from health_page import write

Rows = list[dict[str, float]]
STEPS = 40
SICK: Mapping[str, float] = {"truncated": 0.95, "grad": 1e4}
"""The sick run: almost all responses are truncated, and the gradient norm is 10,000 from the first step on."""


def rows(trainer: str, sick: bool = False) -> Rows:
    """Return the records of a run under the names of a trainer."""
    plan = base(np.random.default_rng(7), STEPS, "independent")
    if sick:
        for name, value in SICK.items():
            plan.curves[name] = np.full(STEPS, value)
    return NAMES[trainer](measured(plan), plan)


def renamed(sick: bool, **names: str) -> Rows:
    """Return records of TRL's run under other names; those that are not given are left out."""
    return [{new: r[old] for new, old in names.items() if old in r} | {"step": r["step"]} for r in rows("trl", sick)]


def openrlhf(sick: bool = False) -> Rows:
    """Return a run as OpenRLHF logs it."""
    return renamed(sick, policy_loss="loss", actor_grad_norm="grad_norm", actor_lr="learning_rate", reward="reward",
                   response_length="completions/mean_length", truncated="completions/clipped_ratio",
                   entropy_loss="entropy", kl="kl")  # fmt: skip


def slime(sick: bool = False) -> Rows:
    """Return a run as slime logs it."""
    return [
        {
            "train/step": r["step"],
            "rollout/raw_reward": r["reward"],
            "rollout/response_len/mean": r["completions/mean_length"],
            "rollout/truncated_ratio": r["completions/clipped_ratio"],
            "train/grad_norm": r["grad_norm"],
            "train/entropy_loss": r["entropy"],
        }
        for r in rows("trl", sick)
    ]


def roll(sick: bool = False) -> Rows:
    """Return a run as ROLL logs it."""
    return [
        {
            "step": r["step"],
            "critic/score/mean": r["reward"],
            "tokens/response_length/mean": r["completions/mean_length"],
            "actor_train/grad_norm": r["grad_norm"],
            "critic/entropy/mean": r["entropy"],
        }
        for r in rows("trl", sick)
    ]


def oat(sick: bool = False) -> Rows:
    """Return a run as Oat logs it: truncated responses are a count."""
    return [
        {
            "step": r["step"],
            "actor/rewards": r["reward"],
            "actor/response_tok_len": r["completions/mean_length"],
            "actor/no_eos_count": 128 * r["completions/clipped_ratio"],
            "actor/num_data": 128.0,
            "train/policy_grad_norm": r["grad_norm"],
            "train/entropy": r["entropy"],
        }
        for r in rows("trl", sick)
    ]


def nemo(sick: bool = False) -> Rows:
    """Return a run as NeMo-RL logs it."""
    return [
        {
            "step": r["step"],
            "reward": r["reward"],
            "mean_gen_tokens_per_sample": r["completions/mean_length"],
            "truncation_rate": r["completions/clipped_ratio"],
            "grad_norm": r["grad_norm"],
            "approx_entropy": r["entropy"],
        }
        for r in rows("trl", sick)
    ]


def unsloth() -> Rows:
    """Return a run with Unsloth's reward functions, of which one gives 2 for a hit."""
    return [
        {**r, "rewards/correctness_reward_func": 2.0 * r["reward"], "reward": 2.0 * r["reward"] + 0.5}
        for r in rows("trl")
    ]


def swift() -> Rows:
    """Return the records of ms-swift, whose step is part of a text."""
    found: list[dict[str, object]] = [dict(r) for r in rows("trl")]
    for r in found:
        r["global_step/max_steps"] = f"{int(float(str(r.pop('step'))))}/960"
    return found  # type: ignore[return-value]


def lines(records: Rows, nested: str = "") -> str:
    """Return JSON lines, with the metrics under a key or beside the step."""
    return "".join(json.dumps({"step": r["step"], nested: r} if nested else r) + "\n" for r in records)


def prints(records: Rows) -> str:
    """Return what transformers prints, which has no step, between other lines."""
    return "loading the model\n" + "\n\n".join(str({k: v for k, v in r.items() if k != "step"}) for r in records)


def verl_console(records: Rows, wrapped: bool = False) -> str:
    """Return what verl prints in a Ray job, on one line a step or wrapped."""
    mark = "\n - " if wrapped else " - "
    who = "\x1b[36m(TaskRunner pid=1)\x1b[0m "
    return "".join(
        f"{who}step:{int(r['step'])}{mark}" + mark.join(f"{k}:{v}" for k, v in r.items() if k != "step") + "\n"
        for r in records
    )


def table(records: Rows, style: str) -> str:
    """Return CSV: of a panel of W&B, of MLflow's rows, or of a spreadsheet."""
    out, names = io.StringIO(), sorted({k for r in records for k in r} - {"step"})
    writer = csv.writer(out)
    if style == "mlflow":
        writer.writerow(["run_id", "key", "value", "step", "timestamp"])
        writer.writerows(["a1", n, r[n], r["step"], 0] for r in records for n in names if n in r)
        return out.getvalue()
    head = [f"run-7 - train/{n}" for n in names] if style == "wandb" else names
    writer.writerow(["Step" if style == "wandb" else "step", *head])
    writer.writerows([r["step"], *(r.get(n, "") for n in names)] for r in records)
    return out.getvalue()


def folder_of_trl(at: Path) -> Path:
    """Write an output folder with two checkpoints."""
    for count in (20, STEPS):
        (at / f"checkpoint-{count}").mkdir(parents=True)
        state = json.dumps({"global_step": count, "log_history": rows("trl")[:count]})
        (at / f"checkpoint-{count}" / "trainer_state.json").write_text(state)
    return at


def mlruns(at: Path) -> Path:
    """Write a folder as MLflow's file store has it."""
    for r in rows("trl"):
        for name, value in r.items():
            path = at / "0" / "a1" / "metrics" / name
            path.parent.mkdir(parents=True, exist_ok=True)
            with path.open("a") as file:
                file.write(f"17 {value} {int(r['step'])}\n")
    return at


def events(at: Path) -> Path:
    """Write event files as transformers does."""
    from torch.utils.tensorboard import SummaryWriter

    with SummaryWriter(str(at / "runs" / "Nov26")) as writer:
        for r in rows("trl"):
            for name, value in r.items():
                writer.add_scalar(f"train/{name}", value, int(r["step"]))
    return at


def text(name: str, content: Callable[[], str | bytes]) -> Callable[[Path], Path]:
    """Return what writes a file of this name."""

    def make(at: Path) -> Path:
        at.mkdir()
        made = content()
        (at / name).write_bytes(made if isinstance(made, bytes) else made.encode())
        return at / name

    return make


FORMS: Mapping[str, Callable[[Path], Path]] = {
    "TRL: output folder with checkpoints": folder_of_trl,
    "TRL: `trainer_state.json`": text("trainer_state.json", lambda: json.dumps({"log_history": rows("trl")})),
    "TRL: `runs/`, TensorBoard": events,
    "TRL: console": text("train.log", lambda: prints(rows("trl"))),
    "Unsloth: reward functions, 2 for a hit": text("m.jsonl", lambda: lines(unsloth())),
    "ms-swift: `logging.jsonl`": text("logging.jsonl", lambda: lines(swift())),
    "ms-swift: console": text("swift.log", lambda: prints(swift())),
    "verl: `file` logger": text("verl.jsonl", lambda: lines(rows("verl"), "data")),
    "verl: console, coloured": text("verl.log", lambda: verl_console(rows("verl"))),
    "verl: console, a metric a line": text("verl.out", lambda: verl_console(rows("verl"), wrapped=True)),
    "OpenRLHF": text("m.jsonl", lambda: lines(openrlhf())),
    "OpenRLHF, sick": text("m.jsonl", lambda: lines(openrlhf(sick=True))),
    "prime-rl": text("m.ndjson", lambda: lines(rows("prime_rl"))),
    "open-instruct": text("m.jsonl", lambda: lines(rows("open_instruct"))),
    "NeMo-RL": text("m.jsonl", lambda: lines(nemo(), "metrics")),
    "NeMo-RL, sick": text("m.jsonl", lambda: lines(nemo(sick=True), "metrics")),
    "ROLL": text("m.jsonl", lambda: lines(roll())),
    "slime": text("m.jsonl", lambda: lines(slime())),
    "slime, sick": text("m.jsonl", lambda: lines(slime(sick=True))),
    "Oat": text("m.jsonl", lambda: lines(oat())),
    "Oat, sick": text("m.jsonl", lambda: lines(oat(sick=True))),
    "W&B: CSV of a panel": text("wandb.csv", lambda: table(rows("trl"), "wandb")),
    "MLflow: CSV": text("mlflow.csv", lambda: table(rows("trl"), "mlflow")),
    "MLflow: `mlruns`": mlruns,
    "CSV with a step column": text("m.csv", lambda: table(rows("trl"), "plain")),
    "`.gz`": text("m.jsonl.gz", lambda: gzip.compress(lines(rows("trl")).encode())),
    "TensorBoard: CSV of one metric": text(
        "run-a-tag-train_reward.csv",
        lambda: "Wall time,Step,Value\n" + "".join(f"1,{r['step']},{r['reward']}\n" for r in rows("trl")),
    ),
    "W&B: CSV of a panel with two runs": text("two.csv", lambda: "Step,a - train/reward,b - train/reward\n1,0.5,0.4\n"),
    "a console without metrics": text("other.log", lambda: "epoch 1 done\n" * 20),
    "lines without a step": text("m.jsonl", lambda: lines([{"reward": 0.5}])),
    "a table of results": text("results.json", lambda: json.dumps({"accuracy": 0.5})),
}
"""What is written, to what writes it into a folder and returns the path."""


def said(path: Path, hide: str) -> tuple[str, str]:
    """Return as whose log it was read and the verdict, or a dash and the error."""
    command = [sys.executable, "-m", "paribus", "health", str(path), "--json"]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    if not done.stdout:
        return "—", f"refused: {' '.join(done.stderr.split()).replace(hide + '/', '')}"
    run = json.loads(done.stdout)["runs"][0]
    return str(run.get("trainer", "")), str(run["sentence"]).replace("|", "\\|")


def page(found: Sequence[tuple[str, str, str]]) -> list[str]:
    """Return the lines of the page."""
    return [
        "## Formats\n",
        f"`make -C benchmarks formats` writes one made-up run of {STEPS} steps in each form, and gives it to `paribus",
        "health`. The forms are those of the trainers' writers and of public logs. Sick: 95% of the responses are",
        "truncated, and the gradient norm is 10,000, from the first step on.\n",
        "| form | read as | verdict |",
        "|---|---|---|",
        *(f"| {form} | {trainer} | {verdict} |" for form, trainer, verdict in found),
    ]


def main() -> int:
    """Write, read, print; return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--page", action="store_true", help="write into docs/reference/health.md")
    options = parser.parse_args()
    found = []
    with tempfile.TemporaryDirectory() as name:
        for number, (form, make) in enumerate(FORMS.items()):
            found.append((form, *said(make(Path(name) / str(number)), f"{name}/{number}")))
            print(*found[-1], sep=" | ", flush=True)
    if options.page:
        write(Path(__file__).name, page(found))
    return int(any("Traceback" in verdict for _, _, verdict in found))


if __name__ == "__main__":
    sys.exit(main())
