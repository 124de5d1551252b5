"""Loss and accuracy of a batch by blocks of queries: scores in memory bounded by the block."""

from __future__ import annotations

import tensorflow as tf

from tfde.tasks.retrieval_task import RetrievalTask, in_batch_accuracy


def loss_and_accuracy(
    task: RetrievalTask,
    query_embeddings: tf.Tensor,
    candidate_embeddings: tf.Tensor,
    *,
    candidate_keys: tf.Tensor,
    positive_keys: tf.Tensor,
    candidate_sampling_probability: tf.Tensor | None = None,
    other_queries: tuple[tf.Tensor, tf.Tensor] | None = None,
    rows: int | None = None,
) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns what `RetrievalTask` and `in_batch_accuracy` return.

    8,192 queries and as many candidates have 256 MB of scores, of which loss, mask and gradient
    make six copies. Here the gradient by the embeddings is taken block by block, while the scores
    of a block are there.

    Args:
        task: The loss.
        query_embeddings: (B, D) float.
        candidate_embeddings: (C, D) float, C >= B.
        candidate_keys: (C,) int64, as in `RetrievalTask`, like all that follow.
        positive_keys: (B, P) int64.
        candidate_sampling_probability: (C,) float.
        other_queries: Embeddings (Q, D) and known positives (Q, P).
        rows: Queries whose scores are computed at once; `None` takes all, without a loop.

    Source: derived here: a block of queries is to the batch what a replica's queries are to the
        batch of all replicas.
    """
    if rows is None:
        keys = {"candidate_keys": candidate_keys, "positive_keys": positive_keys}
        loss = task(
            query_embeddings,
            candidate_embeddings,
            candidate_sampling_probability=candidate_sampling_probability,
            other_queries=other_queries,
            **keys,
        )
        return loss, in_batch_accuracy(query_embeddings, candidate_embeddings, **keys)
    count = tf.shape(query_embeddings)[0]
    if other_queries is not None:
        query_embeddings = tf.concat([query_embeddings, other_queries[0]], 0)
        positive_keys = tf.concat([positive_keys, other_queries[1]], 0)
    probability = candidate_sampling_probability

    def block(start: tf.Tensor, queries: tf.Tensor, candidates: tf.Tensor) -> list[tf.Tensor]:
        """Adds this to loss and accuracy: its own queries and their positives come first."""
        queries, positives, candidates, keys = (
            tf.roll(x, -start, 0) for x in (queries, positive_keys, candidates, candidate_keys)
        )
        size = tf.minimum(rows, count - start)
        means = loss_and_accuracy(
            task,
            queries[:size],
            candidates,
            candidate_keys=keys,
            positive_keys=positives[:size],
            candidate_sampling_probability=None
            if probability is None
            else tf.roll(probability, -start, 0),
            other_queries=(queries[size:], positives[size:]) if task.bidirectional else None,
        )
        return [mean * tf.cast(size / count, mean.dtype) for mean in means]

    @tf.custom_gradient
    def means(queries: tf.Tensor, candidates: tf.Tensor) -> tuple:
        def add(start: tf.Tensor, *sums: tf.Tensor) -> tuple[tf.Tensor, ...]:
            # Copies, for a tape to watch in this iteration alone.
            sides = [tf.identity(queries), tf.identity(candidates)]
            with tf.GradientTape() as tape:
                tape.watch(sides)
                loss, accuracy = block(start, *sides)
            found = [loss, accuracy, *tape.gradient(loss, sides)]
            return start + rows, *(total + part for total, part in zip(sums, found, strict=True))

        zero = tf.zeros([], queries.dtype)
        sums = (zero, tf.zeros([]), tf.zeros_like(queries), tf.zeros_like(candidates))
        _, loss, accuracy, *gradients = tf.while_loop(
            lambda start, *_: start < count, add, (tf.constant(0), *sums), parallel_iterations=1
        )

        def gradient(of_loss: tf.Tensor, of_accuracy: tf.Tensor) -> list[tf.Tensor]:
            return [of_loss * part for part in gradients]

        return (loss, accuracy), gradient

    return means(query_embeddings, candidate_embeddings)
