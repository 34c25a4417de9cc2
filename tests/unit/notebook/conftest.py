"""A home folder with finished, failed, running and waiting runs, and the files of its report."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from paribus.report.write import write_report
from paribus.store.reader import Reader
from support.homes import made_up_home
from support.studies import Shape

SHAPE = Shape(
    seeds=5, steps=8, every=2, designs=("cumulative", "add_one"), tricks=("clip_higher", "token_level"), problems=20,
    samples=2, noise=0.7, outcomes=(("+ token_level", 2, "failed"),),
)  # fmt: skip
STUDY = "made-up"


@pytest.fixture(scope="session")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A home folder with one study; nothing has read it, so that nothing is derived yet."""
    folder = tmp_path_factory.mktemp("notebook") / "home"
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("PARIBUS_DATABASE_URL", raising=False)
        made_up_home(folder, SHAPE)
    return folder


@pytest.fixture(scope="session")
def report(home: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the report of the same home folder, as `paribus report` writes it."""
    import shutil

    copy = tmp_path_factory.mktemp("report") / "home"
    shutil.copytree(home, copy)  # a report derives files
    with pytest.MonkeyPatch.context() as patch, Reader.open(copy) as reader:
        patch.delenv("PARIBUS_DATABASE_URL", raising=False)
        write_report(reader, STUDY, copy.parent / "out")
    return copy.parent / "out"


@pytest.fixture(autouse=True)
def no_server(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without addresses in the environment."""
    for name in ("PARIBUS_DATABASE_URL", "PARIBUS_SERVER", "PARIBUS_HOME"):
        monkeypatch.delenv(name, raising=False)


def contents(folder: Path) -> dict[str, str]:
    """Return the hash of every file in a folder, and each folder."""
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else "folder"
        for path in sorted(folder.rglob("*"))
    }
