"""``paribus recipes``: the presets."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from itertools import groupby
from pathlib import Path

import click
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from paribus.cli import Group
from paribus.cli.console import console, describe, shown, table
from paribus.cli.options import FilePath, json_option, pass_json_on
from paribus.contract import load_runner
from paribus.errors import Problem, StudyFileError
from paribus.recipe import analysis
from paribus.recipe.coefficients import Response, ResponseCoefficients, notes, read_responses, reason, shares
from paribus.recipe.formula import Formula, formula, names
from paribus.recipe.presets import Preset, load_preset, nearest, preset_names
from paribus.recipe.recipe import FACTORS, Recipe, difference, flatten
from paribus.recipe.resolve import Step, resolve
from paribus.recipe.unified import SHOWN, methods
from paribus.text import plural
from paribus.yaml_file.document import parse_document, plain


@click.group(cls=Group, invoke_without_command=True)
@json_option
@click.pass_context
def command(ctx: click.Context, as_json: bool) -> None:
    """List the presets; `show` one, or `diff` two."""
    if ctx.invoked_subcommand is not None:
        pass_json_on(ctx, as_json)
        return
    if as_json:
        click.echo(json.dumps({"presets": [_facts(load_preset(name)) for name in preset_names()]}, indent=1))
        return
    listed = table("preset", "method, and what it treats", "source")
    for name in preset_names():
        preset = load_preset(name)
        title = f"another name for {preset.alias_of}" if preset.alias_of else preset.title
        method = Text(title).append(f"\n{preset.treats}", style="dim")
        listed.add_row(name, method, _short(preset.source))
    console().print(listed)


@command.command()
@click.argument("name")
@json_option
def show(name: str, as_json: bool) -> None:
    """Print what an algorithm is: its factors, its formula, what it treats, and how it differs from others."""
    preset = load_preset(name)
    if as_json:
        recipe = preset.recipe.model_dump(mode="json", include={"loss", *FACTORS})
        click.echo(json.dumps({**_facts(preset), "deviations": list(preset.deviations), "recipe": recipe}, indent=1))
        return
    console().print(f"{preset.name}: {preset.title}", style="bold")
    about = {
        "source": preset.source,
        "alias of": preset.alias_of,
        "note": preset.note,
        "treats": preset.treats,
        "cost": preset.cost,
    }
    _grid([(label, text) for label, text in about.items() if text])
    _section("factors", _factors(preset))
    _formula(formula(preset.recipe))
    _section("what to watch", [(failure, ", ".join(metrics)) for failure, metrics in preset.watch.items()])
    _section("the source's hyperparameters (not applied)", list(preset.defaults.items()))
    _section("deviations and open points", [("·", line) for line in preset.deviations])
    _relatives(preset)


@command.command()
@click.argument("before")
@click.argument("after")
@json_option
def diff(before: str, after: str, as_json: bool) -> None:
    """Print what differs between two presets: paths, lines of the formula, and what that can do."""
    one, other = load_preset(before), load_preset(after)
    changes = difference(one.recipe, other.recipe)
    if as_json:
        listed = {path: {"before": old, "after": new} for path, (old, new) in changes.items()}
        click.echo(json.dumps({"before": before, "after": after, "changes": listed}, indent=1))
        return
    if not changes:
        console().print(f"{before} and {after} are the same recipe.{_alias(one)}{_alias(other)}")
        return
    found = table("path", before, after)
    for path, (old, new) in changes.items():
        found.add_row(path, shown(old), shown(new))
    console().print(found)
    _changed_lines(one, other)
    sentences = _analysis(one.recipe, other.recipe)
    _section("what a plan would say, at the default schedule", [("·", sentence) for sentence in sentences])


def _facts(preset: Preset) -> dict[str, str | None]:
    """Return what a preset is in words, as JSON values."""
    about = {"name": preset.name, "title": preset.title, "source": preset.source, "treats": preset.treats}
    return {**about, "alias_of": preset.alias_of or None}


def _alias(preset: Preset) -> str:
    return f" `{preset.name}` is another name for `{preset.alias_of}`." if preset.alias_of else ""


def _short(source: str) -> str:
    """Return the first arXiv number of a source; of others, as of a blog that cites one, the first words."""
    arxiv = None if source.startswith("A blog") else re.search(r"arXiv \d{4}\.\d{5}", source)
    return arxiv[0] if arxiv else re.split(r"[,:;']", source)[0]


def _factors(preset: Preset) -> list[tuple[str, str]]:
    """Return each factor with its level and parameters, in the order in which the factors act."""
    family = ("loss",) if preset.recipe.loss.kind != "policy_gradient" else ()
    return [(factor, _level(preset, factor)) for factor in (*family, *FACTORS)]


def _level(preset: Preset, factor: str) -> str:
    """Return a factor in one line; of a record of parameters only what differs from the default."""
    level = getattr(preset.recipe, factor)
    if hasattr(level, "kind"):
        return describe(level)
    usual = flatten(getattr(Recipe(), factor).model_dump(mode="json"))
    values = flatten(level.model_dump(mode="json"))
    kept = [key for key in values if values[key] != usual.get(key) or key in ("map", "update.kind")]
    return ", ".join(f"{key.removesuffix('.kind')}={shown(values[key])}" for key in kept) or "none"


def _relatives(preset: Preset) -> None:
    """Print how a preset differs from GRPO, and which other is nearest to it."""
    root = load_preset("grpo")
    if preset.name != root.name:
        found = table("factor", root.name, preset.name)
        for factor in ("loss", *FACTORS):
            if getattr(root.recipe, factor) != getattr(preset.recipe, factor):
                found.add_row(factor, _level(root, factor), _level(preset, factor))
        _title(f"against {root.name}")
        console().print(found)
    other = nearest(preset.name)
    paths = ", ".join(difference(preset.recipe, load_preset(other).recipe))
    console().print(f"\nNearest preset: {other}, which differs in {paths}.")


def _formula(found: Formula) -> None:
    _title("formula")
    factors = names(found.lines)
    _grid([(name, line.left, line.right) for name, line in zip(factors, found.lines, strict=True)])
    _title("letters")
    _grid(list(found.letters.items()))


def _changed_lines(one: Preset, other: Preset) -> None:
    """Print the lines of the two formulas that differ, each with the preset that has it."""
    before, after = formula(one.recipe).lines, formula(other.recipe).lines
    rows: list[tuple[str, ...]] = []
    for name, lines, rest in ((one.name, before, after), (other.name, after, before)):
        changed = [line for line in lines if line not in rest]
        labels = [name, *[""] * len(changed)]
        rows += [(*row, line.left, line.right) for *row, line in zip(labels, names(changed), changed, strict=False)]
    if rows:
        _title("formula")
        _grid(rows)


def _analysis(before: Recipe, after: Recipe) -> Iterator[str]:
    if sentence := analysis.inert(before, after) or analysis.rescaled(before, after):
        yield sentence
    elif reasons := list(analysis.confounded(before, after)):
        yield f"optimizer.max_grad_norm may clip one of the two more than the other: {'; '.join(reasons)}"


def _section(title: str, rows: Sequence[tuple[str, ...]]) -> None:
    if rows:
        _title(title)
        _grid(rows)


def _title(title: str) -> None:
    console().print(f"\n{title}", style="bold")


def _grid(rows: Iterable[tuple[str, ...]]) -> None:
    """Print rows in columns, indented."""
    rows = list(rows)
    grid = Table.grid(padding=(0, 2, 0, 0))
    for k in range(len(rows[0])):
        grid.add_column(max_width=None if k == len(rows[0]) - 1 else 36, style="dim" if k == 0 else None)
    for row in rows:
        grid.add_row(*row)
    console().print(Padding(grid, (0, 0, 0, 2)))


# ---- coefficients -----------------------------------------------------------------------------------


@command.command()
@json_option
def unified(as_json: bool) -> None:
    """Print the gradient coefficient of SFT, RFT, online RFT and all presets, for the same eight responses."""
    rows = methods(load_runner("native").coefficients)
    if as_json:
        click.echo(json.dumps({"responses": SHOWN, "methods": [asdict(row) for row in rows]}, indent=1))
        return
    out = console()
    out.print("grad J = E[1/|o| sum GC grad log pi]; GC of a token, every ratio 1", style="bold")
    listed = table("method", "responses of", *SHOWN)
    listed.columns[0].no_wrap = True
    for row in rows:
        listed.add_row(row.name, row.responses, *("-" if x is None else _number(x) for x in row.gc))
    out.print(listed)


@command.command()
@click.argument("name", metavar="PRESET")
@click.option("--batch", "file", type=FilePath(), required=True, help="JSON lines, one response each.")
@click.option("--set", "settings", multiple=True, metavar="PATH=VALUE", help="Change the recipe, e.g. clip.high=0.28.")
@click.option("--against", "other", metavar="PRESET", help="Also show each response's share under another preset.")
@json_option
def coefficients(name: str, file: Path, settings: tuple[str, ...], other: str | None, as_json: bool) -> None:
    """Print the weight of each token in the gradient, and why: grad = -sum c grad log pi."""
    recipe = changed(load_preset(name).recipe, settings)
    compared = None if other is None else load_preset(other).recipe
    responses = read_responses(file)
    runner = load_runner("native")
    found = runner.coefficients(recipe, responses)
    why = [[reason(recipe, x, t) for t in range(len(x.total))] for x in found]
    share = [shares(found)]
    if compared is not None:
        share.append(shares(runner.coefficients(compared, responses)))
    noted = notes(recipe, responses)
    if as_json:
        listed = [
            {**r.model_dump(), **asdict(x), "why": w, **dict(zip(("share", "share_against"), both, strict=False))}
            for r, x, w, *both in zip(responses, found, why, *share, strict=True)
        ]
        about = {"preset": name, "against": other, "recipe": recipe.model_dump(mode="json")}
        click.echo(json.dumps({**about, "notes": noted, "responses": listed}, indent=1))
        return
    out = console()
    out.print(f"{name}: {plural(len(found), 'response')} in one optimizer batch", style="bold")
    out.print("grad = -sum c grad log pi;  c = A x w where no reason is given")
    for note in noted:
        out.print(f"- {note}", style="dim")
    tokens, whole = _tables(responses, found, why, dict(zip(("share", str(other)), share, strict=False)))
    out.print(tokens)
    out.print("share: sum of c over the sum of all |c|")
    out.print(whole)


def changed(recipe: Recipe, settings: Sequence[str]) -> Recipe:
    """Return a recipe with the changes of ``--set``, whose values are read as in a study file.

    Raises:
        StudyFileError: a change is wrong; all problems are listed.
    """
    if wrong := [x for x in settings if not all(map(str.strip, x.partition("=")))]:
        problems = [Problem(message=f"`{x}` is not PATH=VALUE, such as clip.high=0.28") for x in wrong]
        raise StudyFileError("--set", problems)
    lines = "\n".join(x.replace("=", ": ", 1) for x in settings)
    patch = plain(parse_document(lines, "--set").checked()) if settings else {}
    resolved = resolve(recipe.model_dump(), (Step(place=(), patch=patch),), ())
    if resolved.recipe is None or resolved.faults:
        problems = [Problem(message=x.message, path=".".join(map(str, x.place))) for x in resolved.faults]
        raise StudyFileError("--set", problems)
    return resolved.recipe


def _tables(
    responses: Sequence[Response],
    found: Sequence[ResponseCoefficients],
    why: Sequence[Sequence[str]],
    shares: Mapping[str, Sequence[float]],
) -> tuple[Table, Table]:
    """Return a table of the tokens, where neighbours with equal values share a row, and one of the responses."""
    tokens = table("response", "at", "token", "r", "A", "c", "why")
    whole = table("response", "verdict", "L", "R", "w", *shares)
    seen: Counter[str] = Counter()
    for r, x, reasons, *share in zip(responses, found, why, *shares.values(), strict=True):
        seen[r.group] += 1
        label = f"{_clean(r.group, 20)} {seen[r.group]}"
        verdict = ("correct" if r.correct else "wrong") + ", truncated" * r.truncated
        percent = [f"{100 * y:+.1f}%" if y else "0" for y in share]
        whole.add_row(label, verdict, str(r.length), _number(x.reward), f"{x.weight:.3g}", *percent)
        ratio = ["-" if y is None else f"{y:.2f}" for y in x.ratio]
        rows = list(zip(ratio, map(_number, x.advantage), map(_number, x.total), reasons, strict=True))
        for row, same in groupby(range(r.length), key=rows.__getitem__):
            first, *rest = same
            place = f"{first + 1}-{rest[-1] + 1}" if rest else str(first + 1)
            token = _clean(r.tokens[first], 10) if r.tokens and not rest else ""
            tokens.add_row("" if first else label, place, token, *row)
    return tokens, whole


def _number(x: float) -> str:
    return f"{x:+.3g}" if x else "0"


def _clean(text: str, limit: int) -> str:
    """Return text of a file on one line without control characters, shortened."""
    shown = "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)
    return shown if len(shown) <= limit else f"{shown[: limit - 3]}..."
