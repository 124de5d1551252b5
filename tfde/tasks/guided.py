"""In-batch softmax whose false negatives a second model finds: GIST's mask."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import tensorflow as tf

from tfde.argument_types import typed
from tfde.errors import require
from tfde.tasks.other_model import OTHER_MODEL_RULE, OtherModel, embed_as, read_as
from tfde.tasks.retrieval_task import RetrievalTask
from tfde.tasks.task import Rows

# Of two equal texts one product may be rounded up and the other down: neither is above the other.
_ROUNDING = 1e-6


class GuidedTask(RetrievalTask):
    """`RetrievalTask` without the candidates that a guide takes for answers.

    With g the guide's cosine, candidate j of query i is left out of the denominator where

        g(q_i, d_j) > min(g(q_i, d_i) - score_margin, g(q_i, d_i) - relative_margin |g(q_i, d_i)|).

    Given negatives are candidates like all others. Where documents choose among queries, the same
    pairs are left out. The guide reads texts as its own preprocessor cuts them, and does not train.

    Args:
        guide: The other model, of any vocabulary and size; the model in training as it was at the
            start is one.
        temperature: As in `RetrievalTask`, like all that follow.
        score_margin: How much less than the positive a candidate must score to stay, at least 0.
        relative_margin: The same as a share of the positive's score, in [0, 1).
        bidirectional: Whether documents also choose among queries.
        sampling_correction: Whether the denominator estimates the sum over the corpus.

    Raises:
        ConfigError: a number outside of its range; `guide` is no model of two towers.

    Source: Solatorio 2024 (GISTEmbed), section 3, without its similarities of queries to queries
        and of documents to documents; the relative margin as Moreira et al. 2024 have it; the other
        direction is derived here.
    """

    @typed
    def __init__(
        self,
        guide: OtherModel,
        temperature: float = 0.05,
        *,
        score_margin: float = 0.0,
        relative_margin: float = 0.0,
        bidirectional: bool = False,
        sampling_correction: bool = False,
    ) -> None:
        super().__init__(
            temperature, bidirectional=bidirectional, sampling_correction=sampling_correction
        )
        require(hasattr(guide, "query_tower"), "guide", OTHER_MODEL_RULE, guide)
        require(score_margin >= 0, "score_margin", "at least 0", score_margin)
        require(0 <= relative_margin < 1, "relative_margin", "in [0, 1)", relative_margin)
        self.guide = guide
        self.score_margin = float(score_margin)
        self.relative_margin = float(relative_margin)

    def get_config(self) -> dict[str, Any]:
        """Refuses to be saved with a model, for the guide is another one.

        Raises:
            TypeError: always.
        """
        raise TypeError("a GuidedTask is not saved with a model: its guide is a model of its own")

    def prepare(self, batch: Mapping[str, tf.Tensor], *, replicas: int) -> dict[str, tf.Tensor]:
        """Returns the batch as the guide reads it, beside what `RetrievalTask` prepares."""
        return super().prepare(batch, replicas=replicas) | read_as(self.guide, batch)

    def describe(
        self, prepared: Mapping[str, tf.Tensor], *, chunk_size: int | None
    ) -> tuple[Rows, Rows]:
        """Returns the guide's embeddings, and of queries what they give a candidate at most."""
        embeddings = embed_as(self.guide, prepared, chunk_size=chunk_size)
        queries, documents = (tf.math.l2_normalize(part, axis=-1) for part in embeddings)
        own = tf.reduce_sum(queries * documents[: tf.shape(queries)[0]], axis=-1)
        limit = tf.minimum(own - self.score_margin, own - self.relative_margin * tf.abs(own))
        of_queries, of_documents = super().describe(prepared, chunk_size=chunk_size)
        return (
            {**of_queries, "guide_embeddings": queries, "guide_limit": limit},
            {**of_documents, "guide_embeddings": documents},
        )

    def allowed(self, queries: Rows, candidates: Rows) -> tf.Tensor:
        """Returns (B, C) bool: whether candidate j stands in the denominator of query i."""
        similarity = tf.matmul(
            queries["guide_embeddings"], candidates["guide_embeddings"], transpose_b=True
        )
        limit = queries["guide_limit"][:, tf.newaxis]
        mask = super().allowed(queries, candidates) & (similarity <= limit + _ROUNDING)
        return tf.linalg.set_diag(mask, tf.ones([tf.reduce_min(tf.shape(mask))], tf.bool))
