"""Writes docs/reference and the table of docs/algorithms.md from the code; --check says what is out of date.

The environment must hold paribus (`make setup`).
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

import measured
from pages_from_code import REFERENCE, cell
from pages_from_code.commands import commands_page, errors_page, mistakes_page, statuses_page
from pages_from_code.health import health_page
from pages_from_code.recipes import ALGORITHMS, algorithms_page, recipes_page
from pages_from_code.trainers import trainer_page

from paribus.audit import invariants as audit
from paribus.published.audit import audit as audit_table
from paribus.published.tables import load_published, published_names
from paribus.published.text import markdown
from paribus.run_folder.metrics import EVAL_METRICS, REWARD_METRICS, STEP_METRICS
from paribus.store.states import TRANSITIONS

HEADER = "<!-- Written by docs/generate.py from the code: change the code, then `make docs`. -->\n\n"
ASSUMED = (1.0, 2.0, 4.0)
"""Spreads between seeds for which the published tables are audited, in points."""


def metrics_page() -> str:
    """Return the canonical metrics with unit, direction and definition."""
    lines = [
        "# Metrics\n",
        "Canonical metrics keep one meaning in every arm: they are computed from rollout records, never from the ablated",
        'loss. "Generated" means all responses sampled in a step before any filter; "trained" those that entered the loss.\n',
        "A [metric line](../run_folder.md) can give the source of a value: `exact` (as defined here, the default), `derived`",
        "(computed by Paribus from other records of the trainer) or `proxy` (close to the definition: good enough to watch,",
        "but not to compare between arms).\n",
        "| name | unit | better | definition |",
        "|---|---|---|---|",
    ]
    lines += [f"| `{m.name}` | {m.unit} | {m.better} | {cell(m.definition)} |" for m in STEP_METRICS]
    lines += ["\nEvaluations are logged as `eval/<set>/<name>`, with the number of responses in place of `k`:\n"]
    lines += ["| name | unit | better | definition |", "|---|---|---|---|"]
    lines += [f"| `eval/heldout/{m.name}` | {m.unit} | {m.better} | {cell(m.definition)} |" for m in EVAL_METRICS]
    lines += [
        "\nA study's own [reward functions](../howto/rewards.md) are logged as `reward/<function>/<name>`, failures of a verifier in a",
        "worker process as `reward/verifier/<name>`:\n",
    ]
    lines += ["| name | unit | better | definition |", "|---|---|---|---|"]
    lines += [
        f"| `reward/<function>/{m.name}` | {m.unit} | {m.better} | {cell(m.definition)} |" for m in REWARD_METRICS
    ]
    return "\n".join(lines) + "\n"


def states_page() -> str:
    """Return the state machine of runs."""
    intro = (
        "# States of a run\n\nOne table in the code generates the SQL guards, the tests and this page. A move that needs the fence\n"
        "token is refused for every attempt except the last one, and a refused call changes nothing. A run with a result\n"
        "never moves again. A run that ended without one is queued again only on request.\n\n"
    )
    invariants = "\n".join(f"| {name} | {cell(audit.statement(name))} |" for name in audit.INVARIANTS)
    audited = (
        "\n## What is audited\n\n`paribus doctor` checks these invariants in the store and the run folders, and so does every test "
        "that\nkills something.\n\n| | invariant |\n|---|---|\n"
    )
    moves = "| move | from | to | needs the fence token | condition | |\n|---|---|---|---|---|---|\n"
    for t in TRANSITIONS:
        cells = (f"`{t.move}`", t.source, t.target, "yes" if t.fenced else "no", ", ".join(t.conditions), t.note)
        moves += f"| {' | '.join(cells)} |\n"
    return intro + moves + audited + invariants + "\n"


def published_page() -> str:
    """Return the audit of every table that ships."""
    lines = [
        "# Published tables, audited\n",
        "What `paribus audit NAME` says of each table that ships; [the page for users](../published_tables.md) says how to read",
        f"it. The spreads between seeds, {', '.join(f'{sd:g}' for sd in ASSUMED)} points, are assumed for illustration: no source here states its own.\n",
    ]
    for name in published_names():
        table = load_published(name)
        lines += [f"## `{name}`: {table.title}\n", markdown(audit_table(table, ASSUMED)), ""]
    return "\n".join(lines)


def performance_page() -> str:
    """Return the page of what was measured on GPUs."""
    sys.path.append(str(Path(__file__).parents[1] / "benchmarks"))
    from gpu.page import page

    return page()


PAGES: dict[str, Callable[[], str]] = {
    "published_tables.md": published_page,
    "metrics.md": metrics_page,
    "health.md": health_page,
    "recipes.md": recipes_page,
    "commands.md": commands_page,
    "errors.md": errors_page,
    "exit_statuses.md": statuses_page,
    "mistakes.md": mistakes_page,
    "from_trl.md": partial(trainer_page, "TRL"),
    "from_verl.md": partial(trainer_page, "verl"),
    "states.md": states_page,
    "performance.md": performance_page,
    "measured.md": measured.page,
}


def main() -> int:
    """Write the pages, or with --check compare them; return the exit status."""
    stale = []
    pages = {REFERENCE / name: HEADER + page() for name, page in PAGES.items()} | {ALGORITHMS: algorithms_page()}
    for path, text in pages.items():
        if "--check" in sys.argv:
            if not path.is_file() or path.read_text() != text:
                stale.append(path.name)
        else:
            path.write_text(text)
    if stale:
        print(f"out of date: {', '.join(stale)}; run `make docs`")
    return 1 if stale else 0


if __name__ == "__main__":
    sys.exit(main())
