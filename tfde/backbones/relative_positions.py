"""What T5 and MPNet add to attention scores for how far apart two tokens are."""

from __future__ import annotations

import numpy as np
import tensorflow as tf


def relative_position_bias(
    table: tf.Tensor, length: int | tf.Tensor, *, max_distance: int
) -> tf.Tensor:
    """Returns the bias of a text of `length` tokens, (1, A, L, L) float32.

    Args:
        table: One number a bucket and head, (buckets, A); the first half of the buckets is for
            keys before the query and the query itself, the other half for those after it.
        length: L.
        max_distance: From here on all distances share the last bucket.

    Source: Raffel et al. 2020, section 2.1.
    """
    num_buckets = table.shape[0]
    positions = tf.range(length)
    distance = positions[None, :] - positions[:, None]  # key minus query
    buckets = distance_buckets(num_buckets // 2, max_distance)
    bucket = tf.gather(buckets, tf.minimum(tf.abs(distance), max_distance))
    bucket += tf.where(distance > 0, num_buckets // 2, 0)
    bias = tf.gather(tf.cast(table, tf.float32), bucket)  # (L, L, A)
    return tf.transpose(bias, (2, 0, 1))[None]


def distance_buckets(num_buckets: int, max_distance: int) -> np.ndarray:
    """Returns the bucket of each distance 0 .. max_distance, (max_distance + 1,) int32.

    The first half of the buckets hold one distance each, the others grow with the logarithm;
    the last takes everything from `max_distance` on. Computed in float32, because a distance on
    the border of two buckets must fall on the side where the pre-trained models had it.

    Source: Raffel et al. 2020, section 2.1; the formula as in their Mesh TensorFlow.
    """
    exact = num_buckets // 2
    distance = np.arange(max_distance + 1)
    ratio = np.log(np.maximum(distance, 1).astype(np.float32) / np.float32(exact))
    ratio = ratio / np.float32(np.log(max_distance / exact)) * np.float32(num_buckets - exact)
    large = np.minimum(exact + ratio.astype(np.int32), num_buckets - 1)
    return np.where(distance < exact, distance, large).astype(np.int32)
