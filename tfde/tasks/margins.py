"""Scores as far apart as teachers have them: of given negatives, and of the whole batch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol, Self

import keras
import tensorflow as tf

from tfde.argument_types import typed
from tfde.errors import require
from tfde.tasks.retrieval_task import candidate_mask
from tfde.tasks.task import Rows, Task, candidate_texts
from tfde.text.preprocessor import TextPreprocessor

_SIDES = ("first", "second")
_TOKENS = ("token_ids", "padding_mask")


class _Networks(Protocol):
    encoders: Mapping[str, Any]


class VectorTeacher(Protocol):
    """A model of several vectors a text, such as `tfde.Matcher` of `late_interaction`."""

    networks: _Networks
    preprocessor: TextPreprocessor


@keras.saving.register_keras_serializable(package="tfde")
class MarginTask(Task):
    """MarginMSE with one teacher or two, in place of a softmax.

    With s the student's scores (dot products over the temperature), t those of a teacher, and
    d+ the query's positive, the loss of a candidate d is

        ((s(q, d+) - s(q, d)) - (t(q, d+) - t(q, d)))^2.

    Its mean over a query's given negatives, with the margins that stand in the pair file
    (`cross_scores`), is weighted by `pair_weight`. Its mean over all candidates of the batch but
    the query's known positives, with the scores of `teacher`, is weighted by `batch_weight`.

    Args:
        teacher: A matcher of `late_interaction` or `multi_vector`, which reads each batch and does
            not train; its scores are sums over query vectors. `None`: only given negatives count.
        temperature: Divides the student's dot products, above 0; 1 for embeddings that have any
            length. Cosines need a smaller one to reach a teacher's margins.
        pair_weight: At least 0.
        batch_weight: At least 0.

    Raises:
        ConfigError: a number outside of its range; `teacher` has no vectors of texts.

    Source: Hofstätter et al. 2021 (TAS-B), sections 3.1 and 3.2, whose weight of the batch is 0.75;
        there it has the sum over a batch where this has the mean.
    """

    @typed
    def __init__(
        self,
        teacher: VectorTeacher | None = None,
        temperature: float = 1.0,
        *,
        pair_weight: float = 1.0,
        batch_weight: float = 0.75,
    ) -> None:
        require(temperature > 0, "temperature", "above 0", temperature)
        require(pair_weight >= 0, "pair_weight", "at least 0", pair_weight)
        require(batch_weight >= 0, "batch_weight", "at least 0", batch_weight)
        rule = "a matcher of late_interaction or multi_vector"
        kind = getattr(getattr(teacher, "config", None), "kind", "late_interaction")
        fits = hasattr(teacher, "networks") and kind in ("late_interaction", "multi_vector")
        require(teacher is None or fits, "teacher", rule, teacher)
        self.teacher = teacher
        self.temperature = float(temperature)
        self.pair_weight = float(pair_weight)
        self.batch_weight = float(batch_weight) if teacher is not None else 0.0

    def get_config(self) -> dict[str, Any]:
        """Returns the constructor's arguments, where there is no teacher.

        Raises:
            TypeError: there is one, a model of its own that is not saved with the student.
        """
        if self.teacher is not None:
            raise TypeError("a MarginTask with a teacher is not saved with a model")
        return {"temperature": self.temperature, "pair_weight": self.pair_weight}

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> Self:
        """Returns the task of these arguments."""
        return cls(**config)

    def prepare(self, batch: Mapping[str, tf.Tensor], *, replicas: int) -> dict[str, tf.Tensor]:
        """Returns the given margins, and the batch as the teacher reads it."""
        given = {f"given_{name}": batch[f"negative_{name}"] for name in ("key", "margin")}
        if self.teacher is None:
            return given
        read = self.teacher.preprocessor
        texts = [candidate_texts(batch, name) for name in read.text_config.document_fields]
        # As long as any can be: replicas and blocks must have rows of one shape.
        text = read.text_config
        limits = (text.query_max_length_tokens, text.document_max_length_tokens)
        sides = (read.queries(batch["query"]), read.documents(*texts))
        for side, tokens, limit in zip(_SIDES, sides, limits, strict=True):
            for name, x in zip(_TOKENS, tokens, strict=True):
                fill = read.tokenizer.pad_id if name == "token_ids" else 0
                more = [[0, 0], [0, limit - tf.shape(x)[1]]]
                whole = tf.ensure_shape(tf.pad(x, more, constant_values=fill), (None, limit))
                given[f"teacher_{side}_{name}"] = whole
        return given

    def describe(
        self, prepared: Mapping[str, tf.Tensor], *, chunk_size: int | None
    ) -> tuple[Rows, Rows]:
        """Returns the given margins, and the teacher's vectors of queries and of candidates."""
        given = {name: prepared[name] for name in ("given_key", "given_margin")}
        if self.teacher is None:
            return given, {}
        found = []
        for side in _SIDES:
            tokens = {name: prepared[f"teacher_{side}_{name}"] for name in _TOKENS}
            rows = _encode(self.teacher.networks.encoders[side], tokens, chunk_size)
            found.append({f"teacher_{name}": tf.stop_gradient(x) for name, x in rows.items()})
        return {**given, **found[0]}, found[1]

    def __call__(
        self, queries: Rows, candidates: Rows, *, other_queries: Rows | None = None
    ) -> tf.Tensor:
        """Returns the mean loss of the queries, a scalar."""
        embeddings = queries["embeddings"]
        scores = tf.matmul(embeddings, candidates["embeddings"], transpose_b=True)
        margins = _margins(scores / self.temperature)
        keys = queries["given_key"]
        # (B, C): the share of a given negative that a candidate is, and its margin. A document that
        # two queries have stands twice among the candidates.
        scored = (keys != 0) & ~tf.math.is_nan(queries["given_margin"])
        same = (keys[:, None, :] == candidates["keys"][None, :, None]) & scored[:, None, :]
        given = tf.cast(tf.reduce_any(same, axis=2), scores.dtype)
        wanted = tf.reduce_max(
            tf.where(same, queries["given_margin"][:, None, :], tf.float32.min), axis=2
        )
        wanted = tf.where(given > 0, tf.cast(wanted, scores.dtype), 0.0)
        equal = candidates["keys"][:, None] == candidates["keys"][None, :]
        copies = tf.reduce_sum(tf.cast(equal, scores.dtype), axis=1)
        loss = self.pair_weight * _mean_square(margins - wanted, given / copies)
        if not self.batch_weight:
            return loss
        there = candidate_mask(candidates["keys"], queries["positive_keys"])
        there = tf.linalg.set_diag(there, tf.zeros([tf.reduce_min(tf.shape(there))], tf.bool))
        taught = _margins(tf.cast(_sums_of_best(queries, candidates), scores.dtype))
        there = tf.cast(there, scores.dtype)
        return loss + self.batch_weight * _mean_square(margins - taught, there)


def _encode(
    encoder: Any, tokens: Mapping[str, tf.Tensor], chunk_size: int | None
) -> dict[str, tf.Tensor]:
    """Returns `vectors` (N, V, D) and `mask` (N, V) of texts, so many at once; `None` for all.

    Tokens that fill a query stand where others have padding, so no chunk is cut to its longest.
    """
    if chunk_size is None:
        return encoder(dict(tokens), training=False)
    count = tf.shape(tokens["token_ids"])[0]
    more = -count % chunk_size

    def chunks(x: tf.Tensor) -> tf.Tensor:
        return tf.reshape(tf.pad(x, [[0, more], [0, 0]]), (-1, chunk_size, x.shape[1]))

    spec = {
        name: tf.TensorSpec((chunk_size, *x.shape[1:]), x.dtype)
        for name, x in encoder.output.items()
    }
    found = tf.map_fn(
        lambda chunk: encoder(chunk, training=False),
        {name: chunks(x) for name, x in tokens.items()},
        fn_output_signature=spec,
    )
    return {
        name: tf.reshape(x, tf.concat([[-1], tf.shape(x)[2:]], 0))[:count]
        for name, x in found.items()
    }


def _margins(scores: tf.Tensor) -> tf.Tensor:
    """How much more each query's own positive scores than each candidate, (B, C)."""
    return tf.linalg.diag_part(scores)[:, None] - scores


def _mean_square(difference: tf.Tensor, counts: tf.Tensor) -> tf.Tensor:
    """The mean over queries of each one's mean over what counts; one without anything has 0."""
    squares = tf.reduce_sum(tf.square(difference) * counts, axis=1)
    return tf.reduce_mean(tf.math.divide_no_nan(squares, tf.reduce_sum(counts, axis=1)))


def _sums_of_best(queries: Rows, candidates: Rows) -> tf.Tensor:
    """The teacher's scores, (B, C): each query vector's best, summed; a query at a time."""
    vectors, counts = candidates["teacher_vectors"], candidates["teacher_mask"] > 0

    def of_query(query: tuple[tf.Tensor, tf.Tensor]) -> tf.Tensor:
        x, mask = query
        products = tf.einsum("xd,cyd->cxy", x, vectors)
        best = tf.reduce_max(tf.where(counts[:, None, :], products, -1.0), axis=2)
        best = tf.where(tf.reduce_any(counts, axis=1)[:, None], best, 0.0)
        return tf.reduce_sum(best * tf.cast(mask, best.dtype), axis=1)

    rows = (queries["teacher_vectors"], queries["teacher_mask"])
    return tf.map_fn(of_query, rows, fn_output_signature=tf.float32)
