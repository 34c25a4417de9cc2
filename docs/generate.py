"""Writes the pages of docs/reference from the code; with --check says which are out of date.

The environment must hold paribus (`make setup`).
"""

from __future__ import annotations

import importlib
import inspect
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, get_args

from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from paribus import errors
from paribus.cli import COMMANDS
from paribus.recipe.factors import Level
from paribus.recipe.presets import load_preset, preset_names
from paribus.recipe.recipe import FACTORS, Recipe
from paribus.store import audit, states
from paribus.study.runner import load_runner
from paribus.track.metrics import EVAL_METRICS, STEP_METRICS

REFERENCE = Path(__file__).parent / "reference"
HEADER = "<!-- Written by docs/generate.py from the code: change the code, then `make docs`. -->\n\n"


def first_paragraph(thing: object) -> str:
    """Return the first paragraph of a docstring on one line."""
    return " ".join((inspect.getdoc(thing) or "").split("\n\n")[0].split()).replace("``", "`")


def cell(text: str) -> str:
    """Return text that is safe inside a Markdown table."""
    return text.replace("|", "\\|")


def metrics_page() -> str:
    """Return the canonical metrics with unit, direction and definition."""
    lines = [
        "# Metrics\n",
        "Canonical metrics keep one meaning in every arm: they are computed from rollout records, never from the ablated",
        'loss. "Generated" means all responses sampled in a step before any filter; "trained" those that entered the loss.\n',
        "| name | unit | better | definition |",
        "|---|---|---|---|",
    ]
    lines += [f"| `{m.name}` | {m.unit} | {m.better} | {cell(m.definition)} |" for m in STEP_METRICS]
    lines += ["\nEvaluations are logged as `eval/<set>/<name>`, with the number of responses in place of `k`:\n"]
    lines += ["| name | unit | better | definition |", "|---|---|---|---|"]
    lines += [f"| `eval/heldout/{m.name}` | {m.unit} | {m.better} | {cell(m.definition)} |" for m in EVAL_METRICS]
    return "\n".join(lines) + "\n"


def levels_of(field: FieldInfo) -> tuple[type[Level], ...]:
    """Return the classes that a factor can hold."""
    found = tuple(c for c in get_args(field.annotation) if isinstance(c, type))
    return found or (field.annotation,)  # type: ignore[return-value]


def parameters(level: type[Level]) -> str:
    """Return the parameters of a level with their defaults."""
    shown = []
    for name, info in level.model_fields.items():
        if name == "kind":
            continue
        default = "required" if info.default is PydanticUndefined else show_default(info.default)
        note = f": {info.description}" if info.description else ""
        shown.append(f"`{name}` = {default}{note}")
    return "; ".join(shown) or "none"


def show_default(value: Any) -> str:
    """Return a default as the study file would write it."""
    if isinstance(value, Level):
        return getattr(value, "kind", "see below")
    if value is None:
        return "absent"
    return str(value).lower() if isinstance(value, bool) else str(value)


def recipes_page() -> str:
    """Return factors, levels, parameters, which the native runner trains, and the presets."""
    lines = [
        "# Recipes\n",
        "A recipe is `model`, `task`, `optimizer` and the 13 factors of the objective. A string stands for a level with its",
        "defaults: `scale: none` is `scale: {kind: none}`. The order of operations is fixed: reward map, length rule, KL in",
        "the reward, group filter, baseline, advantage scale, masks, ratio, clip, importance correction, KL in the loss,",
        "aggregation, auxiliary losses.\n",
    ]
    for name in ("model", "task", "optimizer", "loss", *FACTORS):
        number = f" (F{FACTORS.index(name)})" if name in FACTORS else ""
        lines += [f"## {name}{number}\n", "| level | meaning | parameters |", "|---|---|---|"]
        for level in levels_of(Recipe.model_fields[name]):
            kind = level.model_fields["kind"].default if "kind" in level.model_fields else "-"
            lines.append(f"| `{kind}` | {cell(first_paragraph(level))} | {cell(parameters(level))} |")
        lines.append("")
    lines += ["## Presets\n", "| preset | title | source | trained by `native` |", "|---|---|---|---|"]
    runner = load_runner("native")
    for name in preset_names():
        preset = load_preset(name)
        missing = runner.unsupported(preset.recipe)
        trained = "yes" if not missing else "not yet: " + ", ".join(m.split(" is not trained")[0] for m in missing)
        lines.append(f"| `{name}` | {cell(preset.title)} | {cell(preset.source)} | {cell(trained)} |")
    return "\n".join(lines) + "\n"


def commands_page() -> str:
    """Return the help of every command."""
    lines = ["# Commands\n"]
    environment = os.environ | {"COLUMNS": "100", "NO_COLOR": "1"}
    for command in COMMANDS:
        shown = subprocess.run(
            [sys.executable, "-m", "paribus", command, "--help"],
            capture_output=True, text=True, check=True, env=environment,
        )  # fmt: skip
        lines += [f"## paribus {command}\n", "```text", shown.stdout.rstrip(), "```\n"]
        module = importlib.import_module(f"paribus.cli.{command}")
        for name, sub in sorted(getattr(module.command, "commands", {}).items()):
            shown = subprocess.run(
                [sys.executable, "-m", "paribus", command, name, "--help"],
                capture_output=True, text=True, check=True, env=environment,
            )  # fmt: skip
            lines += [f"### paribus {command} {name}\n", "```text", shown.stdout.rstrip(), "```\n"]
            assert sub.help, name
    return "\n".join(lines)


def error_classes() -> Iterator[type[errors.ParibusError]]:
    """Yield the error classes by code."""
    found = [c for c in vars(errors).values() if isinstance(c, type) and issubclass(c, errors.ParibusError)]
    yield from sorted(found, key=lambda c: c.code)


def errors_page() -> str:
    """Return every error code with its meaning and exit status."""
    lines = [
        "# Errors\n",
        "A command that cannot go on prints `error <code>: <message>` and ends with the exit status below. The message says",
        "what was wrong, where, what is allowed and what to do. `paribus run` ends with 1 if a run failed, and with 130 after",
        "Ctrl-C.\n",
        "| code | meaning | exit status |",
        "|---|---|---|",
    ]
    lines += [f"| `{c.code}` | {cell(first_paragraph(c))} | {c.exit_code} |" for c in error_classes()]
    return "\n".join(lines) + "\n"


def states_page() -> str:
    """Return the state machine of runs."""
    intro = (
        "# States of a run\n\nOne table in the code writes the guards in SQL, drives the tests and makes this page. A move that "
        "needs the\ntoken is refused for every attempt but the one that claimed the run last, and a refused call changes "
        "nothing.\nA run with a result is never moved again; other terminal states are left only when somebody asks for "
        "it.\n\n"
    )
    promises = "\n".join(f"| {name} | {cell(audit.promise(name))} |" for name in audit.INVARIANTS)
    audited = (
        "\n## What is audited\n\n`paribus doctor` checks these promises in the store and the run folders, and so does every test "
        "that\nkills something.\n\n| | promise |\n|---|---|\n"
    )
    return intro + states.states_page() + audited + promises + "\n"


PAGES: dict[str, Callable[[], str]] = {
    "metrics.md": metrics_page,
    "recipes.md": recipes_page,
    "commands.md": commands_page,
    "errors.md": errors_page,
    "states.md": states_page,
}


def main() -> int:
    """Write the pages, or with --check compare them; return the exit status."""
    stale = []
    for name, page in PAGES.items():
        path, text = REFERENCE / name, HEADER + page()
        if "--check" in sys.argv:
            if not path.is_file() or path.read_text() != text:
                stale.append(name)
        else:
            path.write_text(text)
    if stale:
        print(f"out of date: {', '.join(stale)}; run `make docs`")
    return 1 if stale else 0


if __name__ == "__main__":
    sys.exit(main())
