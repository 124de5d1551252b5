"""Does a wrong request ever bring the model server down, or get the wrong kind of answer?

Valid requests of every RPC and REST path are damaged at random (bits, bytes, pieces, numbers) and
sent over real sockets. Every answer must be one of the protocol's for a client's mistake, and
between them the server must go on answering valid requests rightly.

    python benchmarks/server_fuzz.py --requests 100000
"""

from __future__ import annotations

import argparse
import collections
import http.client
import json
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import grpc
import numpy as np
import tensorflow as tf
from tensorflow.core.example import example_pb2
from tensorflow_serving.apis import (
    classification_pb2,
    get_model_metadata_pb2,
    get_model_status_pb2,
    inference_pb2,
    model_management_pb2,
    model_service_pb2_grpc,
    predict_pb2,
    prediction_service_pb2_grpc,
    regression_pb2,
)

# What a client's mistake may be called. INTERNAL is gRPC's own word for bytes that are no message.
CODES = {
    "OK", "INVALID_ARGUMENT", "NOT_FOUND", "FAILED_PRECONDITION", "UNIMPLEMENTED", "OUT_OF_RANGE",
    "DEADLINE_EXCEEDED", "UNKNOWN",
}  # fmt: skip
STATUSES = {200, 400, 404, 501, 504}
SERVE = """
import sys
from tfde.serving.server.model_server import ModelServer
from tfde.serving.server.options import ServerOptions
from tfde.serving.server.versions import model_config, server_config
config = server_config(model_config("toy", sys.argv[1]))
server = ModelServer(config, ServerOptions(port=0, max_num_load_retries=0), rest_api_port=0)
server.start()
print(server.port, server.rest_api_port, flush=True)
server.wait()
"""


def save_model(directory: Path) -> None:
    """A SavedModel with signatures for tensors of several types and for examples."""

    class Model(tf.Module):
        @tf.function(
            input_signature=[
                tf.TensorSpec([None, 2], tf.float32, name="x"),
                tf.TensorSpec([None], tf.string, name="text"),
            ]
        )
        def tensors(self, x, text):
            return {"sum": tf.reduce_sum(x, 1), "length": tf.strings.length(text)}

        @tf.function(input_signature=[tf.TensorSpec([None], tf.string, name="inputs")])
        def examples(self, inputs):
            features = {"x": tf.io.FixedLenFeature([1], tf.float32)}
            return {"outputs": tf.io.parse_example(inputs, features)["x"]}

    model = Model()
    signatures = {"serving_default": model.tensors, "examples": model.examples}
    tf.saved_model.save(model, str(directory), signatures)


def valid_messages() -> list[tuple[str, bytes]]:
    """Returns (path of the RPC, serialized request) for each kind of request."""
    predict = predict_pb2.PredictRequest(output_filter=["sum"])
    predict.model_spec.name = "toy"
    predict.model_spec.version.value = 1
    predict.inputs["x"].CopyFrom(tf.make_tensor_proto(np.ones([2, 2], np.float32)))
    predict.inputs["text"].CopyFrom(tf.make_tensor_proto(["a", "bc"]))
    example = example_pb2.Example()
    example.features.feature["x"].float_list.value.append(2.0)
    found = [("Predict", predict)]
    for name, kind in (
        ("Classify", classification_pb2.ClassificationRequest),
        ("Regress", regression_pb2.RegressionRequest),
    ):
        request = kind()
        request.model_spec.name = "toy"
        request.model_spec.signature_name = "examples"
        request.input.example_list.examples.append(example)
        found.append((name, request))
    multi = inference_pb2.MultiInferenceRequest()
    multi.input.example_list.examples.append(example)
    task = multi.tasks.add(method_name="tensorflow/serving/regress")
    task.model_spec.name = "toy"
    task.model_spec.signature_name = "examples"
    metadata = get_model_metadata_pb2.GetModelMetadataRequest(metadata_field=["signature_def"])
    metadata.model_spec.name = "toy"
    status = get_model_status_pb2.GetModelStatusRequest()
    status.model_spec.name = "toy"
    reload_config = model_management_pb2.ReloadConfigRequest()
    reload_config.config.custom_model_config.SetInParent()
    messages = [
        *((f"PredictionService/{name}", request) for name, request in found),
        ("PredictionService/MultiInference", multi),
        ("PredictionService/GetModelMetadata", metadata),
        ("ModelService/GetModelStatus", status),
        ("ModelService/HandleReloadConfigRequest", reload_config),
    ]
    return [
        (f"/tensorflow.serving.{path}", message.SerializeToString()) for path, message in messages
    ]


VALID_HTTP = [
    ("POST", "/v1/models/toy:predict", {"inputs": {"x": [[1.0, 2.0]], "text": ["a"]}}),
    ("POST", "/v1/models/toy:predict", {"instances": [{"x": [1, 2], "text": {"b64": "YQ=="}}]}),
    ("POST", "/v1/models/toy/versions/1:regress",
     {"signature_name": "examples", "examples": [{"x": 0.5}]}),
    ("POST", "/v1/models/toy:classify", {"context": {"x": 1.5}, "examples": [{}]}),
    ("GET", "/v1/models/toy/metadata", None),
    ("GET", "/v1/models/toy/versions/1", None),
]  # fmt: skip


def damaged(rng: random.Random, data: bytes) -> bytes:
    """Returns the bytes with one to four random changes, or with one that keeps their number.

    Most of the former are no message any more; the latter reach what reads messages.
    """
    changed = bytearray(data)
    keeps = rng.random() < 0.5
    for _ in range(1 if keeps else rng.randint(1, 4)):
        at = rng.randrange(len(changed) + 1)
        kind = rng.choice((0, 3)) if keeps else rng.randrange(5)
        if kind == 0 and changed:
            changed[at % len(changed)] ^= 1 << rng.randrange(8)
        elif kind == 1:
            changed[at:at] = rng.randbytes(rng.randint(1, 9))
        elif kind == 2:
            del changed[at : at + rng.randint(1, 12)]
        elif kind == 3 and changed:
            changed[at % len(changed)] = rng.choice((0, 1, 0x7F, 0x80, 0xFF))
        else:
            changed[at:at] = changed[rng.randrange(len(changed) + 1) :][: rng.randint(1, 40)]
    return bytes(changed)


def fuzz_grpc(channel: grpc.Channel, rng: random.Random, requests: int) -> dict[str, int]:
    """Sends damaged messages; returns how often each code came.

    Raises:
        AssertionError: a code that no client's mistake may get.
    """
    counts: collections.Counter[str] = collections.Counter()
    messages = valid_messages()
    for _ in range(requests):
        path, message = rng.choice(messages)
        data = damaged(rng, message)
        call = channel.unary_unary(path, lambda raw: raw, lambda raw: raw)
        try:
            call(data, timeout=10)
            code = "OK"
        except grpc.RpcError as error:
            code = error.code().name
            if code == "INTERNAL" and "Exception deserializing request" in error.details():
                code = "INTERNAL (no message)"
            elif code not in CODES:
                raise AssertionError(f"{path} {data!r}: {code}: {error.details()}") from None
        counts[code] += 1
    return dict(counts)


def fuzz_http(port: int, rng: random.Random, requests: int) -> dict[str, int]:
    """Sends damaged HTTP requests; returns how often each status came.

    Raises:
        AssertionError: a status that no client's mistake may get.
    """
    counts: collections.Counter[str] = collections.Counter()
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
    for _ in range(requests):
        method, path, body = rng.choice(VALID_HTTP)
        data = b"" if body is None else json.dumps(body).encode()
        if body is None or rng.random() < 0.2:
            raw = damaged(rng, path.encode())
            path = "/" + "".join(f"%{byte:02x}" if byte < 33 or byte > 126 else chr(byte)
                                 for byte in raw.lstrip(b"/") if byte not in b"#?")  # fmt: skip
        else:
            data = damaged(rng, data)
        connection.request(method, path, data)
        response = connection.getresponse()
        answer = response.read()
        if response.status not in STATUSES:
            raise AssertionError(f"{method} {path} {data!r}: {response.status}: {answer!r}")
        counts[str(response.status)] += 1
    connection.close()
    return dict(counts)


def check_valid(channel: grpc.Channel, base_path: str) -> None:
    """Asks a valid question, after a valid configuration: a damaged one may be an empty list.

    Raises:
        AssertionError: the answer is wrong.
    """
    change = model_management_pb2.ReloadConfigRequest()
    change.config.model_config_list.config.add(
        name="toy", base_path=base_path, model_platform="tensorflow"
    )
    model_service_pb2_grpc.ModelServiceStub(channel).HandleReloadConfigRequest(change, timeout=60)
    stub = prediction_service_pb2_grpc.PredictionServiceStub(channel)
    request = predict_pb2.PredictRequest.FromString(valid_messages()[0][1])
    answer = list(stub.Predict(request, timeout=20).outputs["sum"].float_val)
    if answer != [2.0, 2.0]:
        raise AssertionError(f"a valid request got {answer}")


def resident_mib(pid: int) -> int:
    status = Path(f"/proc/{pid}/status").read_text()
    return int(status.split("VmRSS:")[1].split()[0]) // 1024


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--requests", type=int, default=100_000, help="half over each protocol")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    rng = random.Random(args.seed)
    with tempfile.TemporaryDirectory() as directory:
        save_model(Path(directory) / "toy" / "1")
        command = [sys.executable, "-c", SERVE, f"{directory}/toy"]
        with subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        ) as server:
            try:
                port, rest_port = map(int, server.stdout.readline().split())
                started = time.perf_counter()
                codes: collections.Counter[str] = collections.Counter()
                statuses: collections.Counter[str] = collections.Counter()
                memory = []
                parts = 10
                with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
                    for _ in range(parts):
                        codes.update(fuzz_grpc(channel, rng, args.requests // 2 // parts))
                        statuses.update(fuzz_http(rest_port, rng, args.requests // 2 // parts))
                        check_valid(channel, f"{directory}/toy")
                        memory.append(resident_mib(server.pid))
            finally:
                server.terminate()
            exit_code = server.wait(60)
    print(
        json.dumps(
            {
                "requests": args.requests,
                "seconds": round(time.perf_counter() - started, 1),
                "grpc": dict(codes.most_common()),
                "rest": dict(statuses.most_common()),
                "resident_mib": memory,
                "exit_code": exit_code,
                "seed": args.seed,
            },
            indent=1,
        )
    )


if __name__ == "__main__":
    main()
