"""Files that appear whole or not at all."""

from __future__ import annotations

import os
import resource
import stat
from pathlib import Path

import pytest

from paribus.atomic import write_whole


@pytest.mark.parametrize("private", [False, True])
def test_a_file_is_replaced_and_has_the_rights_that_it_should(tmp_path: Path, private: bool) -> None:
    """What a process with the same number has left is no part of it, nor are its rights."""
    file = tmp_path / "value"
    write_whole(file, "old", synced=True)
    left = tmp_path / f".value.{os.getpid()}"
    left.write_text("half of something")
    left.chmod(0o644)
    mask = os.umask(0o022)
    try:
        write_whole(file, "new: é", private=private)
    finally:
        os.umask(mask)
    assert file.read_bytes() == "new: é".encode()
    assert stat.S_IMODE(file.stat().st_mode) == (0o600 if private else 0o644)
    assert list(tmp_path.iterdir()) == [file]


@pytest.mark.parametrize("private", [False, True])
def test_one_that_cannot_be_written_leaves_the_one_of_before(tmp_path: Path, private: bool) -> None:
    """And no half of itself, which would take the room of a full disk."""
    file, limits = tmp_path / "value", resource.getrlimit(resource.RLIMIT_FSIZE)
    write_whole(file, "old")
    resource.setrlimit(resource.RLIMIT_FSIZE, (64, limits[1]))
    try:
        with pytest.raises(OSError, match="too large"):
            write_whole(file, b"x" * 10_000, private=private)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert file.read_text() == "old"
    assert list(tmp_path.iterdir()) == [file]
