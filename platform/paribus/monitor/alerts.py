"""Reports each finding of a study once when it becomes critical: to the user, to a webhook and to a command.

A webhook's address is a secret. It is read from the environment of the scheduler's process when it is needed, and
appears in no file, message or exception. Trouble with a webhook is reported and does no harm.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import threading
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping
from typing import Any

from paribus.engines.process import signal_group
from paribus.monitor.progress import Follower, RunView, StudyView
from paribus.store.models import RunRecord, StudyRecord
from paribus.store.reader import Reader
from paribus.study.plan import Plan

TIMEOUT_S = 10.0
"""Time limit of a webhook or a command, in seconds."""


def no_webhook(plan: Plan) -> str:
    """Return that the environment lacks the address of the study's webhook; empty if it has it, or the study none."""
    if not plan.webhook or os.environ.get(plan.webhook, "").strip():
        return ""
    state = "is empty" if plan.webhook in os.environ else "is not set"
    return f"the environment variable {plan.webhook} {state}, so findings go to no webhook"


class Webhooks:
    """The webhook and the command of a study. Calls return at once; the process waits for them before it exits."""

    def __init__(self, plan: Plan, say: Callable[[str], None], timeout_s: float = TIMEOUT_S) -> None:
        self._plan = plan
        self._say = say
        self._timeout_s = timeout_s
        if missing := no_webhook(plan):
            say(f"{plan.study}: {missing}")

    def send(self, alert: Mapping[str, Any]) -> None:
        """Send a JSON object to the webhook and to the standard input of the command."""
        data = json.dumps(alert).encode()
        if self._plan.webhook and not no_webhook(self._plan):
            address = os.environ[self._plan.webhook]
            self._begin(f"the webhook in {self._plan.webhook}", lambda: self._post(address, data))
        if self._plan.command:
            self._begin(f"the command {self._plan.command[0]}", lambda: self._call(data))

    def _begin(self, what: str, send: Callable[[], str]) -> None:
        def work() -> None:
            if trouble := send():
                self._say(f"{self._plan.study}: {what} {trouble}")

        threading.Thread(target=work, name="webhook").start()

    def _post(self, address: str, data: bytes) -> str:
        """Return what went wrong; empty on success."""
        if not address.startswith(("https://", "http://")):
            return "is not an http or https address"
        try:
            request = urllib.request.Request(address, data, {"Content-Type": "application/json"})  # noqa: S310 - http
            urllib.request.urlopen(request, timeout=self._timeout_s).close()  # noqa: S310 - as above
        except urllib.error.HTTPError as error:
            error.close()
            return f"answered with status {error.code}"
        except Exception as error:  # only its name is shown: messages of urllib and http.client may contain the address
            return f"could not be reached ({type(error).__name__})"
        return ""

    def _call(self, data: bytes) -> str:
        """Return what went wrong; empty on success."""
        quiet = subprocess.DEVNULL
        try:
            process = subprocess.Popen(
                self._plan.command, stdin=subprocess.PIPE, stdout=quiet, stderr=quiet, start_new_session=True
            )
        except (OSError, ValueError) as error:
            return f"could not be started ({type(error).__name__})"
        try:
            process.communicate(data, timeout=self._timeout_s)
        except subprocess.TimeoutExpired:
            signal_group(process.pid, signal.SIGKILL)
            process.communicate()
            return f"took more than {self._timeout_s:g} s and was killed"
        return f"ended with exit status {process.returncode}" if process.returncode else ""


class Alerts:
    """Compares the findings about a study's runs with those already reported, to the user and to webhooks if any."""

    def __init__(
        self, reader: Reader, study: StudyRecord, say: Callable[[str], None], webhooks: Webhooks | None = None
    ) -> None:
        self._follower = Follower(reader, study)
        self._say = say
        self._webhooks = webhooks
        self._live: tuple[RunView, ...] = ()
        self._reported: set[tuple[str, str]] = set()

    def view(self, now: float) -> StudyView:
        """Return the study at ``now`` (seconds on any monotonic clock), as :meth:`Follower.view`.

        New findings about runs in progress, and about those that have just ended, are reported.
        """
        view = self._follower.view(now)
        live = {v.run.fingerprint for v in view.live}
        ended = [self._follower.view_run(v.run) for v in self._live if v.run.fingerprint not in live]
        self._live = view.live
        for run in (*view.live, *ended):
            for detector, finding in run.critical.items():
                key = (run.run.fingerprint, detector)
                if key not in self._reported:
                    self._reported.add(key)
                    self._report(view.study, run.run, finding)
        return view

    def _report(self, study: str, run: RunRecord, finding: Mapping[str, Any]) -> None:
        text = f"{study}: {run.label}, seed {run.seed}: {finding['detector']} is critical: {finding['evidence']}"
        self._say(text)
        if self._webhooks is not None:
            where = {"study": study, "arm": run.label, "seed": run.seed, "run": run.fingerprint, "attempt": run.token}
            self._webhooks.send({"text": text, **where, "finding": finding})
