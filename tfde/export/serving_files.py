"""The configuration files of TensorFlow Serving in a bundle, and its warm-up requests."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import tensorflow as tf
from google.protobuf import text_format
from tensorflow.core.protobuf import saved_model_pb2

from tfde.environment import require_extra

MODELS_ROOT = "/models"  # where TensorFlow Serving's container expects them
WARMUP_FILE = "assets.extra/tf_serving_warmup_requests"

# tensorflow-serving-api ships no messages for these two, so they are text.
BATCHING = """\
max_batch_size { value: 128 }
batch_timeout_micros { value: 0 }
max_enqueued_batches { value: 4 }
"""
# Every input of a model that TensorFlow Serving batches needs a batch axis, and a retriever's `k`
# has none. So there batching is chosen model by model: a model with this file in its directory is
# batched, others are not.
BATCHING_NOTE = """\
# A batch is what came while the one before ran; a GPU may want larger ones, and a wait for them.
# 128 x (4 waiting + 1 a core running) questions are taken, more are refused with UNAVAILABLE.
# tensorflow_model_server: use with --enable_batching --enable_per_model_batching_parameters. Then
# the models that have a batching_params.pbtxt are batched; a retriever cannot be (its input `k` is
# one number). tfde-model-server: use with --enable_batching --lenient_batching, which batches
# retrievers too.
"""
PER_MODEL_BATCHING_FILE = "batching_params.pbtxt"
MONITORING = 'prometheus_config { enable: true, path: "/monitoring/prometheus/metrics" }\n'


def models_config(names: Sequence[str]) -> str:
    """Returns a ModelServerConfig in text form that serves these models from `/models`."""
    require_extra("serve", "a bundle")
    from tensorflow_serving.config import model_server_config_pb2

    config = model_server_config_pb2.ModelServerConfig()
    for name in names:
        config.model_config_list.config.add(
            name=name, base_path=f"{MODELS_ROOT}/{name}", model_platform="tensorflow"
        )
    text = text_format.MessageToString(config)
    # What was written must be what a server reads.
    text_format.Parse(text, model_server_config_pb2.ModelServerConfig())
    return text


def write_warmup(
    directory: Path,
    model: str,
    requests: Sequence[tuple[str, Mapping[str, object]]],
) -> None:
    """Writes the requests that TensorFlow Serving runs before it calls a version available.

    Args:
        directory: The version's directory.
        model: The model's name.
        requests: Signature and inputs by name, of each request; at most 1000 (TensorFlow Serving's
            limit).
    """
    require_extra("serve", "a bundle")
    from tensorflow_serving.apis import predict_pb2, prediction_log_pb2

    path = directory / WARMUP_FILE
    path.parent.mkdir(exist_ok=True)
    with tf.io.TFRecordWriter(str(path)) as writer:
        for signature, inputs in requests:
            request = predict_pb2.PredictRequest()
            request.model_spec.name = model
            request.model_spec.signature_name = signature
            for name, value in inputs.items():
                request.inputs[name].CopyFrom(tf.make_tensor_proto(value))
            log = prediction_log_pb2.PredictionLog(
                predict_log=prediction_log_pb2.PredictLog(request=request)
            )
            writer.write(log.SerializeToString())


def one_of_each_signature(
    directory: Path, values: Mapping[str, object]
) -> list[tuple[str, dict[str, object]]]:
    """Returns a warm-up request for each signature of a SavedModel: its first run takes seconds.

    Args:
        directory: The version's directory.
        values: By the names of inputs. Signatures that have others get none.
    """
    model = saved_model_pb2.SavedModel.FromString((directory / "saved_model.pb").read_bytes())
    return [
        (name, {alias: values[alias] for alias in signature.inputs})
        for name, signature in sorted(model.meta_graphs[0].signature_def.items())
        if signature.inputs and set(signature.inputs) <= set(values)
    ]
