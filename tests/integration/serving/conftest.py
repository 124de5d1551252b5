"""Small SavedModels in TensorFlow Serving's directory layout, and a server in a process of its own.

The server is started as its users start it: a fresh interpreter, real sockets, free ports.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import tensorflow as tf


class Toy(tf.Module):
    """Signatures of every kind of input and output that the protocol tells apart."""

    def __init__(self, factor: float) -> None:
        self.factor = tf.Variable(factor)

    @tf.function(input_signature=[tf.TensorSpec([None], tf.float32, name="x")])
    def scale(self, x):
        return {"y": x * self.factor}

    @tf.function(
        input_signature=[
            tf.TensorSpec([None], tf.string, name="text"),
            tf.TensorSpec([None], tf.int32, name="count"),
        ]
    )
    def two(self, text, count):
        return {
            "repeated": tf.strings.reduce_join(tf.stack([text, text], 1), 1),
            "raw_bytes": text,
            "next": count + 1,
            "positive": count > 0,
        }

    @tf.function(input_signature=[tf.TensorSpec([], tf.float32, name="x")])
    def scalar(self, x):
        return {"root": tf.sqrt(x), "matrix": tf.ones([2, 3]) * x}

    @tf.function(input_signature=[tf.TensorSpec([None], tf.int32, name="steps")])
    def slow(self, steps):
        def step(i, x):
            return i + 1, tf.linalg.matmul(x, x) * 0.001

        _, x = tf.while_loop(lambda i, _: i < tf.reduce_max(steps), step, (0, tf.ones([400, 400])))
        return {"sum": tf.fill(tf.shape(steps), tf.reduce_sum(x))}

    @tf.function(input_signature=[tf.TensorSpec([None], tf.int32, name="k")])
    def guarded(self, k):
        with tf.control_dependencies(
            [tf.debugging.Assert(tf.reduce_all(k > 0), ["`k` is bad", k])]
        ):
            return {"k": tf.identity(k)}


def save_toy(directory: Path, factor: float) -> None:
    toy = Toy(factor)
    tf.saved_model.save(
        toy,
        str(directory),
        signatures={
            "serving_default": toy.scale,
            "two": toy.two,
            "scalar": toy.scalar,
            "slow": toy.slow,
            "guarded": toy.guarded,
        },
    )


@pytest.fixture(scope="session")
def toy_base_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`toy` in versions 2 and 10 (10 is the latest, though "2" sorts after it as text)."""
    base = tmp_path_factory.mktemp("models") / "toy"
    save_toy(base / "2", 2.0)
    save_toy(base / "10", 10.0)
    (base / "not-a-version").mkdir()
    return base


SERVE = """
import json, sys
from tfde.serving.server.model_manager import read_models_config
from tfde.serving.server.model_server import ModelServer
server = ModelServer(
    read_models_config(sys.argv[1]), port=0, rest_api_port=0, rest_api_timeout_s=float(sys.argv[2])
)
server.start()
print(json.dumps([server.port, server.rest_api_port]), flush=True)
server.wait()
"""


class ServerProcess:
    """A model server in a process of its own."""

    def __init__(self, models_config: Path, rest_api_timeout_s: float = 30.0) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", SERVE, str(models_config), str(rest_api_timeout_s)],
            stdout=subprocess.PIPE,
            text=True,
        )
        self.port, self.rest_api_port = json.loads(self.process.stdout.readline())
        self.target = f"127.0.0.1:{self.port}"
        self.url = f"http://127.0.0.1:{self.rest_api_port}"

    def stop(self) -> int:
        self.process.terminate()
        return self.process.wait(30)


@pytest.fixture(scope="session")
def toy_config(toy_base_path: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("config") / "models.config"
    path.write_text(
        f"""model_config_list {{
          config {{ name: 'toy' base_path: '{toy_base_path}' model_platform: 'tensorflow' }}
          config {{ name: 'both' base_path: '{toy_base_path}'
                   model_version_policy {{ all {{}} }} }}
        }}"""
    )
    return path


@pytest.fixture(scope="session")
def server(toy_config: Path):
    """A server of the toy models for all tests of the session."""
    process = ServerProcess(toy_config, rest_api_timeout_s=1.5)
    yield process
    assert process.stop() == 0


@pytest.fixture
def start_server():
    """Starts servers that the test may kill."""
    started = []

    def start(models_config: Path) -> ServerProcess:
        started.append(ServerProcess(models_config))
        return started[-1]

    yield start
    for process in started:
        process.process.kill()
        process.process.wait()
