"""How a server begins and ends: ports, faulty configurations, SIGTERM with a request running."""

import concurrent.futures
import http.client
import json
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request

import grpc
import numpy as np
import pytest
import tensorflow as tf
from tensorflow_serving.apis import predict_pb2, prediction_service_pb2_grpc

from tfde.errors import ServerError
from tfde.serving.server.http_thread import HttpThread
from tfde.serving.server.model_server import ModelServer
from tfde.serving.server.options import ServerOptions
from tfde.serving.server.versions import model_config, server_config


def slow_request(steps):
    request = predict_pb2.PredictRequest()
    request.model_spec.name = "toy"
    request.model_spec.signature_name = "slow"
    request.inputs["steps"].CopyFrom(tf.make_tensor_proto(np.array([steps], np.int32)))
    return request


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_signal_drains(start_server, toy_config, number):
    if signal.getsignal(number) == signal.SIG_IGN:  # as under `nohup`, which a server inherits
        signal.signal(number, signal.SIG_DFL)
    server = start_server(toy_config)
    channel = grpc.insecure_channel(server.target)
    stub = prediction_service_pb2_grpc.PredictionServiceStub(channel)
    stub.Predict(slow_request(1), timeout=60)  # connecting must not count as steps
    started = time.monotonic()
    stub.Predict(slow_request(50), timeout=60)  # how long does a step take here?
    steps = int(50 * 1.0 / (time.monotonic() - started)) + 50

    def rest():
        body = json.dumps({"signature_name": "slow", "instances": [2 * steps]}).encode()
        connection = http.client.HTTPConnection(server.url.removeprefix("http://"), timeout=60)
        connection.request("POST", "/v1/models/toy:predict", body)
        response = connection.getresponse()
        response.read()
        return response.status, response.headers["connection"]

    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        running = stub.Predict.future(slow_request(3 * steps), timeout=60)
        over_rest = pool.submit(rest)
        time.sleep(0.6)
        server.process.send_signal(number)
        time.sleep(0.3)
        assert not running.done()
        assert server.process.poll() is None
        late = prediction_service_pb2_grpc.PredictionServiceStub(
            grpc.insecure_channel(server.target)
        )
        with pytest.raises(grpc.RpcError) as refused:
            late.Predict(slow_request(1), timeout=20)
        assert refused.value.code() == grpc.StatusCode.UNAVAILABLE
        with pytest.raises(urllib.error.URLError):
            urllib.request.urlopen(server.url + "/v1/models/toy", timeout=5)
        assert len(running.result().outputs["sum"].float_val) == 1
        assert over_rest.result() == (200, "close")  # the client must not ask here again
    assert server.process.wait(20) == 0


def test_clients_that_keep_their_connection_lose_nothing(start_server, toy_config):
    server = start_server(toy_config)
    body = json.dumps({"signature_name": "slow", "instances": [1]}).encode()

    def ask_until_told(number):
        connection = http.client.HTTPConnection(server.url.removeprefix("http://"), timeout=30)
        for answered in range(1, 100_000):
            connection.request("POST", "/v1/models/toy:predict", body)
            response = connection.getresponse()
            response.read()
            assert response.status == 200
            if response.headers["connection"] == "close":
                return answered
            time.sleep(0.01 * number)  # some of them wait when the signal comes

    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        clients = [pool.submit(ask_until_told, number) for number in range(8)]
        time.sleep(1)
        server.process.send_signal(signal.SIGTERM)
        assert all(client.result() > 1 for client in clients)
    assert server.process.wait(20) == 0


def test_a_taken_port_is_an_error(toy_base_path):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        models = server_config(model_config("toy", toy_base_path))
        with pytest.raises(OSError, match=rf"cannot listen on 127.0.0.1:{port} \(gRPC\)"):
            ModelServer(models, ServerOptions(port=port)).start()
        with pytest.raises(OSError, match=rf"cannot listen on 127.0.0.1:{port} \(REST\)"):
            ModelServer(models, ServerOptions(port=0), rest_api_port=port).start()


def test_http_that_cannot_start_is_an_error():
    thread = HttpThread("REST", "127.0.0.1", 0)
    thread._listener.close()
    with pytest.raises(ServerError, match=rf"must start on 127.0.0.1:{thread.port}\."):
        thread.start(None)


def test_ipv6_takes_ipv4_too():
    thread = HttpThread("REST", "::", 0)

    async def app(scope, receive, send):
        await send({"type": "http.response.start", "status": 204})
        await send({"type": "http.response.body"})

    thread.start(app)
    for host in ("[::1]", "127.0.0.1"):
        with urllib.request.urlopen(f"http://{host}:{thread.port}/", timeout=10) as response:
            assert response.status == 204
    thread.refuse()
    thread.join(10)


def test_nobody_connects_before_the_models_are_there(toy_base_path, tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as one, socket.create_server(("", 0)) as two:
        ports = port, rest_port = one.getsockname()[1], two.getsockname()[1]
    models = server_config(model_config("toy", tmp_path / "toy"))
    options = ServerOptions(port=port, file_system_poll_wait_seconds=1)
    server = ModelServer(models, options, rest_api_port=rest_port)
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        starting = pool.submit(server.start)
        while not server.manager.knows("toy"):
            time.sleep(0.01)
        try:
            for number in ports:
                with pytest.raises(ConnectionRefusedError):
                    socket.create_connection(("127.0.0.1", number), timeout=5)
            assert not starting.done()
        finally:
            shutil.copytree(toy_base_path, tmp_path / ".toy")
            (tmp_path / ".toy").rename(tmp_path / "toy")
        starting.result(60)
    assert (server.port, server.rest_api_port) == ports
    for number in ports:
        socket.create_connection(("127.0.0.1", number), timeout=5).close()
    server.stop()


def test_no_time_limit(toy_base_path):
    models = server_config(model_config("toy", toy_base_path))
    options = ServerOptions(port=0, rest_api_timeout_in_ms=0)
    server = ModelServer(models, options, rest_api_port=0)
    server.start()
    body = json.dumps({"signature_name": "slow", "instances": [100]}).encode()
    url = f"http://127.0.0.1:{server.rest_api_port}/v1/models/toy:predict"
    with urllib.request.urlopen(url, body, timeout=60) as response:
        assert response.status == 200
    server.stop()


def test_start_and_stop_in_this_process(toy_base_path):
    models = server_config(model_config("toy", toy_base_path))
    server = ModelServer(models, ServerOptions(port=0))
    server.start()
    with grpc.insecure_channel(f"127.0.0.1:{server.port}") as channel:
        stub = prediction_service_pb2_grpc.PredictionServiceStub(channel)
        assert stub.Predict(slow_request(1), timeout=20).model_spec.version.value == 10
    server.stop()


def test_a_signal_that_wakes_nobody_stops_it_all_the_same():
    # As one that comes when the main thread is about to sleep: Python notes it, but that thread
    # sleeps on. Here another thread takes it, surely.
    program = (
        "import signal, threading, time\n"
        "from tfde.serving.server.model_server import asked_to_stop\n"
        "def send():\n"
        "    time.sleep(0.3)\n"
        "    signal.pthread_kill(threading.get_ident(), signal.SIGTERM)\n"
        "    time.sleep(60)\n"
        "with asked_to_stop() as asked:\n"
        "    threading.Thread(target=send, daemon=True).start()\n"
        "    asked.wait()\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=50)


def test_a_signal_at_any_moment_of_the_wait_stops_it():
    # The handler runs within the wait, and must not want what that holds.
    program = (
        "import os, signal, threading\n"
        "from tfde.serving.server import model_server\n"
        "model_server._LOOKS_EVERY_S = 0\n"
        "for moment in range(100):\n"
        "    with model_server.asked_to_stop() as asked:\n"
        "        kill = (os.getpid(), signal.SIGTERM)\n"
        "        threading.Timer(0.01 + moment * 1e-5, os.kill, kill).start()\n"
        "        asked.wait()\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=100)
