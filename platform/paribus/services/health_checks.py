"""Whether a service works: one real call each, with a time limit, and one sentence if it does not.

Addresses and secrets are those of the services: environment variables, and files that they name. A secret never stands
on a command line. Containers and `paribus up` use the same checks. They run every few seconds, so each imports what it
alone needs.
"""

from __future__ import annotations

import base64
import http.client
import http.cookiejar
import json
import os
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from importlib.util import find_spec
from pathlib import Path
from types import FrameType
from typing import Any
from urllib.parse import quote, unquote, urlencode
from uuid import uuid4

from paribus.errors import MissingExtra, ServiceError, StoreError
from paribus.home import DATABASE_URL, at_home, read_secret
from paribus.scheduler.home_lock import heartbeat_age_s, lock_owner

DASHBOARD_URL, DASHBOARD_TOKEN_FILE = "PARIBUS_DASHBOARD_URL", "PARIBUS_DASHBOARD_TOKEN_FILE"
"""Environment variables with the address of the dashboard, and with the file that holds its token."""

_EXPERIMENT, _TAG = "paribus-healthcheck", "paribus.healthcheck"
_RAY = "RAY_ADDRESS"


@contextmanager
def time_limit(seconds: float, what: str) -> Iterator[None]:
    """Interrupt the context when the time is over; for the main thread.

    Raises:
        ServiceError: the time was over.
    """

    def over(number: int, frame: FrameType | None) -> None:
        raise ServiceError(
            f"{what} did not answer within {seconds:g} s. Is it overloaded, or stopped? Look at its log."
        )

    previous = signal.signal(signal.SIGALRM, over)
    signal.setitimer(signal.ITIMER_REAL, seconds, 1.0)  # again: a library may swallow the first
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, previous)


# ---- MLflow ------------------------------------------------------------------------------------------


def check_mlflow(address: str) -> None:
    """Write a tag to an MLflow server and read it back, under the name by which clients call the server.

    The page ``/health`` would not do: it answers also where each call is refused because of its host name.

    Args:
        address: tracking URI, with ``http`` or ``https``; it may hold a user and a password, which no message shows.

    Raises:
        ServiceError: the server can't be reached, refuses the call, or returns another value.
    """
    if not address.startswith(("http://", "https://")):
        raise ServiceError("MLFLOW_TRACKING_URI names no server: set it to an address such as http://127.0.0.1:5000.")
    written = uuid4().hex
    identity = _experiment(address)
    _mlflow(address, "experiments/set-experiment-tag", {"experiment_id": identity, "key": _TAG, "value": written})
    found = _mlflow(address, f"experiments/get?experiment_id={quote(identity)}")["experiment"]
    tags = {tag["key"]: tag["value"] for tag in found.get("tags", ())}
    if _TAG not in tags:  # another check may have written its own value meanwhile
        raise ServiceError(f"MLflow at {_parted(address)[0]} does not return what was written. Check its database.")


def _experiment(address: str) -> str:
    """Return the id of the experiment that the checks write to; create it if necessary."""
    try:
        found = _mlflow(address, f"experiments/get-by-name?experiment_name={_EXPERIMENT}")
        return str(found["experiment"]["experiment_id"])
    except _NotFound:
        try:
            return str(_mlflow(address, "experiments/create", {"name": _EXPERIMENT})["experiment_id"])
        except _Exists:  # another check was first
            return _experiment(address)


class _NotFound(ServiceError):
    """MLflow has no such experiment."""


class _Exists(ServiceError):
    """MLflow has an experiment of this name."""


_KINDS = {"RESOURCE_DOES_NOT_EXIST": _NotFound, "RESOURCE_ALREADY_EXISTS": _Exists}


def _mlflow(address: str, call: str, body: Mapping[str, str] | None = None) -> Mapping[str, Any]:
    address, login = _parted(address)
    headers = {"Content-Type": "application/json", **(login or _mlflow_login())}
    data = None if body is None else json.dumps(body).encode()
    url = f"{address.rstrip('/')}/api/2.0/mlflow/{call}"
    request = urllib.request.Request(url, data, headers)  # noqa: S310 - check_mlflow allows no other scheme
    try:
        with urllib.request.urlopen(request) as answer:  # noqa: S310
            found: Mapping[str, Any] = json.load(answer)
            return found
    except urllib.error.HTTPError as error:
        with closing(error):
            said = error.read(2000).decode(errors="replace")
        kind = next((made for code, made in _KINDS.items() if code in said), ServiceError)
        remedy = "See its log."
        if error.code == 403:
            remedy = "Does its option --allowed-hosts name this host, with the port or `:*`?"
        elif error.code == 401:
            remedy = "Are MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD right?"
        raise kind(f"MLflow at {address} answers {error.code}: {' '.join(said.split())[:200]}. {remedy}") from error
    except (OSError, ValueError, http.client.HTTPException) as error:
        raise ServiceError(
            f"MLflow at {address} cannot be reached: {_reason(error)}. Is the server running?"
        ) from error


def _parted(address: str) -> tuple[str, dict[str, str]]:
    """Return an address without its user and password, and the header that has them; MLflow's clients do the same."""
    scheme, _, rest = address.partition("://")
    authority, slash, path = rest.partition("/")
    login, at, host = authority.rpartition("@")
    if not at:
        return address, {}
    user, _, password = login.partition(":")
    return f"{scheme}://{host}{slash}{path}", _basic(unquote(user), unquote(password))


def _basic(user: str, password: str) -> dict[str, str]:
    return {"Authorization": f"Basic {base64.b64encode(f'{user}:{password}'.encode()).decode()}"}


def _mlflow_login() -> dict[str, str]:
    if token := os.environ.get("MLFLOW_TRACKING_TOKEN"):
        return {"Authorization": f"Bearer {token}"}
    if user := os.environ.get("MLFLOW_TRACKING_USERNAME"):
        return _basic(user, os.environ.get("MLFLOW_TRACKING_PASSWORD", ""))
    return {}


# ---- PostgreSQL --------------------------------------------------------------------------------------


def check_postgres(home: Path) -> None:
    """Commit a transaction that writes to the server's log, and ask the server whether it was committed.

    Raises:
        ServiceError: no server is named.
        StoreError: the server can't be reached, or takes no write.
    """
    import sqlalchemy as sa

    from paribus.store.database import Database, database_url

    url = database_url(home)
    if url.get_backend_name() == "sqlite":
        raise ServiceError(f"{DATABASE_URL} names no server: set it to postgresql://USER@HOST:5432/DATABASE.")
    database = Database(url)
    try:
        with database.write() as connection:
            if connection.execute(sa.text("SHOW transaction_read_only")).scalar_one() == "on":
                raise ServiceError(f"{database.name} is read-only: is it a standby?")
            number = connection.execute(sa.text("SELECT CAST(pg_current_xact_id() AS text)")).scalar_one()
            connection.execute(sa.text("SELECT pg_logical_emit_message(true, 'paribus', 'healthcheck')"))
        with database.read() as connection:
            status = connection.execute(
                sa.text("SELECT pg_xact_status(CAST(:number AS xid8))"), {"number": number}
            ).scalar_one()
    finally:
        database.close()
    if status != "committed":
        raise ServiceError(f"{database.name} does not know the transaction that it committed: it is {status}.")


# ---- the scheduler -----------------------------------------------------------------------------------


def check_scheduler(home: Path) -> None:
    """Check that a `paribus scheduler` works in a home folder, and has taken a turn within a lease.

    Raises:
        ServiceError: there is no scheduler on this machine, or it hangs.
    """
    from paribus.store.transitions import LEASE_S

    owner, place = lock_owner(home), home.resolve()
    if owner is None or not owner.is_scheduler:
        serving = f"only {owner} works" if owner is not None else "no `paribus scheduler` of this machine works"
        raise ServiceError(f"{serving} in {place}. Start one: paribus scheduler{at_home(place)}")
    age = heartbeat_age_s(home)
    if age > LEASE_S:
        raise ServiceError(f"{owner} has done nothing for {age:.0f} s in {place}. See its log, and start it again.")


# ---- the dashboard -----------------------------------------------------------------------------------


def check_dashboard(address: str, token: str = "", *, may_ask: bool = False) -> None:
    """Load the first page of a dashboard, as a browser does.

    Args:
        address: of the first page.
        token: the token; empty: it needs none.
        may_ask: whether the page that asks for a token will do.

    Raises:
        ServiceError: the page can't be loaded, or is none of the dashboard's.
    """
    if not address.startswith(("http://", "https://")):
        raise ServiceError(f"{DASHBOARD_URL} is no address: set it to one such as http://127.0.0.1:8765/.")
    browser = urllib.request.build_opener(urllib.request.HTTPCookieProcessor(http.cookiejar.CookieJar()))
    try:
        page = _first_page(browser, address, token, may_ask=may_ask)
    except urllib.error.HTTPError as error:
        error.close()
        remedy = f"Is the token in {DASHBOARD_TOKEN_FILE} the dashboard's?" if error.code == 401 else "See its log."
        raise ServiceError(f"the dashboard at {address} answers {error.code}. {remedy}") from error
    except (OSError, ValueError, http.client.HTTPException) as error:
        raise ServiceError(f"the dashboard at {address} cannot be reached: {_reason(error)}. Is it running?") from error
    if "Paribus" not in page or "</html>" not in page:
        raise ServiceError(f"another program than the dashboard answers at {address}. Check {DASHBOARD_URL}.")


def _first_page(browser: urllib.request.OpenerDirector, address: str, token: str, *, may_ask: bool) -> str:
    """Return the first page, or the one that asks for a token; the token is entered in its form, if it asks.

    Raises:
        OSError: there is no answer, or an error: no token, or a wrong one.
    """
    try:
        with browser.open(address) as answer:
            return str(answer.read().decode(errors="replace"))
    except urllib.error.HTTPError as error:
        with error:
            asked = error.read().decode(errors="replace")
        if error.code != 401 or not (token or may_ask):
            raise
    if not token:
        return asked
    browser.open(address, urlencode({"token": token}).encode()).close()
    with browser.open(address) as answer:
        return str(answer.read().decode(errors="replace"))


def dashboard_token() -> str:
    """Return the token in the file that the environment names; empty if it names none.

    Raises:
        ServiceError: the file is empty or can't be read.
    """
    named = os.environ.get(DASHBOARD_TOKEN_FILE)
    return read_secret(Path(named), "dashboard's token", ServiceError) if named else ""


# ---- Ray ---------------------------------------------------------------------------------------------


def check_ray() -> None:
    """Call the head of the Ray cluster that the environment names, with the token that Ray finds there.

    Raises:
        MissingExtra: Ray is not installed.
        ServiceError: no cluster is named, or its head does not answer.
    """
    address = os.environ.get(_RAY, "")
    if find_spec("ray") is None:
        raise MissingExtra("ray", "`paribus healthcheck ray`")
    if not address:
        raise ServiceError(f"{_RAY} is not set: set it to HOST:PORT of the cluster's head.")
    command = [sys.executable, "-m", "ray.scripts.scripts", "health-check", "--address", address]
    with subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    ) as process:
        try:
            output, _ = process.communicate()
        finally:  # the time may be over
            process.kill()
    if process.returncode != 0:
        lines = output.decode(errors="replace").strip().splitlines()
        said = f": {lines[-1][:200]}" if lines else ""
        raise ServiceError(f"the Ray head at {address} does not answer{said}. Is it up, and is the token the same?")


def _reason(error: Exception) -> str:
    """Return what is wrong, without the frame that urllib puts around it."""
    cause = getattr(error, "reason", error)
    return (getattr(cause, "strerror", None) or str(cause) or type(cause).__name__).rstrip(".")


CHECKS: Mapping[str, Callable[[Path], None]] = {
    "mlflow": lambda home: check_mlflow(os.environ.get("MLFLOW_TRACKING_URI", "")),
    "postgres": check_postgres,
    "scheduler": check_scheduler,
    "dashboard": lambda home: check_dashboard(
        os.environ.get(DASHBOARD_URL) or "http://127.0.0.1:8765/", dashboard_token()
    ),
    "ray": lambda home: check_ray(),
}
"""The checks of `paribus healthcheck`, by the name of the service; each gets the home folder."""


def check(name: str, home: Path, timeout_s: float) -> None:
    """Run one check within a time limit.

    Raises:
        ServiceError: the service does not work; one sentence.
        MissingExtra: a part of Paribus that the check needs is not installed.
    """
    with time_limit(timeout_s, name):
        try:
            CHECKS[name](home)
        except StoreError as error:
            raise ServiceError(str(error)) from error
