"""In-batch sampled softmax: `tfrs.tasks.Retrieval` with the masks that text retrieval needs."""

from __future__ import annotations

import tensorflow as tf

from tfde.argument_types import typed
from tfde.environment import import_recommenders
from tfde.errors import require

PADDING_KEY = 0  # the key of "no document", in `candidate_keys` and `positive_keys`


class RetrievalTask:
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
        self.bidirectional = bidirectional
        self.sampling_correction = sampling_correction
        self._tfrs, legacy_keras = import_recommenders()
        self._cross_entropy = legacy_keras.losses.CategoricalCrossentropy(
            from_logits=True, reduction=legacy_keras.losses.Reduction.SUM
        )
        # Keras 3 traces train steps with AutoGraph off, the Keras 2 task needs it on: its own
        # tf.function turns it on again.
        self._sum_of_losses = tf.function(self._call_retrieval, reduce_retracing=True)

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

    def __call__(
        self,
        query_embeddings: tf.Tensor,
        candidate_embeddings: tf.Tensor,
        *,
        candidate_keys: tf.Tensor,
        positive_keys: tf.Tensor,
        candidate_sampling_probability: tf.Tensor | None = None,
        other_queries: tuple[tf.Tensor, tf.Tensor] | None = None,
    ) -> tf.Tensor:
        """Returns the loss of a batch.

        Args:
            query_embeddings: (B, D) float32 or float64.
            candidate_embeddings: (C, D), C >= B; row i < B is the positive of query i, rows from
                B on are given negatives, used for every query.
            candidate_keys: (C,) int64, equal for equal documents; 0 = padding, never a candidate.
            positive_keys: (B, P) int64, the keys of all known positives of each query; 0 = none.
            candidate_sampling_probability: (C,) float above 0, how often each candidate is
                expected among the documents of the other queries of a batch, 1 for a given
                negative; its logarithm is subtracted from the logits (of query to document), but
                for a query's own positive, which is always there. Then exp(logit) of the
                candidates adds up to that of the corpus, on average.
            other_queries: Embeddings (Q, D) and known positives (Q, P) of more queries, among
                which documents choose too; they have no loss of their own here.

        Returns:
            Scalar loss, mean over queries, of the embeddings' dtype.
        """
        mask = candidate_mask(candidate_keys, positive_keys)
        num_queries = tf.shape(query_embeddings)[0]
        count = tf.cast(num_queries, query_embeddings.dtype)
        if candidate_sampling_probability is not None:
            candidate_sampling_probability = tf.cast(
                candidate_sampling_probability, query_embeddings.dtype
            )
        loss = (
            self._sum_of_losses(
                query_embeddings, candidate_embeddings, mask, candidate_sampling_probability
            )
            / count
        )
        if not self.bidirectional:
            return loss
        mask = mask[:, :num_queries]
        if other_queries is not None:
            embeddings, known = other_queries
            query_embeddings = tf.concat([query_embeddings, embeddings], 0)
            mask = candidate_mask(
                candidate_keys[:num_queries], tf.concat([positive_keys, known], 0)
            )
        backward = self._sum_of_losses(
            candidate_embeddings[:num_queries], query_embeddings, tf.transpose(mask), None
        )
        return (loss + backward / count) / 2


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


def in_batch_accuracy(
    query_embeddings: tf.Tensor,
    candidate_embeddings: tf.Tensor,
    *,
    candidate_keys: tf.Tensor,
    positive_keys: tf.Tensor,
) -> tf.Tensor:
    """Returns the share of queries whose positive has the highest similarity, ties broken evenly.

    A query whose positive ties with n - 1 other candidates for the first place counts 1/n, so a
    model that gives every text the same embedding scores chance, not 1.

    Args:
        query_embeddings: (B, D) float.
        candidate_embeddings: (C, D) float, C >= B, as in `RetrievalTask`.
        candidate_keys: (C,) int64.
        positive_keys: (B, P) int64.

    Returns:
        Scalar in [0, 1], float32.

    Source: derived here.
    """
    mask = candidate_mask(candidate_keys, positive_keys)
    similarity = tf.matmul(query_embeddings, candidate_embeddings, transpose_b=True)
    similarity = tf.where(mask, similarity, similarity.dtype.min)
    best = tf.reduce_max(similarity, axis=-1, keepdims=True)
    own = tf.linalg.diag_part(similarity)[:, tf.newaxis]
    ties = tf.reduce_sum(tf.cast(similarity == best, tf.float32), axis=-1)
    return tf.reduce_mean(tf.where((own == best)[:, 0], 1.0 / ties, 0.0))
