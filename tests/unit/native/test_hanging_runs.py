"""Runs of the native runner that hang for real: in a reward function, and with one of two processes stopped."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from paribus.attempt.watchdog import STACKS
from paribus.contract import Options, Timeouts
from paribus.recipe import factors as f
from paribus.recipe.compute import Compute
from paribus.recipe.recipe import Recipe
from paribus.run_folder.phases import read_signs
from support.native_runs import SLEEPER, changed, supervised


@pytest.mark.slow
def test_a_reward_function_that_sleeps_is_named_as_what_hangs(recipe: Recipe, job_folder: Callable[..., Path]) -> None:
    """Its own time-out is longer than the limit of the phase; the wait for it is in the stack."""
    sleeping = f.RewardFunction(path="sleeper.score", timeout_s=9000.0)
    recipe = changed(recipe, reward=f.Reward(functions={"sleeper": sleeping}))
    folder = job_folder(recipe, options=Options(sources={"sleeper.py": SLEEPER}), timeouts=Timeouts(reward=3.0))
    report = supervised(folder)
    assert (report["do"], report["kind"], report["signature"]) == ("fail", "program", "hung in reward")
    assert "in reward of step 1" in report["reason"]
    assert "in collect" in (folder / STACKS).read_text()


@pytest.mark.slow
@pytest.mark.parametrize(
    "compute", [Compute(), Compute(sharding="weights"), Compute(sampling_processes=1)], ids=["usual", "shared", "teams"]
)
def test_a_stopped_process_of_several_ends_the_run_and_is_named(
    recipe: Recipe, job_folder: Callable[..., Path], compute: Compute
) -> None:
    """One of two processes gets SIGSTOP in mid-training: the report names it and who waits; none of them is left."""
    recipe = changed(recipe, schedule={"steps": 10_000, "staleness": 1}, compute=compute)
    patience = dict.fromkeys(("rollout", "reward", "old_pass", "update", "sync", "evaluation", "checkpoint"), 20.0)
    folder = job_folder(recipe, options=Options(own={"processes": 2}), timeouts=Timeouts(**patience))
    pids: list[int] = []

    def stop() -> None:
        until = time.monotonic() + 300
        while time.monotonic() < until:
            signs = read_signs(folder)
            if len(signs) == 2 and min(sign.step for sign in signs.values()) > 1:
                pids.extend(sign.pid for sign in signs.values())
                os.kill(signs[1].pid, signal.SIGSTOP)
                return
            time.sleep(0.05)

    thread = threading.Thread(target=stop)
    thread.start()
    report = supervised(folder)
    thread.join()
    assert (report["kind"], report["signature"]) == ("infrastructure", ""), report
    assert report["reason"].startswith("hung: process 1 of 2 shows no progress in ")
    assert "it was stopped by a signal" in report["reason"]
    text = (folder / STACKS).read_text()
    assert "==== process 0 of 2" in text
    assert "==== process 1 of 2" in text
    sections = text.split("==== ")[1:]
    assert all("most recent call first" in section and "_train" in section for section in sections), text
    assert not any(Path(f"/proc/{pid}").exists() for pid in pids)
