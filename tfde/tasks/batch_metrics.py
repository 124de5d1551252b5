"""Measures of a batch: how its documents rank for its queries."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tfde.errors import ConfigError, require
from tfde.tasks.retrieval_task import candidate_mask
from tfde.tasks.score_task import LOWEST
from tfde.tasks.task import Rows


class InBatchAccuracy(keras.metrics.Mean):
    """The share of queries whose positive has the highest score, ties broken evenly.

    A query whose positive ties with n - 1 other candidates for the first place counts 1/n, so a
    model that gives every text the same embedding scores chance, not 1.

    Args:
        name: What it is called in logs.

    Source: derived here.
    """

    def __init__(self, name: str = "in_batch_accuracy", **kwargs: Any) -> None:
        super().__init__(name=name, **kwargs)

    def update_state(self, y_true: tf.Tensor, y_pred: tf.Tensor, sample_weight: Any = None) -> None:
        """Adds the queries of a batch; arguments as Keras' ranking metrics have them, (B, C)."""
        best = tf.reduce_max(y_pred, axis=-1)
        own = tf.reduce_sum(tf.where(y_true > 0, y_pred, 0), axis=-1)
        ties = tf.reduce_sum(tf.cast(y_pred == best[:, tf.newaxis], tf.float32), axis=-1)
        # `1.0 / ties` would be 0.99999994 of one: the graph takes a reciprocal for it.
        shares = tf.math.divide_no_nan(tf.cast(own == best, tf.float32), ties)
        super().update_state(shares, sample_weight=sample_weight)


def as_metrics(
    metrics: Any,
    strategy: tf.distribute.Strategy,
    *,
    accuracy: Callable[..., keras.metrics.Metric] = keras.metrics.CategoricalAccuracy,
) -> list[keras.metrics.Metric]:
    """Returns what `compile` was given as metrics, such as of relevance and scores, (B, C) each.

    Args:
        metrics: `None`, one or a list: Keras metrics, their names, functions of two tensors.
        strategy: On whose replicas they are counted.
        accuracy: What "accuracy" stands for.

    Raises:
        ConfigError: it is none of these; two have one name; with replicas, a metric that is no
            mean over queries, or that was made outside of the strategy's scope.
    """
    if metrics is None:
        return []
    rule = "Keras metrics, their names or functions of two tensors, in a list"
    require(not isinstance(metrics, dict), "metrics", rule, metrics)
    given = metrics if isinstance(metrics, list | tuple) else [metrics]
    with strategy.scope():
        made = [_metric(metric, rule, accuracy) for metric in given]
    names = ["loss", "in_batch_accuracy", *(metric.name for metric in made)]
    require(len(set(names)) == len(names), "metrics", "of different names", names)
    replicas = strategy.num_replicas_in_sync
    for metric in made if replicas > 1 else ():
        rule = f"a mean over queries, with {replicas} replicas"
        require(isinstance(metric, keras.metrics.Mean), "metrics", rule, metric)
        inside = [strategy.extended.variable_created_in_scope(v.value) for v in metric.variables]
        require(all(inside), "metrics", "made in the scope of the strategy", metric)
    return made


def check_rankings(
    metrics: Sequence[keras.metrics.Metric], strategy: tf.distribute.Strategy
) -> None:
    """Refuses metrics that see a candidate which is none, and leaves the others without a count.

    Raises:
        ConfigError: one raises whatever on relevance and scores, or another known positive, whose
            score is below all others, changes its value.
    """
    # More candidates than any measure of the first k looks at.
    relevance = np.eye(2, 256, dtype=np.float32)
    scores = np.cos(np.arange(512, dtype=np.float32)).reshape(2, 256)
    beside = [np.insert(part, 2, value, 1) for part, value in ((relevance, 0.0), (scores, LOWEST))]
    rule = "of rankings, (B, C): a candidate whose score is below all others must not count"
    for metric in metrics:
        try:
            values = []
            for batch in ((relevance, scores), beside):
                strategy.run(metric.update_state, args=tuple(map(tf.constant, batch)))
                values.append(np.hstack([np.ravel(x) for x in tf.nest.flatten(metric.result())]))
                with strategy.scope():
                    metric.reset_state()
        except Exception as error:  # whatever a metric of anybody's raises
            reason = " ".join(str(error).split())[:200]
            said = f"`metrics` must be {rule}. Received: {metric}: {reason}"
            raise ConfigError(said) from error
        same = values[0].shape == values[1].shape and np.allclose(values[0], values[1], 1e-5, 1e-7)
        require(same, "metrics", rule, metric)


def _metric(
    metric: Any, rule: str, accuracy: Callable[..., keras.metrics.Metric]
) -> keras.metrics.Metric:
    if metric in ("accuracy", "acc"):
        return accuracy(name=metric)
    found: Any = metric
    if isinstance(metric, str):
        try:
            found = keras.metrics.get(metric)
        except ValueError:
            raise ConfigError(f"`metrics` must hold {rule}. Received: {metric!r}") from None
    if not isinstance(found, keras.metrics.Metric):
        require(callable(found), "metrics", rule, metric)
        found = keras.metrics.MeanMetricWrapper(found, name=getattr(found, "__name__", "metric"))
    return found


def update_metrics(
    metrics: Sequence[keras.metrics.Metric],
    queries: Rows,
    candidates: Rows,
    *,
    rows: int | None = None,
) -> None:
    """Shows metrics the relevance and scores, (B, C), of a batch.

    Relevance is 1 for a query's own positive, 0 for all others; scores are dot products, and below
    all others where a candidate is padding or another known positive of the query.

    Args:
        metrics: What to update.
        queries: As `Task` says, like all that follow.
        candidates: Row i < B is the positive of query i.
        rows: Queries whose scores are computed at once; `None` for all.
    """
    count = tf.shape(queries["embeddings"])[0]

    def show(start: tf.Tensor, size: tf.Tensor) -> None:
        own = {
            name: queries[name][start : start + size] for name in ("embeddings", "positive_keys")
        }
        # The positives of these queries come first.
        found = {name: tf.roll(candidates[name], -start, 0) for name in ("embeddings", "keys")}
        there = candidate_mask(found["keys"], own["positive_keys"])
        scores = tf.matmul(own["embeddings"], found["embeddings"], transpose_b=True)
        scores = tf.stop_gradient(tf.where(there, scores, LOWEST))
        relevance = tf.eye(size, tf.shape(scores)[1], dtype=scores.dtype)
        for metric in metrics:
            metric.update_state(relevance, scores)

    _by_blocks(show, count, rows)


def _by_blocks(
    show: Callable[[tf.Tensor, tf.Tensor], None], count: tf.Tensor, rows: int | None
) -> None:
    if rows is None:
        show(tf.constant(0), count)
        return

    def body(start: tf.Tensor) -> tuple[tf.Tensor]:
        show(start, tf.minimum(rows, count - start))
        return (start + rows,)

    tf.while_loop(lambda start: start < count, body, (tf.constant(0),), parallel_iterations=1)
