"""The command runner as the platform sees it: what a program claims, what it is made of, and one run of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib import import_module
from pathlib import Path
from types import ModuleType

from pydantic import ValidationError

from paribus.contract import (
    Evaluate,
    EvaluationSet,
    Examination,
    Hashes,
    OptionProblem,
    Options,
    RunnerBase,
    Support,
    files_in,
)
from paribus.errors import ParibusError, StudyFileError
from paribus.recipe.recipe import Recipe
from paribus.run_folder.folder import RunFolder
from paribus.study.sources import MOST_BYTES, follow, imported, read
from paribus.study.sources import beside as modules_in
from paribus_runners.command.given import (
    code_hash,
    found_program,
    logs_of,
    mapping_of,
    no_program,
    of_attempt,
    outside,
    settings_of,
)
from paribus_runners.command.options import (
    SETS,
    CommandOptions,
    named_file,
    problems_of,
    supported,
    unknown_values,
)
from paribus_runners.program.lines import beside

MOST_FILES = 200
"""Most files of a program beside its study: a plan holds them."""

MOST_TOGETHER = 4 * MOST_BYTES
"""Most bytes of them together."""


class CommandRunner(RunnerBase):
    """Implements :class:`paribus.contract.Runner`."""

    name = "command"
    evaluates_sets = True
    options_model = CommandOptions

    def sources(self, options: Options, folder: Path) -> Mapping[str, str]:
        """Return the files of the program that lie beside the study, with the Python files that they import.

        A log of an earlier run that lies there is none of them.

        Raises:
            ParibusError: one cannot be read as text, or there are too many.
        """
        try:
            own = CommandOptions.model_validate(options.own)
        except ValidationError:
            return {}  # the options are refused before the files count
        named = own.argv if own.files is None else own.files
        wanted = [word for word in (*named, *([own.mapping] if own.mapping else [])) if named_file(word)]
        found: dict[str, str] = {}
        for path in (folder / beside(word) for word in wanted):
            inside = files_in(path) if path.is_dir() and own.files is not None else [path] if path.is_file() else []
            for file in (p for p in inside if "__pycache__" not in p.parts):
                found[file.relative_to(folder).as_posix()] = _text(file, folder)
        for name in logs_of(own, found):
            found.pop(name, None)
        found |= _imported_by({name: text for name, text in found.items() if name.endswith(".py")}, folder)
        if far := next((name for name in found if not _is_below(folder / name, folder)), None):
            raise ParibusError(
                f"{folder / far} is a link that leaves the folder of the study: copy the file into it, or name it by "
                "its absolute path"
            )
        if len(found) > MOST_FILES or sum(map(len, found.values())) > MOST_TOGETHER:
            raise ParibusError(
                f"`runner.files` names {len(found)} files with {sum(map(len, found.values())):,} characters beside the "
                f"study; a plan holds {MOST_FILES} with {MOST_TOGETHER:,}: name what is large by an absolute path"
            )
        return dict(sorted(found.items()))

    def check_options(self, options: Options) -> Sequence[OptionProblem]:
        """Return what is wrong with the options, and in the mapping file."""
        if found := super().check_options(options):
            return found
        own = CommandOptions.model_validate(options.own)
        problems = list(problems_of(own, options))
        if not problems and own.mapping is not None:
            try:
                mapping_of(own, options)
            except StudyFileError as error:
                problems += [OptionProblem(path=("mapping",), message=line) for line in str(error).splitlines()]
        return problems

    def support(self, recipe: Recipe, options: Options) -> Sequence[Support]:
        """Return what the study does not claim for the program, and values that its arguments ask for in vain."""
        own = CommandOptions.model_validate(options.own)
        settings = settings_of(recipe, Evaluate(), of_attempt(0, None, 0, None))
        wrong = [Support(feature="recipe", level="unsupported", reason=x) for x in unknown_values(own.argv, settings)]
        return (*supported(recipe, own), *wrong)

    def hashes(self, recipe: Recipe, options: Options) -> Hashes:
        """Return hashes of the program's files, of the task and of the model.

        Raises:
            ParibusError: a file cannot be read.
        """
        own = CommandOptions.model_validate(options.own)
        others = super().hashes(recipe, options)
        return Hashes(code=code_hash(own, options.sources), data=others.data, model=others.model)

    def set_hash(self, recipe: Recipe, options: Options, chosen: EvaluationSet) -> str:
        """Return a hash of a set's problems.

        Raises:
            ParibusError: a file cannot be read, or the study does not claim that the program evaluates sets.
        """
        if SETS not in CommandOptions.model_validate(options.own).supports:
            raise ParibusError(
                f"`runner.supports` does not say that the program evaluates further sets: add `{SETS}` if it writes an "
                "evaluation for each, else remove this set"
            )
        return super().set_hash(recipe, options, chosen)

    def examine(self, recipe: Recipe, evaluate: Evaluate, options: Options) -> Examination:
        """Return which program runs, and what keeps it from being started here."""
        own = CommandOptions.model_validate(options.own)
        if "{" in own.argv[0]:
            return Examination(facts=(f"program: {own.argv[0]}, which depends on the recipe",))
        if (program := found_program(own.argv[0], options.sources)) is None:
            return Examination(faults=(no_program(own.argv[0], options.sources),))
        far = [str(path) for path in outside(own)]
        held = f"; {len(options.sources)} files beside the study are held by the plan" if options.sources else ""
        return Examination(facts=(f"program: {program}{held}{f'; also {len(far)} elsewhere' if far else ''}",))

    def run(self, folder: Path) -> None:
        """Run the program of the job in ``folder`` to its end.

        Raises:
            RunFolderError: ``job.json`` is not a job, or a record cannot be written.
            RunnerError: the program has failed, or what it has written can't be recorded.
            ParibusError: its files have changed since the study was planned, or it cannot be found.
            SystemExit: with status 75 after SIGTERM, or if the program asks for it; with more than
                :data:`paribus.failures.KILLED` if a signal has killed the program.
        """
        _attempt().run(RunFolder(folder))

    def warm(self) -> None:
        """Import what a run needs."""
        _attempt()


def _is_below(path: Path, folder: Path) -> bool:
    return path.resolve().is_relative_to(folder.resolve())


def _text(file: Path, folder: Path) -> str:
    """Return the text of a file beside a study.

    Raises:
        ParibusError: it leads out of the folder, cannot be read, is too long, or is no text.
    """
    if not _is_below(file, folder):
        return ""  # refused as soon as all are known
    try:
        return read(file)
    except ParibusError as error:
        if isinstance(error.__cause__, UnicodeDecodeError):
            raise ParibusError(
                f"{file} is no text (UTF-8), and a plan holds texts alone: name it by its absolute path, in "
                "`runner.argv` and under `runner.files`"
            ) from None
        raise


def _imported_by(scripts: Mapping[str, str], folder: Path) -> dict[str, str]:
    """Return the files that Python files beside a study import, from their own folder or that of the study."""
    modules: dict[Path, set[str]] = {}
    for name, text in scripts.items():
        above = Path(name).parent
        modules.setdefault(above, set()).update(imported(text, ""))
        modules.setdefault(Path(), set()).update(imported(text, ".".join(above.parts)))
    return {
        (above / path).as_posix(): text
        for above, names in modules.items()
        for path, text in follow(sorted(names), modules_in(folder / above)).items()
    }


def _attempt() -> ModuleType:
    """Import the module that runs a program; plans need none of it."""
    return import_module("paribus_runners.command.attempt")
