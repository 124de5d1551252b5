"""From a version's directory to a model that answers: batching, loading, warm-up."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tensorflow as tf
from google.protobuf.message import DecodeError
from grpc import StatusCode
from tensorflow_serving.apis import prediction_log_pb2

from tfde.protos.batching_parameters_pb2 import BatchingParameters
from tfde.serving.server.inference import (
    Servable,
    run_classify,
    run_multi_inference,
    run_predict,
    run_regress,
)
from tfde.serving.server.memory import give_back_memory
from tfde.serving.server.metrics import Metrics
from tfde.serving.server.signature_runner import SignatureRunner
from tfde.serving.server.status import CODES, StatusError, invalid_argument
from tfde.serving.server.versions import read_text_proto

PER_MODEL_BATCHING = "batching_params.pbtxt"
# Source: tensorflow_serving/servables/tensorflow/saved_model_warmup_util.cc.
WARMUP_FILE = "assets.extra/tf_serving_warmup_requests"
_MAX_RECORDS = 1000
_RUN: dict[str, Callable[..., Any]] = {
    "predict_log": run_predict,
    "classify_log": run_classify,
    "regress_log": run_regress,
    "multi_inference_log": run_multi_inference,
}


@dataclass(frozen=True)
class Loader:
    """Loads versions.

    Args:
        tags: Tags of the meta graph to load.
        prefer_tflite: Load a version's `model.tflite`, where there is one.
        engine: What runs the functions whose files for it lie beside a SavedModel; "" for
            TensorFlow.
        session_config: Threads, devices and memory (ConfigProto); `None` for TensorFlow's own.
        batching: Batching of every model; `None` for none.
        lenient_batching: Take requests that TensorFlow Serving refuses to batch.
        per_model_batching: Batch the models with a `batching_params.pbtxt` in their directory,
            by that file, and no others.
        warmup_iterations: How often each warm-up request runs; 0 for no warm-up.
        metrics: Where loads are counted and timed.
    """

    tags: tuple[str, ...] = ("serve",)
    prefer_tflite: bool = False
    engine: str = ""
    session_config: Any = None
    batching: BatchingParameters | None = None
    lenient_batching: bool = False
    per_model_batching: bool = False
    warmup_iterations: int = 1
    metrics: Metrics | None = None

    def load(self, name: str, version: int, path: str) -> SignatureRunner:
        """Loads one version and warms it up.

        Raises:
            StatusError: it cannot be loaded; the code and words of what failed.
        """
        started = time.perf_counter()
        status = "fail"
        try:
            runner = self._load(name, version, path)
            status = "success"
            return runner
        finally:
            if self.metrics:
                count = ":tensorflow:cc:saved_model:load_attempt_count"
                self.metrics.count(count, model_path=path, status=status)
                taken = time.perf_counter() - started
                latency = ":tensorflow:cc:saved_model:load_latency"
                self.metrics.count(latency, int(taken * 1e6), model_path=path)

    def _load(self, name: str, version: int, path: str) -> SignatureRunner:
        runner = None
        try:
            runner = SignatureRunner(
                path,
                tags=self.tags,
                prefer_tflite=self.prefer_tflite,
                engine=self.engine,
                session_config=self.session_config,
                batching=self._batching_of(path),
                lenient_batching=self.lenient_batching,
                queued=self._queued,
            )
            if self.warmup_iterations:
                warm_up(Servable(name, version, runner), path, iterations=self.warmup_iterations)
            loaded, runner = runner, None
            give_back_memory()
            return loaded
        except StatusError:
            raise
        except tf.errors.OpError as error:
            raise StatusError(CODES[error.error_code], " ".join(error.message.split())) from error
        except OSError as error:
            raise StatusError(StatusCode.NOT_FOUND, str(error)) from error
        except Exception as error:  # a damaged file can fail anywhere in the loader
            message = " ".join(f"{type(error).__name__}: {error}".split())
            raise StatusError(StatusCode.INTERNAL, message) from error
        finally:
            if runner is not None:
                runner.close()

    def _queued(self, seconds: float) -> None:
        if self.metrics and self.batching:
            pool = self.batching.thread_pool_name.value or "batch_threads"
            name = ":tensorflow:serving:batching_session:queuing_latency"
            self.metrics.observe(name, seconds, thread_pool_name=pool)

    def _batching_of(self, path: str) -> BatchingParameters | None:
        if not self.per_model_batching or self.batching is None:
            return self.batching
        file = f"{path}/{PER_MODEL_BATCHING}"
        return read_text_proto(file, BatchingParameters()) if tf.io.gfile.exists(file) else None


def warm_up(servable: Servable, path: str | Path, *, iterations: int = 1) -> int:
    """Runs the requests that lie beside a SavedModel; none are there without the file.

    Args:
        servable: The loaded version.
        path: Its directory.
        iterations: How often each request runs.

    Returns:
        How many requests there were.

    Raises:
        StatusError: INVALID_ARGUMENT, more than 1,000 records or one that is no PredictionLog;
            UNIMPLEMENTED, a kind of log that is no request; else what a request itself raises.
    """
    file = f"{path}/{WARMUP_FILE}"
    if not tf.io.gfile.exists(file):
        return 0
    number = 0
    try:
        for number, record in enumerate(tf.data.TFRecordDataset(file).as_numpy_iterator(), start=1):
            if number > _MAX_RECORDS:
                raise invalid_argument(
                    f"Number of warmup records exceeds the maximum ({_MAX_RECORDS}) at {file}"
                )
            _replay(servable, record, file, iterations)
    except tf.errors.DataLossError as error:
        raise StatusError(StatusCode.DATA_LOSS, f"{error.message}, from {file}") from error
    return number


def _replay(servable: Servable, record: bytes, file: str, iterations: int) -> None:
    try:
        log = prediction_log_pb2.PredictionLog.FromString(record)
    except DecodeError:
        raise invalid_argument(f"Failed to parse warmup record: {record!r}, from {file}") from None
    kind = log.WhichOneof("log_type")
    if kind not in _RUN:
        raise StatusError(
            StatusCode.UNIMPLEMENTED, f"Unsupported log_type for warmup: {kind}, from {file}"
        )
    for _ in range(iterations):
        _RUN[kind](servable, getattr(log, kind).request)
