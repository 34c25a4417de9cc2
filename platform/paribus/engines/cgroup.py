"""Control groups for jobs (cgroup v2), where this user may create them: the kernel then tracks a job's processes.

A process can't leave its group by moving to another session, losing its parent or clearing its environment. No
controller is turned on: the groups limit nothing, and nothing above them changes.
"""

from __future__ import annotations

import errno
import hashlib
import os
import time
from contextlib import suppress
from pathlib import Path, PurePosixPath

_END_S = 5.0


def own_group(mounts: str, own: str) -> Path | None:
    """Return the folder of a process's group; ``None`` if it has no visible one.

    Args:
        mounts: its ``/proc/self/mountinfo``.
        own: its ``/proc/self/cgroup``.
    """
    mine = next((PurePosixPath(line[3:]) for line in own.splitlines() if line.startswith("0::")), None)
    for line in mounts.splitlines():
        left, _, right = line.partition(" - ")
        if mine is None or ".." in mine.parts or right.split()[:1] != ["cgroup2"]:
            continue
        root, place = left.split()[3:5]
        if mine.is_relative_to(root):
            return Path(place) / mine.relative_to(root)
    return None


def make(name: str) -> tuple[Path | None, str]:
    """Create a group below this process's own.

    Returns:
        The folder and an empty string; or ``None`` and the reason why that isn't possible.
    """
    try:
        parent = own_group(*(os.fsdecode(Path("/proc/self", name).read_bytes()) for name in ("mountinfo", "cgroup")))
    except OSError:
        parent = None
    if parent is None:
        return None, "no cgroup v2 is mounted"
    if not all(os.access(path, os.W_OK) for path in (parent, parent / "cgroup.procs")):
        return None, f"{parent} is not writable for this user"
    group = parent / name
    try:
        group.mkdir(exist_ok=True)
        kind = (group / "cgroup.type").read_text().strip()
    except OSError as error:
        return None, f"{group} cannot be created: {error.strerror}"
    if kind == "domain" and (group / "cgroup.kill").exists():
        return group, ""
    remove(group)
    return (
        None,
        f"{parent} holds threads" if kind != "domain" else "this kernel cannot kill a whole group (Linux 5.14 can)",
    )


def join(group: str) -> None:
    """Move this process to a group unless ``group`` is empty; if the kernel refuses, the process stays where it is."""
    if group:
        with suppress(OSError):
            Path(group, "cgroup.procs").write_text("0")


def kill(group: Path) -> None:
    """Kill all processes of a group and of the groups below it, including those forked meanwhile."""
    with suppress(OSError):
        (group / "cgroup.kill").write_text("1")


def remove(group: Path) -> bool:
    """Kill a group's processes and remove it; return whether it is gone. Call again until it is."""
    try:
        group.rmdir()
    except FileNotFoundError:
        return True
    except OSError as error:
        if error.errno not in (errno.EBUSY, errno.ENOTEMPTY):
            return True  # no longer ours to remove
    else:
        return True
    kill(group)
    for folder, below, _ in os.walk(group, topdown=False):
        for name in below:
            with suppress(OSError):
                Path(folder, name).rmdir()
    return False


def end(group: Path, *, wait_s: float = _END_S) -> bool:
    """Kill and remove a group with everything below it; return whether it is gone."""
    until = time.monotonic() + wait_s
    while not remove(group):
        if time.monotonic() > until:
            return False
        time.sleep(0.01)
    return True


class Groups:
    """The groups of an engine's jobs, all below a common one; without permission every call does nothing.

    Args:
        folder: the engine's folder; a note in it names the group that the next engine has to end.
    """

    def __init__(self, folder: Path) -> None:
        self._note = folder / "cgroup"
        self._name = f"paribus-{hashlib.sha256(str(folder.resolve()).encode()).hexdigest()[:12]}"
        self._root: Path | None = None

    @property
    def root(self) -> str:
        """The group above all of them; empty without permission."""
        return str(self._root or "")

    def begin(self) -> None:
        """End what a killed engine in this folder has left, and create the common group."""
        with suppress(OSError):
            left = Path(self._note.read_text())
            if left.name == self._name:
                end(left)
        self._root, _ = make(self._name)
        if self._root is not None:
            with suppress(OSError):
                self._note.parent.mkdir(parents=True, exist_ok=True)
                self._note.write_text(self.root)

    def make(self, name: str) -> str:
        """Create a job's group; return its folder, or an empty string without permission."""
        if self._root is None:
            return ""
        try:
            (self._root / name).mkdir(exist_ok=True)
        except OSError:
            return ""
        return str(self._root / name)

    def kill(self, name: str) -> None:
        """Kill all processes of a job."""
        if self._root is not None:
            kill(self._root / name)

    def remove(self, name: str) -> bool:
        """Kill what a job has left; return whether all of it has ended. Call again until it has."""
        return self._root is None or remove(self._root / name)

    def close(self) -> None:
        """End all groups."""
        if self._root is not None and end(self._root):
            self._note.unlink(missing_ok=True)
