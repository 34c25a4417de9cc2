"""What the numbers of a run depend on beside its recipe: versions and hardware."""

from __future__ import annotations

import platform
from pathlib import Path
from typing import Any

import torch
import transformers

import paribus


def describe() -> dict[str, Any]:
    """Return versions, platform, processor and threads, for ``environment.json``."""
    return {
        "python": platform.python_version(),
        "paribus": paribus.__version__,
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "platform": platform.platform(),
        "processor": _processor(),
        "threads": torch.get_num_threads(),
        "device": torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu",
        "cuda": torch.version.cuda,
    }


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    return next((x.split(":", 1)[1].strip() for x in lines if x.startswith("model name")), platform.machine())
