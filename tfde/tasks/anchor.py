"""A loss that keeps a model near another one, on the texts of its batches."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import tensorflow as tf

from tfde.argument_types import typed
from tfde.config.losses import check_anchor_weights
from tfde.errors import require
from tfde.tasks.other_model import OTHER_MODEL_RULE, OtherModel, embed_as, read_as
from tfde.tasks.retrieval_task import PADDING_KEY
from tfde.tasks.task import Rows, Task

_LOWEST = -1e9


class AnchorTask(Task):
    """How far embeddings, and the scores between them, are from those of another model.

    With e a text's embedding, e' the other model's, and s(q, d) the inner product,

        loss = embedding_weight (mean_q |e - e'|^2 / |e'|^2 + mean_d |e - e'|^2 / |e'|^2) / 4
             + score_weight mean_q KL( softmax_d(s'(q, d) / tau) || softmax_d(s(q, d) / tau) ),

    over the queries q and all candidates d of a batch, padding left out. Of embeddings of unit
    length the first is the mean of 1 - cosine over both sides, each counting half. No label is
    used, so any texts serve. It is a part of a loss: `compile(loss=[RetrievalTask(), AnchorTask(
    start)])`.

    Args:
        model: The other model, which does not train; the model in training as it was at the start.
        embedding_weight: Of the embeddings' distance, at least 0; it needs the same length.
        score_weight: Of the scores' divergence, at least 0.
        temperature: Divides the scores, tau, above 0.

    Raises:
        ConfigError: a number outside of its range, or both weights 0; `model` is no model of two
            towers; embeddings of other lengths, once these are seen.

    Source: distillation of embeddings as Kim et al. 2023 (EmbedDistill), section 3.2, and of
        scores as Hinton et al. 2015; the start as the teacher: learning without forgetting, Li and
        Hoiem 2016. The division by |e'|^2 is derived here.
    """

    @typed
    def __init__(
        self,
        model: OtherModel,
        *,
        embedding_weight: float = 1.0,
        score_weight: float = 0.0,
        temperature: float = 0.05,
    ) -> None:
        require(hasattr(model, "query_tower"), "model", OTHER_MODEL_RULE, model)
        check_anchor_weights(embedding_weight, score_weight, temperature)
        self.model = model
        self.embedding_weight = float(embedding_weight)
        self.score_weight = float(score_weight)
        self.temperature = float(temperature)

    def get_config(self) -> dict[str, Any]:
        """Refuses to be saved with a model, for the other one is a model of its own.

        Raises:
            TypeError: always.
        """
        raise TypeError("an AnchorTask is not saved with a model: the other is a model of its own")

    def prepare(self, batch: Mapping[str, tf.Tensor], *, replicas: int) -> dict[str, tf.Tensor]:
        """Returns the batch as the other model reads it."""
        return read_as(self.model, batch)

    def describe(
        self, prepared: Mapping[str, tf.Tensor], *, chunk_size: int | None
    ) -> tuple[Rows, Rows]:
        """Returns the other model's embeddings."""
        queries, candidates = embed_as(self.model, prepared, chunk_size=chunk_size)
        return {"anchors": queries}, {"anchors": candidates}

    def __call__(
        self, queries: Rows, candidates: Rows, *, other_queries: Rows | None = None
    ) -> tf.Tensor:
        """Returns the loss, a scalar."""
        real = tf.not_equal(candidates["keys"], PADDING_KEY)
        loss = tf.zeros([], queries["embeddings"].dtype)
        if self.embedding_weight:
            everywhere = tf.ones([tf.shape(queries["embeddings"])[0]], tf.bool)
            distance = _distance(queries, everywhere) + _distance(candidates, real)
            loss += self.embedding_weight * distance / 4
        if self.score_weight:
            logs = []
            for name in ("anchors", "embeddings"):
                scores = tf.matmul(queries[name], candidates[name], transpose_b=True)
                scores = tf.where(real, scores / self.temperature, _LOWEST)
                logs.append(tf.nn.log_softmax(tf.cast(scores, loss.dtype)))
            theirs, ours = logs
            divergence = tf.reduce_sum(tf.exp(theirs) * (theirs - ours), axis=-1)
            loss += self.score_weight * tf.reduce_mean(divergence)
        return loss


def _distance(rows: Rows, real: tf.Tensor) -> tf.Tensor:
    """Returns the mean squared distance to the anchors, as a share of their squared lengths."""
    ours, theirs = rows["embeddings"], rows["anchors"]
    length = theirs.shape[-1]
    rule = f"0 for an anchor whose embeddings have {length} numbers"
    require(ours.shape[-1] == length, "embedding_weight", rule, ours.shape[-1])
    theirs = tf.cast(theirs, ours.dtype)
    squares = tf.reduce_sum(tf.square(ours - theirs), axis=-1)
    shares = tf.math.divide_no_nan(squares, tf.reduce_sum(tf.square(theirs), axis=-1))
    weights = tf.cast(real, ours.dtype)
    return tf.math.divide_no_nan(tf.reduce_sum(shares * weights), tf.reduce_sum(weights))
