"""`tfde-model-server` started as tensorflow_model_server is: flags, files, TLS, metrics, errors."""

import json
import re
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path

import grpc
import numpy as np
import pytest
import tensorflow as tf
from google.protobuf import text_format
from grpc_health.v1 import health_pb2, health_pb2_grpc
from tensorflow_serving.apis import (
    get_model_status_pb2,
    model_management_pb2,
    model_service_pb2_grpc,
    predict_pb2,
    prediction_log_pb2,
    prediction_service_pb2_grpc,
)
from tensorflow_serving.config.model_server_config_pb2 import ModelServerConfig
from toy_models import save_toy

from tfde.cli.main import main as query
from tfde.cli.model_server import build_parser, main
from tfde.protos.ssl_config_pb2 import SSLConfig
from tfde.serving.client import Client
from tfde.serving.server.model_server import ModelServer
from tfde.serving.server.options import ServerOptions
from tfde.serving.server.status import StatusError
from tfde.serving.server.versions import model_config, server_config


def free_port():
    with socket.create_server(("127.0.0.1", 0)) as server:
        return server.getsockname()[1]


class Command:
    """The command in a process of its own, listening when the object is made."""

    def __init__(self, *flags):
        self.port, self.rest_port = free_port(), free_port()
        self.process = subprocess.Popen(
            [
                sys.executable,
                "-m",
                "tfde.cli.model_server",
                f"--port={self.port}",
                "--rest_api_port",
                str(self.rest_port),
                *map(str, flags),
            ],
            stderr=subprocess.PIPE,
            text=True,
        )
        self.log = []
        for line in self.process.stderr:
            self.log.append(line)
            if "Exporting HTTP/REST API at:" in line:
                break
        assert self.process.poll() is None, self.log
        self.target = f"127.0.0.1:{self.port}"

    def get(self, path, body=None):
        url = f"http://127.0.0.1:{self.rest_port}{path}"
        data = None if body is None else json.dumps(body).encode()
        try:
            with urllib.request.urlopen(urllib.request.Request(url, data), timeout=20) as response:
                return response.status, response.read().decode(), response.headers
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode(), error.headers


@pytest.fixture
def start():
    started = []

    def start(*flags):
        started.append(Command(*flags))
        return started[-1]

    yield start
    for command in started:
        command.process.kill()
        command.process.communicate()


def predict_request(value=3.0, model="default"):
    request = predict_pb2.PredictRequest()
    request.model_spec.name = model
    request.inputs["x"].CopyFrom(tf.make_tensor_proto(np.array([value], np.float32)))
    return request


def predict(channel, **options):
    stub = prediction_service_pb2_grpc.PredictionServiceStub(channel)
    return stub.Predict(predict_request(**options), timeout=20).outputs["y"].float_val[0]


def available(channel, model):
    request = get_model_status_pb2.GetModelStatusRequest()
    request.model_spec.name = model
    models = model_service_pb2_grpc.ModelServiceStub(channel)
    try:
        status = models.GetModelStatus(request, timeout=20).model_version_status
    except grpc.RpcError:
        return False
    return [version.state for version in status] == [30]


def write_warmup(directory, requests):
    path = directory / "assets.extra" / "tf_serving_warmup_requests"
    path.parent.mkdir()
    with tf.io.TFRecordWriter(str(path)) as writer:
        for request in requests:
            log = predict_request() if isinstance(request, float) else request
            if not isinstance(log, bytes):
                log = prediction_log_pb2.PredictionLog(
                    predict_log=prediction_log_pb2.PredictLog(request=log)
                ).SerializeToString()
            writer.write(log)


def test_one_model_with_everything(start, tmp_path):
    base = tmp_path / "toy"
    save_toy(base / "1", 2.0)
    write_warmup(base / "1", [1.0, 2.0])
    monitoring = tmp_path / "monitoring.config"
    monitoring.write_text('prometheus_config { enable: true, path: "/metrics" }')
    unix = tmp_path / "grpc.sock"
    command = start(
        f"--model_base_path={base}",
        "--model_name=toy",
        "--enable_batching=false",
        "--enable_grpc_healthcheck_service",
        "--rest_api_enable_cors_support=true",
        f"--monitoring_config_file={monitoring}",
        f"--grpc_socket_path={unix}",
        "--grpc_channel_arguments=grpc.max_connection_age_ms=600000",
        "--flush_filesystem_caches=true",
        "--grpc_max_threads=1",
        f"--reload_base_paths={tmp_path}",
    )
    assert f"Running gRPC ModelServer at 0.0.0.0:{command.port} ..." in "".join(command.log)
    for target in (command.target, f"unix:{unix}"):
        with grpc.insecure_channel(target) as channel:
            assert predict(channel, model="toy") == 6.0
            for service in ("ModelService", "PredictionService"):
                request = health_pb2.HealthCheckRequest(service=service)
                answer = health_pb2_grpc.HealthStub(channel).Check(request, timeout=20)
                assert answer.status == health_pb2.HealthCheckResponse.SERVING
    status, body, headers = command.get("/v1/models/toy:predict", {"instances": [1.5]})
    assert (status, json.loads(body)) == (200, {"predictions": [3.0]})
    assert headers["Access-Control-Allow-Origin"] == "*"
    assert command.get("/v1/models/%2e%2e%2ftoy:predict", {"instances": [1.5]})[0] == 404
    assert command.get("/v1/models/none:predict", {"instances": [1.5]})[0] == 404

    status, text, headers = command.get("/metrics")
    assert (status, headers["Content-Type"]) == (200, "text/plain")
    assert "# TYPE :tensorflow:serving:request_count counter" in text
    assert ':tensorflow:serving:request_count{model_name="toy",status="OK"} 3\n' in text
    # Names that clients made up are no labels.
    assert ':tensorflow:serving:request_count{model_name="",status="NOT_FOUND"} 2\n' in text
    latency = ":tensorflow:serving:request_latency"
    labels = 'model_name="toy",API="Predict",entrypoint="GRPC"'
    counts = re.findall(rf'{latency}_bucket{{{labels},le="([^"]+)"}} (\d+)', text)
    assert len(counts) == 34
    assert [bound for bound, _ in counts[:3]] == ["10", "18", "32.4"]
    assert counts[-1] == ("+Inf", "2")
    assert f'{latency}_count{{model_name="toy",API="predict",entrypoint="REST"}} 1\n' in text
    assert ':tensorflow:serving:runtime_latency_count{model_name="toy",API="Predict",' in text
    loads = f':tensorflow:cc:saved_model:load_attempt_count{{model_path="{base}/1"'
    assert f'{loads},status="success"}} 1\n' in text
    with grpc.insecure_channel(command.target) as channel:
        check_that_reloads_hold_no_thread(channel, base)


def check_that_reloads_hold_no_thread(channel, base):
    models = model_service_pb2_grpc.ModelServiceStub(channel)
    request = model_management_pb2.ReloadConfigRequest()
    for name, path in (("toy", str(base)), ("m", "/etc")):
        request.config.model_config_list.config.add(
            name=name, base_path=path, model_platform="tensorflow"
        )
    with pytest.raises(grpc.RpcError) as caught:
        models.HandleReloadConfigRequest(request, timeout=20)
    assert caught.value.code() is grpc.StatusCode.PERMISSION_DENIED
    # The one thread of the server comes back when the client of a model that never comes has gone.
    request.config.model_config_list.config[1].base_path = f"{base}/none"
    waiting = models.HandleReloadConfigRequest.future(request)
    time.sleep(0.5)
    assert not waiting.done()
    waiting.cancel()
    assert predict(channel, model="toy") == 6.0


def test_a_configuration_file_is_read_again_and_versions_are_found(start, tmp_path):
    for name, factor in (("a", 2.0), ("b", 5.0)):
        save_toy(tmp_path / name / "1", factor)
    path = tmp_path / "models.config"

    def config(*names):
        message = ModelServerConfig()
        for name in names:
            message.model_config_list.config.add(
                name=name, base_path=str(tmp_path / name), model_platform="tensorflow"
            )
        return message

    path.write_text(text_format.MessageToString(config("a")))
    command = start(
        f"--model_config_file={path}",
        "--model_config_file_poll_wait_seconds=1",
        "--file_system_poll_wait_seconds=1",
    )
    with grpc.insecure_channel(command.target) as channel:
        assert predict(channel, model="a") == 6.0
        path.write_text("nonsense")  # the server says so and goes on with what it had
        time.sleep(1.5)
        assert predict(channel, model="a") == 6.0
        path.write_text(text_format.MessageToString(config("a", "b")))
        save_toy(tmp_path / "a" / ".2", 3.0)
        (tmp_path / "a" / ".2").rename(tmp_path / "a" / "2")
        deadline = time.monotonic() + 30
        while predict(channel, model="a") != 9.0 or not available(channel, "b"):
            assert time.monotonic() < deadline
            time.sleep(0.1)
        assert predict(channel, model="b") == 15.0
        models = model_service_pb2_grpc.ModelServiceStub(channel)
        request = model_management_pb2.ReloadConfigRequest()
        with pytest.raises(grpc.RpcError) as caught:
            models.HandleReloadConfigRequest(request, timeout=20)
        assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT


@pytest.fixture(scope="module")
def certificates(tmp_path_factory):
    """A key and a certificate for localhost that signs itself."""
    folder = tmp_path_factory.mktemp("tls")
    command = "openssl req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=localhost"
    files = "-addext subjectAltName=DNS:localhost -keyout key.pem -out cert.pem"
    subprocess.run(
        f"{command} {files}".split(),
        cwd=folder,
        check=True,
        capture_output=True,
    )
    return (folder / "key.pem").read_text(), (folder / "cert.pem").read_text()


@pytest.mark.parametrize("mutual", [False, True])
def test_tls(start, toy_base_path, tmp_path, certificates, capsys, mutual):
    key, cert = certificates
    config = SSLConfig(server_key=key, server_cert=cert, client_verify=mutual)
    if mutual:
        config.custom_ca = cert
    path = tmp_path / "ssl.config"
    path.write_text(text_format.MessageToString(config))
    command = start(f"--model_base_path={toy_base_path}", f"--ssl_config_file={path}")
    target = f"localhost:{command.port}"
    known = grpc.ssl_channel_credentials(cert.encode(), key.encode(), cert.encode())
    unknown = grpc.ssl_channel_credentials(cert.encode())
    with grpc.secure_channel(target, known) as channel:
        assert predict(channel) == 30.0
    with grpc.secure_channel(target, unknown) as channel:
        if mutual:
            with pytest.raises(grpc.RpcError):
                predict(channel)
        else:
            assert predict(channel) == 30.0
    with grpc.insecure_channel(target) as channel, pytest.raises(grpc.RpcError):
        predict(channel)
    with Client(target, model="default", credentials=known) as client:
        assert "AVAILABLE" in client.status().values()
    assert query(["query", "--target", target, "--model", "default", "hamlet"]) == 1
    assert "; TLS is spoken there: --tls_ca FILE" in capsys.readouterr().err
    (tmp_path / "cert").write_text(cert)
    (tmp_path / "key").write_text(key)
    files = ["--tls_ca", tmp_path / "cert", "--tls_cert", tmp_path / "cert"]
    question = ["query", "--target", target, "--model", "default", "hamlet", *map(str, files)]
    assert query(question) == 1
    assert "`--tls_cert` and `--tls_key` must be given together" in capsys.readouterr().err
    # The toy model is no retriever: that it says so comes over TLS.
    assert query([*question, "--tls_key", str(tmp_path / "key")]) == 1
    assert "INVALID_ARGUMENT" in capsys.readouterr().err


def failure(capfd, *flags):
    assert main(["--port=0", *map(str, flags)]) == 255
    out, error = capfd.readouterr()
    assert out == ""
    lines = [line for line in error.splitlines() if line.startswith("Failed to start server")]
    assert len(lines) == 1
    return lines[0].removeprefix("Failed to start server. Error: ")


def test_what_cannot_start(capfd, toy_base_path, tmp_path):
    base = f"--model_base_path={toy_base_path}"
    bad = tmp_path / "bad"
    bad.write_text("nonsense {")
    assert failure(capfd).startswith("INVALID_ARGUMENT: Both server_options.model_base_path and")
    assert failure(capfd, f"--model_config_file={bad}") == (
        f"INVALID_ARGUMENT: --model_config_file: Invalid protobuf file: '{bad}': Error parsing"
        " text-format"
        " tensorflow.serving.ModelServerConfig: 1:1: Message type"
        ' "tensorflow.serving.ModelServerConfig" has no field named "nonsense".'
    )
    missing = tmp_path / "missing"
    message = failure(capfd, f"--model_config_file={missing}")
    assert message.startswith(f"NOT_FOUND: --model_config_file: {missing}")
    twice = tmp_path / "twice"
    models = "config { name: 'a' base_path: '/a' model_platform: 'tensorflow' } " * 2
    twice.write_text(f"model_config_list {{ {models} }}")
    message = failure(capfd, f"--model_config_file={twice}")
    assert message.startswith(f"INVALID_ARGUMENT: --model_config_file {twice}: Illegal to list mod")
    assert failure(capfd, base, f"--batching_parameters_file={bad}").startswith(
        "INVALID_ARGUMENT: server_options.batching_parameters_file is set without setting"
    )
    flags = (base, "--enable_batching", f"--batching_parameters_file={bad}")
    rule = "INVALID_ARGUMENT: --batching_parameters_file"
    assert failure(capfd, *flags).startswith(f"{rule}: Invalid protobuf file: '{bad}'")
    for name in ("monitoring_config_file", "tensorflow_session_config_file", "ssl_config_file"):
        message = failure(capfd, base, f"--{name}={bad}")
        assert message.startswith(f"INVALID_ARGUMENT: --{name}: Invalid protobuf file: '{bad}'")
    bad.write_text("num_batch_threads { value: 0 }")
    message = failure(capfd, *flags)
    assert message == f"{rule} {bad}: num_batch_threads must be positive; was 0"
    bad.write_text('server_key: "/etc/key.pem" server_cert: "x"')
    message = failure(capfd, base, f"--ssl_config_file={bad}")
    rule = f"{bad}: `server_key` must hold PEM, not the name of a file"
    assert message == f"INVALID_ARGUMENT: --ssl_config_file: {rule}"
    assert failure(capfd, base, "--grpc_channel_arguments=x").startswith(
        "INVALID_ARGUMENT: grpc_channel_arguments must be NAME=VALUE,...; got x"
    )
    message = failure(capfd, base, "--platform_config_file=x")
    assert message == "INVALID_ARGUMENT: this server has no --platform_config_file"
    for flag, rule in (
        ("--port=65536", "--port must be in [0, 65535]. Received: 65536"),
        ("--rest_api_port=-1", "--rest_api_port must be in [0, 65535]. Received: -1"),
        ("--num_load_threads=-1", "--num_load_threads must be 0 or more. Received: -1"),
        ("--grpc_max_threads=-2", "--grpc_max_threads must be 0 or more. Received: -2"),
        ("--engine=onnx", "--engine must be one of auto, openvino, onnxruntime. Received: onnx"),
        ("--grpc_channel_arguments=a=9999999999", "grpc_channel_arguments must be of 32 bits; got"),
    ):
        assert failure(capfd, base, flag).startswith(f"INVALID_ARGUMENT: {rule}")
    message = failure(capfd, base, "--port=7001", "--rest_api_port=7001")
    assert message.startswith("INVALID_ARGUMENT: --rest_api_port cannot be same as --port.")
    with socket.create_server(("0.0.0.0", 0)) as taken:
        port = taken.getsockname()[1]
        assert f"cannot listen on 0.0.0.0:{port}" in failure(capfd, base, f"--port={port}")
    relative = failure(capfd, "--model_base_path=toy")
    assert relative.startswith("INVALID_ARGUMENT: Expected model default to have an absolute path")
    (tmp_path / "m" / "1").mkdir(parents=True)
    broken = failure(capfd, f"--model_base_path={tmp_path / 'm'}", "--max_num_load_retries=0")
    assert broken.startswith(
        "UNKNOWN: 1 servable(s) did not become available: {{{name: default version: 1} due to"
        " error: NOT_FOUND: "
    )


def test_a_file_that_is_read_again_and_wrong_is_named_by_its_flag(tmp_path, toy_base_path):
    path = tmp_path / "models.config"
    config = server_config(model_config("toy", toy_base_path))
    server = ModelServer(config, ServerOptions(model_config_file=str(path)))
    rule = "--model_config_file: Invalid protobuf file: "
    for text, message in (
        ("nonsense {", rule),
        ("model_config_list { config { } }", f"--model_config_file {path}: Expected every model"),
    ):
        path.write_text(text)
        with pytest.raises(StatusError, match=f"^{re.escape(message)}"):
            server._reload(str(path))
    path.unlink()
    with pytest.raises(StatusError, match=f"^--model_config_file: {path}"):
        server._reload(str(path))


@pytest.mark.parametrize("flag", ["--unknown_flag=1", "--enable_batching=maybe", "--por=1"])
def test_a_wrong_flag_is_an_error(flag, capsys):
    with pytest.raises(SystemExit) as caught:
        main([flag])
    assert caught.value.code == 255
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("Failed to start server. Error: INVALID_ARGUMENT: ")
    assert flag.split("=")[0] in line


@pytest.mark.parametrize(
    ("requests", "message"),
    [
        ([predict_request(model="other")] * 1001, "Number of warmup records exceeds the maximum"),
        ([b"\xff\xff\xff"], "Failed to parse warmup record"),
        (
            [prediction_log_pb2.PredictionLog(
                session_run_log=prediction_log_pb2.SessionRunLog()
            ).SerializeToString()],
            "Unsupported log_type for warmup: session_run_log",
        ),
        ([b""], "Unsupported log_type for warmup: None"),
    ],
)  # fmt: skip
def test_wrong_warm_up_requests_keep_a_version_away(capfd, tmp_path, requests, message):
    save_toy(tmp_path / "1", 2.0)
    write_warmup(tmp_path / "1", requests)
    flags = (f"--model_base_path={tmp_path}", "--max_num_load_retries=0")
    assert message in failure(capfd, *flags)


def test_a_warm_up_file_that_cannot_be_read_keeps_a_version_away(capfd, tmp_path):
    save_toy(tmp_path / "1", 2.0)
    (tmp_path / "1" / "assets.extra" / "tf_serving_warmup_requests").mkdir(parents=True)
    flags = (f"--model_base_path={tmp_path}", "--max_num_load_retries=0")
    assert "Is a directory" in failure(capfd, *flags)


def test_every_flag_of_the_original_is_known():
    flags = (Path(__file__).parents[2] / "model_server_flags.txt").read_text().split()
    assert len(flags) > 40
    known = {option for action in build_parser()._actions for option in action.option_strings}
    assert not {f"--{flag}" for flag in flags} - known


def test_help_and_version(capsys):
    assert main(["--version"]) == 0
    assert "TensorFlow Library: 2." in capsys.readouterr().out
    with pytest.raises(SystemExit) as caught:
        main(["--help"])
    assert caught.value.code == 0
    text = capsys.readouterr().out
    assert "--model_config_file_poll_wait_seconds" in text
    assert "Taken without effect: flush_filesystem_caches" in text
