"""In-batch sampled softmax: `tfrs.tasks.Retrieval` with the masks that text retrieval needs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Self

import keras
import tensorflow as tf

from tfde.argument_types import typed
from tfde.environment import import_recommenders
from tfde.errors import ConfigError, require
from tfde.tasks.task import Rows, Task

PADDING_KEY = 0  # the key of "no document", in `keys` and `positive_keys`


@keras.saving.register_keras_serializable(package="tfde")
class RetrievalTask(Task):
    """In-batch sampled softmax loss over a batch of queries and its candidates.

    With s(q, d) the similarity, tau the temperature and C_i the candidates of query i,

        loss = mean_i -log( exp(s(q_i, d_i) / tau) / sum_{j in C_i} exp(s(q_i, d_j) / tau) ).

    C_i holds every document of the batch and every given hard negative of every query, without
    padding and without the other known positives of query i (another copy of its own positive
    is the usual case: an accidental hit). The bidirectional loss is the mean of this and of the
    same over the transposed scores of the positives, where the queries to which document i is
    a known positive are left out but for query i.

    Args:
        temperature: Divides the similarity, > 0.
        bidirectional: Whether documents also choose among queries.
        sampling_correction: Whether `DualEncoder.fit` passes how often each document is expected
            in a batch, so that the denominator estimates the sum over the whole corpus
            (Chang et al. 2020, section 3.2).

    Raises:
        ConfigError: `temperature` is not above 0.

    Source: Dong et al. 2022, equation 1; Ni et al. 2021, section 3.1 (negatives in the
        denominator, bidirectional); the masks are derived here.
    """

    @typed
    def __init__(
        self,
        temperature: float = 0.05,
        *,
        bidirectional: bool = False,
        sampling_correction: bool = False,
    ) -> None:
        require(temperature > 0, "temperature", "above 0", temperature)
        self.temperature = float(temperature)
        self.bidirectional = self.needs_other_queries = bidirectional
        self.sampling_correction = sampling_correction
        self._tfrs, legacy_keras = import_recommenders()
        self._cross_entropy = legacy_keras.losses.CategoricalCrossentropy(
            from_logits=True, reduction=legacy_keras.losses.Reduction.SUM
        )
        # Keras 3 traces train steps with AutoGraph off, the Keras 2 task needs it on: its own
        # tf.function turns it on again.
        self._sum_of_losses = tf.function(self._call_retrieval, reduce_retracing=True)

    def get_config(self) -> dict[str, Any]:
        """Returns the constructor's arguments; a saved model is compiled with them again."""
        return {
            "temperature": self.temperature,
            "bidirectional": self.bidirectional,
            "sampling_correction": self.sampling_correction,
        }

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> Self:
        """Returns the task of these arguments."""
        return cls(**config)

    def _call_retrieval(
        self,
        query_embeddings: tf.Tensor,
        candidate_embeddings: tf.Tensor,
        score_mask: tf.Tensor,
        expected_counts: tf.Tensor | None,
    ) -> tf.Tensor:
        def loss(y_true: tf.Tensor, y_pred: tf.Tensor, sample_weight: None) -> tf.Tensor:
            if expected_counts is not None:
                # Not by the task, which takes every count for one in [1e-6, 1]. The own positive
                # is no draw: it is there by choice, and its copies are masked.
                others = 1.0 - tf.cast(y_true, y_pred.dtype)
                y_pred -= others * tf.math.log(expected_counts)
            return self._cross_entropy(y_true, y_pred)

        retrieval = self._tfrs.tasks.Retrieval(loss=loss, temperature=self.temperature)
        # `call`, not `__call__`: a Keras 2 layer would cast its first argument to float32.
        return retrieval.call(
            query_embeddings,
            candidate_embeddings,
            score_mask=score_mask,
            compute_metrics=False,
            compute_batch_metrics=False,
        )

    def prepare(self, batch: Mapping[str, tf.Tensor], *, replicas: int) -> dict[str, tf.Tensor]:
        """Returns how often each candidate is expected among the documents of other queries.

        Of a positive it is so many times its share of the pairs as a batch has other rows; a given
        negative is there by choice and counts 1.
        """
        if not self.sampling_correction:
            return {}
        if "document_probability" not in batch:
            raise ConfigError(
                "`sampling_correction` needs to know how often each document stands in the pairs:"
                " give a list, a frame or `tfde.pairs(...)`. Received: batches of strings"
            )
        share = batch["document_probability"]
        given = tf.ones([tf.size(batch["negative_key"])], tf.float32)
        others = tf.maximum(tf.size(share) * replicas - 1, 1)
        return {"expected_counts": tf.concat([share * tf.cast(others, tf.float32), given], 0)}

    def describe(
        self, prepared: Mapping[str, tf.Tensor], *, chunk_size: int | None
    ) -> tuple[Rows, Rows]:
        """Returns the expected counts of the candidates, (C,) float32, where they are wanted."""
        if not self.sampling_correction:
            return {}, {}
        return {}, {"expected_counts": prepared["expected_counts"]}

    def allowed(self, queries: Rows, candidates: Rows) -> tf.Tensor:
        """Returns (B, C) bool: whether candidate j stands in the denominator of query i."""
        return candidate_mask(candidates["keys"], queries["positive_keys"])

    def __call__(
        self,
        queries: Rows | tf.Tensor,
        candidates: Rows | tf.Tensor,
        *,
        other_queries: Rows | None = None,
    ) -> tf.Tensor:
        """Returns the mean loss of the queries, a scalar, float32 or float64 as the embeddings.

        Args:
            queries: `embeddings` (B, D) and `positive_keys` (B, P), as `Task` says. Or, as in
                tensorflow-recommenders, embeddings alone on both sides: (B, D), and (C, D) of which
                the first B are the answers of the queries, and all others negatives.
            candidates: `embeddings` (C, D) and `keys` (C,); `expected_counts` (C,) float above 0,
                how often each candidate is expected among the documents of the other queries of a
                batch, 1 for a given negative: its logarithm is subtracted from the score, but for
                the own positive. Absent: no correction.
            other_queries: Queries among which documents choose too, beside the B.
        """
        if not isinstance(queries, Mapping) and not isinstance(candidates, Mapping):
            queries, candidates = _in_order(queries, candidates)
        mask = self.allowed(queries, candidates)
        embeddings = queries["embeddings"]
        num_queries = tf.shape(embeddings)[0]
        count = tf.cast(num_queries, embeddings.dtype)
        expected = candidates.get("expected_counts")
        if expected is not None:
            expected = tf.cast(expected, embeddings.dtype)
        forward = self._sum_of_losses(embeddings, candidates["embeddings"], mask, expected)
        if not self.bidirectional:
            return forward / count
        positives = {name: rows[:num_queries] for name, rows in candidates.items()}
        mask = mask[:, :num_queries]
        if other_queries is not None:
            queries = {
                name: tf.concat([rows, other_queries[name]], 0) for name, rows in queries.items()
            }
            mask = self.allowed(queries, positives)
        backward = self._sum_of_losses(
            positives["embeddings"], queries["embeddings"], tf.transpose(mask), None
        )
        return (forward + backward) / count / 2


def candidate_mask(candidate_keys: tf.Tensor, positive_keys: tf.Tensor) -> tf.Tensor:
    """Returns (B, C) bool: whether candidate j stands in the denominator of query i.

    Args:
        candidate_keys: (C,) int64; the first B are the queries' own positives; 0 = padding.
        positive_keys: (B, P) int64, 0 = none.

    Source: derived here.
    """
    # One column of positives at a time: all at once would be (B, C, P).
    columns = tf.transpose(positive_keys)
    shape = [tf.shape(positive_keys)[0], tf.shape(candidate_keys)[0]]
    _, mask = tf.while_loop(
        lambda column, _: column < tf.shape(columns)[0],
        lambda column, mask: (
            column + 1,
            mask & (candidate_keys != columns[column][:, tf.newaxis]),
        ),
        (tf.constant(0), tf.broadcast_to(candidate_keys != PADDING_KEY, shape)),
        shape_invariants=(tf.TensorShape([]), tf.TensorShape([None, None])),
        parallel_iterations=1,
    )
    return tf.linalg.set_diag(mask, tf.ones([tf.reduce_min(shape)], tf.bool))


def _in_order(queries: Any, candidates: Any) -> tuple[Rows, Rows]:
    """Returns embeddings with keys by which query i has candidate i alone."""
    queries, candidates = map(tf.convert_to_tensor, (queries, candidates))
    if queries.dtype.size < 4:  # whose largest numbers the masked scores exceed
        queries, candidates = tf.cast(queries, tf.float32), tf.cast(candidates, tf.float32)
    rows = [queries.shape[0], candidates.shape[0]]
    fits = None in rows or rows[0] <= rows[1]
    require(fits, "candidates", f"at least as many as the {rows[0]} queries", rows[1])
    keys = tf.range(1, tf.shape(candidates, tf.int64)[0] + 1)
    return (
        {"embeddings": queries, "positive_keys": keys[: tf.shape(queries)[0], tf.newaxis]},
        {"embeddings": candidates, "keys": keys},
    )
