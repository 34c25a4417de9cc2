"""Ray jobs that are Ray programs themselves (``launch: job``): each is a Ray Job with its own submission id.

``python -m paribus.engines.ray.jobs FILE`` is the entrypoint of such a Ray Job and runs the order in FILE. The program
gets the variables by which it joins the cluster as a part of this Ray Job. Ray can only end a Ray Job by force, so the
engine writes other signals into a file beside the order, which the entrypoint passes on.
"""

from __future__ import annotations

import json
import os
import shlex
import signal
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

from paribus.engines.base import JobState
from paribus.engines.controller import Away
from paribus.engines.launch import Order, run_order, signal_order, write_number
from paribus.engines.process import Identity
from paribus.errors import EngineError

_LOOK_S = 0.3
_TICK_S = 0.1
_DRIVER_CPUS = 1.0
_ENDED = ("SUCCEEDED", "FAILED", "STOPPED")
_NO_AGENT = "No available agent"


class Jobs:
    """Starts Ray programs as Ray Jobs and finds them by submission id.

    The resources that a study declares are counted, so that no more programs run than the cluster can hold: two
    programs with half of their workers each would wait for each other forever. Ray itself only reserves a core for the
    driver.

    Args:
        address: ``host:port`` of the head's dashboard, which takes Ray Jobs.
        folder: a folder that all nodes see, for orders and signals.

    Raises:
        EngineError: the head takes no Ray Jobs.
    """

    def __init__(self, address: str, folder: Path) -> None:
        from ray.job_submission import JobSubmissionClient

        self._folder = folder
        self._known: dict[str, Any] = {}
        self._looked = float("-inf")
        try:
            self._client = JobSubmissionClient(f"http://{address}")
        except (RuntimeError, OSError) as error:
            raise EngineError(
                f"the head of the Ray cluster takes no Ray Jobs at `{address}`: {_in_a_line(error)}. `launch: job` "
                "needs its dashboard: `ray[default]` on the head, started without `--include-dashboard false`."
            ) from error

    def start(self, job: str, order: Order, bundle: Mapping[str, float], nodes: int) -> str:
        """Submit a Ray Job unless its submission id exists; return why the head doesn't take it yet, or ``""``.

        Raises:
            Away: the head does not answer.
            EngineError: Ray refuses the job.
        """
        if not self.find(job):  # an unanswered submission may have arrived, and its order may be used up
            _write_order(self._order(job), order)
            return self._submit(job, min(_DRIVER_CPUS, bundle["CPU"]))
        return ""

    def _submit(self, job: str, cpus: float) -> str:
        command = shlex.join([sys.executable, "-m", "paribus.engines.ray.jobs", str(self._order(job))])
        entrypoint = f"exec {command}"  # Ray's shell would be one more process whose end leaves the others
        self._looked = float("-inf")
        try:
            self._client.submit_job(entrypoint=entrypoint, submission_id=job, entrypoint_num_cpus=cpus)
        except OSError as error:
            raise Away(f"Ray Jobs: {_in_a_line(error)}") from error
        except RuntimeError as error:
            if _NO_AGENT in str(error):
                return "the Ray cluster has no node yet that starts jobs"
            if not self.find(job):
                raise EngineError(f"Ray did not take the job {job}: {_in_a_line(error)}") from error
        return ""

    def find(self, job: str) -> bool:
        """Return whether Ray knows the submission id.

        Raises:
            Away: the head does not answer.
        """
        try:
            self._look()
        except (RuntimeError, OSError) as error:
            raise Away(f"Ray Jobs: {_in_a_line(error)}") from error
        return job in self._known

    def state(self, job: str) -> tuple[JobState, str]:
        """Return the state of a job, and for one that has ended, or that the head has lost, Ray's explanation.

        Raises:
            Away: the head does not answer.
        """
        if not self.find(job):
            return JobState.ENDED, "Ray no longer knows this job"
        status = str(self._known[job].status.value)
        if status in _ENDED:
            return JobState.ENDED, " ".join((self._known[job].message or "").split())[:200]
        return (JobState.RUNNING if status == "RUNNING" else JobState.PENDING), ""

    def signal(self, job: str, number: int) -> None:
        """Send a signal to the program's process group."""
        _write_signal(self._order(job), number)

    def drop(self, job: str) -> None:
        """End the Ray Job by force; its workers end with its driver.

        Raises:
            Away: the head does not answer; a program that has not begun will end at once.
        """
        try:
            if self.state(job)[0] is not JobState.ENDED:
                _write_signal(self._order(job), signal.SIGKILL)
                with suppress(RuntimeError, OSError):
                    self._client.stop_job(job)
        except Away:
            _write_signal(self._order(job), signal.SIGKILL)
            raise
        finally:
            self._order(job).unlink(missing_ok=True)  # it contains the environment

    def check(self) -> None:
        """Check that the head takes requests.

        Raises:
            Away: it does not.
        """
        self.find("")

    def _look(self) -> None:
        """Ask for all jobs, unless that happened just now."""
        if time.monotonic() - self._looked <= _LOOK_S:
            return
        self._known = {j.submission_id: j for j in self._client.list_jobs() if j.submission_id}
        self._looked = time.monotonic()

    def _order(self, job: str) -> Path:
        return self._folder / f"{job}.order"


def _in_a_line(error: Exception) -> str:
    return " ".join(str(error).split())[:300]


# ---- files between the engine and the entrypoint -----------------------------------------------------


def _write_order(file: Path, order: Order) -> None:
    """Write what to start; it includes the environment, so only the owner may read it."""
    with open(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w", encoding="utf-8") as stream:  # noqa: PTH123
        json.dump(asdict(order), stream)


def _write_signal(order: Path, number: int) -> None:
    """Leave a signal for the program, which may not have begun yet."""
    write_number(_signal_file(order), number)


def _signal_file(order: Path) -> Path:
    return order.with_suffix(".signal")


# ---- the entrypoint ----------------------------------------------------------------------------------


def main(arguments: Sequence[str]) -> int:
    """Run the program of an order to its end."""
    file = Path(arguments[0])
    values = json.loads(file.read_text(encoding="utf-8"))
    file.unlink()
    order = Order(**{**values, "arguments": tuple(values["arguments"])})
    if _signal_file(file).exists():  # cancelled before it began
        write_number(Path(order.note), -signal.SIGTERM)
        return 0
    joins = {k: v for k, v in os.environ.items() if k.startswith("RAY_")}
    own = {**joins, "CUDA_VISIBLE_DEVICES": ""}
    run_order(order, own, lambda process: _forward_signals(_signal_file(file), process))
    return 0


def _forward_signals(file: Path, process: Identity | None) -> None:
    """Pass on each signal that is written into the file, once, from now on."""

    def forward(process: Identity) -> None:
        last = ""
        while True:
            with suppress(OSError):
                number = file.read_text()
                if number != last:
                    last = number
                    signal_order(process, int(number))
            time.sleep(_TICK_S)

    if process is not None:
        threading.Thread(target=forward, args=(process,), daemon=True).start()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
