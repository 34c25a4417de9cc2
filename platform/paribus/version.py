"""Which Paribus this is: the version of the installed package, and the commit of its source."""

from __future__ import annotations

import re
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

try:
    VERSION = version("paribus")
except PackageNotFoundError:  # imported from a path, without installed metadata
    VERSION = "0+unknown"

_SECONDS = 5.0


def described(installed: str = VERSION, checkout: Path | None = None) -> str:
    """Return version and commit as ``paribus --version`` prints them.

    Args:
        installed: a version as it is made from git tags: `0.2.0` at the tag `v0.2.0`, `0.2.1.dev3+g1a2b3c4` after it.
        checkout: the root of the source; ``None``: the folder that this file is in, if it is a checkout. What it holds
            now counts, since the version is as old as the installation.
    """
    root = checkout or Path(__file__).resolve().parents[2]
    if (root / ".git").exists() and (here := _git(root)):
        changed = here.endswith("-dirty")
        return f"{installed}, a checkout of commit {here.removesuffix('-dirty')}{' with changes' if changed else ''}"
    if found := re.search(r"\+.*?\bg([0-9a-f]{7,40})\b(?:\.(d\d{8}))?", installed):
        return f"{installed}, built from commit {found[1]}{' with changes' if found[2] else ''}"
    if re.fullmatch(r"[\d.]+(?:(?:a|b|rc)\d+)?", installed):
        return f"{installed}, built from the tag v{installed}"
    return f"{installed}, commit unknown"


def _git(root: Path) -> str:
    """Return the short hash of the checked out commit, with ``-dirty`` after it if files differ; empty without git."""
    import subprocess  # `import paribus` must be quick, and only `--version` gets here

    command = ["git", "-C", str(root), "describe", "--always", "--dirty", "--abbrev=9", "--exclude", "*"]
    try:
        shown = subprocess.run(command, capture_output=True, text=True, timeout=_SECONDS, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return shown.stdout.strip() if shown.returncode == 0 else ""
