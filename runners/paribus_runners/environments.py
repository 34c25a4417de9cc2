"""Python environments of trainers: made from a lock file that comes with a runner, and looked at without importing.

A trainer's packages seldom go together with those of Paribus or of another trainer, so each has a virtual environment.
It lies in ``$PARIBUS_ENVIRONMENTS``, else in the user's cache, and its name holds the hash of its lock file: another
lock is another environment. What Paribus itself needs there is in the lock, too; Paribus' own code comes from the
installation that starts the trainer, so that both are always the same version.
"""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache, cached_property
from importlib.metadata import distributions
from pathlib import Path
from typing import Literal

from filelock import FileLock

import paribus
from paribus.errors import ParibusError
from paribus.scratch import make

FOLDER = "PARIBUS_ENVIRONMENTS"
"""Environment variable with the folder of the environments."""

ALONE = "torch"
"""The package that is installed first and alone: asked for together with others, pip may pick another build of it."""

_DONE = "paribus.json"
State = Literal["ready", "missing", "unfinished", "other"]


@dataclass(frozen=True)
class Environment:
    """The environment of a trainer.

    Attributes:
        name: the runner's.
        lock: its lock file: lines ``package==version``.
        named: a folder that the study names in place of the one that is made from the lock.
    """

    name: str
    lock: Path
    named: Path | None = None

    @cached_property
    def digest(self) -> str:
        """SHA-256 of the lock file's content, 64 hexadecimal digits."""
        return hashlib.sha256(self.lock.read_bytes()).hexdigest()

    @property
    def folder(self) -> Path:
        """Where it is, or will be."""
        return self.named or environments() / f"{self.name}-{self.digest[:12]}"

    @property
    def python(self) -> Path:
        """Its Python."""
        return self.folder / "bin" / "python"

    @property
    def locked(self) -> Mapping[str, str]:
        """The version of each package in the lock file."""
        return locked_versions(self.lock)

    @property
    def versions(self) -> Mapping[str, str]:
        """The version of each package that is installed; empty if there is no environment."""
        return installed_versions(self.folder)

    def state(self) -> tuple[State, str]:
        """Return the state, and what is wrong with the remedy; empty if nothing is."""
        remedy = f"run `paribus runners install {self.name}`"
        if not self.python.exists():
            where = f"{self.folder} is no virtual environment" if self.named else "it is not installed"
            return "missing", f"{where}: {remedy if not self.named else 'make one there, or leave it out'}"
        if self.named is None and not (self.folder / _DONE).exists():
            return "unfinished", f"its installation has not ended: {remedy} again"
        if self.differences():
            return "other", f"{', '.join(self.differences()[:5])}: {remedy} again"
        return "ready", ""

    def differences(self) -> Sequence[str]:
        """Return what is installed in other versions than the lock names, in words."""
        found = self.versions
        return [
            f"{package} is {found.get(package, 'missing')}, and the lock has {version}"
            for package, version in self.locked.items()
            if public(found.get(package, "")) != version
        ]

    def install(self, say: Callable[[str], None], torch_index: str | None = None) -> None:
        """Make the environment, or finish what an earlier call began.

        Args:
            say: prints what happens.
            torch_index: another package index for PyTorch, and what it needs.

        Raises:
            ParibusError: a program has failed; its output went to standard error.
        """
        self.folder.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(self.folder.with_suffix(".lock")):
            if self.state()[0] == "ready":
                say(f"{self.folder} is there")
                return
            (self.folder / _DONE).unlink(missing_ok=True)
            say(f"making {self.folder}")
            _run([sys.executable, "-m", "venv", "--clear", str(self.folder)])
            version = self.locked[ALONE]
            say(f"installing {ALONE} {version}, then {len(self.locked) - 1} packages")
            index = ["-i", torch_index] if torch_index else []
            pip = [str(self.python), "-m", "pip", "install", "--disable-pip-version-check", "--quiet"]
            _run([*pip, *index, f"{ALONE}=={version}"])
            rest = [f"{package}=={v}" for package, v in self.locked.items() if package != ALONE]
            with tempfile.NamedTemporaryFile("w", suffix=".txt") as file:
                file.write("\n".join(rest))
                file.flush()
                _run([*pip, "--no-deps", "--requirement", file.name])
            _run([str(self.python), "-m", "pip", "check", "--quiet"], fine=True)
            (self.folder / _DONE).write_text(json.dumps({"lock": self.digest, "paribus": paribus.__version__}))
            installed_versions.cache_clear()
            say(f"{self.name}: installed")


def environments() -> Path:
    """Return the folder of all environments, absolute: programs are started from other folders, too."""
    if named := os.environ.get(FOLDER):
        return Path(named).expanduser().absolute()
    cache_home = os.environ.get("XDG_CACHE_HOME")
    return (Path(cache_home) if cache_home else Path.home() / ".cache") / "paribus" / "environments"


@cache
def locked_versions(lock: Path) -> Mapping[str, str]:
    """Return package to version of a lock file."""
    lines = [line.partition("#")[0].strip() for line in lock.read_text(encoding="utf-8").splitlines()]
    pairs = [line.split("==") for line in lines if line]
    return {_canonical(name): version for name, version in pairs}


@cache
def installed_versions(folder: Path) -> Mapping[str, str]:
    """Return package to version of what is installed in an environment, from its metadata alone."""
    places = [str(p) for p in folder.glob("lib/python3*/site-packages")]
    found = distributions(path=places) if places else ()
    whole = (d for d in found if d.read_text("METADATA") or d.read_text("PKG-INFO"))  # none where pip was killed
    return {_canonical(d.metadata["Name"]): d.version for d in whole}


def public(version: str) -> str:
    """Return a version without the mark of a build: ``2.13.0`` of ``2.13.0+cpu``."""
    return version.partition("+")[0]


@contextmanager
def own_code() -> Iterator[Path]:
    """Give a folder that holds Paribus' packages alone, for ``PYTHONPATH`` of another environment."""
    import paribus_runners

    with make("code") as scratch:
        for package in (paribus, paribus_runners):
            place = Path(str(package.__file__)).resolve().parent
            (scratch.path / place.name).symlink_to(place, target_is_directory=True)
        yield scratch.path


def clean_environment(code: Path) -> dict[str, str]:
    """Return this process's environment for a Python of another one; its paths and its own settings of Python go."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("PYTHON", "VIRTUAL_ENV", "CONDA_"))}
    return {**kept, "PYTHONPATH": str(code), "PYTHONUNBUFFERED": "1", "PYTHONHASHSEED": "0", "PYTHONSAFEPATH": "1"}


def _canonical(name: str) -> str:
    return name.lower().replace("_", "-").replace(".", "-")


def _run(command: Sequence[str], *, fine: bool = False) -> None:
    kept = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "PYTHONHOME")}
    done = subprocess.run(command, env=kept, stdout=sys.stderr, check=False)
    if done.returncode and not fine:
        raise ParibusError(
            f"`{' '.join(command[:6])} ...` has failed with exit status {done.returncode}, and says why above. Mend "
            "that, and repeat the command"
        )
