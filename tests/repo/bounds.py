"""The ranges of pyproject.toml against what the package index has: `python bounds.py lowest FILE` or `newest`.

`lowest` writes a requirements file with the oldest release of each package that a range admits. `newest` prints the
packages whose newest release is outside of its range; it ends with status 0, since nothing has to follow. Both need uv.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from collections.abc import Sequence
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parents[2]
TRIED = ("dashboard", "figures", "mlflow", "notebook", "postgresql", "search")
"""The parts that `lowest` holds at their oldest: those of `make test-lowest`, whose tests train nothing."""


def ranges() -> dict[str, Requirement]:
    """Return what the project and its parts ask for, by name."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    lines = [*project["dependencies"], *(line for part in project["optional-dependencies"].values() for line in part)]
    found = [Requirement(line) for line in lines]
    return {canonicalize_name(r.name): r for r in found if canonicalize_name(r.name) != "paribus"}


def compiled(arguments: Sequence[str], text: str = "") -> str:
    """Return what `uv pip compile` prints.

    Raises:
        SystemExit: it fails; with what it said.
    """
    command = [sys.executable, "-m", "uv", "pip", "compile", "--quiet", "--no-annotate", "--no-header", *arguments]
    done = subprocess.run(command, input=text, text=True, capture_output=True, check=False, cwd=ROOT)
    if done.returncode:
        raise SystemExit(done.stderr)
    return done.stdout


def lowest(path: Path) -> None:
    """Write a requirements file with the oldest versions."""
    parts = [word for part in TRIED for word in ("--extra", part)]
    path.write_text(compiled(["--resolution", "lowest-direct", *parts, "pyproject.toml"]))


def beyond(known: dict[str, Requirement], newest_pins: str) -> list[str]:
    """Return a line for each package whose newest version its range leaves out."""
    lines = []
    for name, version in re.findall(r"^([A-Za-z0-9._-]+)==(\S+)", newest_pins, re.MULTILINE):
        asked = known.get(canonicalize_name(name))
        if asked is not None and not asked.specifier.contains(version, prereleases=True):
            lines.append(f"{name} {version} is out; pyproject.toml asks for {asked.specifier}")
    return lines


def newest() -> None:
    """Print the packages that have a release beyond their range."""
    known = ranges()
    pins = "".join(compiled(["--no-deps", "-"], name) for name in sorted(known))
    lines = beyond(known, pins)
    print("\n".join(lines) or f"each of {len(known)} ranges has the newest release in it")


if __name__ == "__main__":
    if sys.argv[1:] == ["newest"]:
        newest()
    elif len(sys.argv) == 3 and sys.argv[1] == "lowest":
        lowest(Path(sys.argv[2]))
    else:
        raise SystemExit("usage: bounds.py lowest FILE | newest")
