"""The server process: models, a gRPC port, a REST port, and an orderly end."""

from __future__ import annotations

import logging
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Collection, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from typing import NoReturn

import grpc
from tensorflow_serving.config.model_server_config_pb2 import ModelServerConfig

from tfde.environment import usable_cores
from tfde.errors import TfdeError
from tfde.serving.server.bounded_http import BoundedHttp
from tfde.serving.server.grpc_service import grpc_handlers
from tfde.serving.server.health import Health
from tfde.serving.server.http_thread import HttpThread, bound_socket
from tfde.serving.server.json_answers import write_error
from tfde.serving.server.limits import Limits
from tfde.serving.server.metrics import Metrics
from tfde.serving.server.model_manager import ModelManager
from tfde.serving.server.options import ServerOptions
from tfde.serving.server.rest import RestApi
from tfde.serving.server.service import InferenceService
from tfde.serving.server.settings import (
    channel_arguments,
    make_loader,
    metrics_path,
    reload_rules,
    request_threads,
    server_credentials,
)
from tfde.serving.server.status import StatusError, naming
from tfde.serving.server.versions import read_server_config

_log = logging.getLogger(__name__)
_LOOKS_EVERY_S = 0.1


class StopRequest:
    """Whether the process was asked to stop.

    A signal's handler runs within whatever the main thread does. So it takes no lock, as that of a
    `threading.Event`, which the main thread may hold at that moment: both would wait for ever. And
    nothing sleeps for long, as a signal that comes just before does not wake it.
    """

    def __init__(self) -> None:
        self._asked = False

    def ask(self, *_: object) -> None:
        """Asks, as a signal's handler."""
        self._asked = True

    def is_set(self) -> bool:
        """Whether that was done."""
        return self._asked

    def wait(self) -> None:
        """Returns when it is done."""
        while not self._asked:
            time.sleep(_LOOKS_EVERY_S)


@contextmanager
def asked_to_stop() -> Iterator[StopRequest]:
    """Gives what SIGTERM and SIGINT set, and SIGHUP unless it is ignored; for the main thread."""
    asked = StopRequest()
    signals = [signal.SIGTERM, signal.SIGINT]
    if signal.getsignal(signal.SIGHUP) != signal.SIG_IGN:  # as `nohup` has it
        signals.append(signal.SIGHUP)
    previous = {number: signal.signal(number, asked.ask) for number in signals}
    try:
        yield asked
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)


def end_process(code: int) -> NoReturn:
    """Ends the process though threads of it still work, which Python would wait for."""
    logging.shutdown()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


class ModelServer:
    """Serves SavedModels over TensorFlow Serving's gRPC and REST protocols.

    Args:
        config: What to serve (`server_config`, `read_server_config`).
        options: Ports, threads, batching and the rest.
        host: Address to listen on.
        rest_api_port: In place of that of the options, where 0 turns REST off: here 0 takes a
            free port and `None` means the options'.
        limits: What a client may ask for, and the seconds that running requests get when the
            server stops.
        one_version: Whether the models belong together (`ModelManager`).
        first: Models that are enough to begin with; the others load behind them (`wait_for_all`).

    Raises:
        StatusError: a file that the options name is missing or wrong, or they contradict each
            other.
    """

    def __init__(
        self,
        config: ModelServerConfig,
        options: ServerOptions | None = None,
        *,
        host: str = "127.0.0.1",
        rest_api_port: int | None = None,
        limits: Limits | None = None,
        one_version: bool = False,
        first: Collection[str] = (),
    ) -> None:
        options = options or ServerOptions()
        self._limits = limits or Limits()
        metrics = Metrics()
        self._config = config
        self._options = options
        self.manager = ModelManager(
            make_loader(options, metrics),
            num_load_threads=options.num_load_threads or usable_cores(),
            max_num_load_retries=options.max_num_load_retries,
            load_retry_interval_s=options.load_retry_interval_micros / 1e6,
            allow_labels_for_unavailable=options.allow_version_labels_for_unavailable_models,
            one_version=one_version,
            first=first,
        )
        self._first = first
        self.service = InferenceService(
            self.manager,
            metrics,
            limits=self._limits,
            check_method=options.enable_signature_method_name_check,
            as_content=options.enable_serialization_as_tensor_content,
        )
        self._reload_rules = reload_rules(options)
        self._health = Health() if options.enable_grpc_healthcheck_service else None
        self._metrics_path = metrics_path(options)
        self._credentials = server_credentials(options)
        self.host = host
        self.port = options.port
        self.rest_api_port = rest_api_port
        if rest_api_port is None and options.rest_api_port:
            self.rest_api_port = options.rest_api_port
        self._deadline = 0.0
        self._stopping = threading.Event()
        self._rest: HttpThread | None = None
        threads = request_threads(options, options.rest_api_num_threads)
        self._executor = ThreadPoolExecutor(threads, "rest")
        self._grpc: grpc.Server | None = None
        self._drained = threading.Event()
        self._drained.set()

    def start(self, still_wanted: Callable[[], bool] = lambda: True) -> bool:
        """Loads the models, or the first of them, then listens.

        `port` and `rest_api_port` hold the real ports after.

        Args:
            still_wanted: Asked again and again while they load; on a no it ends.

        Returns:
            Whether it listens. Else models may still load, as after an error; `stop` says so.

        Raises:
            StatusError: the configuration is impossible or a model cannot be loaded.
            OSError: a port is taken.
            ServerError: the REST server does not start.
        """
        if self.rest_api_port is not None:
            self._rest = HttpThread("REST", self.host, self.rest_api_port, limits=self._limits)
            self.rest_api_port = self._rest.port
        try:
            # A port that is taken is told now; nobody must connect before the models are there.
            bound_socket("gRPC", self.host, self.port).close()
            # Models that are not there yet are waited for, so someone must go on looking.
            self._poll(self._options.file_system_poll_wait_seconds, self.manager.poll, "versions")
            path = self._options.model_config_file
            with naming(f"--model_config_file {path}") if path else nullcontext():
                if not self._load(self._first or True, still_wanted):
                    return False
            self._grpc = self._grpc_server()
            if self._rest:
                self._rest.start(self._rest_api())
        except BaseException:
            if self._rest:
                self._rest.refuse()
            self._stopping.set()
            self.manager.close()
            raise
        self._grpc.start()
        _log.info("Running gRPC ModelServer at %s:%d ...", self.host, self.port)
        if self._rest:
            _log.info("Exporting HTTP/REST API at:%s:%d ...", self.host, self._rest.port)
        if path:
            seconds = self._options.model_config_file_poll_wait_seconds
            self._poll(seconds, lambda: self._reload(path), "config")
        return True

    def wait_for_all(self, still_wanted: Callable[[], bool]) -> bool:
        """Waits until those models are there that `start` did not wait for.

        Args:
            still_wanted: Asked again and again; on a no it ends.

        Returns:
            Whether they are.

        Raises:
            StatusError: one of them cannot be loaded.
        """
        return self._load(True, still_wanted)

    def wait(self) -> bool:
        """Blocks until SIGTERM or SIGINT has come and the running requests are answered.

        Must be called from the main thread, the only one that may handle signals.

        Returns:
            As `stop`.
        """
        with asked_to_stop() as asked:
            asked.wait()
            return self.stop()

    def refuse(self) -> None:
        """Takes no new requests from now on; the running ones get their time."""
        _log.info("draining")
        self._stopping.set()
        self._deadline = time.monotonic() + self._limits.drain_timeout_s
        if self._rest:
            self._rest.refuse()
        if self._health:
            self._health.end()
        if self._grpc:
            self._drained = self._grpc.stop(grace=self._limits.drain_timeout_s)

    def stop(self) -> bool:
        """Refuses new requests, lets the running ones finish in their time, unloads the models.

        Returns:
            Whether all have ended. Else requests still run, or a model is still loading, in threads
            that only the end of the process ends; and the models stay.
        """
        if not self._deadline:
            self.refuse()
        self._drained.wait(self._left_s())
        if self._rest:
            self._rest.join(self._left_s())
        self._executor.shutdown(wait=False, cancel_futures=True)
        while self.manager.runs() and self._left_s():
            time.sleep(0.05)
        if self.manager.runs():
            _log.warning("%g s are over: the requests left are cut", self._limits.drain_timeout_s)
            return False
        if self.manager.loads():
            return False
        self.manager.close()
        return True

    def _left_s(self) -> float:
        return max(0.0, self._deadline - time.monotonic())

    def _load(self, wait: bool | Collection[str], still_wanted: Callable[[], bool]) -> bool:
        """Waits for models; returns whether they are there, not where they are wanted no more."""
        try:
            self.manager.apply(self._config, wait=wait, still_wanted=still_wanted)
        except StatusError as error:
            if error.code is not grpc.StatusCode.CANCELLED:
                raise
            return False
        return True

    def _reload(self, path: str) -> None:
        # Without waiting: the next look may find what a model that never comes needs.
        with naming("--model_config_file"):
            config = read_server_config(path)
        with naming(f"--model_config_file {path}"):
            self.manager.apply(config, wait=False)

    def _poll(self, seconds: float, look: Callable[[], None], name: str) -> None:
        def run() -> None:
            while not self._stopping.wait(seconds):
                try:
                    look()
                except TfdeError as error:  # the state before stays; the next look may do
                    _log.error("%s", error)
                except Exception:
                    _log.exception("looking for %s failed", name)

        if seconds > 0:
            threading.Thread(target=run, name=f"poll-{name}", daemon=True).start()

    def _grpc_server(self) -> grpc.Server:
        threads = request_threads(self._options, self._options.grpc_max_threads)
        waiting = self._options.grpc_max_waiting
        server = grpc.server(
            ThreadPoolExecutor(threads, "grpc"),
            options=channel_arguments(self._options, self._limits),
            maximum_concurrent_rpcs=threads + waiting if waiting else None,
        )
        server.add_generic_rpc_handlers(
            grpc_handlers(
                self.service,
                self._limits,
                threads=threads,
                rules=self._reload_rules,
                health=self._health,
            )
        )
        address = f"[{self.host}]" if ":" in self.host else self.host
        self.port = self._listen(server, f"{address}:{self.port}")
        if self._options.grpc_socket_path:
            self._listen(server, f"unix:{self._options.grpc_socket_path}")
        return server

    def _listen(self, server: grpc.Server, address: str) -> int:
        try:
            if self._credentials is None:
                return server.add_insecure_port(address)
            return server.add_secure_port(address, self._credentials)
        except RuntimeError:
            question = "is the port taken?"
            if self._credentials is not None:
                question += " Do key and certificate belong together?"
            raise OSError(f"cannot listen on {address} (gRPC); {question}") from None

    def _rest_api(self) -> BoundedHttp:
        timeout_ms = self._options.rest_api_timeout_in_ms
        api = RestApi(
            self.service,
            self._executor,
            cors=self._options.rest_api_enable_cors_support,
            metrics_path=self._metrics_path,
        )
        return BoundedHttp(
            api,
            self._limits,
            timeout_s=timeout_ms / 1000 if timeout_ms > 0 else None,
            write=lambda _, message: write_error(message),
        )
