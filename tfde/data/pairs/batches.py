"""What batches of training pairs are, wherever the pairs come from."""

from __future__ import annotations

import abc
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tfde.errors import require

_MAX_STEP = np.iinfo(np.int64).max
_CONTEXTS: Mapping[str, Any] = {"document_context": tf.string, "negative_context": tf.string}
_DTYPES: Mapping[str, Any] = {
    "query": tf.string,
    "document_title": tf.string,
    "document_text": tf.string,
    "document_key": tf.int64,
    "positive_keys": tf.int64,
    "negative_title": tf.string,
    "negative_text": tf.string,
    "negative_key": tf.int64,
    "negative_margin": tf.float32,
    "document_probability": tf.float32,
}


class PairBatches(abc.ABC):
    """Batches of strings from training pairs; batch number s is a pure function of the seed and s.

    Iteration yields the batches of the first epoch as NumPy arrays; `len` is how many an epoch has.

    A batch is a dict: `query` (B,) string; `document_title`, `document_text` (B,) string;
    `document_key` (B,) int64; `positive_keys` (B, P) int64, the known positives of the query,
    0 = padding; `negative_title`, `negative_text` (B, M) string; `negative_key` (B, M) int64,
    0 = no negative (its texts are empty); `negative_margin` (B, M) float32, a teacher's margin of
    the positive over each, NaN where nobody scored it, 0 = no negative; `document_probability` (B,)
    float32, the share of the pairs whose positive is that document. P is the most positives that a
    query of the batch has, rounded up by `padded_width`. Where every document has a context there
    are `document_context` (B,) and `negative_context` (B, M) string too.

    Attributes:
        batch_size: Pairs in a batch, B.
        smallest_batch: Pairs in the smallest batch.
        negatives_per_query: Given negatives in each row, M.
        has_context: Whether every document has a context.
    """

    batch_size: int
    negatives_per_query: int = 0
    has_context: bool = False

    @property
    @abc.abstractmethod
    def num_pairs(self) -> int:
        """Pairs in an epoch."""

    def __len__(self) -> int:
        """Returns the number of batches in an epoch."""
        return self.steps_per_epoch

    def __iter__(self) -> Iterator[dict[str, np.ndarray]]:
        """Yields the batches of the first epoch."""
        return map(self.batch, range(len(self)))

    @abc.abstractmethod
    def batch(self, step: int) -> dict[str, np.ndarray]:
        """Returns batch number `step`, from 0 over all epochs, strings as `bytes` objects."""

    @abc.abstractmethod
    def shares_of(self, keys: np.ndarray) -> np.ndarray:
        """Returns the share of the pairs whose positive is that document, (N,) float32.

        Args:
            keys: As `document_key`, (N,) int64; 0 comes back for one that is not known.
        """

    @abc.abstractmethod
    def texts(self) -> Iterator[str]:
        """Yields texts of queries and documents, titles too, to train a vocabulary on."""

    @property
    def smallest_batch(self) -> int:
        """Pairs in the smallest batch of an epoch."""
        return self.batch_size

    @property
    def steps_per_epoch(self) -> int:
        """Batches in an epoch."""
        return max(1, self.num_pairs // self.batch_size)

    @property
    def element_spec(self) -> dict[str, tf.TensorSpec]:
        """Shape and dtype of each part of a batch."""
        columns = {
            "positive_keys": None,
            "negative_title": self.negatives_per_query,
            "negative_text": self.negatives_per_query,
            "negative_key": self.negatives_per_query,
            "negative_context": self.negatives_per_query,
            "negative_margin": self.negatives_per_query,
        }
        dtypes = {**_DTYPES, **_CONTEXTS} if self.has_context else _DTYPES
        return {
            name: tf.TensorSpec((None, columns[name]) if name in columns else (None,), dtype)
            for name, dtype in dtypes.items()
        }

    def dataset(self, *, start_step: int = 0, steps: int | None = None) -> tf.data.Dataset:
        """Returns the batches from number `start_step` on.

        Args:
            start_step: The number of the first batch; starting late costs nothing.
            steps: How many batches; `None` never ends.
        """
        require(start_step >= 0, "start_step", "at least 0", start_step)
        specs = self.element_spec
        dtypes = [spec.dtype for spec in specs.values()]

        def batch(step: tf.Tensor) -> dict[str, tf.Tensor]:
            parts = tf.numpy_function(
                lambda number: list(self.batch(int(number)).values()), [step], dtypes
            )
            return {
                name: tf.ensure_shape(part, spec.shape)
                for part, (name, spec) in zip(parts, specs.items(), strict=True)
            }

        stop = _MAX_STEP if steps is None else start_step + steps
        # Calls in parallel would only wait for Python's lock.
        return tf.data.Dataset.range(start_step, stop).map(batch).prefetch(4)


def padded_width(count: int) -> int:
    """Returns the power of two from `count` on: XLA compiles a step anew for each other width."""
    return 1 << (max(int(count), 1) - 1).bit_length()


def string_array(texts: Sequence[str], shape: tuple[int, ...]) -> np.ndarray:
    """Returns texts as an array of `bytes` objects, which TensorFlow takes for strings."""
    array = np.empty(len(texts), object)
    array[:] = [text.encode() for text in texts]
    return array.reshape(shape)


def look_up(keys: np.ndarray, known: np.ndarray, values: np.ndarray) -> np.ndarray:
    """Returns the value of each key, 0 where it is not known.

    Args:
        keys: (N,).
        known: In order, none twice, (M,), M above 0.
        values: Of the known ones, (M,).
    """
    places = np.minimum(np.searchsorted(known, keys), len(known) - 1)
    return np.where(known[places] == keys, values[places], values.dtype.type(0))
