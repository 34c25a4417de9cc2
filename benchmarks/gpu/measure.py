"""What the scripts share: options, time and memory of a piece of work, limits of the device, and one JSON file each.

A row that cannot be measured says why, and the others go on. The file is written after each row, so that what a time
limit cuts off is no more than one.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import platform
import statistics
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch
import transformers
from phase_memory import above

from gpu.page import table
from paribus.recipe.compute import Compute
from paribus_runners.native.policy import best_device
from paribus_runners.native.requirements import TRITON, interpreted, no_kernels, versions

ROOT = Path(__file__).resolve().parents[2]
OUT = ROOT / "build" / "gpu"
GIB = 2**30
Values = Mapping[str, Any]


class Unavailable(Exception):
    """Something that a row needs is not here; the message says what."""


@dataclass(frozen=True)
class Options:
    """What a script is started with: output folder, minutes until no further row begins, small models on a CPU."""

    out: Path
    minutes: float
    tiny: bool


def parser_of(script: str, about: str | None) -> argparse.ArgumentParser:
    """Return the options of all scripts."""
    parser = argparse.ArgumentParser(prog=f"python -m gpu.{script}", description=about)
    parser.add_argument("--out", type=Path, default=OUT, help="folder of the JSON file, default build/gpu")
    parser.add_argument("--minutes", type=float, default=5.0, help="no row begins later; default 5")
    parser.add_argument("--tiny", action="store_true", help="a model of two layers: seconds on a CPU")
    return parser


def options_of(parsed: argparse.Namespace) -> Options:
    """Return the options of all scripts as values."""
    return Options(parsed.out, parsed.minutes, parsed.tiny)


@dataclass
class Report:
    """The rows of a script, and the file that they are written to.

    Args:
        script: its name, and that of the file.
        options: of the script.
    """

    script: str
    options: Options
    rows: list[dict[str, Any]] = field(default_factory=list)
    _began: float = field(default_factory=time.monotonic)

    def run(self, names: str | Sequence[str], work: Callable[[], Values | Mapping[str, Values]]) -> None:
        """Add a row, or several that come of one piece of work: values by name of the row.

        What cannot be measured gets the status ``no time left``, ``out of memory``, ``not available`` or ``failed``.
        """
        names = [names] if isinstance(names, str) else names
        status, why, found = "measured", "", dict[str, Any]()
        if time.monotonic() - self._began > self.options.minutes * 60:
            status, why = "no time left", f"after {self.options.minutes:g} minutes"
        else:
            try:
                made = work()
                found = dict(made) if len(names) > 1 else {names[0]: made}
            except Unavailable as error:
                status, why = "not available", str(error)
            except Exception as error:  # the other rows go on, and the exit status says that one has failed
                status = "out of memory" if is_out_of_memory(error) else "failed"
                why = f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"
        clean()
        for name in names:
            values = found.get(name, {})
            row = {"name": name, "device": device_name(), "status": status, "why": why, **values}
            row["status"] = "wrong" if row.get("wrong") else status
            self.rows.append(row)
            shown = ", ".join(f"{key} {value:.4g}" for key, value in values.items() if isinstance(value, float))
            print(f"{self.script}: {name}: {row['status']} {why or shown} {row.get('wrong', '')}", flush=True)
        self._write()

    def finish(self) -> int:
        """Print the table; return 1 if a row has failed or is wrong."""
        self._write()
        print("\n".join(table(self.script, self.rows)), flush=True)
        return int(any(row["status"] in ("failed", "wrong") for row in self.rows))

    def _write(self) -> None:
        self.options.out.mkdir(parents=True, exist_ok=True)
        record = {
            "script": self.script,
            "tiny": self.options.tiny,
            "date": datetime.now(UTC).strftime("%Y-%m-%d"),
            "seconds": round(time.monotonic() - self._began, 1),
            "machine": machine(),
            "rows": self.rows,
        }
        (self.options.out / f"{self.script}.json").write_text(json.dumps(record, indent=2) + "\n")


def is_out_of_memory(error: BaseException) -> bool:
    """Return whether an error says that the device, or the allocator of a CPU, has no memory left."""
    words = ("out of memory", "DefaultCPUAllocator")
    return isinstance(error, torch.cuda.OutOfMemoryError | MemoryError) or any(word in str(error) for word in words)


def need_kernels() -> None:
    """Raise an error where kernels in Triton cannot run; that a CPU interprets them would measure nothing.

    Raises:
        Unavailable: Triton, a GPU or a compiler is missing.
    """
    if not versions(*TRITON):
        raise Unavailable("Triton is not installed")
    if interpreted():
        raise Unavailable("Triton's kernels are interpreted here (TRITON_INTERPRET=1)")
    if problem := no_kernels(Compute(head="triton"), best_device().type):
        raise Unavailable(problem)


def clean() -> None:
    """Give the memory of what a row has left back to the device."""
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


# ---- device -------------------------------------------------------------------------------------------


def device_name() -> str:
    """Return the name of the device that measures: the card, or ``CPU``."""
    return torch.cuda.get_device_name() if torch.cuda.is_available() else "CPU"


def machine() -> dict[str, Any]:
    """Return device, processor and versions."""
    found: dict[str, Any] = {"device": best_device().type, "name": device_name()}
    if torch.cuda.is_available():
        found["memory_gib"] = round(torch.cuda.mem_get_info()[1] / GIB, 1)
        found["cuda"] = torch.version.cuda
    names = [x for x in Path("/proc/cpuinfo").read_text().splitlines() if x.startswith("model name")]
    asked = ["git", "rev-parse", "--short=12", "HEAD"]
    commit = subprocess.run(asked, cwd=ROOT, capture_output=True, text=True, check=False)
    return found | {
        "cores": os.cpu_count(),
        "processor": names[0].partition(": ")[2] if names else "unknown",
        "python": platform.python_version(),
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "commit": commit.stdout.strip() or "unknown",
    }


def settle() -> None:
    """Wait until the device has done what it was given."""
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def seconds(work: Callable[[], object], *, most: int = 20) -> float:
    """Return the median seconds of a piece of work, done ``most`` times, or until two seconds have passed on a GPU."""
    least = 2.0 if torch.cuda.is_available() else 0.1
    found: list[float] = []
    while len(found) < min(2, most) or (sum(found) < least and len(found) < most):
        settle()
        start = time.perf_counter()
        work()
        settle()
        found.append(time.perf_counter() - start)
    return statistics.median(found)


def peak(work: Callable[[], object], held: int) -> int:
    """Return the bytes at the peak of a piece of work.

    On a GPU, those of all tensors (``torch.cuda.max_memory_allocated``); on a CPU, ``held`` and what the resident
    memory of the process rises by (``benchmarks/phase_memory.py``).
    """
    if not torch.cuda.is_available():
        return held + above(work)
    clean()
    settle()
    torch.cuda.reset_peak_memory_stats()
    work()
    settle()
    return torch.cuda.max_memory_allocated()


def product_peak(dtype: torch.dtype) -> float:
    """Return the FLOP/s of a large product of matrices on this device, the limit of what a model can reach."""
    n = 8192 if torch.cuda.is_available() else 512
    a, b = (torch.randn(n, n, device=best_device(), dtype=dtype) for _ in range(2))
    out = torch.empty(n, n, device=best_device(), dtype=dtype)
    torch.mm(a, b, out=out)
    repeats = 10
    taken = seconds(lambda: [torch.mm(a, b, out=out) for _ in range(repeats)])
    return repeats * 2 * n**3 / taken


def copy_peak() -> float:
    """Return the bytes a second that this device reads and writes when it copies memory."""
    n = 2**30 if torch.cuda.is_available() else 2**25
    a = torch.zeros(n, device=best_device(), dtype=torch.uint8)
    b = torch.empty_like(a)
    return 2 * n / seconds(lambda: b.copy_(a))
