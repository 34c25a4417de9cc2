"""Pages on the command line: commands, errors, exit statuses, typical mistakes."""

from __future__ import annotations

import json
import shlex
import tempfile
from collections.abc import Iterator
from contextlib import chdir
from pathlib import Path
from typing import NamedTuple

import click
from click.testing import CliRunner

from pages_from_code import cell, first_paragraph
from paribus import errors
from paribus.cli import COMMANDS, INTERRUPTED, paribus
from paribus.cli.health import FAILED, UNJUDGED
from paribus.cli.studies import shipped_study

STATUSES = {
    0: "The command did what it was asked for.",
    1: "An error (see [errors](errors.md)). `paribus run`: a run failed, or the budget or a pause ended the study. `scheduler --until-idle`: "
    "the same of any study. `doctor`: a check is critical. `healthcheck`: the service does not work.",
    2: "The command line, the study or its data are wrong: nothing was started.",
    FAILED: "`paribus health --fail-on`: a finding is as bad or worse.",
    UNJUDGED: "`paribus health --fail-on`: no such finding, but a run could not be judged in full.",
    INTERRUPTED: "Ctrl-C, or `paribus run` was detached from a scheduler. The same command continues. `scheduler`, `up` and `dashboard` work until "
    "Ctrl-C: they end with 0.",
    141: "The reader of the output has closed it, as in `paribus status | head`.",
}


def commands_page() -> str:
    """Return the help of every command."""
    lines = ["# Commands\n", "```text", help_text(), "```\n"]
    for command in COMMANDS:
        lines += [f"## paribus {command}\n", "```text", help_text(command), "```\n"]
        found = paribus.get_command(click.Context(paribus), command)
        for name, sub in sorted(getattr(found, "commands", {}).items()):
            lines += [f"### paribus {command} {name}\n", "```text", help_text(command, name), "```\n"]
            assert sub.help, name
    return "\n".join(lines)


def help_text(*command: str) -> str:
    """Return what `paribus COMMAND --help` prints on a terminal of 100 columns, two of which click leaves free."""
    shown = CliRunner().invoke(paribus, [*command, "--help"], prog_name="paribus", terminal_width=98)
    assert shown.exit_code == 0, shown.output
    return shown.output.rstrip()


def errors_page() -> str:
    """Return every error code with its meaning and exit status."""
    lines = [
        "# Errors\n",
        "A command that cannot continue prints `error <code>: <message>` and exits with the status below. The message says",
        "what was wrong, where, what is allowed and what to do. `paribus run` exits with 1 if a run failed, and with 130 after",
        "Ctrl-C.\n",
        "| code | meaning | exit status |",
        "|---|---|---|",
    ]
    lines += [f"| `{c.code}` | {cell(first_paragraph(c))} | {c.exit_code} |" for c in error_classes()]
    return "\n".join(lines) + "\n"


def error_classes() -> Iterator[type[errors.ParibusError]]:
    """Yield the error classes by code."""
    found = [c for c in vars(errors).values() if isinstance(c, type) and issubclass(c, errors.ParibusError)]
    yield from sorted(found, key=lambda c: c.code)


def statuses_page() -> str:
    """Return every exit status of the command line."""
    classes = {c.exit_code for c in error_classes()}
    assert classes <= set(STATUSES), classes
    lines = ["# Exit statuses\n", "Results are on standard output; errors and notes are on standard error.\n"]
    lines += ["| status | meaning | error codes |", "|---|---|---|"]
    for status, meaning in STATUSES.items():
        codes = ", ".join(f"`{c.code}`" for c in error_classes() if c.exit_code == status)
        lines.append(f"| {status} | {cell(meaning)} | {codes} |")
    return "\n".join(lines) + "\n"


class Mistake(NamedTuple):
    """A mistake in the study of `paribus init`: what it is, and what it writes in place of what."""

    what: str
    before: str = ""
    after: str = ""
    command: str = "paribus plan study.yaml"


MISTAKES = (
    Mistake("a name of TRL", "clip.high: 0.28", "epsilon_high: 0.28"),
    Mistake("an option of TRL that means several", "    kl: off", "    kl: off\n    loss_type: dapo"),
    Mistake("a percentage", "clip.high: 0.28", "clip.high: 28%"),
    Mistake("`1e-4`, which YAML reads as text", "2.5e-4   #", "1e-4   #"),
    Mistake("wrong indentation", "    model: tiny", "  model: tiny"),
    Mistake("a mistyped file", command="paribus plan studdy.yaml"),
    Mistake("a mistyped path", "clip.high: 0.28", "clip.hihg: 0.28"),
    Mistake("data that are not there", command="paribus plan own_data.yaml --set task.train=trian.jsonl"),
    Mistake(
        "a column that is not there",
        command="paribus plan own_data.yaml --set 'task={kind: dataset, train: rows.jsonl, heldout: heldout.jsonl}'",
    ),
    Mistake("another word for a level", "kl: off", "aggregation: token"),
    Mistake("`yes` for `true`", "{n: 2}", "{n: 2, paired: yes}"),
    Mistake("a design that names no trick", "{kind: add_one}", "{kind: cumulative, order: [soft_overlong, clip_hgher]}"),
    Mistake("unequal budgets", "clip_higher:   {clip.high: 0.28}", "clip_higher:   {clip.high: 0.28, schedule.steps: 24}"),
    Mistake("a value of a wrong option", command="paribus plan study.yaml --set seed.n=5"),
)  # fmt: skip


def mistakes_page() -> str:
    """Return typical mistakes with what `paribus plan` answers: run here, one by one."""
    lines = [
        "# Typical mistakes\n",
        "What `paribus plan` prints where the study of `paribus init`, or of its template `own_data`, has one mistake. `file:line:column` is its place, and the",
        "sentence after it says what to write. All mistakes of a file are listed at once.\n",
        "| mistake | written | answer |",
        "|---|---|---|",
    ]
    for mistake in MISTAKES:
        written = (
            mistake.after.strip().splitlines()[-1].strip().removesuffix("   #") if mistake.after else mistake.command
        )
        lines.append(f"| {mistake.what} | `{cell(written)}` | {cell(answer_to(mistake))} |")
    return "\n".join(lines) + "\n"


def answer_to(mistake: Mistake) -> str:
    """Return the lines that answer a mistake: the errors, or the warning of the plan; shortened behind the remedy."""
    first = shipped_study("first").read_text()
    assert mistake.before in first, mistake
    runner = CliRunner()
    with tempfile.TemporaryDirectory() as folder, chdir(folder):
        Path("study.yaml").write_text(first.replace(mistake.before, mistake.after, 1) if mistake.before else first)
        runner.invoke(paribus, ["init", "--template", "own_data"])
        Path("rows.jsonl").write_text(Path("train.jsonl").read_text().replace("prompt", "question"))
        shown = runner.invoke(paribus, shlex.split(mistake.command)[1:])
        if isinstance(shown.exception, errors.ParibusError):
            return "<br>".join(line.strip() for line in str(shown.exception).splitlines() if line.strip())
        assert shown.exit_code == 0, shown.output
        plan = json.loads(runner.invoke(paribus, [*shlex.split(mistake.command)[1:], "--json"]).output)
    found = [note for note in plan["notes"] if note["code"] != "seeds"]
    return "<br>".join(f"warning `{note['code']}`: {note['message']}" for note in found) or "no error: it is a number"
