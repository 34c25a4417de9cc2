"""``paribus recipes coefficients``: the weight of each token of given responses in the gradient, and why."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import asdict
from itertools import groupby
from math import exp
from pathlib import Path
from typing import TYPE_CHECKING

import click

from paribus.errors import Problem, StudyFileError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.table import Table

    from paribus.recipe.coefficients import Response, ResponseCoefficients
    from paribus.recipe.recipe import Recipe

RUNNER = "native"
"""The runner whose training code computes the coefficients."""


@click.command("coefficients")
@click.argument("name", metavar="PRESET")
@click.option("--batch", "file", type=click.Path(path_type=Path), required=True, help="JSON lines, one response each.")
@click.option("--set", "settings", multiple=True, metavar="PATH=VALUE", help="Change the recipe, e.g. clip.high=0.28.")
@click.option("--against", "other", metavar="PRESET", help="Also show each response's share under another preset.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object instead of tables.")
def command(name: str, file: Path, settings: tuple[str, ...], other: str | None, as_json: bool) -> None:
    """Print the weight of each token in the gradient, and why: grad = -sum c grad log pi."""
    from paribus.cli.console import console
    from paribus.contract import load_runner
    from paribus.recipe.coefficients import caveats, read_responses, reason, shares
    from paribus.recipe.presets import load_preset

    recipe = changed(load_preset(name).recipe, settings)
    compared = load_preset(other).recipe if other is not None else None
    batch = read_responses(file)
    runner = load_runner(RUNNER)
    found = runner.coefficients(recipe, batch.responses)
    there = None if compared is None else shares(runner.coefficients(compared, batch.responses))
    why = [[reason(recipe, x, t) for t in range(x.length)] for x in found]
    notes = {"assumptions": batch.assumptions(recipe), "caveats": caveats(recipe)}
    if as_json:
        listed = [
            {"group": r.group, "correct": r.correct, "tokens": r.tokens, **asdict(x), "why": w, "share": share}
            for r, x, w, share in zip(batch.responses, found, why, shares(found), strict=True)
        ]
        if there is not None:
            listed = [{**x, "share_against": share} for x, share in zip(listed, there, strict=True)]
        about = {"preset": name, "against": other, "recipe": recipe.model_dump(mode="json")}
        click.echo(json.dumps({**about, **notes, "responses": listed}, indent=1))
        return
    out = console()
    tokens = sum(x.length for x in found)
    out.print(f"{name}: {len(found)} responses, {tokens} tokens in one optimizer batch", style="bold")
    out.print("grad = -sum c grad log pi;  c = A x w where no reason is given")
    for note in (*notes["assumptions"], *notes["caveats"]):
        out.print(f"- {note}", style="dim")
    out.print(_tokens(batch.responses, found, why))
    inside = sum(x.in_loss for x in found)
    out.print(f"{inside} of {len(found)} responses in the loss; share: sum of c over the sum of all |c|")
    out.print(_responses(batch.responses, found, other, there))


def changed(recipe: Recipe, settings: Sequence[str]) -> Recipe:
    """Return a recipe with the changes of ``--set``, whose values are read as in a study file.

    Raises:
        StudyFileError: a change is wrong; all problems are listed.
    """
    from paribus.study.designs import Step
    from paribus.study.resolve import resolve
    from paribus.yaml_file.document import parse_document, plain

    if wrong := [x for x in settings if not all(part.strip() for part in (*x.split("=", 1), "")[:2])]:
        message = "is not PATH=VALUE, such as clip.high=0.28"
        raise StudyFileError("--set", [Problem(message=f"`{x}` {message}") for x in wrong])
    lines = "\n".join(x.replace("=", ": ", 1) for x in settings)
    patch = plain(parse_document(lines, "--set").checked()) if settings else {}
    resolved = resolve(recipe.model_dump(), (Step(place=(), patch=patch),), ())
    if resolved.recipe is None or resolved.faults:
        problems = [Problem(message=x.message, path=".".join(map(str, x.place))) for x in resolved.faults]
        raise StudyFileError("--set", problems)
    return resolved.recipe


def _tokens(
    responses: Sequence[Response], found: Sequence[ResponseCoefficients], why: Sequence[Sequence[str]]
) -> Table:
    """Return the tokens of the responses in the loss, one a row; equal neighbours share a row."""
    from paribus.cli.console import table

    listed = table("response", "at", "token", "p old", "r", "A", "c", "why")
    for label, r, x, reasons in zip(_labels(responses), responses, found, why, strict=True):
        ratio = ["-" if y is None else f"{y:.2f}" for y in x.ratio]
        rows = list(zip(ratio, map(_number, x.advantage), map(_number, x.total), reasons, strict=True))
        for row, same in groupby(range(x.length if x.in_loss else 0), key=rows.__getitem__):
            first, *rest = same
            place = f"{first + 1}-{rest[-1] + 1}" if rest else str(first + 1)
            token = _clean(r.tokens[first], 10) if r.tokens and not rest else ""
            listed.add_row("" if first else label, place, token, "" if rest else f"{exp(r.logp_old[first]):.3g}", *row)
    return listed


def _responses(
    responses: Sequence[Response],
    found: Sequence[ResponseCoefficients],
    other: str | None,
    there: Sequence[float] | None,
) -> Table:
    """Return the weight of each response, and under both recipes if there are two."""
    from paribus.cli.console import table
    from paribus.recipe.coefficients import STATES, shares

    more = () if there is None else (str(other), "ratio")
    listed = table("response", "verdict", "R", "L", "w", "sum c", "share", *more)
    for i, (label, r, x, share) in enumerate(zip(_labels(responses), responses, found, shares(found), strict=True)):
        verdict = ("correct" if r.correct else "wrong") + ", truncated" * r.truncated
        verdict += f"; {STATES[x.state]}" if STATES[x.state] else ""
        row = [
            label,
            verdict,
            _number(x.reward),
            str(x.length),
            f"{x.weight:.3g}",
            _number(sum(x.total)),
            _percent(share),
        ]
        if there is not None:
            row += [_percent(there[i]), f"{share / there[i]:.3g}" if share and there[i] else "-"]
        listed.add_row(*row)
    return listed


def _labels(responses: Sequence[Response]) -> list[str]:
    """Return ``a 1``, ``a 2``, ``b 1``: group and place in it."""
    seen: Counter[str] = Counter()
    found = []
    for response in responses:
        seen[response.group] += 1
        found.append(f"{_clean(response.group, 20)} {seen[response.group]}")
    return found


def _percent(share: float) -> str:
    return f"{100 * share:+.1f}%" if share else "0"


def _number(x: float) -> str:
    return f"{x:+.3g}" if x else "0"


def _clean(text: str, limit: int) -> str:
    """Return text of a file on one line without control characters, shortened."""
    shown = "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)
    return shown if len(shown) <= limit else f"{shown[: limit - 3]}..."
