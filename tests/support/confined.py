"""Runs code in a process that writes into one folder only, starts and connects to nothing, and needs little memory."""

from __future__ import annotations

import os
import resource
import sys
import tempfile
import traceback
from collections.abc import Callable
from pathlib import Path

MEMORY = 1 << 30
"""Bytes that the code may use beyond what the process has."""

_CHANGES = {
    "os.mkdir": ((0, 2),), "os.rename": ((0, 2), (1, 3)), "os.remove": ((0, 1),), "os.rmdir": ((0, 1),),
    "os.link": ((0, 2), (1, 3)), "os.symlink": ((0, None), (1, 2)), "os.truncate": ((0, None),),
    "os.chmod": ((0, 2),), "os.chown": ((0, 3),), "os.utime": ((0, 3),),
}  # fmt: skip
"""Audit events of changes to files: where in their arguments each path stands, and the open folder it begins in."""

_REFUSED = ("subprocess.Popen", "os.system", "os.exec", "os.posix_spawn", "os.spawn", "socket.connect", "pty.spawn")


def confined(work: Callable[[], object], workspace: Path, *, memory: int = MEMORY) -> None:
    """Run ``work`` in a copy of this process, and print what it took.

    Args:
        work: what is run; it may raise any error.
        workspace: the only folder in which files may be written, made, renamed or deleted.
        memory: bytes of address space that it may take beyond those of this process.

    Raises:
        AssertionError: it raised an error, left the workspace or needed more memory; with its traceback.
    """
    with tempfile.TemporaryFile() as said:
        if (pid := os.fork()) == 0:
            status = 1
            try:
                broken = _confine(workspace.resolve(), memory)
                work()
                status = 0
                if broken:
                    said.write("\n".join(broken).encode())
                    status = 1
            except BaseException:
                said.write(traceback.format_exc().encode(errors="replace"))
            finally:
                said.flush()
                os._exit(status)
        _, ended, used = os.wait4(pid, 0)
        status = os.waitstatus_to_exitcode(ended)
        said.seek(0)
        print(f"confined: {used.ru_utime + used.ru_stime:.0f} s of CPU, {used.ru_maxrss / 1024:.0f} MiB of memory")
        assert status == 0, f"exit status {status}\n{said.read().decode()}"


def _confine(workspace: Path, memory: int) -> list[str]:
    """Confine this process for good; return a list that gets what it tries all the same."""
    resource.setrlimit(resource.RLIMIT_AS, (_address_space() + memory,) * 2)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    sys.dont_write_bytecode = True
    tempfile.tempdir = str(workspace)
    broken: list[str] = []

    def watch(event: str, given: tuple[object, ...]) -> None:
        if event in _REFUSED:
            paths: tuple[object, ...] = ("",)
        elif event == "open":
            writes = isinstance(given[2], int) and given[2] & (os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC)
            paths = given[:1] if writes else ()
        else:
            paths = tuple(_path(given, *places) for places in _CHANGES.get(event, ()))
        for path in paths:
            if not _is_inside(path, workspace):
                broken.append(f"{event} {given!r}")
                raise PermissionError(f"outside the workspace: {event} {given!r}")

    sys.addaudithook(watch)
    return broken


def _path(given: tuple[object, ...], at: int, folder_at: int | None) -> object:
    """Return a path of an event, joined to the open folder that it begins in, as `shutil.rmtree` names files."""
    path, folder = given[at], -1 if folder_at is None else given[folder_at]
    if isinstance(folder, int) and folder >= 0 and isinstance(path, str | bytes | os.PathLike):
        return os.path.join(os.readlink(f"/proc/self/fd/{folder}"), os.fsdecode(path))  # noqa: PTH118, PTH115
    return path


def _is_inside(path: object, workspace: Path) -> bool:
    if isinstance(path, int):  # an open file
        return True
    found = os.path.realpath(os.fsdecode(path)) if isinstance(path, str | bytes | os.PathLike) else ""
    return found == os.devnull or workspace in (Path(found), *Path(found).parents)


def _address_space() -> int:
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    return pages * resource.getpagesize()
