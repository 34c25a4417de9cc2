"""MLflow's server as containers/s3.yml starts it: the files of runs lie in an S3-compatible store."""

import os
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import pytest
import yaml

from support.processes import until_up

pytest.importorskip("boto3", reason="the part `s3` is not installed")

ROOT = Path(__file__).resolve().parents[2]


class Bucket(BaseHTTPRequestHandler):
    """The calls of an S3-compatible store that keep and return one file."""

    protocol_version = "HTTP/1.1"

    def do_PUT(self):
        """Keep a file, and who sent it."""
        self.server.keys.add(self.headers["authorization"].partition("Credential=")[2].partition("/")[0])
        if "content-encoding" in self.headers:
            body = b"".join(self.chunks())
        else:
            body = self.rfile.read(int(self.headers["content-length"]))
        self.server.kept[self.path.partition("?")[0]] = body
        self.answer(200, b"")

    def chunks(self):
        """Read a body that comes in chunks, each after its size."""
        while size := int(self.rfile.readline().partition(b";")[0], 16):
            yield self.rfile.read(size)
            self.rfile.readline()
        while self.rfile.readline().strip():  # checksums
            pass

    def do_GET(self):
        """Return a file, or the list of those below it: there are none."""
        path, _, query = self.path.partition("?")
        kept = self.server.kept
        if "list-type=2" in query:
            self.answer(200, b"<ListBucketResult><KeyCount>0</KeyCount></ListBucketResult>")
        else:
            self.answer(200 if path in kept else 404, kept.get(path, b""))

    do_HEAD = do_GET  # noqa: N815

    def answer(self, status, body):
        """Answer a call."""
        self.send_response(status)
        self.send_header("ETag", '"1"')
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def log_message(self, *_):
        """Print nothing."""


@contextmanager
def bucket():
    """Serve a store; yield its address, its files and the names of the keys that wrote them."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), Bucket)
    server.daemon_threads, server.kept, server.keys = True, {}, set()
    Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}", server.kept, server.keys
    finally:
        server.shutdown()
        server.server_close()


@pytest.mark.slow
def test_a_file_that_is_copied_to_mlflow_lies_in_the_store(tmp_path):
    """It is written and read back through the server, which alone has the credentials, from a file."""
    named = yaml.safe_load((ROOT / "containers" / "s3.yml").read_text())["services"]["mlflow"]["environment"]
    (tmp_path / "credentials").write_text("[default]\naws_access_key_id = KEY7\naws_secret_access_key = hidden\n")
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    with bucket() as (store, kept, keys):
        values = {"MLFLOW_S3_ENDPOINT_URL": store, "AWS_SHARED_CREDENTIALS_FILE": str(tmp_path / "credentials")}
        values |= {"AWS_DEFAULT_REGION": "us-east-1", "PARIBUS_ARTIFACTS": "s3://runs/files"}
        assert values.keys() == named.keys()
        command = [sys.executable, "-m", "paribus.services.mlflow_server", "--artifacts", "s3://runs/files"]
        command += ["--store", f"sqlite:///{tmp_path / 'mlflow.db'}", "--port", str(port)]
        with (tmp_path / "log").open("wb") as log:
            process = subprocess.Popen(command, env={**os.environ, **values}, stdout=log, stderr=log)
        try:
            address = f"http://127.0.0.1:{port}"
            until_up(process, address, tmp_path / "log")
            file = f"{address}/api/2.0/mlflow-artifacts/artifacts/7/a/study.yaml"
            urllib.request.urlopen(urllib.request.Request(file, b"study: x\n", method="PUT"), timeout=60).close()
            assert kept == {"/runs/files/7/a/study.yaml": b"study: x\n"}
            with urllib.request.urlopen(file, timeout=60) as answer:
                assert answer.read() == b"study: x\n"
            assert keys == {"KEY7"}
        finally:
            process.terminate()
            process.wait(60)
