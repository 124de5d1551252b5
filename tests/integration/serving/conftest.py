"""Small SavedModels in TensorFlow Serving's directory layout, and a server in a process of its own.

The server is started as its users start it: a fresh interpreter, real sockets, free ports.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from toy_models import save_examples, save_toy

from tfde.serving.server.loader import Loader
from tfde.serving.server.model_manager import ModelManager


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
from tfde.serving.server.model_server import ModelServer
from tfde.serving.server.options import ServerOptions
from tfde.serving.server.versions import read_server_config
options = ServerOptions(port=0, **json.loads(sys.argv[2]))
server = ModelServer(read_server_config(sys.argv[1]), options, rest_api_port=0)
server.start()
print(json.dumps([server.port, server.rest_api_port]), flush=True)
server.wait()
"""


class ServerProcess:
    """A model server in a process of its own."""

    def __init__(self, models_config: Path, **options) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", SERVE, str(models_config), json.dumps(options)],
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
def examples_base_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`examples` in version 1."""
    base = tmp_path_factory.mktemp("models") / "examples"
    save_examples(base / "1")
    return base


@pytest.fixture(scope="session")
def toy_config(
    toy_base_path: Path, examples_base_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> Path:
    path = tmp_path_factory.mktemp("config") / "models.config"
    path.write_text(
        f"""model_config_list {{
          config {{ name: 'toy' base_path: '{toy_base_path}' model_platform: 'tensorflow' }}
          config {{ name: 'both' base_path: '{toy_base_path}' model_platform: 'tensorflow'
                   model_version_policy {{ all {{}} }} }}
          config {{ name: 'examples' base_path: '{examples_base_path}'
                   model_platform: 'tensorflow' }}
        }}"""
    )
    return path


@pytest.fixture(scope="session")
def server(toy_config: Path):
    """A server of the toy models for all tests of the session."""
    process = ServerProcess(toy_config, rest_api_timeout_in_ms=4000)
    yield process
    assert process.stop() == 0


@pytest.fixture
def start_server():
    """Starts servers that the test may kill."""
    started = []

    def start(models_config: Path, **options) -> ServerProcess:
        started.append(ServerProcess(models_config, **options))
        return started[-1]

    yield start
    for process in started:
        process.process.kill()
        process.process.wait()


@pytest.fixture(scope="session")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Versions 1, 2 and 3, which multiply by their number."""
    folder = tmp_path_factory.mktemp("saved")
    for factor in (1, 2, 3):
        save_toy(folder / str(factor), float(factor))
    return folder


@pytest.fixture
def make_manager() -> Iterator[Callable[..., ModelManager]]:
    """Managers with real loaders, which try again at once."""
    made: list[ModelManager] = []

    def make(**options: Any) -> ModelManager:
        made.append(ModelManager(Loader(), load_retry_interval_s=0.05, **options))
        return made[-1]

    yield make
    for manager in made:
        manager.close()
