"""What training asks of a loss: the door for losses of one's own.

A step has three moments. `prepare` sees the strings of a batch, where texts are tokenized.
`describe` sees what came of it on the device that takes the step, before the towers do. Then the
loss is called with the embeddings, once for the whole batch, or, where memory is to be bounded,
for a block of its queries at a time. Replicas and blocks pass on rows and do not know what is in
them: whatever a task knows of a text goes with its embedding.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

import tensorflow as tf

from tfde.errors import ConfigError, require
from tfde.types import CONTEXT

# Tensors of one first axis, a row for each text: its embedding and what else is known of it.
Rows = Mapping[str, tf.Tensor]


class Task(Protocol):
    """A loss of the embeddings of queries and candidates; a class of it has the defaults below.

    Attributes:
        needs_other_queries: Whether the loss of a query depends on the other queries of the batch.
            Then they are passed to it, wherever they are.
        whole_batch: Whether the loss is no mean over queries: it is called once, with the queries
            and candidates of all replicas, and its scores stand in memory as it makes them.
        trained_dims: The first so many numbers of an embedding that are trained to serve alone,
            beside the whole; they are stored with the model.
    """

    needs_other_queries: bool = False
    whole_batch: bool = False
    trained_dims: tuple[int, ...] = ()

    def prepare(self, batch: Mapping[str, tf.Tensor], *, replicas: int) -> dict[str, tf.Tensor]:
        """Returns what the task wants to see of a batch in its step (graph ops).

        Args:
            batch: Strings and keys, as `PairBatches` says; under a strategy, a replica's rows.
            replicas: How many replicas share the rows of a batch.

        Returns:
            Tensors under names of the task's own.
        """
        return {}

    def describe(
        self, prepared: Mapping[str, tf.Tensor], *, chunk_size: int | None
    ) -> tuple[Rows, Rows]:
        """Returns what the task knows of each query and of each candidate; no gradient flows.

        Args:
            prepared: What `prepare` returned, among other things.
            chunk_size: How many texts a tower may work on at once; `None` for all.

        Returns:
            Rows of the B queries and of the C candidates, under names of the task's own.
        """
        return {}, {}

    def __call__(
        self, queries: Rows, candidates: Rows, *, other_queries: Rows | None = None
    ) -> tf.Tensor:
        """Returns the mean loss of the queries, a scalar.

        The mean over blocks of queries must be that of all: what the loss of a query depends on is
        the query, the candidates, and, with `needs_other_queries`, the other queries.

        Args:
            queries: `embeddings` (B, D) float; `positive_keys` (B, P) int64, the keys of all known
                positives of each query, 0 = none; and what `describe` returned.
            candidates: `embeddings` (C, D) float, C >= B: row i < B is the positive of query i, all
                others are candidates of every query; `keys` (C,) int64, equal for equal documents,
                0 = padding, never a candidate; and what `describe` returned.
            other_queries: Rows as `queries`, in another place or block: they may choose, and their
                own losses are not asked for here.
        """
        ...


def candidate_texts(batch: Mapping[str, tf.Tensor], name: str) -> tf.Tensor:
    """Returns a column of a batch's candidates, (C,): the positives, then all given negatives.

    Args:
        batch: As `PairBatches` says.
        name: `title`, `text`, `context` or `key`.

    Raises:
        ConfigError: contexts are wanted and a document has none; it is no such batch.
    """
    there = isinstance(batch, Mapping) and f"document_{name}" in batch
    if not there and name == CONTEXT:
        raise ConfigError(
            f"pairs must have a `{name}` for each document, which the model's template names;"
            " tfde convert --level sentence --context keeps the passages of sentences."
        )
    require(there, "batch", "one of `tfde.pairs(...).dataset()`, texts and keys by name", batch)
    return tf.concat([batch[f"document_{name}"], tf.reshape(batch[f"negative_{name}"], [-1])], 0)
