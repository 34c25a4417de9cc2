"""Which process works in a home folder, and what one that was killed leaves behind."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from filelock import FileLock

from paribus.engines.process import Identity
from paribus.errors import StoreError
from paribus.scheduler import home_lock
from paribus.scheduler.home_lock import SCHEDULER, lock_home


@pytest.fixture
def held(tmp_path: Path) -> FileLock:
    """The lock, held by something of which the folder does not say what it is."""
    lock = FileLock(tmp_path / "run.lock", thread_local=False)
    lock.acquire()
    return lock


def owned_by(home: Path, identity: Identity) -> None:
    """Let the folder name an owner."""
    owner = {"process": identity.to_json(), "command": SCHEDULER, "engine": "local"}
    (home / "run.lock.json").write_text(json.dumps(owner))


def test_the_lock_that_the_last_child_of_a_killed_process_holds_is_waited_for(
    tmp_path: Path, held: FileLock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Until the child begins its own program, which a busy machine may delay by seconds."""
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as killed:
        owned_by(tmp_path, Identity.of(killed.pid))
        killed.kill()
    monkeypatch.setattr(home_lock, "_LIVES_S", 0.05)
    later = threading.Timer(1.0, held.release)
    later.start()
    with lock_home(tmp_path, "paribus run"):
        pass
    later.join()


def test_the_lock_of_a_living_process_is_refused_at_once(
    tmp_path: Path, held: FileLock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The message names it; waiting for as long as for a killed one would keep the user waiting."""
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as living:
        owned_by(tmp_path, Identity.of(living.pid))
        monkeypatch.setattr(home_lock, "_LIVES_S", 0.05)
        monkeypatch.setattr(home_lock, "_DYING_S", 3600.0)
        named = rf"`paribus scheduler` \(process {living.pid}\) works in"
        with pytest.raises(StoreError, match=named), lock_home(tmp_path, "paribus run"):
            pass
        living.kill()
    held.release()
