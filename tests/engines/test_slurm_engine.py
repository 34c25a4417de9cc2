"""The Slurm engine on a real cluster of two nodes with fake GPUs."""

import signal
import subprocess
import time

import pytest

from paribus.engines.base import EngineSettings, JobState
from paribus.engines.slurm import SlurmEngine
from paribus.errors import EngineError
from paribus.testing.engine_suite import EngineSuite, ended, gone, job, started, until


def made(folder, options, **extra):
    """Return an engine with options, and with more of them."""
    if extra:
        more = ", ".join(f"{k}: {v}" for k, v in extra.items())
        options = options.with_name(f"more-{len(list(options.parent.iterdir()))}.yaml")
        options.write_text(f"slurm: {{memory: 200M, poll: 0.3, grace: 1, host: 127.0.0.1, {more}}}\n")
    return SlurmEngine(EngineSettings(runner="fake", folder=folder, options=options))


class TestSlurm(EngineSuite):
    """The conformance suite."""

    @pytest.fixture
    def engine(self, slurm, tmp_path):
        """An engine with two slots whose jobs get a second's grace, closed at the end."""
        options = tmp_path / "suite.yaml"
        options.write_text("slurm: {memory: 200M, poll: 0.2, grace: 1}\n")
        one = SlurmEngine(EngineSettings(runner="fake", folder=tmp_path / "engine", slots=2, options=options))
        yield one
        one.close()
