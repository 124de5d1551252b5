"""Requests that a version of a model answers before it is called available.

Source: TensorFlow Serving's saved_model_warmup_util.cc.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import tensorflow as tf
from google.protobuf.message import DecodeError
from grpc import StatusCode
from tensorflow_serving.apis import prediction_log_pb2

from tfde.serving.server.inference import (
    Servable,
    run_classify,
    run_multi_inference,
    run_predict,
    run_regress,
)
from tfde.serving.server.status import StatusError, invalid_argument

FILE = "assets.extra/tf_serving_warmup_requests"
_MAX_RECORDS = 1000
_RUN: dict[str, Callable[..., Any]] = {
    "predict_log": run_predict,
    "classify_log": run_classify,
    "regress_log": run_regress,
    "multi_inference_log": run_multi_inference,
}


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
    file = f"{path}/{FILE}"
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
