"""Tables of the JSON files that the scripts write, in a terminal and on the page docs/reference/performance.md.

    python -m gpu.page [FOLDER]     # the tables of a folder, by default build/gpu

The page has the results in ``benchmarks/gpu/results``, a folder for each machine, and a row for each case that has
none. Results of a CPU, and of ``--tiny``, are not shown there. Needs no torch.
"""

from __future__ import annotations

import json
import sys
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from gpu import cases
from gpu.published import FIGURES

HERE = Path(__file__).resolve().parent
RESULTS = HERE / "results"
ABSENT = "not measured"
Row = Mapping[str, Any]


class Column(NamedTuple):
    """A value of a row: its key, the heading, and how it is written."""

    key: str
    heading: str
    form: str = "{:,.0f}"


class Script(NamedTuple):
    """What the page says of a script: heading, text, columns, and the names of the rows that it can have."""

    heading: str
    about: str
    columns: tuple[Column, ...]
    rows: tuple[str, ...]


SPEED = Column("tokens_per_s", "tokens/s")
GIB = "{:.3g}"
SCRIPTS: dict[str, Script] = {
    "equal": Script(
        "The same numbers",
        "The native runner's packed attention and head in pieces against a plain forward and backward pass of "
        "Transformers in float32, one sequence at a time, on a 0.5B model: norm of the difference over norm of the "
        "values. *Transformers* is the error that Transformers itself makes, with a fused attention in float32 or "
        "with autocast in bfloat16; *ratio* is ours over that. Several passes are compared with one pass, and "
        "sampler with learner on what the sampler drew. *Head by Triton*: `compute.head: triton`.",
        (
            Column("error", "relative error", "{:.1e}"),
            Column("peer", "Transformers", "{:.1e}"),
            Column("ratio", "ratio", "{:.2f}"),
            Column("mean_nats", "mean difference, nats", "{:.1e}"),
            Column("largest_nats", "largest, nats", "{:.1e}"),
        ),
        cases.EQUAL,
    ),
    "update": Script(
        "Updates",
        "One update of the native runner, from advantages to the optimizer's step, in bfloat16 by autocast with "
        "AdamW in float32. Speed: lengths are log-normal, and tokens are those of prompts and responses. MFU is F N "
        "tokens/s over the FLOP/s of a large product of matrices in bfloat16, measured in the same run; N: "
        "parameters that are multiplied; F = 6, with adapters 4, since the weights get no gradient. Attention, and "
        "blocks that are computed again, do not count. Memory: all responses reach the limit, as `paribus plan` "
        "takes them to do. *Head by Triton*: `compute.head: triton`.",
        (
            SPEED,
            Column("mfu", "MFU", "{:.1%}"),
            Column("limit_tflops", "limit, TFLOP/s", "{:,.4g}"),
            Column("predicted_gib", "predicted peak, GiB", GIB),
            Column("measured_gib", "measured peak, GiB", GIB),
            Column("error", "prediction's error", "{:+.1%}"),
        ),
        tuple(case.name for case in cases.UPDATES),
    ),
    "rollout": Script(
        "Sampling",
        "Responses of a model that ends a text with the same small probability at each token. *Limit* is the speed "
        "at which reading the weights in bfloat16 once a token would be all that takes time, from the bytes a "
        "second of a copy in the same run. The peak is predicted for responses that all reach their limit, so that "
        "prediction is an upper bound here.",
        (
            SPEED,
            Column("mean", "mean length"),
            Column("share", "of the limit", "{:.1%}"),
            Column("transformers", "Transformers, tokens/s"),
            Column("vllm", "vLLM, tokens/s"),
            Column("predicted_gib", "predicted peak, GiB", GIB),
            Column("measured_gib", "measured peak, GiB", GIB),
        ),
        tuple(case.name for case in cases.ROLLOUTS),
    ),
    "steps": Script(
        "Whole steps",
        "Training by the native runner as a study starts it, with shares of a step's seconds. The run of the first "
        "row is then trained again, killed with SIGKILL in the middle of a step, and started once more: its last "
        "weights are compared with those of the first, as a share of what training has changed.",
        (
            SPEED,
            Column("rollout", "sampling", "{:.0%}"),
            Column("reward", "rewards", "{:.0%}"),
            Column("update", "update", "{:.0%}"),
            Column("sync", "sync", "{:.1%}"),
            Column("rest", "rest", "{:.0%}"),
            Column("seconds", "seconds a step", "{:.2f}"),
            Column("measured_gib", "peak, GiB", GIB),
            Column("resumed_at", "went on from step"),
            Column("drift", "weights differ by", "{:.1e}"),
        ),
        (*(case.name for case in cases.STEPS), "killed and resumed"),
    ),
    "trl": Script(
        "Against TRL",
        "Sampling and training end to end with TRL's `GRPOTrainer` on the same model, prompts, length limit and "
        "number of updates, in the same run, without vLLM on either side. Before its first update the native runner "
        "tries the largest one that its limits allow, which is in its peak.",
        (
            SPEED,
            Column("trl", "TRL, tokens/s"),
            Column("ratio", "ratio", "{:.2f}"),
            Column("measured_gib", "peak, GiB", GIB),
            Column("trl_gib", "TRL's, GiB", GIB),
        ),
        tuple(case.name for case in cases.TRL),
    ),
}


def table(script: str, rows: Sequence[Row], *, every: bool = False) -> list[str]:
    """Return rows as a table in Markdown; columns of which no row has a value are left out, but with ``every``."""
    found = [c for c in SCRIPTS[script].columns if every or any(c.key in row for row in rows)]
    columns = found or [SCRIPTS[script].columns[0]]
    heads = " | ".join(c.heading for c in columns)
    lines = [f"| {script} | {heads} | device |", "|---" * (len(columns) + 2) + "|"]
    return lines + [f"| {row['name']} | {' | '.join(_cells(row, columns))} | {row.get('device', '')} |" for row in rows]


def _cells(row: Row, columns: Sequence[Column]) -> list[str]:
    """Return the values of a row, or in the first cell why there are none."""
    cells = [c.form.format(row[c.key]) if row.get(c.key) is not None else "" for c in columns]
    if row["status"] != "measured":
        cells[0] = " ".join(x for x in (cells[0], row["status"]) if x)
        cells[0] += f" ({_plain(row['why'])})" if row.get("why") else ""
    return cells


def _plain(text: str) -> str:
    """Return a text that cannot end a cell, without what an allocator adds about itself."""
    return text.partition(". ")[0].replace("|", "/")[:120]


def records(folder: Path) -> Iterator[dict[str, Any]]:
    """Yield the records of the JSON files in a folder, in the order of the scripts."""
    for script in SCRIPTS:
        if (file := folder / f"{script}.json").is_file():
            yield json.loads(file.read_text())


ABOUT = """# Performance on a GPU

Speed, memory and agreement of the native runner on one NVIDIA GPU, from the JSON files in `benchmarks/gpu/results`;
[how to measure](../../benchmarks/README.md#on-a-gpu). The models have random weights in the shape of Qwen2.5. Every
ratio is against a peer, or a limit of the device, that was measured in the same run.
"""


def page(folder: Path = RESULTS) -> str:
    """Return the page of the results in the folders of ``folder``."""
    found = [record for each in sorted(folder.glob("*/")) for record in records(each) if _counts(record)]
    lines = [ABOUT]
    if not found:
        lines.append("**No GPU has been at hand so far**, so no row has a number.\n")
    for name, script in SCRIPTS.items():
        about = textwrap.fill(f"{script.about} `benchmarks/gpu/{name}.py`", 100, break_on_hyphens=False)
        lines += [f"## {script.heading}", "", about, ""]
        mine = [record for record in found if record["script"] == name]
        for record in mine or [{"rows": []}]:
            if "machine" in record:
                lines += [_machine(record), ""]
            there = {row["name"]: row for row in record["rows"]}
            names = [*script.rows, *(each for each in there if each not in script.rows)]
            empty = {"status": ABSENT, "why": ""}
            lines += [*table(name, [there.get(each, {"name": each, **empty}) for each in names], every=True), ""]
    return "\n".join([*lines, *_published(found)])


PUBLISHED = (
    "Of other trainers, on other models and other machines: an order of magnitude, and no comparison. prime-rl and the "
    "first two of verl state what training takes, without sampling. MFU is as the source counts it: of what the "
    "device's maker states, and with attention. *Our row* is the update above that is closest."
)


def _published(found: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the lines of the section on published figures."""
    updates = {row["name"]: row for record in found if record["script"] == "update" for row in record["rows"]}
    lines = ["## Beside published figures", "", textwrap.fill(PUBLISHED, 100, break_on_hyphens=False), ""]
    lines += [
        "| source | what | devices | tokens/s | MFU | peak, GiB | our row | our tokens/s | our MFU |",
        "|---" * 9 + "|",
    ]
    for figure in FIGURES:
        theirs = (_form("{:,}", figure.tokens_per_s), _form("{:.1%}", figure.mfu), _form("{}", figure.peak_gib))
        row = updates.get(figure.beside or "", {})
        speed = _form("{:,.0f}", row.get("tokens_per_s")) or row.get("status", ABSENT)
        ours = (figure.beside, speed, _form("{:.1%}", row.get("mfu"))) if figure.beside else ("", "", "")
        cells = (figure.source, figure.what, figure.devices, *theirs, *ours)
        lines.append(f"| {' | '.join(cell or '' for cell in cells)} |")
    return [*lines, ""]


def _form(form: str, value: float | None) -> str:
    return "" if value is None else form.format(value)


def _counts(record: Mapping[str, Any]) -> bool:
    return record["machine"]["device"] == "cuda" and not record["tiny"]


def _machine(record: Mapping[str, Any]) -> str:
    about = record["machine"]
    versions = f"PyTorch {about['torch']}, Transformers {about['transformers']}, Python {about['python']}"
    card = f"{about['name']} ({about['memory_gib']} GiB), {about['cores']} cores, {about['processor']}"
    return f"{record['date']}, {card}; {versions}; commit {about['commit']}; {record['seconds']:.0f} s."


def main(arguments: Sequence[str]) -> int:
    """Print the tables of a folder; return 1 if it has none."""
    folder = Path(arguments[0]) if arguments else HERE.parents[1] / "build" / "gpu"
    shown = 0
    for record in records(folder):
        about = record["machine"]
        print(f"\n{record['script']}: {record['date']}, {about['name']}, {record['seconds']:.0f} s")
        print("\n".join(table(record["script"], record["rows"])))
        shown += 1
    if not shown:
        print(f"{folder} has no JSON file of `make gpu`")
    return int(not shown)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
