"""Requests that schemathesis makes from the schema of the routes, to a server with a study in each state.

``make test-guided`` gives the API and the pages so many seconds each. The schema is FastAPI's: the server shows none.
Left out are the checks that compare answers with it, since refusals are not declared, and the one that wants an
address with any text in it to be found: an unknown study is a 422 with a sentence.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from http.client import HTTPConnection
from pathlib import Path
from urllib.parse import urlencode

CHECKS = (
    "not_a_server_error", "unsupported_method", "allow_header_conformance", "negative_data_rejection",
    "missing_required_header", "ignored_auth",
)  # fmt: skip
PATIENCE_S = 300.0


def serve(place: Path, port: int) -> None:
    """Make a home folder with a token, write the schemas, and serve them until killed."""
    import uvicorn

    from paribus.remote.tokens import Tokens
    from paribus.testing.fake_runner import install
    from paribus_dashboards.api.routes import make_api
    from paribus_dashboards.data.home import Home
    from paribus_dashboards.server.access import Access
    from paribus_dashboards.server.app import make_app
    from support.homes import made_up_home
    from support.studies import Shape

    os.environ["PYTHONPATH"] = f"{install(place / 'site')}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"
    sys.path.insert(0, str(place / "site"))
    shape = Shape(steps=8, every=4, designs=("add_one",), tricks=("clip_higher",), seeds=2, problems=4)
    made_up_home(place / "home", shape)
    home = Home(place / "home")
    app, api = make_app(home, access=Access(), keep_s=0), make_api(home, lambda _: False)._app  # type: ignore[attr-defined]
    (place / "pages.json").write_text(json.dumps(app.openapi()))
    (place / "api.json").write_text(json.dumps(api.openapi()))
    (place / "new").write_text(Tokens(home.folder).create("ana", "run"))
    (place / "new").rename(place / "token")
    uvicorn.run(app, host="127.0.0.1", port=port, log_level="warning")


def cookie(port: int, token: str) -> str:
    """Enter a token as a browser does; return the cookie, once the server answers."""
    end = time.monotonic() + PATIENCE_S
    while time.monotonic() < end:
        connection = HTTPConnection("127.0.0.1", port, timeout=PATIENCE_S)
        with suppress(ConnectionError):
            form = {"Content-Type": "application/x-www-form-urlencoded"}
            connection.request("POST", "/", urlencode({"token": token}), form)
            return connection.getresponse().headers["set-cookie"].partition(";")[0]
        time.sleep(0.2)
    raise TimeoutError("the server does not answer")


def main() -> int:
    """Ask API and pages; return 1 if a check failed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", default="60")
    parser.add_argument("--seed", default="1")
    parser.add_argument("--port", type=int, default=18764)
    parser.add_argument("--serve", type=Path, help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.serve:
        serve(asked.serve, asked.port)
    with tempfile.TemporaryDirectory(prefix="paribus-schema-") as folder:
        place, failed = Path(folder), 0
        command = [sys.executable, "-m", "fuzz.schema", "--port", str(asked.port), "--serve", folder]
        with subprocess.Popen(command) as server:
            try:
                while not (place / "token").exists() and server.poll() is None:
                    time.sleep(0.2)
                token = (place / "token").read_text()
                sent = {"api": f"Authorization: Bearer {token}", "pages": f"Cookie: {cookie(asked.port, token)}"}
                for name, header in sent.items():
                    options = ["-u", f"http://127.0.0.1:{asked.port}", "-H", header, "--checks", ",".join(CHECKS)]
                    options += ["--max-time", asked.seconds, "--seed", asked.seed, "--continue-on-failure"]
                    program = Path(sys.executable).with_name("schemathesis")
                    words = [program, "run", place / f"{name}.json", *options, "--no-color"]
                    failed |= subprocess.run(list(map(str, words)), check=False, cwd=folder).returncode
            finally:
                server.kill()
    return failed


if __name__ == "__main__":
    sys.exit(main())
