"""Pages on recipes: factors, levels and presets; the table that tells algorithms apart."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, get_args

from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from pages_from_code import cell, first_paragraph
from paribus.contract import Options, load_runner
from paribus.recipe.factors import Level
from paribus.recipe.formula import formula, render
from paribus.recipe.presets import RESERVED, Preset, load_preset, nearest, preset_names
from paribus.recipe.recipe import FACTORS, Recipe, difference
from paribus.recipe.unified import SHOWN, methods

ALGORITHMS = Path(__file__).parents[1] / "algorithms.md"

BEGIN, END = "<!-- The table is written by docs/generate.py from the presets. -->\n", "\n<!-- End of the table. -->"


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
