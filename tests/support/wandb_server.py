"""A server that answers `wandb sync` as W&B's does, and keeps what it is sent."""

from __future__ import annotations

import gzip
import json
import subprocess
import sys
import threading
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

KEY = "c4nary" + "0" * 34


@dataclass
class Wandb:
    """What the server was sent.

    Attributes:
        address: of the server.
        runs: by id, the variables of all `UpsertBucket`, with ``groupName``, ``tags`` and so on.
        history: by id, lines by their number, as a server keeps them that is sent some of them twice.
        summaries: by id, the newest summary.
        alerts: run, title and text.
        exits: by id, the exit status.
    """

    address: str = ""
    runs: dict = field(default_factory=dict)
    history: dict = field(default_factory=dict)
    summaries: dict = field(default_factory=dict)
    alerts: list = field(default_factory=list)
    exits: dict = field(default_factory=dict)

    def points(self, run, metric="reward/mean"):
        """Return step and value of each line that has a metric."""
        lines = [self.history[run][number] for number in sorted(self.history[run])]
        assert sorted(self.history[run]) == list(range(len(lines)))
        return [(line["_step"], line[metric]) for line in lines if metric in line]

    def query(self, text, values):
        """Answer a query of GraphQL."""
        if "upsertBucket" in text:
            self.runs.setdefault(values["name"], {}).update({k: v for k, v in values.items() if v is not None})
            entity = {"id": "e", "name": values.get("entity") or "me"}
            project = {"id": "p", "name": values.get("project") or "none", "entity": entity}
            bucket = {"id": "b", "name": values["name"], "displayName": values.get("displayName"), "project": project}
            bucket |= {"config": "{}", "historyLineCount": 0, "description": "", "sweepName": None}
            return {"upsertBucket": {"bucket": bucket, "inserted": True}}
        if "notifyScriptableRunAlert" in text:
            self.alerts.append((values["runName"], values["title"], values["text"]))
            return {"notifyScriptableRunAlert": {"success": True}}
        if "createRunFiles" in text:
            files = [{"name": name, "uploadUrl": f"{self.address}/file/{name}"} for name in values["files"]]
            return {"createRunFiles": {"runID": "b", "uploadHeaders": [], "files": files}}
        about = {"cliVersionInfo": {"max_cli_version": "99"}, "latestLocalVersionInfo": None}
        viewer = {"id": "v", "entity": "me", "username": "me", "flags": "{}", "teams": {"edges": []}}
        return {"viewer": viewer, "serverInfo": about}

    def stream(self, run, sent):
        """Take a part of a run's stream."""
        for name, part in (sent.get("files") or {}).items():
            for number, line in enumerate(part["content"], part["offset"]):
                if name == "wandb-history.jsonl":
                    self.history.setdefault(run, {})[number] = json.loads(line)
                elif name == "wandb-summary.json":
                    self.summaries[run] = json.loads(line)
        if sent.get("complete"):
            self.exits[run] = sent.get("exitcode")


@contextmanager
def serving():
    """Yield the server, listening on a port of the loopback address."""
    known = Wandb()

    class Handler(BaseHTTPRequestHandler):
        def log_message(self, *_):
            pass

        def _answer(self, value):
            data = json.dumps(value).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def do_PUT(self):
            self.rfile.read(int(self.headers.get("Content-Length") or 0))
            self._answer({})

        def do_POST(self):
            data = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            sent = json.loads(gzip.decompress(data) if self.headers.get("Content-Encoding") == "gzip" else data)
            if self.path == "/graphql":
                self._answer({"data": known.query(sent["query"], sent.get("variables") or {})})
            else:
                known.stream(self.path.split("/")[4], sent)
                self._answer({"exitcode": None, "limits": {}})

    httpd = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    known.address = f"http://127.0.0.1:{httpd.server_address[1]}"
    thread = threading.Thread(target=httpd.serve_forever, daemon=True)
    thread.start()
    yield known
    httpd.shutdown()
    httpd.server_close()
    thread.join(10)


def upload(*folders, cwd):
    """Run `wandb sync` on folders of runs, and return what it printed."""
    done = subprocess.run(
        [sys.executable, "-m", "wandb", "sync", *map(str, folders)],
        cwd=cwd,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr
