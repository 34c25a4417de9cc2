"""A made-up study in a store with its run folders, and the application over it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient

from paribus.run_folder.folder import RunFolder, write_json
from paribus.store.store import Store
from paribus_dashboards.board import page as board
from paribus_dashboards.data.home import Home
from paribus_dashboards.data.reports import build
from paribus_dashboards.server import app
from paribus_dashboards.server.access import Access
from paribus_dashboards.server.app import make_app
from support.studies import Shape, made_up_study

LIVE, WAITING = 1, 1
"""Runs at the end of the queue that are still trained, and that wait."""

FINDING = {
    "detector": "entropy_collapse",
    "state": "critical",
    "step_onset": 2,
    "step_detected": 4,
    "step_cleared": None,
    "evidence": "entropy fell to 0.01",
    "numbers": {"value": 0.01},
    "remedies": [],
    "experimental": False,
    "profile": "default 1",
}


def fill(folder: Path) -> Path:
    """Put the study `made-up` into a home folder: all runs finished but the last two; the first one is sick."""
    data = made_up_study(Shape(designs=("cumulative",), tricks=("clip_higher", "soft_overlong"), steps=8))
    with Store.open(folder) as store:
        study = store.add_study(data.plan)
        runs = {r.fingerprint: r for r in data.runs}
        for number in range(len(runs) - WAITING):
            claim = store.claim(study.id, engine="local", worker="here")
            assert claim is not None
            store.start(claim.run_id, claim.token)
            run = RunFolder.of(folder, claim.fingerprint, claim.token)
            run.path.mkdir(parents=True)
            live = number >= len(runs) - WAITING - LIVE
            recorded = runs[claim.fingerprint]
            last = 4 if live else 8
            for evaluation in recorded.evaluations:
                if evaluation.step <= last:
                    run.write_evaluation(evaluation)
            for line in recorded.lines[: last + 1]:
                run.append_metrics(line)
            if number == 0:
                known = {"status": "critical", "sentence": "Critical: entropy_collapse."}
                write_json(
                    run.health, {**known, "step": 8, "time_ms": 0, "profile": "default 1", "findings": [FINDING]}
                )
            if not live:
                write_json(run.result, {"status": "succeeded"})
                store.finish(claim.run_id, claim.token, {"status": "succeeded"})
    return folder


@pytest.fixture(scope="session", autouse=True)
def _closed() -> Iterator[None]:
    """Closes the databases of all homes at the end: a browser of a test does not shut its server down."""
    made: list[Home] = []
    begin = Home.__init__

    def noted(home: Home, *given: Any, **named: Any) -> None:
        begin(home, *given, **named)
        made.append(home)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Home, "__init__", noted)
        yield
    for home in made:
        home.close()


@pytest.fixture(scope="module", autouse=True)
def _unhurried() -> Iterator[None]:
    """Pages read all that they show, however slow the machine is; a test of what is left for later says so."""
    with pytest.MonkeyPatch.context() as patch:
        for name in ("SPARK_S", "STATES_S", "CHART_S"):
            patch.setattr(board, name, 60.0)
        patch.setattr(app, "READ_S", 60.0)
        yield


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The home folder of the study `made-up`; tests only read it."""
    return fill(tmp_path_factory.mktemp("home"))


@pytest.fixture
def new_folder(tmp_path: Path) -> Callable[[], Path]:
    """Makes a fresh copy of the home folder, for tests that change it."""
    return lambda: fill(tmp_path / "home")


@pytest.fixture(scope="session")
def home(folder: Path) -> Iterator[Home]:
    """The home folder as pages see it; reports are built in this process."""
    made = Home(folder, make_report=build)
    yield made
    made.close()


@pytest.fixture(scope="session")
def client(home: Home) -> TestClient:
    """A browser without a browser, on this machine."""
    return TestClient(make_app(home, access=Access(), keep_s=0), base_url="http://localhost")
