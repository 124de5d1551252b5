"""From a version's directory to a model that answers: batching, loading, warm-up."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

import tensorflow as tf
from grpc import StatusCode

from tfde.protos.batching_parameters_pb2 import BatchingParameters
from tfde.serving.server.inference import Servable
from tfde.serving.server.metrics import Metrics
from tfde.serving.server.signature_runner import SignatureRunner
from tfde.serving.server.status import CODES, StatusError
from tfde.serving.server.text_protos import read_text_proto
from tfde.serving.server.warmup import warm_up

PER_MODEL_BATCHING = "batching_params.pbtxt"


@dataclass(frozen=True)
class Loader:
    """Loads versions.

    Args:
        tags: Tags of the meta graph to load.
        prefer_tflite: Load a version's `model.tflite`, where there is one.
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
                session_config=self.session_config,
                batching=self._batching_of(path),
                lenient_batching=self.lenient_batching,
                queued=self._queued,
            )
            if self.warmup_iterations:
                warm_up(Servable(name, version, runner), path, iterations=self.warmup_iterations)
            loaded, runner = runner, None
            return loaded
        except StatusError:
            raise
        except tf.errors.OpError as error:
            raise StatusError(CODES[error.error_code], error.message) from error
        except OSError as error:
            raise StatusError(StatusCode.NOT_FOUND, str(error)) from error
        except Exception as error:  # a damaged file can fail anywhere in the loader
            message = f"{type(error).__name__}: {error}"
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
