"""The load test and compose's health check against a real `tfde serve`."""

import itertools
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
import tensorflow as tf
import yaml

from tfde.export.serving_files import models_config

SERVING = Path(__file__).parents[3] / "serving"
SCRIPT = SERVING / "load_test.py"


class Retriever(tf.Module):
    """A retriever's signature, without its work."""

    @tf.function(
        input_signature=[
            tf.TensorSpec([None], tf.string, name="text"),
            tf.TensorSpec([], tf.int32, name="k"),
        ]
    )
    def search(self, text, k):
        shape = tf.stack([tf.size(text), k])
        return {"doc_ids": tf.fill(shape, "d"), "scores": tf.zeros(shape)}


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    bundle = tmp_path_factory.mktemp("bundle")
    retriever = Retriever()
    tf.saved_model.save(
        retriever,
        str(bundle / "models" / "retriever" / "1"),
        signatures={"serving_default": retriever.search},
    )
    for name in ("models.config", "models.scann.config"):
        (bundle / name).write_text(models_config(["retriever"]))
    command = [sys.executable, "-m", "tfde.cli.main", "serve", str(bundle)]
    process = subprocess.Popen(
        [*command, "--port", "0", "--rest_api_port", "0", "--http_port", "0"],
        stdout=subprocess.PIPE,
        text=True,
    )
    ready = process.stdout.readline()
    yield {
        "grpc": re.search(r"gRPC (\S+),", ready)[1],
        "rest": re.search(r"REST http://(\S+),", ready)[1],
    }
    process.terminate()
    assert process.wait(30) == 0


@pytest.fixture(scope="module")
def queries(tmp_path_factory):
    path = tmp_path_factory.mktemp("queries") / "queries.jsonl"
    path.write_text("".join(f'{{"_id": "{i}", "text": "green {i}"}}\n' for i in range(9)))
    return path


def load_test(*options):
    command = [sys.executable, str(SCRIPT), *map(str, options)]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)


@pytest.mark.parametrize("protocol", ["grpc", "rest"])
def test_rates_are_kept_and_reported(server, queries, tmp_path, protocol):
    output = tmp_path / "figures.json"
    done = load_test(
        "--queries", queries, "--target", server[protocol], "--protocol", protocol, "-k", 3,
        "--rate", 20, 60, "--warmup_s", 0.2, "--duration_s", 1, "--processes", 2,
        "--max_failed", 0, "--output", output,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    figures = json.loads(output.read_text())
    assert (figures["k"], figures["texts"], figures["processes"]) == (3, 9, 2)
    for rate, result in zip([20, 60], figures["results"], strict=True):
        assert result["rate"] == rate
        assert abs(result["requests"] - rate) < 5 * rate**0.5
        assert result["codes"]["OK"]["requests"] == result["requests"]
        times = result["latency_ms"]
        assert 0 < times["p50"] <= times["p90"] <= times["p99"] <= times["p99.9"] <= times["max"]
    header, *rows = done.stdout.splitlines()
    assert header.split()[:3] == ["rate/s", "answered/s", "requests"]
    assert [line.split()[0] for line in rows] == ["20", "60"]


class PlainServer(ThreadingHTTPServer):
    """Answers each request with the status that `respond(number)` returns; numbers from 1."""

    request_queue_size = 128

    def __init__(self, respond):
        super().__init__(("127.0.0.1", 0), Answer)
        self.respond, self.numbers = respond, itertools.count(1)
        self.target = f"127.0.0.1:{self.server_address[1]}"

    def __enter__(self):
        threading.Thread(target=self.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *_):
        self.shutdown()
        self.server_close()


class Answer(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_POST(self):
        self.rfile.read(int(self.headers["Content-Length"]))
        self.send_response(self.server.respond(next(self.server.numbers)))
        self.send_header("Content-Length", "2")
        self.end_headers()
        self.wfile.write(b"{}")

    def log_message(self, *_):
        pass


def test_a_stall_counts_for_every_question_that_was_due(queries, tmp_path):
    """A closed loop would wait for one answer and show one slow question."""
    output = tmp_path / "figures.json"
    resumes = 0.0

    def respond(number):
        nonlocal resumes
        if number == 3:  # the first two are the client's own
            resumes = time.monotonic() + 0.5
        time.sleep(max(0.0, resumes - time.monotonic()))
        return 503 if number % 4 == 0 else 200

    with PlainServer(respond) as server:
        done = load_test(
            "--queries", queries, "--target", server.target, "--protocol", "rest", "--rate", 80,
            "--warmup_s", 0, "--duration_s", 1.5, "--max_p99_ms", 200, "--max_failed", 0.1,
            "--output", output,
        )  # fmt: skip
    assert done.returncode == 1
    assert re.search(r"load_test: at 80/s: p99 is \S+ ms, allowed are 200", done.stderr)
    assert re.search(r"load_test: at 80/s: \d+ of \d+ failed, allowed is a share 0.1", done.stderr)
    assert re.search(r"^  HTTP 503: \d+, p50", done.stdout, re.MULTILINE)
    (result,) = json.loads(output.read_text())["results"]
    failed = result["codes"]["HTTP 503"]["requests"]
    assert abs(failed - result["requests"] / 4) <= 1
    # 40 are due while it stalls, evenly from 0 to 500 ms before its end; another 80 are not.
    assert result["latency_ms"]["max"] > 400
    assert result["latency_ms"]["p90"] > 150


def test_a_late_client_tells_on_itself(queries, tmp_path):
    """Questions that were due while the client stood still count from then, and as late."""
    output = tmp_path / "figures.json"
    running = threading.Event()

    def respond(number):
        if number == 10:
            running.set()
        return 200

    with PlainServer(respond) as server:
        command = [
            sys.executable, SCRIPT, "--queries", queries, "--target", server.target,
            "--protocol", "rest", "--rate", 80, "--warmup_s", 0, "--duration_s", 1.5,
            "--output", output,
        ]  # fmt: skip
        with subprocess.Popen(
            [*map(str, command)], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
            start_new_session=True,
        ) as client:  # fmt: skip
            assert running.wait(60)
            os.killpg(client.pid, signal.SIGSTOP)
            time.sleep(0.5)
            os.killpg(client.pid, signal.SIGCONT)
            _, errors = client.communicate(timeout=60)
    assert client.returncode == 0
    assert re.search(r"load_test: at 80/s: the client itself was late \(\d+ of \d+", errors)
    (result,) = json.loads(output.read_text())["results"]
    assert result["late_starts"] > 15  # 40 expected
    assert result["latency_ms"]["p90"] > 150


@pytest.mark.parametrize(
    ("protocol", "message"),
    [
        ("grpc", r"refuses a first question to 'none': NOT_FOUND: Servable not found for request"),
        ("rest", r"refuses a first question to 'none': HTTP 404: .*Servable not found"),
    ],
)
def test_an_unknown_model_is_one_line(server, queries, protocol, message):
    done = load_test(
        "--queries", queries, "--target", server[protocol], "--protocol", protocol,
        "--model", "none", "--rate", 5,
    )  # fmt: skip
    assert done.returncode == 1
    assert len(done.stderr.splitlines()) == 1
    assert re.search(message, done.stderr)


def test_the_health_check_of_compose_looks_at_the_state(server):
    compose = yaml.safe_load((SERVING / "compose.yaml").read_text())
    kind, *command = compose["services"]["model_server"]["healthcheck"]["test"]
    assert kind == "CMD"

    def healthy(port, model="retriever"):
        changed = [
            part.replace("8501", port).replace("/retriever", f"/{model}") for part in command
        ]
        return subprocess.run(changed, check=False, timeout=20, stderr=subprocess.DEVNULL)

    port = server["rest"].rpartition(":")[2]
    assert healthy(port).returncode == 0
    assert healthy(port, "none").returncode == 1
    assert healthy("1").returncode == 1
