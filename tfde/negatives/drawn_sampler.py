"""Sampling of tokens with given random numbers, in place of a generator with a state."""

from __future__ import annotations

import keras_hub
import numpy as np
import tensorflow as tf


class DrawnSampler(keras_hub.samplers.Sampler):
    """Draws tokens from the most probable ones, each by a number that was drawn for its place.

    keras-hub's own samplers share one random state among the rows of all batches, so that a text
    would depend on the texts before and beside it.

    Args:
        top_k: How many tokens may be drawn at each place.
        temperature: Divides the logits.
    """

    def __init__(self, top_k: int, temperature: float) -> None:
        super().__init__(temperature=temperature)
        self.top_k = top_k
        # Variables, since the compiled generation takes no further inputs.
        self._fractions = tf.Variable(tf.zeros((0, 0)), shape=(None, None), trainable=False)
        self._place = tf.Variable(0, trainable=False)

    def begin(self, fractions: np.ndarray) -> None:
        """Gives the numbers for the next batch.

        Args:
            fractions: In [0, 1), (B, L) float32, one for each token that may be drawn.
        """
        self._fractions.assign(fractions)
        self._place.assign(0)

    def get_next_token(self, probabilities: tf.Tensor) -> tf.Tensor:
        """Returns the tokens of the next place.

        The k largest probabilities lie side by side on a line from 0 to their sum; the token is
        that in whose stretch the fraction of the line ends.

        Args:
            probabilities: (B, vocabulary) float32.

        Returns:
            Token ids, (B,) int32.
        """
        values, token_ids = tf.math.top_k(probabilities, self.top_k)
        ends = tf.cumsum(values, axis=-1)
        fractions = tf.gather(self._fractions, self._place, axis=1)[:, tf.newaxis]
        self._place.assign_add(1)
        passed = tf.cast(ends <= fractions * ends[:, -1:], tf.int32)
        # Rounding may let the fraction end where the line does.
        choice = tf.minimum(tf.reduce_sum(passed, axis=-1), self.top_k - 1)
        return tf.gather(token_ids, choice, axis=1, batch_dims=1)
