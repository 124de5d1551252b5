"""`tfde serve` answers searches before all models are there, and says what is missing."""

import contextlib
import json
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
from bundle_server import http
from toy_models import save_waiting

from tfde.errors import ServerError
from tfde.serving.client import Client

ANSWERS = r"search is answered: gRPC (\S+), REST (\S+), search (\S+); still loading: (.*)"


@pytest.fixture
def serve(bundle, tmp_path):
    """Starts a server of which one model loads until the file `gate` is there."""
    processes = []

    def start(waiting, *options, broken=None):
        path = shutil.copytree(bundle, tmp_path / "bundle")
        shutil.rmtree(path / f"models/{waiting}/1")
        save_waiting(path / f"models/{waiting}/1", tmp_path / "gate")
        if broken is not None:
            (path / f"models/{broken}/1/saved_model.pb").write_bytes(b"broken")
        ports = ["--port", "0", "--rest_api_port", "0", "--http_port", "0"]
        command = [sys.executable, "-m", "tfde.cli.main", "serve", str(path), *ports, *options]
        process = subprocess.Popen(
            command,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        processes.append(process)
        return process

    yield start
    for process in processes:
        process.kill()
        process.communicate()


@pytest.fixture
def starting(serve, tmp_path):
    """A server whose document encoder loads until a file is there; its addresses; that file."""
    process, found = serve("document_encoder"), None
    while found is None:
        line = process.stderr.readline()
        assert line, process.wait()
        found = re.search(ANSWERS, line)
    return process, found, tmp_path / "gate"


def test_what_is_there_answers_and_what_is_not_says_so(starting):
    process, (target, rest, search, missing), gate = starting[0], starting[1].groups(), starting[2]
    assert {"document_encoder"} <= set(missing.split(", ")) <= {
        "document_encoder", "query_encoder", "retriever_scann",
    }  # fmt: skip
    loaded = Path(f"/proc/{process.pid}/maps").read_text("utf-8")
    assert "libtensorflow_cc" in loaded
    assert "optree" not in loaded  # of Keras, which no server needs
    status, body = http(f"{search}/v1/search", {"query": "green red", "k": 3, "texts": True})
    assert status == 200
    assert all(hit["text"] for hit in json.loads(body)["results"][0]["hits"])
    assert http(f"{search}/healthz") == (200, b"ok\n")
    deadline = time.monotonic() + 60
    while (answer := http(f"{search}/readyz")) != (503, b"loading: document_encoder\n"):
        assert answer[0] == 503
        assert time.monotonic() < deadline
        time.sleep(0.05)
    status, body = http(f"{search}/v1/embeddings", {"input": "x", "model": "document_encoder"})
    assert status == 503
    assert "still loading; /readyz says when" in json.loads(body)["error"]["message"]
    assert http(f"{search}/v1/embeddings", {"input": "x"})[0] == 200
    with Client(target) as client:
        assert client.search(["green red"], 3)[0][0].text
        assert client.status("document_encoder") == {1: "LOADING"}
        # As TensorFlow Serving answers of a model that loads.
        with pytest.raises(ServerError, match=r"Servable not found for request: Latest\(document"):
            client.encode_documents(["green red"])
    assert json.loads(http(f"{rest}/v1/models/document_encoder")[1])["model_version_status"][0][
        "state"
    ] == "LOADING"  # fmt: skip
    # A bundle is whole, or it is not served: what fails behind the others ends the server.
    gate.touch()
    assert process.wait(60) == 1
    last = process.stderr.read().splitlines()[-1]
    assert last.startswith("tfde serve: 1 servable(s) did not become available")
    assert "the gate is open" in last
    assert process.stdout.read() == ""  # it has never been ready


def test_a_signal_ends_a_server_that_is_loading(starting):
    process = starting[0]
    process.send_signal(signal.SIGTERM)
    assert process.wait(30) == 0
    assert process.stdout.read() == ""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_a_server_that_loads_its_first_models(serve, number):
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    models = ["--models", "retriever", "documents"]
    process = serve("retriever", *models, "--http_port", str(port))
    deadline, body = time.monotonic() + 60, b""
    while b"retriever" not in body:
        assert time.monotonic() < deadline
        time.sleep(0.1)
        with contextlib.suppress(OSError):  # it does not listen yet
            body = http(f"http://127.0.0.1:{port}/readyz")[1]
    process.send_signal(number)
    assert process.wait(20) == 0
    assert process.stdout.read() == ""


@pytest.mark.parametrize(
    ("waiting", "broken"), [("document_encoder", "query_encoder"), ("retriever", "documents")]
)
def test_a_broken_model_is_told_while_another_loads(serve, waiting, broken):
    process = serve(waiting, broken=broken)
    assert process.wait(60) == 1
    lines = process.stderr.read().splitlines()
    assert lines[-1].startswith("tfde serve: 1 servable(s) did not become available")
    assert broken in lines[-1]
    (failed,) = [n for n, line in enumerate(lines) if broken in line and "cannot be" in line]
    assert not any("still loading" in line and broken in line for line in lines[failed:])
