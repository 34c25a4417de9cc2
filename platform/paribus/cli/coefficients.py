"""``paribus recipes coefficients``: the weight of each token of some responses in the gradient, and why."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from paribus.errors import Problem, StudyFileError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from paribus.recipe.recipe import Recipe
    from paribus.study.coefficients import Against, ResponseCoefficients
    from paribus.study.responses import ResponseBatch

RUNNER = "native"
"""Whose training code computes the coefficients."""


@click.command("coefficients")
@click.argument("name")
@click.option(
    "--batch", "file", type=click.Path(path_type=Path), required=True, help="JSON lines, one response a line."
)
@click.option("--set", "settings", multiple=True, metavar="PATH=VALUE", help="Change the recipe, e.g. clip.high=0.28.")
@click.option("--against", "other", metavar="PRESET", help="Also compare each response's share with that of a preset.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object instead of tables.")
def command(name: str, file: Path, settings: tuple[str, ...], other: str | None, as_json: bool) -> None:
    """Print the weight of each token in the gradient, and why: grad = -sum c grad log pi."""
    from paribus.recipe.presets import load_preset
    from paribus.study.coefficients import against
    from paribus.study.responses import read_responses
    from paribus.study.runner import load_runner

    recipe = changed(load_preset(name).recipe, settings)
    compared = load_preset(other).recipe if other is not None else None
    batch = read_responses(file)
    runner = load_runner(RUNNER)
    found = runner.coefficients(recipe, batch.responses)
    shares = [] if compared is None else against(found, runner.coefficients(compared, batch.responses))
    if as_json:
        click.echo(json.dumps(as_plain(recipe, batch, found, shares) | {"preset": name, "against": other}, indent=1))
        return
    from paribus.cli.coefficient_tables import print_all

    print_all((name, other), recipe, batch, found, shares)


def changed(recipe: Recipe, settings: Sequence[str]) -> Recipe:
    """Return a recipe with the changes of ``--set``, whose values are read as in a study file.

    Raises:
        StudyFileError: a change is wrong; all problems are listed.
    """
    from paribus.recipe.document import parse_document, plain
    from paribus.study.designs import Step
    from paribus.study.resolve import resolve

    patch: dict[str, Any] = {}
    problems: list[Problem] = []
    for setting in settings:
        path, given, text = setting.partition("=")
        if not (path and given and text.strip()):
            problems.append(Problem(message=f"`{setting}` is not PATH=VALUE, such as clip.high=0.28"))
        elif path in patch:
            problems.append(Problem(message="set twice: keep one", path=path))
        else:
            try:
                patch[path] = plain(parse_document(text, f"--set {path}").checked())
            except StudyFileError as error:
                problems += [Problem(message=p.message, path=path) for p in error.problems]
    resolved = resolve(recipe.model_dump(), (Step(place=(), patch=patch),), ())
    problems += [Problem(message=x.message, path=".".join(map(str, x.place))) for x in resolved.faults]
    if problems or resolved.recipe is None:
        raise StudyFileError("--set", problems)
    return resolved.recipe


def as_plain(
    recipe: Recipe, batch: ResponseBatch, found: Sequence[ResponseCoefficients], shares: Sequence[Against]
) -> dict[str, Any]:
    """Return everything as JSON values; responses stand in the order of the file."""
    from paribus.study.coefficients import caveats, reason, summary

    listed = []
    for i, (response, x) in enumerate(zip(batch.responses, found, strict=True)):
        why = [reason(recipe, x, t) for t in range(x.length)]
        entry = {
            "group": response.group,
            "correct": response.correct,
            "tokens": response.tokens,
            **asdict(x),
            "why": why,
        }
        listed.append(entry | ({"against": asdict(shares[i])} if shares else {}))
    return {
        "recipe": recipe.model_dump(mode="json"),
        "assumptions": batch.assumptions(recipe),
        "caveats": caveats(recipe),
        "responses": listed,
        "summary": asdict(summary(found)),
    }
