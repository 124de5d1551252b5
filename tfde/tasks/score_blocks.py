"""Loss and accuracy of a batch by blocks of queries: scores in memory bounded by the block."""

from __future__ import annotations

import tensorflow as tf

from tfde.tasks.replicas import gather_rows
from tfde.tasks.retrieval_task import in_batch_accuracy
from tfde.tasks.task import Rows, Task


def loss_over_replicas(
    task: Task, queries: Rows, candidates: Rows, *, rows: int | None = None
) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns `loss_and_accuracy` of this replica's queries among the candidates of all replicas.

    Args:
        task: The loss.
        queries: Rows of this replica's queries.
        candidates: Rows of this replica's candidates.
        rows: Queries whose scores are computed at once; `None` takes all.
    """
    others = None
    if task.needs_other_queries:
        own = tf.shape(queries["embeddings"])[0]
        others = {name: part[own:] for name, part in gather_rows(queries).items()}
    return loss_and_accuracy(
        task, queries, gather_rows(candidates), other_queries=others, rows=rows
    )


def loss_and_accuracy(
    task: Task,
    queries: Rows,
    candidates: Rows,
    *,
    other_queries: Rows | None = None,
    rows: int | None = None,
) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns what the task and `in_batch_accuracy` return.

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
        loss = task(queries, candidates, other_queries=other_queries)
        return loss, in_batch_accuracy(queries, candidates)
    count = tf.shape(queries["embeddings"])[0]
    if other_queries is not None:
        queries = {
            name: tf.concat([part, other_queries[name]], 0) for name, part in queries.items()
        }

    def block(start: tf.Tensor, of_queries: tf.Tensor, of_candidates: tf.Tensor) -> list[tf.Tensor]:
        """Adds this to loss and accuracy: its own queries and their positives come first."""
        everyone, found = (
            {name: tf.roll(part, -start, 0) for name, part in {**known, "embeddings": x}.items()}
            for known, x in ((queries, of_queries), (candidates, of_candidates))
        )
        size = tf.minimum(rows, count - start)
        own, others = (
            {name: part[of] for name, part in everyone.items()}
            for of in (slice(size), slice(size, None))
        )
        means = loss_and_accuracy(
            task, own, found, other_queries=others if task.needs_other_queries else None
        )
        return [mean * tf.cast(size / count, mean.dtype) for mean in means]

    @tf.custom_gradient
    def means(of_queries: tf.Tensor, of_candidates: tf.Tensor) -> tuple:
        def add(start: tf.Tensor, *sums: tf.Tensor) -> tuple[tf.Tensor, ...]:
            # Copies, for a tape to watch in this iteration alone.
            sides = [tf.identity(of_queries), tf.identity(of_candidates)]
            with tf.GradientTape() as tape:
                tape.watch(sides)
                loss, accuracy = block(start, *sides)
            found = [loss, accuracy, *tape.gradient(loss, sides)]
            return start + rows, *(total + part for total, part in zip(sums, found, strict=True))

        zero = tf.zeros([], of_queries.dtype)
        sums = (zero, tf.zeros([]), tf.zeros_like(of_queries), tf.zeros_like(of_candidates))
        _, loss, accuracy, *gradients = tf.while_loop(
            lambda start, *_: start < count, add, (tf.constant(0), *sums), parallel_iterations=1
        )

        def gradient(of_loss: tf.Tensor, of_accuracy: tf.Tensor) -> list[tf.Tensor]:
            return [of_loss * part for part in gradients]

        return (loss, accuracy), gradient

    return means(queries["embeddings"], candidates["embeddings"])
