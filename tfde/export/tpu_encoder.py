"""An encoder cut in two for TPUs: strings on the host, then one function of fixed shapes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import tensorflow as tf
from tensorflow.python.ops import control_flow_ops

from tfde.towers.saved_models import NotTracked

# What Cloud TPU's inference converter and T5X call the function that goes to the device.
FUNCTION_ALIAS = "tpu_func"


class TpuEncoder(tf.Module):
    """An encoder whose tower works on rows of one length.

    A converter that is given the SavedModel finds `encode_tokens` by the alias `tpu_func`, puts it
    on the device and writes the tags `serve, tpu`. What stands before it, the tokenizer, stays on
    the host. As the SavedModel is saved it runs on any device, tags `serve`.

    Args:
        encoder: A `QueryEncoder` or a `DocumentEncoder`.
        length: L, of every row, in tokens; the longest text.

    Source: TensorFlow's RFC 171 (function aliases in place of TPU tags at saving).
    """

    def __init__(self, encoder: Any, length: int) -> None:
        super().__init__()
        self._encoder: NotTracked = NotTracked(encoder)
        self._length = length
        self._pad_id = encoder.preprocessor.tokenizer.pad_id
        # What `encoder` tracks, but for its functions, which would be saved too.
        self.preprocessor = encoder.preprocessor
        self.int8_weights, self.weights = encoder.int8_weights, encoder.weights
        texts = encoder.encode.input_signature
        rows = [
            tf.TensorSpec([None, length], tf.int32, name=name)
            for name in ("token_ids", "padding_mask")
        ]
        self.tokenize = tf.function(self._tokenize, input_signature=texts, autograph=False)
        self.encode_tokens = tf.function(self._embed, input_signature=rows, autograph=False)
        self.encode = tf.function(self._encode, input_signature=texts, autograph=False)

    def _tokenize(self, *texts: tf.Tensor) -> dict[str, tf.Tensor]:
        tokens = self._encoder.value.tokenize(*texts)
        padding = {"token_ids": self._pad_id, "padding_mask": 0}
        return {name: self._fill(tokens[name], value) for name, value in padding.items()}

    def _fill(self, rows: tf.Tensor, value: int) -> tf.Tensor:
        missing = self._length - tf.shape(rows)[1]
        filled = tf.pad(rows, [[0, 0], [0, missing]], constant_values=value)
        return tf.ensure_shape(filled, [None, self._length])

    def _embed(self, token_ids: tf.Tensor, padding_mask: tf.Tensor) -> dict[str, tf.Tensor]:
        with _fixed_shapes():
            embeddings: dict[str, tf.Tensor] = self._encoder.value.embed(token_ids, padding_mask)
        return embeddings

    def _encode(self, *texts: tf.Tensor) -> dict[str, tf.Tensor]:
        embeddings: dict[str, tf.Tensor] = self.encode_tokens(**self.tokenize(*texts))
        return embeddings


@contextmanager
def _fixed_shapes() -> Iterator[None]:
    """Traces as XLA would have it, without asking for XLA: layers keep the padding then."""
    context = control_flow_ops.XLAControlFlowContext()
    context.Enter()
    try:
        yield
    finally:
        context.Exit()
