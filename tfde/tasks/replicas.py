"""What the replicas of a `tf.distribute` strategy exchange in a step.

Where there is one replica, all of it is the identity.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import tensorflow as tf


def gather_rows(parts: Mapping[str, tf.Tensor]) -> dict[str, tf.Tensor]:
    """Returns the rows of all replicas, this replica's own first, so that row i stays row i.

    The gradient of a row is the sum of what all replicas' losses say about it.

    Args:
        parts: Tensors (n, ...) with as many rows in every replica.

    Returns:
        The same names; (R n, ...) with R the number of replicas.
    """
    context = _replica_context()
    if context is None:
        return dict(parts)
    own = context.replica_id_in_sync_group
    gathered = {}
    for name, part in parts.items():
        rows = context.all_gather(_placed(part), axis=0)
        gathered[name] = tf.roll(rows, -own * tf.shape(part)[0], axis=0)
    return gathered


def share_of_mean(value: tf.Tensor) -> tf.Tensor:
    """Returns what this replica's mean adds to the mean over the rows of all replicas.

    Args:
        value: Mean over this replica's rows; every replica has as many.
    """
    context = _replica_context()
    return value if context is None else value / context.num_replicas_in_sync


def sum_over_replicas(value: tf.Tensor) -> tf.Tensor:
    """Returns the sum of what the replicas have; no gradient flows through it.

    Args:
        value: Of any shape, the same in all replicas.
    """
    context = _replica_context()
    value = tf.stop_gradient(value)
    if context is None:
        return value
    return context.all_reduce(tf.distribute.ReduceOp.SUM, _placed(value))


def mean_over_replicas(logs: Mapping[str, tf.Tensor]) -> dict[str, tf.Tensor]:
    """Returns the means over all replicas of numbers that each has of as many rows.

    Args:
        logs: Float32 of any known shapes, the same in all replicas.
    """
    context = _replica_context()
    if context is None:
        return dict(logs)
    flat = tf.concat([tf.reshape(value, [-1]) for value in logs.values()], 0)
    means = context.all_reduce(tf.distribute.ReduceOp.MEAN, _placed(flat))
    parts = tf.split(means, [value.shape.num_elements() for value in logs.values()])
    return {
        name: tf.reshape(part, value.shape)
        for (name, value), part in zip(logs.items(), parts, strict=True)
    }


def sum_gradients(gradients: Sequence[Any]) -> list[Any]:
    """Returns the gradients, dense and summed over the replicas: the large exchange of a step.

    Of a table only the rows that were looked up are exchanged. They are made dense also where
    there is one replica: Keras would clip by, and Adam would square, each look-up by itself.

    Args:
        gradients: Tensors, `tf.IndexedSlices` or `None`, the same in all replicas.
    """
    context = _replica_context()
    if context is None:
        summed = list(gradients)
    else:
        known = [_placed(gradient) for gradient in gradients if gradient is not None]
        reduced = iter(context.all_reduce(tf.distribute.ReduceOp.SUM, known))
        summed = [None if gradient is None else next(reduced) for gradient in gradients]
    return [None if each is None else tf.convert_to_tensor(each) for each in summed]


def take_summed_gradients(optimizer: Any) -> None:
    """Makes a Keras optimizer take gradients as they are, for `sum_gradients` has summed them.

    Keras sums them after clipping, so that each replica would clip its own part of the gradient
    and the step would be another than that of one device.

    Args:
        optimizer: A Keras optimizer, or one that scales the loss for another.
    """
    while optimizer is not None:
        optimizer._all_reduce_sum_gradients = list
        optimizer = getattr(optimizer, "inner_optimizer", None)


def _replica_context() -> tf.distribute.ReplicaContext | None:
    context = tf.distribute.get_replica_context()
    return None if context is None or context.num_replicas_in_sync == 1 else context


def _placed(value: Any) -> Any:
    """The value on this replica's device: an exchange refuses what the graph put on none."""
    if isinstance(value, tf.IndexedSlices):
        rows, values = tf.identity(value.indices), tf.identity(value.values)
        return tf.IndexedSlices(values, rows, value.dense_shape)
    return tf.identity(value)
