"""What a study says to the command runner: the command, its files, and which parts of a recipe it honours."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import PurePosixPath
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, field_validator

from paribus.contract import OptionProblem, Options, Support
from paribus.errors import did_you_mean
from paribus.recipe.recipe import Recipe, canonical_json, flatten
from paribus.recipe.shape import paths, recipe_shape
from paribus_runners.program.lines import beside, inside

SETS = "evaluate.sets"
"""What ``supports`` names if the program evaluates further sets."""

ALWAYS = "schedule.steps"
"""What the runner itself holds every program to."""

SCRIPTS = frozenset({
    ".py", ".sh", ".bash", ".awk", ".pl", ".rb", ".R", ".r", ".jl", ".js", ".mjs", ".ts", ".lua", ".php", ".m", ".tcl",
})  # fmt: skip
"""Ends of names that only a file has, so that one that is not there is a mistake."""

MOST_NAME, MOST_PATH = 255, 2048
"""Most bytes of a file's name, and of a path from the study's folder: what is longer is a text."""

SHELLS = frozenset({
    "sh", "bash", "rbash", "dash", "ash", "zsh", "ksh", "rksh", "mksh", "yash", "posh", "fish", "csh", "tcsh",
})  # fmt: skip
"""Programs that run a text if they are given ``-c``."""

_TEXT_FOLLOWS = re.compile(r"-[A-Za-z]*c[A-Za-z]*|--command(=.*)?", re.DOTALL)
_VALUE_FOLLOWS = re.compile(r"[-+][A-Za-z]*[oO]|--(rcfile|init-file)")

Text = Annotated[str, Field(min_length=1)]
_VARIABLE = r"^[A-Za-z_][A-Za-z0-9_]*$"
_PLACEHOLDER = re.compile(r"\{\{|\}\}|\{([^{}]*)\}|[{}]")


class CommandOptions(BaseModel):
    """What a study writes beside ``kind: command``."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)

    argv: Annotated[list[Text], Field(min_length=1)] = Field(
        description="the program and its arguments, one by one; `{seed}` or `{clip.high}` is put in, `{{` is a brace"
    )
    files: list[Text] | None = Field(
        default=None,
        description="files and folders of the program: beside the study, or by an absolute path; absent: those that "
        "`argv` names, with the Python files beside the study that they import",
    )
    supports: list[Text] = Field(
        default=[], description="what the program does of a recipe: `clip.high`, `clip`, `clip=none`, `evaluate.sets`"
    )
    mapping: Text | None = Field(
        default=None, description="YAML file beside the study that translates the script's own log"
    )
    log: Text | None = Field(default=None, description="with `mapping`: the script's log, from its working folder")
    patience: Annotated[float, Field(gt=0, strict=False)] = Field(
        default=1800.0, description="seconds without a new step after which the run fails"
    )
    environment: list[Annotated[str, Field(pattern=_VARIABLE)]] = Field(
        default=[], description="environment variables that the program gets as well"
    )
    resumes: bool = Field(
        default=False, description="whether the program continues from the checkpoints that it writes"
    )

    @field_validator("log")
    @classmethod
    def _inside(cls, given: str | None) -> str | None:
        return None if given is None else inside(given)


def problems_of(own: CommandOptions, options: Options) -> Iterator[OptionProblem]:
    """Yield what the types of the options leave open; files are those that were found beside the study."""
    if _gives_text_to_a_shell(own.argv):
        message = "no text of a study goes to a shell: put the lines into a file beside the study, and write [sh, FILE]"
        yield OptionProblem(path=("argv",), message=message)
    for place, word in enumerate(own.argv):
        if any(found[0] in ("{", "}") for found in _PLACEHOLDER.finditer(word)):
            message = "a brace belongs to a value such as {seed}; write `{{` or `}}` for one by itself"
            yield OptionProblem(path=("argv", place), message=message)
        if "\0" in word:
            message = f"{word[:80]!r} holds the character NUL, which no argument can: leave it out"
            yield OptionProblem(path=("argv", place), message=message)
    yield from _missing_files(own, options.sources)
    for place, word in enumerate(own.supports):
        if problem := _unknown(word):
            yield OptionProblem(path=("supports", place), message=problem)
    for place, word in enumerate(own.environment):
        if word.startswith("PARIBUS_"):
            message = f"`{word}` is set by Paribus, or is a secret of its server: leave it out, or choose another name"
            yield OptionProblem(path=("environment", place), message=message)
    if (own.mapping is None) != (own.log is None):
        has, lacks = ("mapping", "log") if own.log is None else ("log", "mapping")
        yield OptionProblem(path=(has,), message=f"`mapping` and `log` go together: `{lacks}` is missing")


def _gives_text_to_a_shell(argv: Sequence[str]) -> bool:
    """Return whether a command is a shell with ``-c``, by itself or behind ``env``, ``timeout`` and the like."""
    words = iter(argv)
    if not any(word.rpartition("/")[2] in SHELLS for word in words):
        return False
    for word in words:  # those after the shell
        if _TEXT_FOLLOWS.fullmatch(word):
            return True
        if not word.startswith(("-", "+")) or word in ("-", "--"):
            return False  # the file that it reads; what comes next are the arguments of that file
        if _VALUE_FOLLOWS.fullmatch(word):
            next(words, None)
    return False


def _missing_files(own: CommandOptions, sources: Mapping[str, str]) -> Iterator[OptionProblem]:
    there = (*sources, *{str(folder) for name in sources for folder in PurePosixPath(name).parents})
    for place, name in enumerate(own.files or ()):
        if ".." in name.split("/") or name.startswith("~"):
            message = f"`{name}` must lie beside the study, or be an absolute path"
            yield OptionProblem(path=("files", place), message=message)
        elif own.log is not None and beside(name) == beside(own.log):
            message = f"`{name}` is the log that each run writes itself, and no file of the program: leave it out"
            yield OptionProblem(path=("files", place), message=message)
        elif not name.startswith("/") and beside(name) not in there:
            yield OptionProblem(path=("files", place), message=f"there is no `{name}` beside the study")
    if own.mapping is not None and beside(own.mapping) not in sources:
        yield OptionProblem(path=("mapping",), message=f"there is no `{own.mapping}` beside the study")
    for place, word in enumerate(own.argv if own.files is None else ()):
        if PurePosixPath(word).suffix in SCRIPTS and "{" in word and word.startswith(("/", "{here}")):
            message = (
                f"`{word}` is found when a run starts, so that an edited script would be no other program: name a file "
                "beside the study or write its whole path, or list under `files` what the program consists of"
            )
            yield OptionProblem(path=("argv", place), message=message)
    for place, word in enumerate(own.argv):
        if named_file(word) and PurePosixPath(word).suffix in SCRIPTS and beside(word) not in there:
            listed = " It is not among `files`." if own.files is not None else ""
            message = f"there is no `{word}` beside the study.{did_you_mean(beside(word), sources)}{listed}"
            yield OptionProblem(path=("argv", place), message=message.rstrip("."))


def named_file(word: str) -> bool:
    """Return whether a word of a command can be the path of a file beside the study."""
    parts = word.split("/")
    short = _bytes(word) < MOST_PATH and all(_bytes(part) <= MOST_NAME for part in parts)
    return short and not word.startswith(("/", "-", "~")) and ".." not in parts and not set("{}\0") & set(word)


def _bytes(word: str) -> int:
    return len(word.encode(errors="surrogatepass"))


def is_far_script(word: str) -> bool:
    """Return whether a word of a command is the absolute path of a script."""
    return word.startswith("/") and PurePosixPath(word).suffix in SCRIPTS and not set("{}\0") & set(word)


# ---- values in arguments -----------------------------------------------------------------------------


def filled(word: str, settings: Mapping[str, Any]) -> str:
    """Return a word of ``argv`` with values for its placeholders.

    Raises:
        KeyError: there is no such value.
    """

    def put(match: re.Match[str]) -> str:
        if match[1] is None:
            return match[0][0]
        value = settings[match[1]]
        return value if isinstance(value, str) else canonical_json(value)

    return _PLACEHOLDER.sub(put, word)


def unknown_values(argv: Sequence[str], settings: Mapping[str, Any]) -> list[str]:
    """Return one sentence for each placeholder that names no value."""
    names = {match[1] for word in argv for match in _PLACEHOLDER.finditer(word) if match[1] is not None}
    return [
        f"`runner.argv` asks for `{{{name}}}`, which this recipe does not have.{did_you_mean(name, settings)} "
        "docs/howto/command.md says which values there are."
        for name in sorted(names - settings.keys())
    ]


# ---- what a program honours --------------------------------------------------------------------------


def supported(recipe: Recipe, own: CommandOptions) -> Iterator[Support]:
    """Yield what of a recipe the program does not claim to do.

    What differs from the default of a recipe must be claimed, so that two arms never differ in name alone. What is left
    at its default is not held against the program, but neither claimed for it.
    """
    claims = [_claim(word) for word in own.supports]
    found, default = _values(recipe), _values(Recipe())
    unclaimed = [p for p in sorted({*found, *default}) if p != ALWAYS and not _claimed(p, found, claims)]
    differing = [path for path in unclaimed if found.get(path) != default.get(path)]
    for name in dict.fromkeys(_factor(path, differing) for path in differing):
        yield Support(feature=name, level="unsupported", reason=_refusal(name, found, default, claims))
    if not differing and (rest := sorted({path.partition(".")[0] for path in unclaimed})):
        named = ", ".join(f"`{name}`" for name in rest)
        reason = f"`runner.supports` does not say that the program does what the recipe says of {named}."
        yield Support(feature="recipe", level="approximate", reason=reason)


def _factor(path: str, differing: Sequence[str]) -> str:
    """Return what a path is reported as: the factor of which another level holds, else the path itself."""
    parts = path.split(".")
    above = [".".join(parts[:k]) for k in range(1, len(parts) + 1)]
    return next((name for name in above if f"{name}.kind" in differing), path)


def _refusal(name: str, found: Mapping[str, Any], default: Mapping[str, Any], claims: Sequence[tuple[str, str]]) -> str:
    kind = f"{name}.kind"
    value, before = (_text(values.get(kind, values.get(name))) for values in (found, default))
    claim = f"{name}={value}" if kind in found else name
    if levels := [f"`{level}`" for factor, level in claims if factor == name and level]:
        return (
            f"`{name}` is `{value}`, and `runner.supports` says that the program does {', '.join(levels)}: add "
            f"`{name}={value}` if it does this, too, else leave it out."
        )
    return (
        f"`{name}` is `{value}`, and `runner.supports` does not say that the program honours it: add `{claim}` if it "
        f"does, else leave it at `{before}`."
    )


def _values(recipe: Recipe) -> dict[str, Any]:
    return flatten(recipe.whole())


def _claimed(path: str, found: Mapping[str, Any], claims: Sequence[tuple[str, str]]) -> bool:
    for name, value in claims:
        if path == name or path.startswith(f"{name}."):
            if not value:
                return True
            level = next((each for each in (f"{name}.kind", name) if each in found), None)  # a group has none
            if level is not None and (_text(found[level]) == value or _same_number(found[level], value)):
                return True
    return False


def _same_number(actual: Any, value: str) -> bool:
    if isinstance(actual, bool) or not isinstance(actual, int | float):
        return False
    try:
        return float(actual) == float(value)
    except ValueError:
        return False


def _text(value: Any) -> str:
    return value if isinstance(value, str) else canonical_json(value)


def _claim(word: str) -> tuple[str, str]:
    name, _, value = word.partition("=")
    return name.strip(), value.strip()


def _unknown(word: str) -> str:
    """Return that ``supports`` names no part of a recipe; empty if it does."""
    name, value = _claim(word)
    known = {".".join(path[:k]) for path, _ in paths(recipe_shape()) for k in range(1, len(path) + 1)} | {SETS}
    if name not in known and not name.startswith("reward.functions."):
        return f"`{name}` is no part of a recipe.{did_you_mean(name, known)}"
    if "=" in word and (not value or name == SETS):
        return f"`{word}` names no value: write `clip=none` for one level, or `clip` for all"
    return ""
