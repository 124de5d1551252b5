"""A Keras loss of relevance and scores, as a task."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, Self

import keras
import numpy as np
import tensorflow as tf

from tfde.argument_types import typed
from tfde.errors import ConfigError, require
from tfde.tasks.retrieval_task import candidate_mask
from tfde.tasks.task import Rows, Task

LOWEST = -1e9  # of a candidate that is none: exp() of it is 0, sums with it are finite
BATCH_ROWS = "batch_rows"


class _Absence(NamedTuple):
    """The relevance and score of a candidate that is none, and whether it counts in a mean."""

    relevance: float
    score: float
    in_mean: bool


# A softmax or a hinge takes a very low score for absent, a regression what has no error, and
# keras-rs a relevance of -1.
_ABSENCES = ((0.0, LOWEST), (0.0, 0.0), (-1.0, 0.0))


@keras.saving.register_keras_serializable(package="tfde")
class ScoreTask(Task):
    """A Keras loss of a batch: `loss(relevance, scores)`, both (B, C).

    Relevance is 1 for the query's own positive and 0 for every other candidate; scores are dot
    products of embeddings over the temperature. Padding and the other known positives of a query
    are no candidates of it: the loss and its gradient are those of the row without them.

    Args:
        loss: `keras.losses` or `keras_rs.losses` of pairwise and listwise kind, the name of one, or
            a function of relevance and scores that returns (B,), (B, C), or a mean over queries.
            What has `from_logits` must have it true; names and functions get it.
        temperature: Divides the dot products, above 0.

    The mean over queries is taken, or, where the loss has `reduction="sum"`, the sum over those of
    the whole batch.

    Raises:
        ConfigError: `loss` is none of these, wants probabilities, or has no way to leave a
            candidate out.

    Source: derived here.
    """

    @typed
    def __init__(self, loss: Any, temperature: float = 1.0) -> None:
        require(temperature > 0, "temperature", "above 0", temperature)
        self.temperature = float(temperature)
        self.loss = loss
        self._call, reduction = losses_of(loss)
        self._sums = reduction == "sum"
        self._absent = _how_to_leave_out(self._call, loss)

    def get_config(self) -> dict[str, Any]:
        """Returns the constructor's arguments; a saved model is compiled with them again."""
        loss = keras.saving.serialize_keras_object(self.loss)
        return {"loss": loss, "temperature": self.temperature}

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> Self:
        """Returns the task of these arguments."""
        return cls(**{**config, "loss": keras.saving.deserialize_keras_object(config["loss"])})

    def prepare(self, batch: Mapping[str, tf.Tensor], *, replicas: int) -> dict[str, tf.Tensor]:
        """Returns of how many queries the whole batch is, for a sum."""
        return batch_rows(batch, replicas) if self._sums else {}

    def describe(
        self, prepared: Mapping[str, tf.Tensor], *, chunk_size: int | None
    ) -> tuple[Rows, Rows]:
        """Returns the same beside each query."""
        return ({BATCH_ROWS: prepared[BATCH_ROWS]} if self._sums else {}), {}

    def __call__(
        self, queries: Rows, candidates: Rows, *, other_queries: Rows | None = None
    ) -> tf.Tensor:
        """Returns the mean loss of the queries, or what they have of the batch's sum, a scalar."""
        there = candidate_mask(candidates["keys"], queries["positive_keys"])
        scores = tf.matmul(queries["embeddings"], candidates["embeddings"], transpose_b=True)
        relevance = tf.eye(tf.shape(scores)[0], tf.shape(scores)[1], dtype=scores.dtype)
        relevance = tf.where(there, relevance, self._absent.relevance)
        scores = tf.where(there, scores / self.temperature, self._absent.score)
        losses = tf.convert_to_tensor(self._call(relevance, scores))
        if losses.shape.rank == 2:
            losses = tf.reduce_mean(losses, axis=1)
        if self._absent.in_mean:
            losses *= 1.0 / tf.reduce_mean(tf.cast(there, losses.dtype), axis=1)
        mean = tf.reduce_mean(losses)
        return mean * tf.cast(queries[BATCH_ROWS][0], mean.dtype) if self._sums else mean


def batch_rows(batch: Mapping[str, tf.Tensor], replicas: int) -> dict[str, tf.Tensor]:
    """Returns beside each query how many queries the batch of all replicas has, (B,) float32."""
    rows = tf.shape(batch["query"])
    return {BATCH_ROWS: tf.fill(rows, tf.cast(rows[0] * replicas, tf.float32))}


def losses_of(loss: Any) -> tuple[Callable[[Any, Any], Any], str | None]:
    """Returns what gives the loss of each query, and how they are reduced."""
    named, rule = loss, "a Keras loss, its name, or a function of (relevance, scores)"
    if isinstance(loss, str):
        try:
            loss = keras.losses.get(loss)
        except ValueError:
            raise ConfigError(f"`loss` must be {rule}. Received: {named!r}") from None
        if getattr(loss, "from_logits", True) is False:
            loss = type(loss).from_config({**loss.get_config(), "from_logits": True})
    if isinstance(loss, keras.losses.Loss):
        logits = getattr(loss, "from_logits", True)
        require(logits, "loss", "one of scores: set `from_logits=True`", named)
        return loss.call, loss.reduction
    require(callable(loss) and not inspect.isclass(loss), "loss", rule, named)
    if "from_logits" in inspect.signature(loss).parameters:
        loss = functools.partial(loss, from_logits=True)
    return loss, None


def _how_to_leave_out(call: Callable[[Any, Any], Any], loss: Any) -> _Absence:
    """Finds, by trying, what makes a candidate one that the loss does not see."""
    scores = np.array([[0.3, -0.2, 0.1], [-0.4, 0.6, -0.1]], np.float32)
    relevance = np.array([[1, 0, 0], [0, 1, 0]], np.float32)

    def losses(relevance: np.ndarray, scores: np.ndarray) -> np.ndarray:
        values = np.asarray(call(tf.constant(relevance), tf.constant(scores)))
        return values.mean(axis=1) if values.ndim == 2 else values

    def beside(column: float, x: np.ndarray) -> np.ndarray:
        return np.insert(x, 2, column, axis=1).astype(np.float32)

    try:
        wanted = losses(relevance, scores)
        for label, score in _ABSENCES:
            found = losses(beside(label, relevance), beside(score, scores))
            for in_mean in (False, True) if wanted.ndim else (False,):
                if np.allclose(found * (4 / 3 if in_mean else 1), wanted, 1e-5, 1e-7):
                    return _Absence(label, score, in_mean)
    except Exception as error:  # whatever a loss of anybody's raises
        reason = str(error).splitlines()[:1] or [repr(error)]
        raise ConfigError(
            "`loss` must take relevance and scores, both (B, C), and return (B,), (B, C) or a mean"
            f" over queries. Received: {loss!r}: {reason[0]}"
        ) from error
    raise ConfigError(
        "`loss` must have a way to leave candidates out (padding, other known positives): write it"
        f" as a function of (query_embeddings, document_embeddings, batch). Received: {loss!r}"
    )
