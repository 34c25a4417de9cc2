"""Jobs of a Ray cluster that are Ray programs themselves: each a Ray Job with a submission id of its own."""

from __future__ import annotations

import shlex
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from paribus.engines.ray_keeper import Order
from paribus.engines.ray_program import write_order, write_signal
from paribus.errors import EngineError

_LOOK_S = 0.3
_DRIVER_CPUS = 1.0
_NO_AGENT = "No available agent"


class Away(EngineError):
    """The head does not answer now; it may later."""


class Jobs:
    """Starts Ray programs as Ray Jobs and finds them by submission id.

    What a study declares is counted, so that there are no more programs at a time than the cluster can hold: two with
    half of their workers each would wait for each other forever. Ray itself is asked for a core for the driver.

    Args:
        address: ``host:port`` of the head's dashboard, which takes Ray Jobs.
        folder: seen by all nodes; orders and signals lie in it.

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

    def start(self, job: str, order: Order, bundle: Mapping[str, float]) -> str:
        """Submit a Ray Job, unless one with this submission id is there; return why the head does not take it yet.

        Raises:
            EngineError: Ray refuses the job.
        """
        try:
            if not self.find(job):  # one without an answer may have been taken, and its order used up
                write_order(self._order(job), order)
                return self._submit(job, min(_DRIVER_CPUS, bundle["CPU"]))
        except Away as error:
            return str(error)
        return ""

    def _submit(self, job: str, cpus: float) -> str:
        # Ray hands the entrypoint to a shell
        entrypoint = shlex.join([sys.executable, "-m", "paribus.engines.ray_program", str(self._order(job))])
        self._looked = float("-inf")
        try:
            self._client.submit_job(entrypoint=entrypoint, submission_id=job, entrypoint_num_cpus=cpus)
        except OSError as error:
            raise Away(f"the head of the Ray cluster does not answer: {_in_a_line(error)}") from error
        except RuntimeError as error:
            if _NO_AGENT in str(error):
                return "the Ray cluster has no node yet that starts jobs"
            if not self.find(job):
                raise EngineError(f"Ray did not take the job {job}: {_in_a_line(error)}") from error
        return ""

    def find(self, job: str) -> bool:
        """Return whether Ray knows the submission id.

        Raises:
            Away: the head cannot be asked.
        """
        try:
            self._look()
        except (RuntimeError, OSError) as error:
            raise Away(f"Ray cannot be asked for its jobs: {_in_a_line(error)}") from error
        return job in self._known

    def began(self, job: str) -> bool:
        """Return whether the driver runs."""
        return self._status(job) == "RUNNING"

    def ended(self, job: str) -> bool:
        """Return whether the Ray Job has ended, or is not known any more to a head that lost what it knew."""
        status = self._status(job)
        looked = self._looked > float("-inf")  # since the last submission, which an older list says nothing of
        return status in ("SUCCEEDED", "FAILED", "STOPPED") or (status == "" and looked)

    def reason(self, job: str) -> str:
        """Return Ray's word for the end of a job that left no exit status."""
        said = getattr(self._known.get(job), "message", None) or "Ray does not know it any more"
        return " ".join(said.split())[:200]

    def signal(self, job: str, number: int) -> None:
        """Send a signal to the program's process group."""
        write_signal(self._order(job), number)

    def drop(self, job: str) -> None:
        """End the Ray Job by force; its workers end with its driver."""
        if not self.ended(job):
            write_signal(self._order(job), 9)
            with suppress(RuntimeError, OSError):
                self._client.stop_job(job)
        self._order(job).unlink(missing_ok=True)  # it holds the environment

    def _status(self, job: str) -> str:
        with suppress(RuntimeError, OSError):  # the head is away: what was known last
            self._look()
        return str(self._known[job].status.value) if job in self._known else ""

    def _look(self) -> None:
        """Ask for all jobs, unless that was done just now."""
        if time.monotonic() - self._looked <= _LOOK_S:
            return
        self._known = {j.submission_id: j for j in self._client.list_jobs() if j.submission_id}
        self._looked = time.monotonic()

    def _order(self, job: str) -> Path:
        return self._folder / f"{job}.order"


def _in_a_line(error: Exception) -> str:
    return " ".join(str(error).split())[:300]
