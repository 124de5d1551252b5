"""The server process: models, a gRPC port, a REST port, and an orderly end."""

from __future__ import annotations

import logging
import os
import signal
import socket
import threading
import time
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc
import uvicorn
from tensorflow_serving.apis import model_service_pb2_grpc, prediction_service_pb2_grpc
from tensorflow_serving.config.model_server_config_pb2 import ModelConfig

from tfde.errors import ServerError
from tfde.serving.server.grpc_service import ModelService, PredictionService
from tfde.serving.server.model_manager import ModelManager
from tfde.serving.server.rest import RestApi

_GRPC_OPTIONS = [
    ("grpc.max_receive_message_length", -1),
    ("grpc.max_send_message_length", -1),
    # A second server on the same port must fail instead of taking half of the requests.
    ("grpc.so_reuseport", 0),
]

_log = logging.getLogger(__name__)


class ModelServer:
    """Serves SavedModels over TensorFlow Serving's gRPC and REST protocols.

    Args:
        models: What to serve (`model_config`, `read_models_config`).
        host: Address to listen on.
        port: gRPC port; 0 takes a free one.
        rest_api_port: REST port; 0 takes a free one, `None` turns REST off.
        rest_api_timeout_s: Seconds after which a prediction over REST is given up.
        drain_timeout_s: Seconds that running requests get when the server stops.
    """

    def __init__(
        self,
        models: Iterable[ModelConfig],
        *,
        host: str = "127.0.0.1",
        port: int = 8500,
        rest_api_port: int | None = 8501,
        rest_api_timeout_s: float = 30.0,
        drain_timeout_s: float = 60.0,
    ) -> None:
        self.manager = ModelManager(models)
        self.host = host
        self.port = port
        self.rest_api_port = rest_api_port
        self._rest_api_timeout_s = rest_api_timeout_s
        self._drain_timeout_s = drain_timeout_s
        # Threads wait inside TensorFlow, whose own pools do the work: more of them than cores
        # lets requests overlap, TensorFlow Serving's count too.
        self._num_threads = 4 * (os.cpu_count() or 1)

    def start(self) -> None:
        """Loads the models, then listens; `port` and `rest_api_port` hold the real ports after.

        Raises:
            ConfigError: a model cannot be loaded.
            OSError: a port is taken.
            ServerError: the REST server does not start.
        """
        listener = self._rest_listener()
        try:
            self._grpc = self._grpc_server()
            self.manager.load()
            self._start_rest(listener)
        except BaseException:
            if listener:
                listener.close()
            raise
        self._grpc.start()

    def wait(self) -> None:
        """Blocks until SIGTERM or SIGINT has come and the running requests are answered.

        Must be called from the main thread, the only one that may handle signals.
        """
        asked = threading.Event()
        previous = {
            number: signal.signal(number, lambda *_: asked.set())
            for number in (signal.SIGTERM, signal.SIGINT)
        }
        try:
            asked.wait()
            self.stop()
        finally:
            for number, handler in previous.items():
                signal.signal(number, handler)

    def stop(self) -> None:
        """Refuses new requests, lets the running ones finish, unloads the models."""
        _log.info("draining")
        deadline = time.monotonic() + self._drain_timeout_s
        if self._rest:
            self._rest.should_exit = True
        self._grpc.stop(grace=self._drain_timeout_s).wait()
        if self._rest:
            self._rest_thread.join(timeout=max(0.0, deadline - time.monotonic()))
            self._executor.shutdown(wait=False, cancel_futures=True)
        self.manager.close()

    def _grpc_server(self) -> grpc.Server:
        server = grpc.server(ThreadPoolExecutor(self._num_threads, "grpc"), options=_GRPC_OPTIONS)
        prediction_service_pb2_grpc.add_PredictionServiceServicer_to_server(
            PredictionService(self.manager), server
        )
        model_service_pb2_grpc.add_ModelServiceServicer_to_server(
            ModelService(self.manager), server
        )
        try:
            self.port = server.add_insecure_port(f"{self.host}:{self.port}")
        except RuntimeError as error:
            raise OSError(
                f"cannot listen on {self.host}:{self.port} (gRPC), is the port taken? {error}"
            ) from None
        return server

    def _rest_listener(self) -> socket.socket | None:
        if self.rest_api_port is None:
            return None
        try:
            listener = socket.create_server((self.host, self.rest_api_port))
        except OSError as error:
            raise OSError(
                f"cannot listen on {self.host}:{self.rest_api_port} (REST): {error.strerror}"
            ) from None
        self.rest_api_port = listener.getsockname()[1]
        return listener

    def _start_rest(self, listener: socket.socket | None) -> None:
        self._rest: Any = None
        if listener is None:
            return
        self._executor = ThreadPoolExecutor(self._num_threads, "rest")
        app = RestApi(self.manager, self._executor, timeout_s=self._rest_api_timeout_s)
        self._rest = uvicorn.Server(
            uvicorn.Config(
                app,
                lifespan="off",
                log_config=None,
                log_level="warning",
                access_log=False,
                server_header=False,
                timeout_graceful_shutdown=int(self._drain_timeout_s),
            )
        )
        failures: list[BaseException] = []
        self._rest_thread = threading.Thread(
            target=self._run_rest, args=(listener, failures), name="rest", daemon=True
        )
        self._rest_thread.start()
        while not self._rest.started and self._rest_thread.is_alive():
            time.sleep(0.01)
        if not self._rest.started:
            self._executor.shutdown(wait=False)
            cause = failures[0] if failures else None
            raise ServerError(
                f"the REST server must start on {self.host}:{self.rest_api_port}."
                f" Received: {cause!r}"
            ) from cause

    def _run_rest(self, listener: socket.socket, failures: list[BaseException]) -> None:
        try:
            self._rest.run(sockets=[listener])
        except BaseException as error:  # uvicorn exits the process when it cannot start
            failures.append(error)
            if self._rest.started:
                _log.exception("the REST server ended")
