"""``paribus recipes coefficients``: the weight of each token of given responses in the gradient, and why."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from itertools import groupby
from pathlib import Path

import click
from rich.table import Table

from paribus.cli.console import console, table
from paribus.contract import load_runner
from paribus.errors import Problem, StudyFileError
from paribus.recipe.coefficients import Response, ResponseCoefficients, notes, read_responses, reason, shares
from paribus.recipe.presets import load_preset
from paribus.recipe.recipe import Recipe
from paribus.recipe.resolve import Step, resolve
from paribus.yaml_file.document import parse_document, plain


@click.command("coefficients")
@click.argument("name", metavar="PRESET")
@click.option("--batch", "file", type=click.Path(path_type=Path), required=True, help="JSON lines, one response each.")
@click.option("--set", "settings", multiple=True, metavar="PATH=VALUE", help="Change the recipe, e.g. clip.high=0.28.")
@click.option("--against", "other", metavar="PRESET", help="Also show each response's share under another preset.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object instead of tables.")
def command(name: str, file: Path, settings: tuple[str, ...], other: str | None, as_json: bool) -> None:
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
    out.print(f"{name}: {len(found)} responses in one optimizer batch", style="bold")
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
