"""The GPUs of this machine that this process may use, as ``nvidia-smi`` tells them."""

from __future__ import annotations

import os
import shutil
import subprocess
from dataclasses import dataclass

_QUERY = ("--query-gpu=index,uuid,memory.total,memory.used", "--format=csv,noheader,nounits")
_TIMEOUT_S = 30.0
_MIB = 1024.0


@dataclass(frozen=True, kw_only=True)
class Gpu:
    """A GPU.

    Attributes:
        name: its UUID where nvidia-smi gives one, because its numbers need not be CUDA's; else as the user called it.
        memory: GiB; 0: nobody knows.
        used: GiB in use, by whomever.
    """

    name: str
    memory: float = 0.0
    used: float = 0.0


def visible_gpus() -> tuple[Gpu, ...]:
    """Return the GPUs of this machine, those of ``CUDA_VISIBLE_DEVICES`` where it is set; numbers are nvidia-smi's."""
    known = _listed()
    chosen = os.environ.get("CUDA_VISIBLE_DEVICES")
    if chosen is None:
        return tuple(dict.fromkeys(known.values()))
    names = [name for part in chosen.split(",") if (name := part.strip()) not in ("", "-1")]
    return tuple(known.get(name) or Gpu(name=name) for name in names)


def _listed() -> dict[str, Gpu]:
    """Return what nvidia-smi lists, by number and by UUID; nothing where it cannot."""
    program = shutil.which("nvidia-smi")
    if program is None:
        return {}
    try:
        shown = subprocess.run(
            [program, *_QUERY], capture_output=True, text=True, check=True, timeout=_TIMEOUT_S, stdin=subprocess.DEVNULL
        ).stdout
    except (OSError, subprocess.SubprocessError):
        return {}  # `paribus doctor` tells
    found: dict[str, Gpu] = {}
    for line in shown.splitlines():
        index, uuid, total, used = ([field.strip() for field in line.split(",")] + [""] * 4)[:4]
        if index.isdecimal():
            name = uuid if uuid.startswith("GPU-") else index
            found[index] = found[name] = Gpu(name=name, memory=_gib(total), used=_gib(used))
    return found


def _gib(mib: str) -> float:
    try:
        return float(mib) / _MIB
    except ValueError:  # `[N/A]`: a GPU that shares the main memory
        return 0.0
