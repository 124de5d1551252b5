"""Requests of several clients in one run, by the batcher that TensorFlow Serving uses too.

TensorFlow has it as an op, `BatchFunction`: a signature's part of the graph becomes the function
that the op runs on joined inputs, with a queue, threads and a limit of waiting batches of its own.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from itertools import pairwise

import tensorflow as tf
from grpc import StatusCode

from tfde.protos.batching_parameters_pb2 import BatchingParameters
from tfde.serving.server.status import StatusError, invalid_argument

# Source: defaults of TensorFlow Serving's SharedBatchScheduler.
_MAX_BATCH_SIZE = 1000
_BATCH_TIMEOUT_MICROS = 0
_MAX_ENQUEUED_BATCHES = 10
# A constant of this size would be there twice, in the graph and in the function.
_LARGE_CONSTANT_BYTES = 1 << 20


def check_batching_parameters(parameters: BatchingParameters) -> None:
    """Refuses parameters that contradict each other.

    Raises:
        StatusError: INVALID_ARGUMENT, what is wrong; UNIMPLEMENTED for padding, which the
            batching op does not have.
    """
    if parameters.pad_variable_length_inputs:
        raise StatusError(
            StatusCode.UNIMPLEMENTED, "pad_variable_length_inputs must be false with this server"
        )
    sizes = list(parameters.allowed_batch_sizes)
    for smaller, larger in pairwise(sizes):
        if smaller >= larger:
            raise invalid_argument(
                "allowed_batch_sizes entries must be monotonically increasing; found ",
                f"{smaller} before {larger}",
            )
    largest = max_batch_size(parameters)
    if sizes and sizes[-1] != largest:
        raise invalid_argument(
            "Last entry in allowed_batch_sizes must match max_batch_size; last entry was "
            f"{sizes[-1]}; expected {largest}"
        )
    for name in ("max_batch_size", "max_enqueued_batches", "num_batch_threads"):
        if parameters.HasField(name) and getattr(parameters, name).value < 1:
            value = getattr(parameters, name).value
            raise invalid_argument(f"{name} must be positive; was {value}")
    if parameters.batch_timeout_micros.value < 0:
        raise invalid_argument(
            f"batch_timeout_micros must be >= 0; was {parameters.batch_timeout_micros.value}"
        )


def max_batch_size(parameters: BatchingParameters) -> int:
    """Returns how many rows a batch may have."""
    given = parameters.HasField("max_batch_size")
    return parameters.max_batch_size.value if given else _MAX_BATCH_SIZE


def batched_outputs(
    inputs: Sequence[tf.Tensor], outputs: Sequence[tf.Tensor], parameters: BatchingParameters
) -> list[tf.Tensor]:
    """Adds the batching op to a graph.

    Args:
        inputs: What a signature is fed, each with a batch axis.
        outputs: What it computes from them alone.
        parameters: Sizes and times.

    Returns:
        Tensors like `outputs`. A run that fetches them waits for other runs to join it.
    """
    graph = outputs[0].graph
    part = tf.compat.v1.graph_util.extract_sub_graph(
        graph.as_graph_def(), [tensor.op.name for tensor in outputs]
    )
    shared = {
        tensor.name: tf.identity(tensor) if tensor.dtype != tensor.dtype.base_dtype else tensor
        for operation in map(graph.get_operation_by_name, [node.name for node in part.node])
        if _is_shared(operation)
        for tensor in operation.outputs
    }
    options = {
        "num_batch_threads": os.cpu_count() or 1,
        "batch_timeout_micros": _BATCH_TIMEOUT_MICROS,
        "max_enqueued_batches": _MAX_ENQUEUED_BATCHES,
    }
    for name in options:
        if parameters.HasField(name):
            options[name] = getattr(parameters, name).value

    @tf.nondifferentiable_batch_function(
        max_batch_size=max_batch_size(parameters),
        allowed_batch_sizes=list(parameters.allowed_batch_sizes) or None,
        enable_large_batch_splitting=parameters.enable_large_batch_splitting.value,
        autograph=False,
        **options,
    )
    def run(*joined: tf.Tensor) -> list[tf.Tensor]:
        names = [tensor.name for tensor in inputs]
        return tf.graph_util.import_graph_def(
            part,
            input_map={
                **dict(zip(names, joined, strict=True)),
                # A tensor of the graph around becomes one of the function by being used in it.
                **{name: tf.identity(tensor) for name, tensor in shared.items()},
            },
            return_elements=[tensor.name for tensor in outputs],
            name="",
        )

    with graph.as_default():
        batched = run(*inputs)
    return batched if isinstance(batched, list) else [batched]


def _is_shared(operation: tf.Operation) -> bool:
    """Whether the function must use the graph's own: variables, tables, models, big constants."""
    if operation.type == "Const":
        size = operation.outputs[0].shape.num_elements() * operation.outputs[0].dtype.size
        return bool(size > _LARGE_CONSTANT_BYTES)
    return operation.op_def.is_stateful and not operation.inputs
