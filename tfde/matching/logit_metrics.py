"""Keras metrics, and losses of anybody's, on the logits of labelled pairs."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf

from tfde.errors import ConfigError
from tfde.tasks.batch_metrics import as_metrics


def logit_metrics(
    metrics: Any, strategy: tf.distribute.Strategy, num_labels: int
) -> list[keras.metrics.Metric]:
    """Returns what `compile` was given as metrics, of labels and logits.

    Args:
        metrics: As in Keras; "accuracy" is that of the largest logit, or of the one logit's sign.
        strategy: On whose replicas they are counted.
        num_labels: N. Of several, metrics see labels (B,) int32 and logits (B, N) float32; of one,
            (B, 1) float32 each.

    Raises:
        ConfigError: one is no metric, or wants others.
    """
    accuracy: Callable[..., keras.metrics.Metric] = keras.metrics.SparseCategoricalAccuracy
    if num_labels == 1:
        accuracy = functools.partial(keras.metrics.BinaryAccuracy, threshold=0.0)
    made = as_metrics(metrics, strategy, accuracy=accuracy)
    for metric in made:
        update = functools.partial(_update, strategy.run, metric)
        try_on_logits("metrics", update, metric.name, num_labels)
        with strategy.scope():
            metric.reset_state()
    return made


def try_on_logits(
    argument: str, function: Callable[[Any, Any], Any], given: object, num_labels: int
) -> None:
    """Calls a loss or metric on labels and logits, as training does, of two batches.

    Of as many pairs as labels, a mean error of other ranks would be broadcast and say nothing.

    Raises:
        ConfigError: it raises whatever; a loss is neither a scalar nor one of each pair.
    """
    several = num_labels > 1
    wanted = f"labels {'(B,) int32' if several else '(B, 1)'} and logits (B, {num_labels})"
    for rows in (num_labels + 1, num_labels + 2):
        labels = tf.cast(tf.range(rows) % max(num_labels, 2), tf.int32 if several else tf.float32)
        labels = labels if several else labels[:, tf.newaxis]
        logits = tf.fill([rows, num_labels], 0.5)
        try:
            found = function(labels, logits)
        except Exception as error:  # whatever a loss of anybody's raises
            reason = " ".join(str(error).split())[:200]
            raise ConfigError(
                f"`{argument}` must be of {wanted}. Received: {given!r}: {reason}"
            ) from error
        shape = tuple(getattr(found, "shape", ()))
        if shape and shape[0] != rows:
            raise ConfigError(
                f"`{argument}` must be of {wanted}, a number for each pair. Received: {given!r}"
            )


def _update(run: Callable[..., Any], metric: keras.metrics.Metric, *of: tf.Tensor) -> None:
    run(metric.update_state, args=of)
