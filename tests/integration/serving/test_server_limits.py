"""A server within small limits: connections, heads, bodies, messages, tensors, time, the end."""

import dataclasses
import http.client
import json
import logging
import socket
import threading
import time
import urllib.error
import urllib.request

import grpc
import numpy as np
import pytest
import tensorflow as tf
from grpc_health.v1 import health_pb2, health_pb2_grpc
from tensorflow_serving.apis import predict_pb2, prediction_service_pb2_grpc
from toy_models import repeated

from tfde.serving.application.search_service import SearchService
from tfde.serving.server.limits import Limits
from tfde.serving.server.metrics import Metrics
from tfde.serving.server.model_manager import ModelManager
from tfde.serving.server.model_server import ModelServer
from tfde.serving.server.options import ServerOptions
from tfde.serving.server.service import InferenceService
from tfde.serving.server.status import StatusError
from tfde.serving.server.versions import model_config, server_config

CONNECTIONS = 8
LIMITS = Limits(
    max_request_bytes=100_000,
    max_texts=100,
    max_text_bytes=1000,
    max_connections=CONNECTIONS,
    head_timeout_s=1,
    body_timeout_s=2,
    stalled_after_s=1,
    drain_timeout_s=1,
)
PATH = "/v1/models/toy:predict"


def started(toy_base_path, limits=LIMITS, **options):
    models = server_config(model_config("toy", toy_base_path))
    server = ModelServer(models, ServerOptions(port=0, **options), limits=limits, rest_api_port=0)
    server.start()
    return server


@pytest.fixture(scope="module")
def server(toy_base_path):
    server = started(toy_base_path, grpc_max_threads=4, enable_grpc_healthcheck_service=True)
    yield server
    assert server.stop()


def rest(server, body):
    url = f"http://127.0.0.1:{server.rest_api_port}{PATH}"
    with urllib.request.urlopen(url, json.dumps(body).encode(), timeout=30) as response:
        return json.load(response)


def predict(server, proto, name="x", signature="", *, timeout=30):
    request = predict_pb2.PredictRequest()
    request.model_spec.name = "toy"
    request.model_spec.signature_name = signature
    if proto is not None:
        request.inputs[name].CopyFrom(proto)
    with grpc.insecure_channel(f"127.0.0.1:{server.port}") as channel:
        stub = prediction_service_pb2_grpc.PredictionServiceStub(channel)
        return list(stub.Predict(request, timeout=timeout).outputs["y"].float_val)


ONE = tf.make_tensor_proto([1.0])


def closed_after(opened, timeout_s=20):
    """Seconds until the server has closed a connection."""
    begun = time.monotonic()
    opened.settimeout(timeout_s)
    try:
        while opened.recv(4096):
            pass
    except ConnectionResetError:
        pass
    return time.monotonic() - begun


def test_idle_connections_keep_nobody_out(server):
    for port in (server.rest_api_port, server.port):
        opened = [socket.create_connection(("127.0.0.1", port)) for _ in range(3 * CONNECTIONS)]
        assert rest(server, {"instances": [1.0]}) == {"predictions": [10.0]}
        for one in opened:
            closed_after(one)
            one.close()
        assert predict(server, ONE) == [10.0]


def test_a_connection_is_kept_between_requests(server):
    connection = http.client.HTTPConnection("127.0.0.1", server.rest_api_port, timeout=30)
    body = json.dumps({"instances": [1.0]})
    for _ in range(2):
        connection.request("POST", PATH, body)
        assert json.load(connection.getresponse()) == {"predictions": [10.0]}
        opened = connection.sock
        time.sleep(1.5 * LIMITS.head_timeout_s)  # no head has begun
    connection.request("POST", PATH, body)
    assert json.load(connection.getresponse()) == {"predictions": [10.0]}
    assert connection.sock is opened
    opened.sendall(b"POST ")  # one that has begun must come in its time
    assert closed_after(opened) < 10 * LIMITS.head_timeout_s


def test_a_slow_head_is_given_up(server):
    def dribble(one):
        for byte in b"POST " + PATH.encode() + b" HTTP/1.1\r\nHost: localhost\r\n" * 9:
            one.sendall(bytes([byte]))
            time.sleep(0.1)

    begun = time.monotonic()
    with (
        socket.create_connection(("127.0.0.1", server.rest_api_port)) as one,
        pytest.raises(ConnectionError),
    ):
        dribble(one)
    assert time.monotonic() - begun < 10


def test_a_slow_body_is_given_up(server):
    with socket.create_connection(("127.0.0.1", server.rest_api_port)) as one:
        one.sendall(f"POST {PATH} HTTP/1.1\r\nHost: x\r\nContent-Length: 99\r\n\r\n{{".encode())
        one.settimeout(20)
        answer = b""
        while b"timeout_s" not in answer and (
            part := one.recv(4096)
        ):  # head and body, perhaps apart
            answer += part
    assert answer.startswith(b"HTTP/1.1 408 ")
    assert b"the body must come within 2 s (--body_timeout_s)" in answer


def in_chunks(server, chunks, more=""):
    """The whole answer to a body that is sent chunk by chunk."""
    with socket.create_connection(("127.0.0.1", server.rest_api_port)) as one:
        one.settimeout(20)
        head = f"POST {PATH} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n{more}"
        one.sendall(f"{head}Transfer-Encoding: chunked\r\n\r\n".encode())
        one.sendall(b"".join(b"%x\r\n%s\r\n" % (len(chunk), chunk) for chunk in chunks))
        answer = b""
        while part := one.recv(4096):
            answer += part
    return answer


def test_a_body_of_very_many_chunks_is_refused(server):
    body = b'{"instances": [1.0]}'
    end = [b""]
    assert in_chunks(server, [bytes([byte]) for byte in body] + end).startswith(b"HTTP/1.1 200 ")
    assert b"[10.0" in in_chunks(server, [b" " * 64] * 1200 + [body] + end).replace(b"\n", b"")
    answer = in_chunks(server, [b" "] * 1001)
    assert answer.startswith(b"HTTP/1.1 400 ")
    assert b"at least 64 bytes on average. Received: 1001 chunks of 1001 bytes" in answer


def test_a_body_of_two_lengths_is_refused(server):
    """RFC 9112, 6.1: a proxy before the server may have gone by the other."""
    chunks = [b'{"instances": [1.0]}', b""]
    answer = in_chunks(server, chunks, "Content-Length: 3\r\n")
    assert answer.startswith(b"HTTP/1.1 400 ")
    assert b"connection: close" in answer.lower()
    assert b"a Content-Length or a Transfer-Encoding, not both" in answer


def test_an_upgrade_that_is_not_to_be_had_is_no_warning(server, caplog):
    head = "Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABk\r\n"
    logging.getLogger("uvicorn.error").addHandler(caplog.handler)
    try:
        answer = in_chunks(server, [b'{"instances": [1.0]}', b""], head)
    finally:
        logging.getLogger("uvicorn.error").removeHandler(caplog.handler)
    assert answer.startswith(b"HTTP/1.1 200 ")
    assert "upgrade" not in caplog.text.lower()


@pytest.mark.parametrize(
    "path",
    [
        "/tensorflow.serving.PredictionService/Predict",
        "/grpc.health.v1.Health/Check",
        "/grpc.health.v1.Health/Watch",
    ],
)
def test_a_message_that_never_comes_is_given_up(server, path):
    over = threading.Event()

    def nothing():
        over.wait(30)
        yield from ()

    with grpc.insecure_channel(f"127.0.0.1:{server.port}") as channel:
        method = channel.stream_unary(path)
        calls = [method.future(nothing(), timeout=25) for _ in range(8)]  # of 4 threads
        begun = time.monotonic()
        assert predict(server, ONE) == [10.0]
        assert time.monotonic() - begun < 15
        assert {call.code() for call in calls} == {grpc.StatusCode.CANCELLED}
        over.set()


def test_who_watches_keeps_no_server_from_its_end(toy_base_path):
    """A client that checks health by itself, as proxies do, holds such a stream for ever."""
    limits = dataclasses.replace(LIMITS, drain_timeout_s=60)
    model_server = started(toy_base_path, limits, enable_grpc_healthcheck_service=True)
    with grpc.insecure_channel(f"127.0.0.1:{model_server.port}") as channel:
        answers = health_pb2_grpc.HealthStub(channel).Watch(health_pb2.HealthCheckRequest())
        assert next(answers).status == health_pb2.HealthCheckResponse.SERVING
        begun = time.monotonic()
        assert model_server.stop()
        assert time.monotonic() - begun < 30  # of the 60 that requests get
        assert [a.status for a in answers] == [health_pb2.HealthCheckResponse.NOT_SERVING]


def test_health_is_told_and_watched(server):
    """By gRPC's own client; a watcher holds no thread."""
    request = health_pb2.HealthCheckRequest(service="PredictionService")
    with grpc.insecure_channel(f"127.0.0.1:{server.port}") as channel:
        stub = health_pb2_grpc.HealthStub(channel)
        watched = [stub.Watch(request, timeout=20) for _ in range(6)]  # of 4 threads
        assert {next(answers).status for answers in watched} == {1}
        assert stub.Check(request).status == 1
        assert predict(server, ONE) == [10.0]
        for answers in watched:
            answers.cancel()
        with pytest.raises(grpc.RpcError) as refused:
            stub.Check(health_pb2.HealthCheckRequest(service="nobody"))
        assert refused.value.code() == grpc.StatusCode.NOT_FOUND


@pytest.mark.parametrize(
    ("proto", "name", "rule"),
    [
        (repeated([1.0], 16_000_000), "x", "at most 100000 bytes as tensors"),
        (repeated(["red"], 16_000_000), "text", "at most 100000 bytes as tensors"),
        (tf.make_tensor_proto(["red"] * 101), "text", r"`text` must have at most 100 strings"),
        (tf.make_tensor_proto(["x" * 1001]), "text", r"`text.0` must have at most 1000 bytes"),
    ],
    ids=["numbers", "strings", "many", "long"],
)
def test_tensors_are_bounded(server, proto, name, rule):
    with pytest.raises(grpc.RpcError, match=rule) as refused:
        predict(server, proto, name)
    assert refused.value.code() == grpc.StatusCode.INVALID_ARGUMENT


def test_messages_are_bounded_packed_and_unpacked(server):
    content = tf.make_tensor_proto(np.zeros(30_000, np.float32))  # 120,000 bytes
    for compression in (grpc.Compression.NoCompression, grpc.Compression.Gzip):
        request = predict_pb2.PredictRequest()
        request.model_spec.name = "toy"
        request.inputs["x"].CopyFrom(content)
        with grpc.insecure_channel(f"127.0.0.1:{server.port}") as channel:
            stub = prediction_service_pb2_grpc.PredictionServiceStub(channel)
            with pytest.raises(grpc.RpcError) as refused:
                stub.Predict(request, timeout=30, compression=compression)
        assert refused.value.code() == grpc.StatusCode.RESOURCE_EXHAUSTED


def test_strings_over_rest_are_bounded(server):
    inputs = {"text": ["x" * 1001], "count": [1]}
    with pytest.raises(urllib.error.HTTPError) as refused:
        rest(server, {"signature_name": "two", "inputs": inputs})
    assert refused.value.code == 400
    assert "`text.0` must have at most 1000 bytes" in json.load(refused.value)["error"]


def test_a_server_that_does_not_get_on_is_not_ready(server):
    service = SearchService(server.service, "toy")
    assert service.state() == "ready"
    (runner,) = server.manager._runners()
    with runner.progress.run():
        assert service.state() == "ready"
        time.sleep(1.1)
        assert service.state() == "stalled"
    assert service.state() == "ready"


def test_without_a_model_it_says_what_is_missing_and_how_to_make_it(server):
    service = SearchService(server.service, "retriever")
    with pytest.raises(StatusError, match=r"no retriever is served.*tfde export.*--embeddings"):
        service.search(["a question"], 3)
    with pytest.raises(StatusError, match="query_encoder is not served; tfde serve --models"):
        service.embed(["a question"])


def test_while_models_load_it_says_so():
    service = SearchService(InferenceService(ModelManager(), Metrics()), "retriever")
    with pytest.raises(StatusError, match="the models are still loading; /readyz") as refused:
        service.search(["a question"], 3)
    assert refused.value.code is grpc.StatusCode.UNAVAILABLE


def test_while_what_an_answer_needs_loads_it_says_so(toy_base_path, tmp_path):
    models = {"toy": toy_base_path, "documents": tmp_path}  # where nothing is yet
    config = server_config(*(model_config(name, path) for name, path in models.items()))
    manager = ModelManager()
    manager.apply(config, wait=["toy"], timeout_s=60)
    inference = InferenceService(manager, Metrics())
    with pytest.raises(StatusError, match="the models are still loading; /readyz") as refused:
        SearchService(inference, "toy").search(["a question"], 3)
    assert refused.value.code is grpc.StatusCode.UNAVAILABLE
    with pytest.raises(StatusError, match=r"no retriever is served"):  # and none will be
        SearchService(inference, "retriever").search(["a question"], 3)
    manager.close()


def test_the_end_comes_in_its_time(toy_base_path):
    server = started(toy_base_path)
    proto = tf.make_tensor_proto(np.array([2_000], np.int32))
    failures = []

    def ask():
        try:
            predict(server, proto, "steps", "slow", timeout=60)
        except grpc.RpcError as error:
            failures.append(error.code())

    thread = threading.Thread(target=ask)
    thread.start()
    while not server.manager.runs():
        time.sleep(0.01)
    begun = time.monotonic()
    ended = server.stop()
    assert time.monotonic() - begun < 8
    thread.join()
    assert ended == (not failures)
    while server.manager.runs():  # its thread has no end before the model's
        time.sleep(0.05)
    server.manager.close()
