"""Keras metrics, and losses of anybody's, on the logits of labelled pairs."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any

import keras
import tensorflow as tf

from tfde.errors import ConfigError, require
from tfde.tasks.batch_metrics import as_metrics

# Keras' names whose metrics want probabilities, of one logit and of several -> what is as good.
_OF_ONE: dict[str, Callable[..., keras.metrics.Metric]] = {
    "auc": functools.partial(keras.metrics.AUC, from_logits=True),
    "binary_accuracy": functools.partial(keras.metrics.BinaryAccuracy, threshold=0.0),
    "precision": functools.partial(keras.metrics.Precision, thresholds=0.0),
    "recall": functools.partial(keras.metrics.Recall, thresholds=0.0),
    "binary_crossentropy": functools.partial(keras.metrics.BinaryCrossentropy, from_logits=True),
}
_OF_SEVERAL: dict[str, Callable[..., keras.metrics.Metric]] = {
    "sparse_categorical_crossentropy": functools.partial(
        keras.metrics.SparseCategoricalCrossentropy, from_logits=True
    )
}
_SAME = {"bce": "binary_crossentropy"}
_HALF = 0.5  # a probability
_OF_PROBABILITIES = (
    keras.metrics.PrecisionAtRecall,
    keras.metrics.RecallAtPrecision,
    keras.metrics.SensitivityAtSpecificity,
    keras.metrics.SpecificityAtSensitivity,
)
# Which want a row of labels for a pair.
_ONE_HOT = (
    keras.metrics.CategoricalAccuracy,
    keras.metrics.CategoricalCrossentropy,
    keras.metrics.TopKCategoricalAccuracy,
    keras.metrics.FBetaScore,
)


def logit_metrics(
    metrics: Any, strategy: tf.distribute.Strategy, num_labels: int
) -> list[keras.metrics.Metric]:
    """Returns what `compile` was given as metrics, of labels and logits.

    Args:
        metrics: As in Keras; "accuracy" is that of the largest logit, or of the one logit's sign,
            and "auc", "precision", "recall", "binary_accuracy" and the cross-entropies are those of
            logits.
        strategy: On whose replicas they are counted.
        num_labels: N. Of several, metrics see labels (B,) int32 and logits (B, N) float32; of one,
            (B, 1) float32 each.

    Raises:
        ConfigError: one is no metric, or wants others, or probabilities.
    """
    accuracy: Callable[..., keras.metrics.Metric] = keras.metrics.SparseCategoricalAccuracy
    if num_labels == 1:
        accuracy = functools.partial(keras.metrics.BinaryAccuracy, threshold=0.0)
    known = _OF_ONE if num_labels == 1 else _OF_SEVERAL
    given = metrics if isinstance(metrics, list | tuple) else [metrics]
    with strategy.scope():
        own = [_named(metric, known) for metric in given if metrics is not None]
    made = as_metrics(own, strategy, accuracy=accuracy)
    for metric in made:
        _check_reads_logits(metric, num_labels)
        update = functools.partial(_update, strategy.run, metric)
        try_on_logits("metrics", update, metric.name, num_labels)
        with strategy.scope():
            metric.reset_state()
    return made


def _named(metric: Any, known: Mapping[str, Callable[..., keras.metrics.Metric]]) -> Any:
    if not isinstance(metric, str):
        return metric
    name = _SAME.get(metric.lower(), metric.lower())
    return known[name](name=metric) if name in known else metric


def _check_reads_logits(metric: keras.metrics.Metric, num_labels: int) -> None:
    """Refuses metrics of Keras that would take logits for probabilities."""
    rule = "of logits"
    options = {**getattr(metric, "_fn_kwargs", {}), **metric.__dict__}
    from_logits = options.get("from_logits", options.get("_from_logits"))
    require(from_logits in (None, True), "metrics", f"{rule}: from_logits=True", metric.name)
    cut = options.get("threshold", options.get("init_thresholds", "none"))
    halves = isinstance(cut, float | list) and cut in (_HALF, [_HALF])
    halves = halves or (cut is None and hasattr(metric, "thresholds"))
    require(not halves, "metrics", f"{rule}, cut at 0 (a probability of 0.5)", metric.name)
    require(not isinstance(metric, _OF_PROBABILITIES), "metrics", rule, metric.name)
    one, several = "the one logit, as binary_accuracy", "numbers of labels, as accuracy"
    rule = f"of {several if num_labels > 1 else one}"
    require(not isinstance(metric, _ONE_HOT), "metrics", rule, metric.name)


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
