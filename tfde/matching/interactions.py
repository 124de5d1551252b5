"""Where the vectors of two texts meet; one layer for each way.

All take vectors (B, V, H) and masks (B, V), 1 = a vector that counts, and compute in float32.
"""

from __future__ import annotations

import math
from typing import Any

import keras
import tensorflow as tf

from tfde.matching.attention_maps import attention_map


@keras.saving.register_keras_serializable(package="tfde")
class Fusion(keras.layers.Layer):
    """Puts two vectors of a pair side by side.

    Args:
        kind: `concat`: [u; v]; `difference`: [u; v; |u - v|], what sets them apart beside them.

    Call arguments:
        u: (B, H).
        v: (B, H).

    Returns:
        (B, 2H) or (B, 3H) float32.

    Source: Li et al. 2021, equation 9 (`concat`); Reimers and Gurevych 2019, section 3
        (`difference`, the best of the concatenations there).
    """

    def __init__(self, kind: str = "difference", **kwargs: Any) -> None:
        super().__init__(autocast=False, **kwargs)
        self.kind = kind

    def call(self, u: tf.Tensor, v: tf.Tensor) -> tf.Tensor:
        """Returns the fused vector, (B, 2H) or (B, 3H)."""
        u, v = tf.cast(u, tf.float32), tf.cast(v, tf.float32)
        parts = [u, v, tf.abs(u - v)] if self.kind == "difference" else [u, v]
        return tf.concat(parts, axis=-1)

    def get_config(self) -> dict[str, Any]:
        """Returns the constructor's arguments."""
        return {**super().get_config(), "kind": self.kind}


@keras.saving.register_keras_serializable(package="tfde")
class MeanVector(keras.layers.Layer):
    """Returns the mean of the vectors that count, (B, H) float32; zeros where none does."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(autocast=False, **kwargs)

    def call(self, vectors: tf.Tensor, mask: tf.Tensor) -> tf.Tensor:
        """Returns the mean, (B, H)."""
        return _mean(tf.cast(vectors, tf.float32), mask)


@keras.saving.register_keras_serializable(package="tfde")
class VirtAdaptedInteraction(keras.layers.Layer):
    """Each text's tokens attend to the other's as in the virtual maps, then their mean is taken.

    u = mean over X of softmax(H_x H_y^T / sqrt(H)) H_y, and v the other way round.

    Call arguments:
        first, second: (B, X, H) and (B, Y, H).
        first_mask, second_mask: (B, X) and (B, Y).

    Returns:
        u and v, (B, H) float32 each.

    Source: Li et al. 2021, section 3.4.
    """

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(autocast=False, **kwargs)

    def call(
        self, first: tf.Tensor, first_mask: tf.Tensor, second: tf.Tensor, second_mask: tf.Tensor
    ) -> tuple[tf.Tensor, tf.Tensor]:
        """Returns what X takes of Y and Y of X, (B, H) each."""
        x, y = tf.cast(first, tf.float32), tf.cast(second, tf.float32)
        scaled = x * (1.0 / math.sqrt(x.shape[-1]))
        scores = tf.matmul(scaled, y, transpose_b=True)
        to_y = attention_map(scores, second_mask)
        to_x = attention_map(tf.transpose(scores, (0, 2, 1)), first_mask)
        u = _mean(tf.matmul(to_y, y), first_mask)
        v = _mean(tf.matmul(to_x, x), second_mask)
        return u, v


@keras.saving.register_keras_serializable(package="tfde")
class ContextCodes(keras.layers.Layer):
    """Codes that attend over the first text; what they find, the second text's vector attends to.

    Args:
        num_codes: m.
        seed: Seed of the codes; `None` takes Keras's global seed.

    Call arguments:
        first: (B, X, H).
        first_mask: (B, X).
        second: (B, H).

    Returns:
        (B, H) float32.

    Source: Humeau et al. 2020, section 4.4 (learnt codes).
    """

    def __init__(self, num_codes: int, *, seed: int | None = None, **kwargs: Any) -> None:
        super().__init__(autocast=False, **kwargs)
        self.num_codes = num_codes
        self.seed = seed

    def build(self, first_shape: Any, first_mask_shape: Any, second_shape: Any) -> None:
        """Creates the codes, (m, H)."""
        width = int(first_shape[-1])
        self.codes = self.add_weight(
            shape=(self.num_codes, width),
            initializer=keras.initializers.RandomNormal(0.0, width**-0.5, seed=self.seed),
            name="codes",
            dtype="float32",
            autocast=False,
        )

    def call(self, first: tf.Tensor, first_mask: tf.Tensor, second: tf.Tensor) -> tf.Tensor:
        """Returns the first text as the second sees it, (B, H)."""
        x, v = tf.cast(first, tf.float32), tf.cast(second, tf.float32)
        scores = tf.matmul(self.codes.value[None], x, transpose_b=True)
        found = tf.matmul(attention_map(scores, first_mask), x)
        weights = tf.nn.softmax(tf.matmul(v[:, None], found, transpose_b=True))
        return tf.matmul(weights, found)[:, 0]

    def get_config(self) -> dict[str, Any]:
        """Returns the constructor's arguments."""
        return {**super().get_config(), "num_codes": self.num_codes, "seed": self.seed}


@keras.saving.register_keras_serializable(package="tfde")
class JoinedTexts(keras.layers.Layer):
    """Puts the vectors of two texts one behind the other, those that count first.

    So positions in what is joined do not depend on padding between the texts. A learnt vector of
    each text is added to its vectors, since only order tells them apart else.

    Returns:
        vectors (B, X + Y, H) in the dtype of the first, and two masks (B, X + Y) int32, 1 = of the
        first text, 1 = of the second.
    """

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(autocast=False, **kwargs)

    def build(
        self, first_shape: Any, first_mask_shape: Any, second_shape: Any, second_mask_shape: Any
    ) -> None:
        """Creates the marks, (2, H)."""
        self.marks = self.add_weight(
            shape=(2, int(first_shape[-1])), initializer="zeros", name="marks", autocast=False
        )

    def call(
        self, first: tf.Tensor, first_mask: tf.Tensor, second: tf.Tensor, second_mask: tf.Tensor
    ) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
        """Returns the vectors of both texts, and which are whose."""
        second = tf.cast(second, first.dtype)
        marks = tf.cast(self.marks.value, first.dtype)
        first, second = first + marks[0], second + marks[1]
        mask = tf.concat([first_mask, second_mask], axis=1)
        order = tf.argsort(1 - mask, axis=1, stable=True)
        vectors = tf.gather(tf.concat([first, second], axis=1), order, batch_dims=1)
        of_first = tf.concat([first_mask, tf.zeros_like(second_mask)], axis=1)
        of_first, mask = (tf.gather(x, order, batch_dims=1) for x in (of_first, mask))
        return vectors, of_first, mask - of_first


@keras.saving.register_keras_serializable(package="tfde")
class MaxSimilarity(keras.layers.Layer):
    """Each vector of the first text finds its best of the second; the score is their mean.

    The mean, where the source has the sum: the order of second texts is the same, and scores of
    first texts of different lengths can be compared.

    Call arguments:
        first, second: Vectors of unit length, (B, X, D) and (B, Y, D).
        first_mask, second_mask: (B, X) and (B, Y); a second text without vectors scores 0.

    Returns:
        (B, 1) float32, in [-1, 1].

    Source: Khattab and Zaharia 2020, equation 3.
    """

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(autocast=False, **kwargs)

    def call(
        self, first: tf.Tensor, first_mask: tf.Tensor, second: tf.Tensor, second_mask: tf.Tensor
    ) -> tf.Tensor:
        """Returns the score, (B, 1)."""
        x, y = tf.cast(first, tf.float32), tf.cast(second, tf.float32)
        scores = tf.matmul(x, y, transpose_b=True)
        counts = second_mask[:, None, :] > 0
        best = tf.reduce_max(tf.where(counts, scores, -1.0), axis=2)
        some = tf.reduce_any(counts, axis=2)
        return _mean(tf.where(some, best, 0.0)[:, :, None], first_mask)


def _mean(vectors: tf.Tensor, mask: tf.Tensor) -> tf.Tensor:
    counts = tf.cast(mask, tf.float32)[:, :, None]
    total = tf.reduce_sum(tf.where(counts > 0, vectors, 0.0), axis=1)
    return total / tf.maximum(tf.reduce_sum(counts, axis=1), 1.0)
