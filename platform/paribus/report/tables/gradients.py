"""The tables of gradient probes, where a study has any: what each arm does to the gradient of one step."""

from __future__ import annotations

from collections.abc import Iterator

from paribus.report.analysis.analysis import Analysis
from paribus.report.model import Cell, Column, Table, TableRow, rounded
from paribus.report.tables.cells import NOT_APPLICABLE
from paribus.run_folder.folder import SHORT
from paribus.study.gradients import (
    SHARE_NOTE,
    WORDS,
    ArmProbe,
    about,
    cosine_text,
    noise_note,
    ratio_text,
    sentence,
    unseen,
)

COLUMNS = (
    Column(key="cosine", label="cosine", note="to the gradient of the base; 1 alone is exactly 1"),
    Column(key="ratio", label="ratio", note="norm over that of the base; 1 alone is exactly 1"),
    Column(key="changes", label="changes"),
    Column(key="long", label="long", unit="fraction", note="share of |c| of responses longer than the median"),
    Column(key="wrong", label="wrong", unit="fraction", note="of wrong responses"),
    Column(key="rare", label="rare", unit="fraction", note="of tokens with a probability below 0.2"),
    Column(key="first", label="first", unit="fraction", note="of the first third of responses"),
    Column(key="last", label="last", unit="fraction", note="of the last third of responses"),
)


def gradient_tables(analysis: Analysis) -> Iterator[Table]:
    """Yield a table for each gradient probe of the study."""
    for probe in analysis.data.gradients:
        found, after = probe.gradients, "-after-updates" if probe.after_updates else ""
        made_of = f"checkpoint {probe.checkpoint}" if probe.checkpoint else "the weights that it begins with"
        code = (
            "the code that it was planned with"
            if probe.code == probe.run_code
            else "other code than it was planned with"
        )
        yield Table(
            key=f"gradients.{probe.run[:SHORT]}.{found.step}{after}",
            title=f"Gradient probe at step {found.step} of {probe.arm}, seed {probe.seed}",
            answers="Which arms change the gradient of given responses at given weights, and how?",
            first="Arm",
            columns=COLUMNS,
            rows=tuple(_row(arm) for arm in probe.arms),
            notes=(
                sentence(probe),
                f"{about(probe)}.",
                SHARE_NOTE,
                noise_note(probe),
                f"Run {probe.run[:SHORT]}, {made_of}; computed by Paribus {probe.version} with {code} "
                f"({probe.code[:SHORT]}). No test: one step of one run.",
                *(f"`{arm.label}`: {line}." for arm in probe.arms for line in unseen(arm)),
            ),
        )


def _row(arm: ArmProbe) -> TableRow:
    mine = arm.gradient
    if arm.verdict == "hidden":
        cells = (NOT_APPLICABLE, NOT_APPLICABLE, Cell(text=WORDS[arm.verdict]), *[NOT_APPLICABLE] * 5)
        return TableRow(label=arm.label, cells=cells)
    shares = (_share(mine.weight.get(column.key)) for column in COLUMNS[3:])
    cosine, ratio = cosine_text(mine.cosine), ratio_text(mine.ratio)
    cells = (_number(cosine, mine.cosine), _number(ratio, mine.ratio), Cell(text=WORDS[arm.verdict]), *shares)
    return TableRow(label=arm.label, cells=cells)


def _number(text: str, value: float | None) -> Cell:
    return NOT_APPLICABLE if value is None else Cell(text=text, value=rounded(value))


def _share(value: float | None) -> Cell:
    return _number("" if value is None else f"{100 * value:.0f}%", value)
