"""What the kernel of this machine says that it can, found without the code that is tested."""

from __future__ import annotations

import gzip
import os
import re
from contextlib import suppress
from pathlib import Path

LANDLOCK_SINCE = {(5, 13): 1, (5, 19): 2, (6, 2): 3, (6, 7): 4, (6, 10): 5, (6, 12): 6}
"""Releases of Linux with the version of Landlock that each brought."""


def landlock_of_kernel() -> int:
    """Return the version of Landlock that this kernel has and has turned on; 0 if it doesn't say."""
    found = re.match(r"(\d+)\.(\d+)", os.uname().release)
    release = (int(found[1]), int(found[2])) if found else (0, 0)
    return max((v for since, v in LANDLOCK_SINCE.items() if since <= release and _is_on()), default=0)


def _is_on() -> bool:
    with suppress(OSError):  # a container without it
        return "landlock" in Path("/sys/kernel/security/lsm").read_text().split(",")
    with suppress(OSError):
        built = gzip.decompress(Path("/proc/config.gz").read_bytes()).decode()
        booted = re.findall(r"\blsm=(\S+)", Path("/proc/cmdline").read_text())
        chosen = [*re.findall(r'^CONFIG_LSM="(.*)"$', built, re.MULTILINE), *booted]
        return "CONFIG_SECURITY_LANDLOCK=y\n" in built and "landlock" in chosen[-1].split(",")
    return False
