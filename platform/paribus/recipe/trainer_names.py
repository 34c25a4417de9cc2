"""Names of TRL's and verl's options, for messages: what they are called here, from ``trainer_names.yaml``."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from paribus.yaml_file.document import parse_document, plain, read_document

_VAGUE = {"enable", "metric", "n", "type", "path", "len", "name", "seed"}
"""Last words that say nothing without what stands before them."""


@dataclass(frozen=True, kw_only=True)
class TrainerName:
    """An option of another trainer.

    Attributes:
        trainer: its trainer.
        name: its full name there.
        here: a path, or a patch with ``{}`` for the value; ``None``: nothing here does that.
        values: the patch for single values; ``None``: nothing here does that.
        note: what differs.
    """

    trainer: str
    name: str
    here: str | None
    values: Mapping[str, str | None]
    note: str = ""

    def message(self, given: str, value: object) -> str:
        """Return what the option is here.

        Args:
            given: the name as written.
            value: its value in the study.
        """
        here = self.values.get(_text(value), self.here)
        note = f" ({self.note})" if self.note else ""
        if here is None:
            what = f"`{given}: {_text(value)}`" if self.here else f"`{given}`"
            return f"{what} is of {self.trainer}, and nothing here does that{note}"
        return f"`{given}` is {self.trainer}'s name; here: `{here.replace('{}', _text(value))}`{note}"


@cache
def trainer_names() -> tuple[TrainerName, ...]:
    """Return the table."""
    raw = plain(read_document(Path(__file__).with_suffix(".yaml")).checked())
    return tuple(
        TrainerName(trainer=trainer, name=name, **({"values": {}} | (e if isinstance(e, dict) else {"here": e})))
        for trainer, entries in raw.items()
        for name, e in entries.items()
    )


def translate(key: str, value: Any) -> list[tuple[tuple[str, ...], str]]:
    """Return what an unknown key means, if it is another trainer's: keys inside it, and a message for each value.

    Args:
        key: as written: a full name, its end, or the beginning of several (``actor_rollout_ref``).
        value: what stands under it.
    """
    found = [(inside, _find(key, inside), leaf) for inside, leaf in _leaves(value)]
    if not any(name for _, name, _ in found):
        return []
    return [
        (inside, name.message(".".join((key, *inside)), leaf) if name else "a recipe has no such part")
        for inside, name, leaf in found
    ]


def translate_level(part: str, value: str) -> str:
    """Return what an unknown level of a part of the recipe is, if it is a value of another trainer; else nothing."""
    for name in trainer_names():
        patch = name.values.get(value)
        if patch and part in _patch(patch):
            return f"`{value}` is {name.trainer}'s name; here: `{patch}`"
    return ""


def parts_meant(key: str, value: Any) -> set[str]:
    """Return the parts of a recipe that another trainer's option is about; empty if the key is not one."""
    found = [name for inside, _ in _leaves(value) if (name := _find(key, inside))]
    heres = (here for name in found for here in (name.here, *name.values.values()) if here)
    return {path.split(".")[0] for here in heres for path in (_patch(here) if ":" in here else [here])}


def _patch(text: str) -> dict[str, Any]:
    found: dict[str, Any] = plain(parse_document(text.replace("{}", "0"), "trainer_names.yaml").checked())
    return found


def _leaves(value: Any) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Yield the values in nested mappings with the keys that lead to them."""
    if not isinstance(value, Mapping):
        yield (), value
        return
    for key, inner in value.items():
        for inside, leaf in _leaves(inner):
            yield (key, *inside), leaf


def _find(key: str, inside: tuple[str, ...]) -> TrainerName | None:
    """Return the option with this name, or whose name ends so; for a single value also one with whose name it ends."""
    given = ".".join((key, *inside))
    found = [name for name in trainer_names() if given == name.name]
    if given not in _VAGUE:
        found += [name for name in trainer_names() if name.name.endswith(f".{given}")]
    if not inside:  # `clip.epsilon_high`; but `trl: {beta: 1}` is a section for a runner
        found += [name for name in trainer_names() if given.endswith(f".{name.name}")]
    return found[0] if found else None


def _text(value: object) -> str:
    """Return a value as YAML writes it."""
    if value is None:
        return "null"
    return str(value).lower() if isinstance(value, bool) else str(value)
