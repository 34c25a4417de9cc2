"""What a program is given: its files, its settings as JSON, and an environment without the secrets of a server.

In the folder of an attempt, ``command/``:

===================  ============================================================================================
``program/``         the files of the program as they were planned; it runs in this folder
``settings.json``    each value by its dotted path, one a line: the recipe, ``seed``, ``evaluate.every``, ...
``recipe.json``      the recipe, nested
``evaluate.json``    each evaluation set: problems, responses, temperature, the steps at which it is due
``out/``             the outbox: what the program writes here is checked and recorded
===================  ============================================================================================
"""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from paribus.contract import Evaluate, Job, Options, file_hash
from paribus.errors import ParibusError, StudyFileError
from paribus.recipe.recipe import Recipe, canonical_json, fingerprint_of, flatten
from paribus.run_folder.folder import RunFolder, write_json
from paribus_runners.command.options import CommandOptions, filled, is_far_script
from paribus_runners.program.lines import beside
from paribus_runners.program.mapping import LogMapping, read_mapping
from paribus_runners.rewards.pool import PASSED_ON

PROTOCOL = 1
"""Version of what a program is given and must write; part of the hash of the code."""

KEPT = PASSED_ON - {"PYTHONPATH"} | {
    "TMPDIR", "TEMP", "TMP", "OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "ROCR_VISIBLE_DEVICES",
    "HIP_VISIBLE_DEVICES", "NVIDIA_VISIBLE_DEVICES", "CUDA_HOME", "CUDA_PATH", "SSL_CERT_FILE", "SSL_CERT_DIR",
}  # fmt: skip
"""Variables that a program gets, beside ``LC_*`` and those that the study names: everything else may hold a secret.

``PYTHONPATH`` is none of them: what is imported from there is no file of the program that its hash would know.
"""

_UNCOUNTED = frozenset({"__pycache__", ".git", ".hg", ".svn", ".mypy_cache", ".ruff_cache", ".pytest_cache"})
"""Folders in a folder of a program that hold nothing of it."""


@dataclass(frozen=True)
class Given:
    """Where a program finds what, in the folder of an attempt."""

    folder: Path

    @property
    def program(self) -> Path:
        """The folder in which it runs."""
        return self.folder / "program"

    @property
    def out(self) -> Path:
        """Its outbox."""
        return self.folder / "out"

    @classmethod
    def of(cls, attempt: RunFolder) -> Given:
        """Return the places in an attempt's folder, as absolute paths."""
        return cls(attempt.path.resolve() / "command")

    def write(self, job: Job, settings: Mapping[str, Any]) -> None:
        """Write all of it; the outbox is empty."""
        shutil.rmtree(self.folder, ignore_errors=True)
        for folder in (self.program, self.out / "evals", self.out / "checkpoints"):
            folder.mkdir(parents=True)
        for name, text in job.options.sources.items():
            file = self.program / name
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(text.encode())
            file.chmod(0o755)  # so that `./train.sh` can be executed, wherever its rights were lost
        lines = ",\n".join(f"{json.dumps(key)}: {json.dumps(value)}" for key, value in settings.items())
        (self.folder / "settings.json").write_text(f"{{\n{lines}\n}}\n")
        write_json(self.folder / "recipe.json", job.recipe.model_dump(mode="json"))
        last = job.recipe.schedule.steps
        sets = {
            name: {
                **chosen.model_dump(mode="json"),
                "steps": [s for s in range(last + 1) if s % chosen.every == 0 or s == last],
            }
            for name, chosen in job.evaluate.all_sets.items()
        }
        write_json(self.folder / "evaluate.json", {"sets": sets})


def mapping_of(own: CommandOptions, options: Options) -> LogMapping | None:
    """Return the mapping of the script's log, if it has one.

    Raises:
        StudyFileError: the file is no mapping.
    """
    if own.mapping is None:
        return None
    return read_mapping(options.sources[beside(own.mapping)], own.mapping)


def logs_of(own: CommandOptions, sources: Mapping[str, str]) -> frozenset[str]:
    """Return the files that the script writes and Paribus reads, as paths from its working folder.

    Files of these names beside the study were written by an earlier run.
    """
    if own.mapping is None or own.log is None:
        return frozenset()
    found = {beside(own.log)}
    with suppress(StudyFileError):  # a mapping with mistakes is refused elsewhere
        mapping = read_mapping(sources.get(beside(own.mapping), ""), own.mapping)
        found |= {beside(mapping.evaluation.log)} if mapping.evaluation else set()
    return frozenset(found)


def settings_of(recipe: Recipe, evaluate: Evaluate, rest: Mapping[str, Any]) -> dict[str, Any]:
    """Return every value by the name that an argument can ask for.

    Args:
        recipe: its values have their dotted paths as names.
        evaluate: the same, after ``evaluate.``.
        rest: values of the attempt, by name.
    """
    values = recipe.whole()
    measured = {**evaluate.model_dump(mode="json"), "primary": evaluate.primary_metric}
    return {**rest, **flatten(values), **flatten({"evaluate": measured})}


def of_attempt(seed: int, given: Given | None, first: int, checkpoint: Path | None) -> dict[str, Any]:
    """Return the values that belong to an attempt; with ``given`` absent their names are what counts."""
    return {
        "seed": seed,
        "first_step": first,
        "checkpoint": str(checkpoint.resolve()) if checkpoint else "",
        "out": str(given.out) if given else "",
        "here": str(Path.cwd()),
        "python": sys.executable,
    }


def environment_of(own: CommandOptions, settings: Mapping[str, Any], given: Given, cache: str) -> dict[str, str]:
    """Return the environment of the program: nothing of this one that may hold a secret, unless the study names it.

    Args:
        own: what the study says.
        settings: values by their dotted paths.
        given: the places of the attempt.
        cache: folder for what runs share.

    Raises:
        ParibusError: the study names a variable that is not set.
    """
    if missing := [name for name in own.environment if name not in os.environ]:
        raise ParibusError(
            f"the environment variable {missing[0]}, which `runner.environment` names, is not set where runs are "
            "started: set it for `paribus run` or the scheduler, or leave it out"
        )
    kept = {k: v for k, v in os.environ.items() if k in KEPT or k.startswith("LC_") or k in own.environment}
    places = {
        "SETTINGS": given.folder / "settings.json",
        "RECIPE": given.folder / "recipe.json",
        "EVALUATE": given.folder / "evaluate.json",
        "OUT": given.out,
        "CACHE": Path(cache).resolve(),
        "CHECKPOINT": settings["checkpoint"],
        "FIRST_STEP": settings["first_step"],
        "SEED": settings["seed"],
        "STEPS": settings["schedule.steps"],
        "HERE": settings["here"],
    }
    own_values = {f"PARIBUS_{name}": str(value) for name, value in places.items()}
    return {"PYTHONUNBUFFERED": "1", "PYTHONHASHSEED": "0", **kept, "PATH": search_path(), **own_values}


def search_path() -> str:
    """Return where programs are looked for: as here, and at last beside the Python that runs Paribus."""
    return os.pathsep.join(filter(None, [os.environ.get("PATH", os.defpath), str(Path(sys.executable).parent)]))


def found_program(word: str, sources: Mapping[str, str]) -> str | None:
    """Return the path of the program that ``argv`` begins with; ``None`` if there is none that can be executed.

    One of the files beside the study is returned as it is named.
    """
    if "/" in word and not word.startswith("/"):
        return word if word.removeprefix("./") in sources else None
    return shutil.which(word, path=search_path())


def no_program(word: str, sources: Mapping[str, str]) -> str:
    """Return why a program is not found, and what to do."""
    if word in sources:
        return f"`runner.argv` begins with `{word}`, a file beside the study: write `./{word}`"
    if word.startswith("/") and Path(word).is_file():
        return f"{word} cannot be executed: `chmod +x` it, or name the program that reads it first"
    return (
        f"there is no program `{word}`, with which `runner.argv` begins: install it where runs train, or write its "
        "absolute path"
    )


def command_of(own: CommandOptions, settings: Mapping[str, Any], sources: Mapping[str, str]) -> list[str]:
    """Return the command with its values.

    Raises:
        ParibusError: there is no such program.
    """
    words = [filled(word, settings) for word in own.argv]
    if (program := found_program(words[0], sources)) is None:
        raise ParibusError(no_program(words[0], sources))
    return [program, *words[1:]]


# ---- the files of a program --------------------------------------------------------------------------


def outside(own: CommandOptions) -> Sequence[Path]:
    """Return the files of the program that do not lie beside the study: those that it names by absolute paths.

    Without ``files`` those are the scripts in ``argv``. Files of a folder are all below it, also hidden ones and
    those behind links.

    Raises:
        ParibusError: one of them is not there, or cannot be read.
    """
    found: list[Path] = []
    if own.files is None:
        words = [Path(word) for word in own.argv if is_far_script(word)]
        return [path for path in words if path.is_file()]  # others may be files that it writes
    for name in own.files or ():
        path = Path(name)
        if path.is_absolute():
            if not path.exists():
                raise ParibusError(
                    f"there is no {path}, which `runner.files` names: correct it, or copy the file there"
                )
            found += _files_below(path) if path.is_dir() else [path]
    return found


def _files_below(folder: Path) -> list[Path]:
    """Return the files in a folder, sorted.

    Raises:
        ParibusError: a folder cannot be read.
    """

    def refuse(error: OSError) -> None:
        raise ParibusError(f"cannot read {error.filename}: {error.strerror or error}") from error

    found, seen = [], {folder.resolve()}
    for place, folders, files in os.walk(folder, onerror=refuse, followlinks=True):
        below = {name: (Path(place) / name).resolve() for name in sorted(folders) if name not in _UNCOUNTED}
        folders[:] = [name for name, real in below.items() if real not in seen]  # a link may lead back
        seen |= set(below.values())
        found += [path for name in files if (path := Path(place) / name).is_file()]
    return sorted(found)


def code_hash(own: CommandOptions, sources: Mapping[str, str]) -> str:
    """Return the hash of a program: of its files, wherever they lie.

    Raises:
        ParibusError: a file cannot be read.
    """
    try:
        far = [[str(path), file_hash(path)] for path in outside(own)]
    except OSError as error:
        raise ParibusError(f"cannot read {error.filename}: {error.strerror or error}") from error
    return fingerprint_of([PROTOCOL, canonical_json(dict(sources)), far])
