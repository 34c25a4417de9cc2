"""The live view of ``paribus run``: a table in a terminal, one line for each event elsewhere."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TextIO

import click
from rich.console import Console, Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from paribus.monitor.progress import Display, RunView, StudyView
from paribus.text import duration, plural

_STATUS = {"ok": ("●", "green"), "warn": ("●", "yellow"), "critical": ("●", "red")}
_COLUMNS = (
    ("reward", "reward/mean"),
    ("right", "reward/correct_frac"),
    ("entropy", "policy/entropy"),
    ("length", "response/length_mean"),
)
_WAITING, _LIVE, _BAD = ("PLANNED", "QUEUED"), ("LEASED", "RUNNING"), ("FAILED", "QUARANTINED", "CANCELLED")
_EVERY_S = 30.0


@contextmanager
def display_for(stream: TextIO) -> Iterator[Display]:
    """Yield a live table if the stream is a terminal, else plain lines."""
    if not stream.isatty():
        yield PlainDisplay(stream)
        return
    console = Console(file=stream)
    with Live(console=console, refresh_per_second=2, transient=True, redirect_stdout=False) as live:
        yield LiveDisplay(live)


class PlainDisplay:
    """Prints one line for each event, and the counts of each study when a run ends or after half a minute."""

    def __init__(self, stream: TextIO | None = None) -> None:
        self._stream = stream
        self._shown: dict[str, tuple[dict[str, int], float]] = {}

    def say(self, line: str) -> None:
        """Print the line."""
        click.echo(line, file=self._stream)

    def show(self, view: StudyView) -> None:
        """Print the counts if a run has ended, or half a minute after the last time."""
        now = time.monotonic()
        ended = {str(s): n for s, n in view.counts.items() if s not in (*_WAITING, *_LIVE)}
        before, at = self._shown.setdefault(view.study, ({}, now))
        if ended == before and now - at < _EVERY_S:
            return
        self._shown[view.study] = (ended, now)
        line = "".join(f", preparing {text}" for text in preparing_texts(view))
        click.echo(
            f"{view.study}: {counts_line(view)}, {view.done:.0%} of the steps{_left(view)}{line}", file=self._stream
        )


class LiveDisplay:
    """Draws a header and the runs in progress; events scroll above."""

    def __init__(self, live: Live) -> None:
        self._live = live
        self._begun = time.monotonic()

    def say(self, line: str) -> None:
        """Print the line above the table."""
        self._live.console.print(Text(line, style="dim"))

    def show(self, view: StudyView) -> None:
        """Draw the progress."""
        elapsed = duration(time.monotonic() - self._begun)
        header = Text.assemble((view.study, "bold"), f"  {counts_line(view)}  elapsed {elapsed}{_left(view)}")
        bar = Table.grid(padding=(0, 1, 0, 0))
        bar.add_row(ProgressBar(total=1.0, completed=view.done, width=40), Text(f"{view.done:.0%} of the steps"))
        lines = [Text(f"preparing {text}") for text in preparing_texts(view)]
        self._live.update(Group(header, bar, *lines, *([runs_table(view.live)] if view.live else [])))


def counts_line(view: StudyView) -> str:
    """Return e.g. ``3 of 18 runs done, 2 running, 13 queued``."""
    by_state = {str(state): n for state, n in view.counts.items()}
    running = sum(by_state.get(s, 0) for s in _LIVE)
    done = sum(n for s, n in by_state.items() if s not in (*_WAITING, *_LIVE))
    parts = [f"{done} of {plural(sum(by_state.values()), 'run')} done"]
    parts += [f"{running} running"] if running else []
    parts += [f"{n} {s.lower()}" for s, n in by_state.items() if s in _BAD]
    return ", ".join(parts)


def preparing_texts(view: StudyView) -> list[str]:
    """Return e.g. ``tiny for search, 0:23 so far: step 40 of 200``."""
    return [f"{p.about}, {duration(p.seconds)} so far{f': {p.line}' if p.line else ''}" for p in view.preparing]


def runs_table(runs: tuple[RunView, ...]) -> Table:
    """Return the table of the runs in progress."""
    table = Table(box=None, header_style="dim", padding=(0, 2, 0, 0))
    table.add_column("")
    table.add_column("arm")
    for name in ("seed", "step", *(title for title, _ in _COLUMNS)):
        table.add_column(name, justify="right")
    for view in runs:
        mark, colour = _STATUS.get(view.status, ("○", "dim"))
        numbers = [f"{view.values[m]:.3g}" if m in view.values else "" for _, m in _COLUMNS]
        run = view.run
        table.add_row(Text(mark, style=colour), run.label, str(run.seed), f"{view.step}/{view.steps}", *numbers)
    return table


def _left(view: StudyView) -> str:
    return f", about {duration(view.left_s)} left" if view.left_s else ""
