"""Writes docs/reference and the table of docs/algorithms.md from the code; --check says what is out of date.

The environment must hold paribus (`make setup`).
"""

from __future__ import annotations

import inspect
import json
import shlex
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import chdir
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, get_args

import click
import measured
from click.testing import CliRunner
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from paribus import errors
from paribus.audit import invariants as audit
from paribus.cli import COMMANDS, paribus
from paribus.cli.health import FAILED, UNJUDGED
from paribus.cli.run import INTERRUPTED
from paribus.cli.studies import shipped_study
from paribus.contract import Options, load_runner
from paribus.health.detector import Detector
from paribus.health.diagnose import DETECTORS
from paribus.health.import_logs import mappings
from paribus.health.profile import load_profile, profile_names
from paribus.health.remedies import catalogue
from paribus.health.signals import SIGNALS
from paribus.published.audit import audit as audit_table
from paribus.published.tables import load_published, published_names
from paribus.published.text import markdown
from paribus.recipe.factors import Level
from paribus.recipe.formula import formula, render
from paribus.recipe.presets import RESERVED, Preset, load_preset, nearest, preset_names
from paribus.recipe.recipe import FACTORS, Recipe, difference
from paribus.recipe.trainer_names import TrainerName, trainer_names
from paribus.recipe.unified import SHOWN, methods
from paribus.run_folder.metrics import EVAL_METRICS, REWARD_METRICS, STEP_METRICS
from paribus.store.states import TRANSITIONS

REFERENCE = Path(__file__).parent / "reference"
ALGORITHMS = Path(__file__).parent / "algorithms.md"
BEGIN, END = "<!-- The table is written by docs/generate.py from the presets. -->\n", "\n<!-- End of the table. -->"
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


def levels_of(field: FieldInfo) -> tuple[type[Level], ...]:
    """Return the classes that a factor can hold."""
    found = tuple(c for c in get_args(field.annotation) if isinstance(c, type))
    return found or (field.annotation,)  # type: ignore[return-value]


def required_parts(level: type[Level]) -> dict[type[Level], list[str]]:
    """Return the records that a level needs, each with the parameters that hold one."""
    found: dict[type[Level], list[str]] = {}
    for name, info in level.model_fields.items():
        if info.is_required() and isinstance(info.annotation, type) and issubclass(info.annotation, Level):
            found.setdefault(info.annotation, []).append(name)
    return found


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
    """Return factors, levels, parameters and presets, with the presets that the native runner trains."""
    lines = [
        "# Recipes\n",
        "A recipe is `model`, `task`, `optimizer`, the 13 factors of the objective, what answers the model inside a response",
        "(`turns`), and how a run samples (`rollout`) and uses its devices (`compute`). A text is short for a level with its defaults: `scale: none` is `scale: {kind: none}`. The",
        "order of operations is fixed: reward map, length rule, KL in the reward, group filter, baseline, advantage scale,",
        "masks, ratio, clip, importance correction, KL in the loss, aggregation, auxiliary losses.\n",
    ]
    for name in ("model", "task", "optimizer", "loss", *FACTORS, "turns", "rollout", "compute"):
        number = f" (F{FACTORS.index(name)})" if name in FACTORS else ""
        lines += [f"## {name}{number}\n", "| level | meaning | parameters |", "|---|---|---|"]
        for level in levels_of(Recipe.model_fields[name]):
            kind = level.model_fields["kind"].default if "kind" in level.model_fields else "-"
            lines.append(f"| `{kind}` | {cell(first_paragraph(level))} | {cell(parameters(level))} |")
            for part, owners in required_parts(level).items():
                title = f"{', '.join(f'`{owner}`' for owner in owners)} of `{kind}`"
                lines.append(f"| {title} | {cell(first_paragraph(part))} | {cell(parameters(part))} |")
        lines.append("")
    lines += ["## Presets\n", "| preset | title | treats | trained by `native` |", "|---|---|---|---|"]
    runner = load_runner("native")
    presets = [load_preset(name) for name in preset_names()]
    for preset in presets:
        missing = [s.reason for s in runner.support(preset.recipe, Options()) if s.level == "unsupported"]
        trained = "yes" if not missing else "not yet: " + ", ".join(m.split(" is not trained")[0] for m in missing)
        lines.append(f"| `{preset.name}` | {cell(preset.title)} | {cell(preset.treats)} | {cell(trained)} |")
    lines += ["\nRefused names, each with what to write instead:\n", "| name | why |", "|---|---|"]
    lines += [f"| `{name}` | {cell(why)} |" for name, why in RESERVED.items()]
    lines += [
        "\n## Gradient coefficients\n",
        "GC of the first token of four responses to one prompt, in the form of DeepSeekMath's Eq. 5: grad J = E[1/|o| sum GC",
        "grad log pi]. Every ratio is 1, and the reference gives each token 0.9 of the policy's probability. As `paribus recipes",
        "unified` prints it; what it says is in [algorithms.md](../algorithms.md#what-to-know-before-you-compare).\n",
        f"| method | responses of | {' | '.join(SHOWN)} |",
        "|---|---|---|---|---|---|",
    ]
    for row in methods(runner.coefficients):
        shown = ("-" if x is None else f"{x:+.3g}" if x else "0" for x in row.gc)
        lines.append(f"| {row.name} | {row.responses} | {' | '.join(shown)} |")
    lines += [
        "\n## Formulas\n",
        "Assembled from the levels, as `paribus recipes show` prints them. Letters that no line defines:\n",
    ]
    letters = {letter: meaning for preset in presets for letter, meaning in formula(preset.recipe).letters.items()}
    lines += [
        "| letter | meaning |",
        "|---|---|",
        *(f"| `{letter}` | {meaning} |" for letter, meaning in letters.items()),
        "",
    ]
    for preset in presets:
        lines += preset_section(preset)
    return "\n".join(lines)


def preset_section(preset: Preset) -> list[str]:
    """Return the section of a preset: source, formula, what to watch, cost, deviations, nearest preset."""
    lines = [f"### {preset.name}\n", f"{preset.title}. Source: {preset.source}.\n"]
    if preset.note:
        lines.append(f"{preset.note}\n")
    if preset.alias_of:
        return lines
    lines += [
        "```text",
        *render(formula(preset.recipe).lines),
        "```\n",
        f"Treats: {preset.treats}. Cost: {preset.cost}.\n",
    ]
    lines += ["| to watch | metrics |", "|---|---|"]
    lines += [f"| {failure} | {', '.join(f'`{m}`' for m in metrics)} |" for failure, metrics in preset.watch.items()]
    lines += ["", *(f"* {deviation}" for deviation in preset.deviations)]
    other = nearest(preset.name)
    paths = ", ".join(f"`{path}`" for path in difference(preset.recipe, load_preset(other).recipe))
    return [*lines, f"* Nearest preset: `{other}`, which differs in {paths}.\n"]


def algorithms_page() -> str:
    """Return the page on algorithms with the table between its marks replaced."""
    rows = [[f"`{name}`", *cells] for name, cells in algorithm_rows()]
    columns = ["preset", *(name for name, _ in COLUMNS)]
    table = ["| " + " | ".join(row) + " |" for row in (columns, ["---"] * len(columns), *rows)]
    before, begin, rest = ALGORITHMS.read_text().partition(BEGIN)
    _, end, after = rest.partition(END)
    return before + begin + "\n".join(["", *table, ""]) + end + after


def algorithm_rows() -> Iterator[tuple[str, list[str]]]:
    """Yield each preset but aliases with its cells; GRPO comes first, and a dot means "as in GRPO"."""
    root = load_preset("grpo").recipe
    for name in ("grpo", *(n for n in preset_names() if n != "grpo")):
        preset = load_preset(name)
        if preset.alias_of is None:
            cells = [show(preset.recipe) or "none" for _, show in COLUMNS]
            same = [
                name != "grpo" and text == (show(root) or "none")
                for text, (_, show) in zip(cells, COLUMNS, strict=True)
            ]
            yield name, ["·" if equal else text for text, equal in zip(cells, same, strict=True)]


def level_text(level: Any) -> str:
    """Return a level in few characters, with the numbers in which presets differ: `ppo_min 0.2 0.28`."""
    if not isinstance(level, Level):
        return f"{level:.6g}" if isinstance(level, float) else str(level)
    left_out = {"kind", "ddof", "eps", "max_generation_batches", "max_surplus", "factor", "gamma", "critic_lambda"}
    inner = [level_text(value) for name, value in level if name not in left_out and value is not None]
    shown = [text for text in inner if text != "sequence" and not text.startswith("fixed")]
    return " ".join([getattr(level, "kind", ""), *shown])


def reward_text(recipe: Recipe) -> str:
    """Return map and factor, or how several rewards are combined."""
    if recipe.reward.combine == "norm_then_sum":
        return "norm_then_sum"
    return recipe.reward.map + (f" × {recipe.reward.factor:g}" if recipe.reward.factor != 1 else "")


def other_text(recipe: Recipe) -> str:
    """Return what lies in no other column: token weight, update schedule, auxiliary losses, the family of the loss."""
    found = [level_text(level) for level in (recipe.token_weight, recipe.schedule.update, recipe.loss)]
    found = [text for text in found if text not in ("uniform", "joint", "policy_gradient")]
    if recipe.auxiliary.value is not None:
        found.append("critic")
    if recipe.auxiliary.positive_nll:
        found.append(f"positive_nll {recipe.auxiliary.positive_nll:g}")
    return ", ".join(found)


def help_text(*command: str) -> str:
    """Return what `paribus COMMAND --help` prints on a terminal of 100 columns, two of which click leaves free."""
    shown = CliRunner().invoke(paribus, [*command, "--help"], prog_name="paribus", terminal_width=98)
    assert shown.exit_code == 0, shown.output
    return shown.output.rstrip()


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


def error_classes() -> Iterator[type[errors.ParibusError]]:
    """Yield the error classes by code."""
    found = [c for c in vars(errors).values() if isinstance(c, type) and issubclass(c, errors.ParibusError)]
    yield from sorted(found, key=lambda c: c.code)


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


def health_page() -> str:
    """Return the detectors with thresholds and remedies, the names that are read, and the figures as they stand."""
    path = REFERENCE / "health.md"
    _, begin, figures = (path.read_text() if path.is_file() else "").partition(FIGURES)
    lines = [
        "# Detectors of health\n",
        "What `paribus health` looks for; [the page for users](../health.md) says how to read it. w is a thirtieth of the planned",
        "points, from 5 to 20; *m of n*: the rule must hold in m of the last n points.\n",
        "| detector | looks for | needs | also looks at | m of n | does not apply |",
        "|---|---|---|---|---|---|",
        *(detector_row(d) for d in DETECTORS),
        "\n## Thresholds\n",
        "Profile `default`. Experimental thresholds are our proposals.\n",
        *threshold_table("default"),
    ]
    for name in profile_names():
        if name != "default":
            profile = load_profile(name)
            lines += [f"\nProfile `{name}`, {profile.about}, in place of these:\n", *threshold_table(name)]
    lines += [
        "\n## Remedies\n",
        "A: ablated in its source; B: argued from the mechanism there; C: practitioners' advice.\n",
    ]
    lines += ["| detector | try | evidence | source | patch |", "|---|---|---|---|---|"]
    for detector, remedies in catalogue().items():
        for r in remedies:
            patch = [f"`{k}: {value_text(v)}`" for k, v in r.patch.items()] + [
                f"`{k}` × {v:g}" for k, v in r.multiply.items()
            ]
            lines.append(f"| {detector} | {cell(r.text)} | {r.evidence} | {cell(r.source)} | {', '.join(patch)} |")
    lines += ["\n## Signals\n", "Beside the [canonical metrics](metrics.md):\n", "| signal | definition |", "|---|---|"]
    lines += [f"| `{name}` | {cell(text)} |" for name, text in SIGNALS.items()]
    lines += ["\n## Names of other trainers\n", "| trainer | name in the log | canonical | |", "|---|---|---|---|"]
    for trainer, table in mappings().items():
        for metric, source in table.items():
            keys = ", ".join(f"`{k}`" for k in source.keys)
            divided = f"divided by `{source.per}`" if source.per else ""
            words = (source.tag if source.tag == "proxy" else "", source.change.replace("_", " "), divided)
            note = ", ".join(filter(None, words))
            lines.append(f"| {trainer} | {keys} | `{metric}` | {note} |")
    return "\n".join(lines) + f"\n\n{begin or FIGURES}{figures}"


def detector_row(d: Detector) -> str:
    """Return a detector as a row of a table."""
    needs = ", ".join(f"`{m}`" for m in d.needs) or " or ".join(f"`{m}`" for m in d.any_of) or "any"
    uses = ", ".join(f"`{m}`" for m in d.uses)
    m, n = (f"{x:g}" for x in d.points) if d.points else (f"{x:g} w" for x in d.confirm)
    return f"| {d.name} | {d.looks_for} | {needs} | {uses} | {m} of {n} | {NOT_FOR.get(d.name, '')} |"


def value_text(value: object) -> str:
    """Return a value as YAML shows it."""
    return "null" if value is None else str(value)


def threshold_table(name: str) -> list[str]:
    """Return the thresholds of a profile as a table; of one that extends the default, those that differ."""
    base = load_profile("default").thresholds
    lines = ["| detector | threshold | value | source |", "|---|---|---:|---|"]
    for detector, thresholds in load_profile(name).thresholds.items():
        for threshold, t in thresholds.items():
            if name == "default" or base[detector][threshold] != t:
                source = f"{cell(t.source)}{' (experimental)' if t.experimental else ''}"
                lines.append(f"| {detector} | {threshold} | {t.value:g} | {source} |")
    return lines


FIGURES = "<!-- Written by benchmarks/health.py. -->\n"
"""Where the figures begin, which `make -C benchmarks detectors` writes."""

NOT_FOR = {
    "staleness": "nothing lags behind",
    "kl_blowup": "`kl: off`",
    "mixed_groups": "groups of one",
    "copied_responses": "groups of one",
    "zero_variance": "groups of one",
    "effective_batch": "groups of one; the filter fills up",
    "clip_saturation_high": "the ratio is 1; no bound",
    "clip_saturation_low": "the ratio is 1; no bound",
    "clip_zero": "the ratio is 1; no bound; ratio of a sequence",
    "format_hacking": "the reward is correctness alone",
}
"""In words, what `why_not` of a detector asks of a recipe."""

COLUMNS: tuple[tuple[str, Callable[[Recipe], str]], ...] = (
    ("reward", reward_text),
    ("length", lambda recipe: level_text(recipe.length.rule)),
    ("filter", lambda recipe: level_text(recipe.filter)),
    ("baseline", lambda recipe: level_text(recipe.baseline)),
    ("scale", lambda recipe: level_text(recipe.scale)),
    ("ratio", lambda recipe: level_text(recipe.ratio)),
    ("clip", lambda recipe: level_text(recipe.clip)),
    ("aggregation", lambda recipe: level_text(recipe.aggregation)),
    ("kl", lambda recipe: level_text(recipe.kl)),
    ("correction", lambda recipe: level_text(recipe.correction)),
    ("other", other_text),
)


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


ASSUMED = (1.0, 2.0, 4.0)
"""Spreads between seeds for which the published tables are audited, in points."""


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


TRAINERS = {
    "TRL": "TRL 1.16: `GRPOConfig`, `RLOOConfig`, their command line and the reward for overlong responses",
    "verl": "the configuration of verl 0.9",
}
"""Where the names of each trainer come from."""


def trainer_page(trainer: str) -> str:
    """Return what the options of a trainer are called here, and the way back."""
    found = [name for name in trainer_names() if name.trainer == trainer]
    back: dict[str, list[str]] = {}
    for name in found:
        for here, option in ((name.here, name.name), *((h, f"{name.name}: {v}") for v, h in name.values.items())):
            if here is not None:
                back.setdefault(here.replace("{}", "VALUE"), []).append(option)
    lines = [
        f"# From {trainer}\n",
        f"The names are those of {TRAINERS[trainer]}. A study that uses one of them, or `--set` with one, gets the same answer with its place.",
        "What the two compute is compared in [conformance](conformance.md); whole algorithms are [presets](recipes.md). `VALUE` is the value there.\n",
        "## What its options are called here\n",
        f"| {trainer} | here | note |",
        "|---|---|---|",
    ]
    lines += [f"| `{name.name}` | {meaning_of(name)} | {cell(name.note)} |" for name in found]
    lines += [f"\n## What the names here are there\n\n| here | {trainer} |", "|---|---|"]
    lines += [
        f"| `{here}` | {', '.join(f'`{option}`' for option in back[here])} |" for here in sorted(back, key=_by_path)
    ]
    return "\n".join(lines) + "\n"


def meaning_of(name: TrainerName) -> str:
    """Return the cell that says what an option is here: a path or patch, and one for each of its values."""
    whole = [f"`{name.here.replace('{}', 'VALUE')}`" if name.here else "-"]
    return "<br>".join(whole + [f"`{value}`: {f'`{here}`' if here else '-'}" for value, here in name.values.items()])


def _by_path(here: str) -> str:
    return here.lstrip("{")


STATUSES = {
    0: "The command did what it was asked for.",
    1: "An error (see [errors](errors.md)). `paribus run`: a run failed, or the budget or a pause ended the study. `scheduler --until-idle`: "
    "the same of any study. `doctor`: a check is critical. `healthcheck`: the service does not work.",
    2: "The command line, the study or its data are wrong: nothing was started.",
    FAILED: "`paribus health --fail-on`: a finding is as bad or worse.",
    UNJUDGED: "`paribus health --fail-on`: no such finding, but a run could not be judged in full.",
    INTERRUPTED: "Ctrl-C, or `paribus run` was detached from a scheduler. The same command continues.",
    141: "The reader of the output has closed it, as in `paribus status | head`.",
}


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
