"""Carries what has become critical to a webhook and a command that a study names; a failure is told and harms nothing.

The address of a webhook is a secret. It is read from the environment of the process that trains, when it is needed, and
stands in no file, message or exception that anybody sees.
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
from paribus.study.plan import Plan

TIMEOUT_S = 10.0
"""Seconds that a webhook or a command gets."""


class Hooks:
    """The webhook and the command of a study; calls return at once, and the process waits for them at its end.

    Args:
        plan: names them.
        say: takes one line for people.
        timeout_s: seconds for each.
    """

    def __init__(self, plan: Plan, say: Callable[[str], None], timeout_s: float = TIMEOUT_S) -> None:
        self._plan = plan
        self._say = say
        self._timeout_s = timeout_s
        if plan.webhook and plan.webhook not in os.environ:
            say(f"{plan.study}: the environment has no {plan.webhook}, so findings go to no webhook")

    def tell(self, news: Mapping[str, Any]) -> None:
        """Send a JSON object to the webhook, and to the standard input of the command."""
        data = json.dumps(news).encode()
        if address := os.environ.get(self._plan.webhook, ""):
            self._begin(f"the webhook in {self._plan.webhook}", lambda: self._post(address, data))
        if self._plan.command:
            self._begin(f"the command {self._plan.command[0]}", lambda: self._call(data))

    def _begin(self, what: str, send: Callable[[], str]) -> None:
        def work() -> None:
            if trouble := send():
                self._say(f"{self._plan.study}: {what} {trouble}")

        threading.Thread(target=work, name="hook").start()

    def _post(self, address: str, data: bytes) -> str:
        """Return what went wrong; empty if nothing did."""
        if not address.startswith(("https://", "http://")):
            return "is no http or https address"
        try:
            request = urllib.request.Request(address, data, {"Content-Type": "application/json"})  # noqa: S310 - http
            urllib.request.urlopen(request, timeout=self._timeout_s).close()  # noqa: S310 - as above
        except urllib.error.HTTPError as error:
            error.close()
            return f"answered with status {error.code}"
        except Exception as error:  # of any kind: messages of urllib and http.client may hold the address
            return f"could not be reached ({type(error).__name__})"
        return ""

    def _call(self, data: bytes) -> str:
        """Return what went wrong; empty if nothing did."""
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
            return f"took more than {self._timeout_s:g} s and was ended"
        return f"ended with status {process.returncode}" if process.returncode else ""
