"""tensorflow-text's SentencePiece op, with a model that outlives its kernels."""

from __future__ import annotations

import hashlib
import weakref
from typing import Any

import tensorflow as tf
import tensorflow_text as tft
from tensorflow_text.python.ops.sentencepiece_tokenizer import gen_sentencepiece_tokenizer


def sentence_piece_op(model: bytes) -> tft.SentencepieceTokenizer:
    """Returns a tokenizer that gives int32 ids.

    Args:
        model: A serialized SentencePiece model, which must be sound.
    """
    op = _OPS.get(model)
    if op is None:
        op = tft.SentencepieceTokenizer(model, out_type=tf.int32)
        op._model_resource = _SharedModel(model)
        _OPS[model] = op
    return op


# Tokenizers of one model share its op, as they share what is traced: a SavedModel must hold the
# resource that its functions use.
_OPS: weakref.WeakValueDictionary[bytes, Any] = weakref.WeakValueDictionary()


class _SharedModel(tf.saved_model.experimental.TrackableResource):
    """The model that the op uses, kept when TensorFlow drops its cached kernels.

    tensorflow-text's own resource has no name and dies with the kernel that made it: after
    `keras.utils.set_random_seed` the tokenizer would fail with "Resource ... does not exist".
    """

    def __init__(self, model: bytes) -> None:
        super().__init__()
        self._model = model
        self._shared_name = f"tfde-{hashlib.sha256(model).hexdigest()}"
        _ = self.resource_handle  # makes it

    def _create_resource(self) -> tf.Tensor:
        return gen_sentencepiece_tokenizer.sentencepiece_op(
            model=self._model, shared_name=self._shared_name
        )
