"""Gathers wheels for a machine with a GPU and without a network, which has PyTorch and Transformers already.

    make gpu-pack [PYTHON_VERSION=3.12] [ALSO="numpy scipy"]

They are Paribus itself, and what it and TRL need in the versions of TRL's lock file, for Linux on x86-64 and the Python
of that machine. README.md beside the folder says what to type there.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from paribus_runners.environments import locked_versions

ROOT = Path(__file__).resolve().parents[2]
LOCK = ROOT / "runners" / "paribus_runners" / "trl" / "requirements.lock"
THERE = frozenset(
    "accelerate mpmath networkx numpy peft pyarrow safetensors scipy sympy tokenizers torch transformers".split()  # noqa: SIM905
)
"""Packages that a machine with PyTorch and Transformers has, or that are too large to carry."""
UNUSED = frozenset({"antlr4-python3-runtime", "latex2sympy2-extended", "math-verify"})
"""Packages of the lock file that no benchmark uses."""
PLATFORMS = ("manylinux_2_28_x86_64", "manylinux_2_17_x86_64", "manylinux2014_x86_64")


def wanted(also: Sequence[str]) -> list[str]:
    """Return the requirements to gather, ``package==version``."""
    left_out = (THERE | UNUSED) - {name.lower() for name in also}
    locked = locked_versions(LOCK)
    return [f"{name}=={version}" for name, version in locked.items() if name not in left_out]


def main(arguments: Sequence[str] | None = None) -> int:
    """Fill the folder, and print what is in it."""
    parser = argparse.ArgumentParser(prog="python -m gpu.pack", description=__doc__)
    parser.add_argument("--out", type=Path, default=ROOT / "build" / "gpu-pack", help="default build/gpu-pack")
    parser.add_argument("--python-version", default="3.12", help="of the machine with the GPU, default 3.12")
    parser.add_argument("--also", nargs="*", default=[], help=f"packages of these, too: {', '.join(sorted(THERE))}")
    options = parser.parse_args(arguments)
    shutil.rmtree(options.out, ignore_errors=True)
    options.out.mkdir(parents=True)
    build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(options.out)]
    subprocess.run(build, cwd=ROOT, check=True)
    tags = [x for name in PLATFORMS for x in ("--platform", name)]
    download = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary=:all:"]
    download += ["--python-version", options.python_version, *tags, "--dest", str(options.out), *wanted(options.also)]
    subprocess.run(download, check=True)
    wheels = sorted(options.out.glob("*.whl"), key=lambda file: -file.stat().st_size)
    size = sum(file.stat().st_size for file in wheels) / 2**20
    print(f"{len(wheels)} wheels, {size:.1f} MiB in {options.out}; the largest:")
    print("\n".join(f"  {file.stat().st_size / 2**20:5.1f} MiB  {file.name}" for file in wheels[:5]))
    return 0


if __name__ == "__main__":
    sys.exit(main())
