"""Gradient cache: the gradient of a large batch in memory bounded by a chunk of its texts.

An in-batch loss needs the embeddings of the whole batch at once, but a tower needs no more than
the text it embeds. With e the embeddings and w the weights, dL/dw = sum over texts of
dL/de * de/dw, so:

1. every chunk is embedded, and nothing but its embeddings is kept;
2. the loss of all embeddings gives the cache, dL/de;
3. every chunk is embedded again, and the gradient of sum(e * dL/de) is its share of dL/dw.

Dropout must fall alike in 1 and 3. It follows from the layers' random states and from nothing
else, so 3 sets them back to where 1 began and takes the chunks in the same order; after it they
stand where 1 had left them.

Source: Gao et al. 2021, "Scaling Deep Contrastive Learning Batch Size under Memory Limited Setup",
section 3; the order of texts and the way back of the random states are derived here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import keras
import tensorflow as tf

from tfde.errors import ConfigError

Tokens = Mapping[str, tf.Tensor]
Embed = Callable[[Tokens], tf.Tensor]


def cached_gradients(
    texts: Sequence[tuple[Embed, Tokens]],
    loss_of_embeddings: Callable[..., tf.Tensor],
    *,
    chunk_size: int,
    weights: Sequence[Any],
    random_states: Sequence[Any],
) -> list[tf.Tensor]:
    """Returns the gradient of a batch's loss by each weight, dense.

    Args:
        texts: Of each side, what embeds its texts, `token_ids` and `padding_mask` (N, L) ->
            (N, D) float32, and these texts.
        loss_of_embeddings: The scalar loss of the sides' embeddings, (N, D) each in the order of
            the texts; called once.
        chunk_size: Texts that are embedded at once.
        weights: By what the gradient is taken, in float32 unless their own dtype is another.
        random_states: Variables that decide over dropout; they go on as they do without chunks,
            but by one call a chunk.
    """
    sides = [(embed, _Chunks(tokens, chunk_size)) for embed, tokens in texts]
    states = [tf.identity(state) for state in random_states]
    embeddings: list[tf.Tensor] = []
    for embed, chunks in sides:
        with tf.control_dependencies(embeddings):  # one side after the other, not both at once
            embeddings.append(chunks.embed(embed))
    with tf.GradientTape() as tape:
        tape.watch(embeddings)
        loss = loss_of_embeddings(*embeddings)
    cache = [tf.convert_to_tensor(part) for part in tape.gradient(loss, embeddings)]
    with tf.control_dependencies(cache):
        for variable, state in zip(random_states, states, strict=True):
            variable.assign(state)
        gradients = [tf.zeros(weight.shape, weight.dtype) for weight in weights]
    for (embed, chunks), part in zip(sides, cache, strict=True):
        gradients = chunks.add_gradients(gradients, embed, part, weights=weights)
    return gradients


def embed_in_chunks(embed: Embed, tokens: Tokens, *, chunk_size: int | None) -> tf.Tensor:
    """Returns the embeddings of texts, (N, D) float32, so many at once; `None` for all."""
    return embed(tokens) if chunk_size is None else _Chunks(tokens, chunk_size).embed(embed)


def random_states(towers: Iterable[keras.Model]) -> list[keras.Variable]:
    """Returns the state of each seed generator of the towers' layers, once."""
    # A functional model has no other variables beside its weights.
    variables = {id(variable): variable for tower in towers for variable in tower.variables}
    for tower in towers:
        for weight in tower.weights:
            variables.pop(id(weight), None)
    return list(variables.values())


def check_state(tower: keras.Model) -> None:
    """Refuses a tower whose training changes weights that have no gradient.

    Each text is embedded twice, and so they would change twice, and by chunks.

    Args:
        tower: Of `token_ids` and `padding_mask`; it is called once, and stays as it is.

    Raises:
        ConfigError: a weight without a gradient changes, such as a mean of BatchNormalization.
    """
    weights = {id(weight) for weight in tower.non_trainable_weights}
    if not weights:
        return
    variables = tower.non_trainable_variables
    before = [tf.convert_to_tensor(variable.value) for variable in variables]
    tokens = {name: tf.ones([2, 3], tf.int32) for name in ("token_ids", "padding_mask")}
    trained = [tf.convert_to_tensor(variable.value) for variable in tower.trainable_variables]
    _, after = tower.stateless_call(trained, before, tokens, training=True)
    for variable, old, new in zip(variables, before, after, strict=True):
        if id(variable) in weights and new is not old:
            raise ConfigError(
                "`chunk_size` must be None where training changes weights that have no gradient,"
                f" as BatchNormalization does. Received: {tower.name} with {variable.path}"
            )


class _Chunks:
    """The texts of one side in chunks of like length, the longest first.

    The loops over them run in the graph, one chunk after the other, so that neither the graph nor
    the memory grows with their number.
    """

    def __init__(self, tokens: Tokens, size: int) -> None:
        mask = tokens["padding_mask"]
        lengths = tf.reduce_max(mask * tf.range(1, tf.shape(mask)[1] + 1), axis=1)
        self._order = tf.argsort(lengths, direction="DESCENDING", stable=True)
        self._lengths = tf.maximum(tf.gather(lengths, self._order), 1)
        self._tokens = {name: tf.gather(rows, self._order) for name, rows in tokens.items()}
        self._size = size
        self._count = (tf.size(lengths) + size - 1) // size

    def embed(self, embed: Embed) -> tf.Tensor:
        """Returns the embeddings, (N, D) float32, in the order that the texts were given in."""

        def add(number: tf.Tensor, parts: tf.TensorArray) -> tuple[tf.Tensor, tf.TensorArray]:
            return number + 1, parts.write(number, embed(self._chunk(number)))

        parts = tf.TensorArray(tf.float32, size=self._count, infer_shape=False)
        _, parts = self._loop(add, (tf.constant(0), parts))
        return tf.gather(parts.concat(), tf.math.invert_permutation(self._order))

    def add_gradients(
        self, gradients: list[tf.Tensor], embed: Embed, cache: tf.Tensor, *, weights: Sequence[Any]
    ) -> list[tf.Tensor]:
        """Returns `gradients` plus that of sum(embeddings * cache) by each weight."""
        cache = tf.gather(cache, self._order)

        def add(number: tf.Tensor, *sums: tf.Tensor) -> tuple[tf.Tensor, ...]:
            with tf.GradientTape() as tape:
                product = tf.reduce_sum(embed(self._chunk(number)) * self._rows(cache, number))
            return number + 1, *map(_add, sums, tape.gradient(product, weights))

        _, *gradients = self._loop(add, (tf.constant(0), *gradients))
        return gradients

    def _loop(self, body: Callable, start: tuple) -> tuple:
        return tf.while_loop(
            lambda number, *_: number < self._count, body, start, parallel_iterations=1
        )

    def _chunk(self, number: tf.Tensor) -> dict[str, tf.Tensor]:
        longest = self._lengths[number * self._size]
        return {name: self._rows(rows, number)[:, :longest] for name, rows in self._tokens.items()}

    def _rows(self, x: tf.Tensor, number: tf.Tensor) -> tf.Tensor:
        return x[number * self._size : (number + 1) * self._size]


def _add(total: tf.Tensor, gradient: tf.Tensor | tf.IndexedSlices | None) -> tf.Tensor:
    if gradient is None:  # a weight of the other tower
        return total
    if isinstance(gradient, tf.IndexedSlices):
        # In place; a table's gradient would be the largest tensor of the loop.
        return tf.tensor_scatter_nd_add(total, gradient.indices[:, tf.newaxis], gradient.values)
    return total + gradient
