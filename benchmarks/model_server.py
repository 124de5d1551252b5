"""What does the model server itself cost a request, and how soon after its start does it answer?

    python benchmarks/model_server.py [--requests 2000]

One small SavedModel (a sum and the lengths of strings), called in a process by itself, and through
`tfde-model-server` over gRPC and REST in turns; one client, one connection each. Prints one JSON
object; `grpc_adds` and `rest_adds` are what a call takes more than the bare one, at the median.
"""

from __future__ import annotations

import argparse
import http.client
import json
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import grpc
import numpy as np
import side_by_side
import tensorflow as tf
from server_fuzz import VALID_HTTP, save_model, valid_messages
from tensorflow_serving.apis import predict_pb2, prediction_service_pb2_grpc

ROUNDS = 5


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return server.getsockname()[1]


def milliseconds(ask: Callable[[], object], requests: int) -> list[float]:
    """Returns the time of each call, sorted."""
    times = []
    for _ in range(requests):
        start = time.perf_counter()
        ask()
        times.append(1e3 * (time.perf_counter() - start))
    return sorted(times)


def summary(rounds: list[list[float]]) -> dict[str, float]:
    """Returns the median over rounds of each round's median and 99th percentile."""
    return {
        "p50_ms": round(statistics.median(times[len(times) // 2] for times in rounds), 3),
        "p99_ms": round(statistics.median(times[int(0.99 * len(times))] for times in rounds), 3),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--requests", type=int, default=2000, help="a round and way to ask")
    parser.add_argument("--output", type=Path, help="JSON file, besides standard output")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        base = Path(directory) / "toy"
        save_model(base / "1")
        signature = tf.saved_model.load(str(base / "1")).signatures["serving_default"]
        inputs = {"x": tf.ones([2, 2]), "text": tf.constant(["a", "bc"])}
        port, rest_port = free_port(), free_port()
        started = time.perf_counter()
        command = [sys.executable, "-m", "tfde.cli.model_server", "--model_name=toy"]
        with subprocess.Popen(
            [*command, f"--model_base_path={base}", f"--port={port}",
             f"--rest_api_port={rest_port}"],
            stderr=subprocess.DEVNULL,
        ) as server, grpc.insecure_channel(f"127.0.0.1:{port}") as channel:  # fmt: skip
            stub = prediction_service_pb2_grpc.PredictionServiceStub(channel)
            request = predict_pb2.PredictRequest.FromString(valid_messages()[0][1])
            request.ClearField("output_filter")
            stub.Predict(request, timeout=120, wait_for_ready=True)
            start_s = time.perf_counter() - started
            connection = http.client.HTTPConnection("127.0.0.1", rest_port)
            _, path, body = VALID_HTTP[0]

            def ask_rest() -> bytes:
                connection.request("POST", path, json.dumps(body))
                return connection.getresponse().read()

            ways = {
                "bare": lambda: [np.asarray(x) for x in signature(**inputs).values()],
                "grpc": lambda: stub.Predict(request),
                "rest": ask_rest,
            }
            times: dict[str, list[list[float]]] = {name: [] for name in ways}
            for ask in ways.values():
                milliseconds(ask, 100)
            for _ in range(ROUNDS):
                for name, ask in ways.items():
                    times[name].append(milliseconds(ask, args.requests))
            server.terminate()
    result = {name: summary(rounds) for name, rounds in times.items()}
    for way in ("grpc", "rest"):
        result[f"{way}_adds"] = added(times[way], times["bare"])
    about = {"first_answer_s": round(start_s, 2), "requests": args.requests, "rounds": ROUNDS}
    side_by_side.finish({**result, **about}, ("tfde", "tensorflow", "grpcio"), args.output)


def added(through_server: list[list[float]], bare: list[list[float]]) -> dict[str, float]:
    """Returns what a call takes more than the bare one, by the medians of each round."""
    more = sorted(
        one[len(one) // 2] - other[len(other) // 2]
        for one, other in zip(through_server, bare, strict=True)
    )
    return {
        "median_ms": round(statistics.median(more), 3),
        "lowest_ms": round(more[0], 3),
        "highest_ms": round(more[-1], 3),
    }


if __name__ == "__main__":
    main()
