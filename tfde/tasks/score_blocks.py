"""Loss and metrics of a batch by blocks of queries: scores in memory bounded by the block."""

from __future__ import annotations

from collections.abc import Sequence

import keras
import tensorflow as tf

from tfde.tasks.batch_metrics import update_metrics
from tfde.tasks.replicas import gather_rows
from tfde.tasks.task import Rows, Task


def loss_over_replicas(
    task: Task,
    queries: Rows,
    candidates: Rows,
    *,
    metrics: Sequence[keras.metrics.Metric] = (),
    rows: int | None = None,
) -> tf.Tensor:
    """Returns the mean loss of this replica's queries among the candidates of all replicas.

    Args:
        task: The loss; of a whole batch it is that of all queries.
        queries: Rows of this replica's queries.
        candidates: Rows of this replica's candidates.
        metrics: What is shown the same scores.
        rows: Queries whose scores are computed at once; `None` takes all.
    """
    own = tf.shape(queries["embeddings"])[0]
    of_each = tf.size(candidates["keys"])
    found = gather_rows(candidates)
    if task.whole_batch:
        found = {name: _positives_first(part, own, of_each) for name, part in found.items()}
        loss = task(gather_rows(queries), found)
    else:
        others = None
        if task.needs_other_queries:
            others = {name: part[own:] for name, part in gather_rows(queries).items()}
        loss = loss_by_blocks(task, queries, found, other_queries=others, rows=rows)
    update_metrics(metrics, queries, found, rows=rows)
    return loss


def _positives_first(part: tf.Tensor, own: tf.Tensor, of_each: tf.Tensor) -> tf.Tensor:
    """Returns the candidates of all replicas with all positives before all negatives.

    Args:
        part: (R C, ...), of one replica after the other, its positives first.
        own: Positives of each.
        of_each: Candidates of each, C.
    """
    numbers = tf.reshape(tf.range(tf.shape(part)[0]), [-1, of_each])
    order = [tf.reshape(numbers[:, of], [-1]) for of in (slice(own), slice(own, None))]
    return tf.gather(part, tf.concat(order, 0))


def loss_by_blocks(
    task: Task,
    queries: Rows,
    candidates: Rows,
    *,
    other_queries: Rows | None = None,
    rows: int | None = None,
) -> tf.Tensor:
    """Returns what the task returns.

    8,192 queries and as many candidates have 256 MB of scores, of which loss, mask and gradient
    make six copies. Here the gradient by the embeddings is taken block by block, while the scores
    of a block are there.

    Args:
        task: The loss.
        queries: Rows of B queries, as `Task` says, like all that follow.
        candidates: Rows of C candidates.
        other_queries: Rows of the queries of other replicas.
        rows: Queries whose scores are computed at once; `None` takes all, without a loop.

    Source: derived here: a block of queries is to the batch what a replica's queries are to the
        batch of all replicas.
    """
    if rows is None:
        return task(queries, candidates, other_queries=other_queries)
    count = tf.shape(queries["embeddings"])[0]
    if other_queries is not None:
        queries = {
            name: tf.concat([part, other_queries[name]], 0) for name, part in queries.items()
        }

    def block(start: tf.Tensor, of_queries: tf.Tensor, of_candidates: tf.Tensor) -> tf.Tensor:
        """Adds this to the loss: its own queries and their positives come first."""
        everyone, found = (
            {name: tf.roll(part, -start, 0) for name, part in {**known, "embeddings": x}.items()}
            for known, x in ((queries, of_queries), (candidates, of_candidates))
        )
        size = tf.minimum(rows, count - start)
        own, others = (
            {name: part[of] for name, part in everyone.items()}
            for of in (slice(size), slice(size, None))
        )
        mean = task(own, found, other_queries=others if task.needs_other_queries else None)
        return mean * tf.cast(size / count, mean.dtype)

    @tf.custom_gradient
    def mean(of_queries: tf.Tensor, of_candidates: tf.Tensor) -> tuple:
        def add(start: tf.Tensor, *sums: tf.Tensor) -> tuple[tf.Tensor, ...]:
            # Copies, for a tape to watch in this iteration alone.
            sides = [tf.identity(of_queries), tf.identity(of_candidates)]
            with tf.GradientTape() as tape:
                tape.watch(sides)
                loss = block(start, *sides)
            found = [loss, *tape.gradient(loss, sides)]
            return start + rows, *(total + part for total, part in zip(sums, found, strict=True))

        zero = tf.zeros([], of_queries.dtype)
        sums = (zero, tf.zeros_like(of_queries), tf.zeros_like(of_candidates))
        _, loss, *gradients = tf.while_loop(
            lambda start, *_: start < count, add, (tf.constant(0), *sums), parallel_iterations=1
        )

        def gradient(of_loss: tf.Tensor) -> list[tf.Tensor]:
            return [of_loss * part for part in gradients]

        return loss, gradient

    return mean(queries["embeddings"], candidates["embeddings"])
