"""The encoders as modules of plain TensorFlow: text in, embeddings out."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import keras
import tensorflow as tf
from keras import ops

from tfde.backbones.seeded_layer import SeededLayer
from tfde.export.int8_weight import Int8Weight
from tfde.text.preprocessor import TextPreprocessor

# A graph must stay below 2 GB, and is copied while it is written.
MAX_CONSTANT_BYTES = 1_000_000_000
# Smaller matrices would save nothing.
_LEAST_INT8_SIZE = 10_000


class Encoder(tf.Module):
    """A tower and its tokenization; the Keras model itself is not part of what is saved.

    Weights up to `MAX_CONSTANT_BYTES` are constants of the graph: oneDNN then packs each matrix
    once, not in every call. Larger ones are variables.

    Args:
        tower: Functional model, `token_ids` and `padding_mask` -> (B, D).
        preprocessor: Texts to token ids.
        int8_weights: Whether the backbone's matrices are stored in 8 bits; they are unpacked to
            the tower's compute dtype when the model is loaded.
    """

    def __init__(
        self,
        tower: keras.Model,
        preprocessor: TextPreprocessor,
        *,
        int8_weights: bool = False,
    ) -> None:
        super().__init__()
        self.preprocessor = preprocessor
        self._tower = NotTracked(tower)
        matrices = _matrices(tower) if int8_weights else []
        self.int8_weights = [
            Int8Weight(ops.convert_to_numpy(variable), dtype, by_row="table" in variable.name)
            for variable, dtype in matrices
        ]
        self._unpacked = NotTracked([variable for variable, _ in matrices])
        packed = {id(variable) for variable, _ in matrices}
        variables = [variable for variable in tower.variables if id(variable) not in packed]
        # The values alone: tracking Keras' own objects would save their metadata and demand
        # Keras of whoever loads the model in Python.
        self.weights = [variable.value for variable in variables]
        constants = []
        if (
            sum(tf.size(weight) * weight.dtype.size for weight in self.weights)
            <= MAX_CONSTANT_BYTES
        ):
            self.weights = []
            constants = [(v, ops.convert_to_numpy(v)) for v in variables]
        self._constants = NotTracked(constants)

    @tf.function(
        input_signature=[
            tf.TensorSpec([None, None], tf.int32, name="token_ids"),
            tf.TensorSpec([None, None], tf.int32, name="padding_mask"),
        ]
    )
    def encode_tokens(self, token_ids: tf.Tensor, padding_mask: tf.Tensor) -> dict[str, tf.Tensor]:
        """Returns `embeddings` (B, D) float32 of token ids and mask, (B, L) int32."""
        tokens = {"token_ids": token_ids, "padding_mask": padding_mask}
        constants = [(variable, tf.constant(value)) for variable, value in self._constants.value]
        values = [weight.read() for weight in self.int8_weights]
        unpacked = list(zip(self._unpacked.value, values, strict=True))
        with keras.StatelessScope(state_mapping=constants + unpacked):
            embeddings = self._tower.value(tokens, training=False)
        return {"embeddings": tf.cast(embeddings, tf.float32)}


class QueryEncoder(Encoder):
    """Queries to embeddings."""

    @tf.function(input_signature=[tf.TensorSpec([None], tf.string, name="text")])
    def tokenize(self, text: tf.Tensor) -> dict[str, tf.Tensor]:
        """Returns `token_ids` and `padding_mask`, (B, L) int32, of queries (B,)."""
        token_ids, padding_mask = self.preprocessor.queries(text)
        return {"token_ids": token_ids, "padding_mask": padding_mask}

    @tf.function(input_signature=[tf.TensorSpec([None], tf.string, name="text")])
    def encode(self, text: tf.Tensor) -> dict[str, tf.Tensor]:
        """Returns `embeddings` (B, D) float32 of queries (B,)."""
        return self.encode_tokens(**self.tokenize(text))


class DocumentEncoder(Encoder):
    """Titles and texts to embeddings."""

    @tf.function(
        input_signature=[
            tf.TensorSpec([None], tf.string, name="title"),
            tf.TensorSpec([None], tf.string, name="text"),
        ]
    )
    def tokenize(self, title: tf.Tensor, text: tf.Tensor) -> dict[str, tf.Tensor]:
        """Returns `token_ids` and `padding_mask`, (B, L) int32, of documents (B,)."""
        token_ids, padding_mask = self.preprocessor.documents(title, text)
        return {"token_ids": token_ids, "padding_mask": padding_mask}

    @tf.function(
        input_signature=[
            tf.TensorSpec([None], tf.string, name="title"),
            tf.TensorSpec([None], tf.string, name="text"),
        ]
    )
    def encode(self, title: tf.Tensor, text: tf.Tensor) -> dict[str, tf.Tensor]:
        """Returns `embeddings` (B, D) float32 of documents (B,)."""
        return self.encode_tokens(**self.tokenize(title, text))


class NotTracked:
    """Holds an object that a `tf.Module` uses but must not save."""

    def __init__(self, value: Any) -> None:
        self.value = value


def _matrices(tower: keras.Model) -> list[tuple[keras.Variable, str]]:
    """Returns the backbone's large matrices, and the dtype they are used in."""
    return [
        (variable, layer.compute_dtype)
        for layer in tower.layers
        if isinstance(layer, SeededLayer)
        for variable in layer.variables
        if len(variable.shape) == 2 and math.prod(variable.shape) >= _LEAST_INT8_SIZE
    ]


def save_encoder(encoder: QueryEncoder | DocumentEncoder, directory: Path) -> None:
    """Writes an encoder with the signatures `serving_default`, `tokenize`, `encode_tokens`."""
    save(
        encoder,
        directory,
        {
            "serving_default": encoder.encode,
            "tokenize": encoder.tokenize,
            "encode_tokens": encoder.encode_tokens,
        },
    )


def save(
    module: tf.Module,
    directory: Path,
    signatures: Mapping[str, Any],
    *,
    op_namespaces: tuple[str, ...] = (),
) -> None:
    """Writes a SavedModel.

    Args:
        module: What holds the variables.
        directory: The version's directory.
        signatures: Functions by signature name.
        op_namespaces: Op libraries, other than TensorFlow's and its text's, that it needs.
    """
    options = tf.saved_model.SaveOptions(
        namespace_whitelist=list(op_namespaces) or None,
        # No paths and stack traces of the machine that exported.
        save_debug_info=False,
    )
    tf.saved_model.save(module, str(directory), dict(signatures), options)
