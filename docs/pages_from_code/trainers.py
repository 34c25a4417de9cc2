"""Pages on what the options of other trainers are called here."""

from __future__ import annotations

from pages_from_code import cell
from paribus.recipe.trainer_names import TrainerName, trainer_names

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
