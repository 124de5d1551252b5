"""A loss of the first numbers of embeddings too, so that they serve when cut."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Self

import keras
import tensorflow as tf

from tfde.argument_types import typed
from tfde.config.losses import check_dims
from tfde.errors import require
from tfde.tasks.adapters import as_task
from tfde.tasks.task import Rows, Task


@keras.saving.register_keras_serializable(package="tfde")
class MatryoshkaTask(Task):
    """The weighted sum of another task's losses of the first d numbers of embeddings.

    loss = sum over d of weight_d * task(first d numbers of each embedding, of unit length again).

    Args:
        task: The other task, or whatever `compile` takes for one.
        dims: Each d, ascending; the last should be the length of the embedding, whose last numbers
            train by no other.
        weights: Of each d, at least 0 and not all 0; `None`: 1 each.
        normalize: Whether the first d numbers get unit length: yes, where embeddings have it.

    Raises:
        ConfigError: no dims, or not ascending ones from 1; weights that do not go with them; a dim
            above the length of the embeddings, once these are seen.

    Source: Kusupati et al. 2022 (Matryoshka representation learning), equation 1; that what is cut
        has unit length again: derived here.
    """

    @typed
    def __init__(
        self,
        task: Any,
        dims: Sequence[int],
        weights: Sequence[float] | None = None,
        *,
        normalize: bool = True,
    ) -> None:
        check_dims(dims, weights)
        self.task = as_task(task)
        self.trained_dims = tuple(map(int, dims))
        self.weights = tuple(map(float, weights or [1.0] * len(dims)))
        self.normalize = normalize
        self.needs_other_queries = self.task.needs_other_queries
        self.whole_batch = self.task.whole_batch

    def get_config(self) -> dict[str, Any]:
        """Returns the constructor's arguments; a saved model is compiled with them again."""
        return {
            "task": keras.saving.serialize_keras_object(self.task),
            "dims": list(self.trained_dims),
            "weights": list(self.weights),
            "normalize": self.normalize,
        }

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> Self:
        """Returns the task of these arguments."""
        return cls(**{**config, "task": keras.saving.deserialize_keras_object(config["task"])})

    def prepare(self, batch: Mapping[str, tf.Tensor], *, replicas: int) -> dict[str, tf.Tensor]:
        """Returns what the other task prepares."""
        return self.task.prepare(batch, replicas=replicas)

    def describe(
        self, prepared: Mapping[str, tf.Tensor], *, chunk_size: int | None
    ) -> tuple[Rows, Rows]:
        """Returns what the other task knows."""
        return self.task.describe(prepared, chunk_size=chunk_size)

    def __call__(
        self, queries: Rows, candidates: Rows, *, other_queries: Rows | None = None
    ) -> tf.Tensor:
        """Returns the weighted sum, a scalar."""
        losses = []
        for dim, weight in zip(self.trained_dims, self.weights, strict=True):
            cut = [self._cut(rows, dim) for rows in (queries, candidates)]
            others = None if other_queries is None else self._cut(other_queries, dim)
            losses.append(weight * self.task(*cut, other_queries=others))
        return tf.add_n(losses)

    def _cut(self, rows: Rows, dim: int) -> Rows:
        embeddings = rows["embeddings"]
        length = embeddings.shape[-1]
        fits = length is None or dim <= length
        require(fits, "dims", f"at most {length}, the length of an embedding", dim)
        embeddings = embeddings[:, :dim]
        if self.normalize:
            embeddings = tf.math.l2_normalize(embeddings, axis=-1)
        return {**rows, "embeddings": embeddings}
