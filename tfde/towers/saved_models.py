"""The encoders as modules of plain TensorFlow: text in, embeddings out."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from keras import ops

from tfde.backbones.seeded_layer import SeededLayer
from tfde.config.engines import Use
from tfde.engines.tower_engine import note_times
from tfde.storage.rows import scale_rows
from tfde.text.preprocessor import TextPreprocessor
from tfde.towers.engines import check_engine, time_engine, write_engine

# A graph is copied some dozens of times while it is loaded.
MAX_CONSTANT_BYTES = 100_000_000
# Smaller matrices would save nothing.
_LEAST_INT8_SIZE = 10_000


class Encoder(tf.Module):
    """A tower and its tokenization; the Keras model itself is not part of what is saved.

    Tables of embeddings are variables. What else there is, up to `MAX_CONSTANT_BYTES`, are
    constants of the graph: oneDNN then packs each matrix once, not in every call. Above that
    they are variables too, or a model would take minutes to load. Matrices have the tower's
    compute dtype.

    Args:
        tower: Functional model, `token_ids` and `padding_mask` -> (B, D).
        preprocessor: Texts to token ids.
        int8_weights: Whether the backbone's matrices are stored in 8 bits; they are unpacked to
            the tower's compute dtype when the model is loaded.
        weights: Those of several towers, which share some; `None`: those of this one.

    Attributes:
        use: What it encodes.
    """

    use: Use = "query"

    def __init__(
        self,
        tower: keras.Model,
        preprocessor: TextPreprocessor,
        *,
        int8_weights: bool = False,
        weights: _Weights | None = None,
    ) -> None:
        super().__init__()
        self.preprocessor = preprocessor
        self._tower = NotTracked(tower)
        weights = weights or _Weights([tower], int8=int8_weights)
        self.int8_weights = list(weights.int8.values())
        self.weights = list(weights.variables.values())
        self._weights = NotTracked(weights)

    @tf.function(
        input_signature=[
            tf.TensorSpec([None, None], tf.int32, name="token_ids"),
            tf.TensorSpec([None, None], tf.int32, name="padding_mask"),
        ],
        autograph=False,
    )
    def encode_tokens(self, token_ids: tf.Tensor, padding_mask: tf.Tensor) -> dict[str, tf.Tensor]:
        """Returns `embeddings` (B, D) float32 of token ids and mask, (B, L) int32."""
        return self.embed(token_ids, padding_mask)

    def embed(self, token_ids: tf.Tensor, padding_mask: tf.Tensor) -> dict[str, tf.Tensor]:
        """Returns what `encode_tokens` does, as ops of the graph that is traced."""
        tokens = {"token_ids": token_ids, "padding_mask": padding_mask}
        with keras.StatelessScope() as scope:
            for weight in self._weights.value.read(self._tower.value):
                scope.add_update(weight)  # `state_mapping` would cast to the variable's dtype
            embeddings = self._tower.value(tokens, training=False)
        return {"embeddings": tf.cast(embeddings, tf.float32)}

    def write_engine(self, engine: str, directory: Path) -> dict[str, float]:
        """Writes the tower for another engine; returns how it does beside TensorFlow.

        Args:
            engine: Which one.
            directory: The version's directory.

        Raises:
            ConfigError, MismatchError: as `write_engine` and `check_engine` in `towers.engines`.
        """

        def run(token_ids: np.ndarray, padding_mask: np.ndarray) -> np.ndarray:
            found = self.encode_tokens(tf.constant(token_ids), tf.constant(padding_mask))
            embeddings: np.ndarray = found["embeddings"].numpy()
            return embeddings

        tower = self._tower.value
        write_engine(engine, tower, directory)
        difference = check_engine(engine, directory, tower, self.preprocessor, run)
        times = time_engine(engine, directory, self.preprocessor, run)
        ms, tensorflow_ms = times.of(self.use)
        note_times(engine, directory, ms=ms, tensorflow_ms=tensorflow_ms)
        return {"max_difference": difference, **times._asdict()}


class QueryEncoder(Encoder):
    """Queries to embeddings."""

    @tf.function(input_signature=[tf.TensorSpec([None], tf.string, name="text")], autograph=False)
    def tokenize(self, text: tf.Tensor) -> dict[str, tf.Tensor]:
        """Returns `token_ids` and `padding_mask`, (B, L) int32, of queries (B,)."""
        token_ids, padding_mask = self.preprocessor.queries(text)
        return {"token_ids": token_ids, "padding_mask": padding_mask}

    @tf.function(input_signature=[tf.TensorSpec([None], tf.string, name="text")], autograph=False)
    def encode(self, text: tf.Tensor) -> dict[str, tf.Tensor]:
        """Returns `embeddings` (B, D) float32 of queries (B,)."""
        return self.encode_tokens(**self.tokenize(text))


class DocumentEncoder(Encoder):
    """Documents to embeddings: `title`, `text`, and `context` where the template has it.

    Arguments are those of `Encoder`.

    Attributes:
        tokenize: Function of strings (B,) each -> `token_ids`, `padding_mask`, (B, L) int32.
        encode: Function of the same -> `embeddings` (B, D) float32.
    """

    use = "document"

    def __init__(self, tower: keras.Model, preprocessor: TextPreprocessor, **options: Any) -> None:
        super().__init__(tower, preprocessor, **options)
        signature = [
            tf.TensorSpec([None], tf.string, name=name)
            for name in preprocessor.text_config.document_fields
        ]

        @tf.function(input_signature=signature, autograph=False)
        def tokenize(*texts: tf.Tensor) -> dict[str, tf.Tensor]:
            token_ids, padding_mask = self.preprocessor.documents(*texts)
            return {"token_ids": token_ids, "padding_mask": padding_mask}

        @tf.function(input_signature=signature, autograph=False)
        def encode(*texts: tf.Tensor) -> dict[str, tf.Tensor]:
            return self.encode_tokens(**tokenize(*texts))

        self.tokenize, self.encode = tokenize, encode


class NotTracked:
    """Holds an object that a `tf.Module` uses but must not save."""

    def __init__(self, value: Any) -> None:
        self.value = value


class _Weights:
    """How the weights of towers are saved: each in 8 bits, as a variable or as a constant."""

    def __init__(self, towers: Sequence[keras.Model], *, int8: bool = False) -> None:
        dtypes = {k: dtype for tower in towers for k, dtype in _matrix_dtypes(tower).items()}
        self._originals = {id(x): x for tower in towers for x in tower.variables}
        self.int8: dict[int, Int8Weight] = {}
        self.variables: dict[int, tf.Variable] = {}
        constants: dict[int, np.ndarray] = {}
        for number, variable in self._originals.items():
            value = ops.convert_to_numpy(variable)
            is_table = "table" in variable.name
            if number in dtypes and int8:
                self.int8[number] = Int8Weight(value, dtypes[number], by_row=is_table)
                continue
            value = value.astype(tf.as_dtype(dtypes.get(number, variable.dtype)).as_numpy_dtype)
            if number in dtypes and is_table:
                self.variables[number] = tf.Variable(value, trainable=False, name=variable.name)
            else:
                constants[number] = value
        if sum(value.nbytes for value in constants.values()) > MAX_CONSTANT_BYTES:
            for number, value in constants.items():
                name = self._originals[number].name
                self.variables[number] = tf.Variable(value, trainable=False, name=name)
            constants = {}
        # Made outside of the function that uses them, they are saved outside of it, and not
        # copied with it.
        self._constants = {number: tf.constant(value) for number, value in constants.items()}

    def read(self, tower: keras.Model) -> list[tuple[keras.Variable, tf.Tensor]]:
        """Returns each of a tower's variables and what stands for it in the graph at hand."""
        values = []
        for variable in tower.variables:
            number = id(variable)
            if number in self._constants:
                value = self._constants[number]
            elif number in self.variables:
                value = self.variables[number].read_value()
            else:
                value = self.int8[number].read()
            values.append((variable, value))
        return values


def _matrix_dtypes(tower: keras.Model) -> dict[int, str]:
    """Returns, by the ids of the backbone's large matrices, the dtype that they are used in."""
    return {
        id(variable): layer.compute_dtype
        for layer in tower.layers
        if isinstance(layer, SeededLayer)
        for variable in layer.variables
        if len(variable.shape) == 2 and math.prod(variable.shape) >= _LEAST_INT8_SIZE
    }


def save_encoder(
    encoder: QueryEncoder | DocumentEncoder,
    directory: Path,
    *,
    trained_dims: Sequence[int] = (),
    normalize: bool = True,
    function_aliases: Mapping[str, Any] | None = None,
) -> None:
    """Writes an encoder with the signatures of `encoder_signatures`.

    Args:
        encoder: The encoder; a `SavedEncoder`'s has the first alone.
        directory: The version's directory.
        trained_dims: As for `encoder_signatures`.
        normalize: As for `encoder_signatures`.
        function_aliases: As for `save`.
    """
    signatures = encoder_signatures(encoder, trained_dims=trained_dims, normalize=normalize)
    save(encoder, directory, signatures, function_aliases=function_aliases)


def encoder_signatures(
    encoder: QueryEncoder | DocumentEncoder,
    *,
    trained_dims: Sequence[int] = (),
    normalize: bool = True,
) -> dict[str, Any]:
    """Returns the functions `serving_default`, `tokenize` and `encode_tokens` of an encoder.

    Args:
        encoder: The encoder.
        trained_dims: For each d a signature `dimensions_d` more, as `serving_default` with the
            first d numbers of each embedding.
        normalize: Whether these have unit length.
    """
    signatures = {"serving_default": encoder.encode}
    for name in ("tokenize", "encode_tokens"):
        if hasattr(encoder, name):
            signatures[name] = getattr(encoder, name)
    for dim in trained_dims:
        signatures[f"dimensions_{dim}"] = _first_numbers(encoder, dim, normalize=normalize)
    return signatures


class BothEncoders(tf.Module):
    """Queries and documents in one SavedModel, with the weights that the towers share once.

    Args:
        query_tower: As for `Encoder`, of queries.
        document_tower: Of documents.
        preprocessor: Texts to token ids.
        trained_dims: As for `encoder_signatures`.
        normalize: As for `encoder_signatures`.

    Attributes:
        serve: What Keras calls a model's first function: queries to embeddings.
        signatures_by_name: `query_encoder`, which is `serving_default` too, and
            `document_encoder`; behind either name and `_` the other signatures of the encoder.
    """

    def __init__(
        self,
        query_tower: keras.Model,
        document_tower: keras.Model,
        preprocessor: TextPreprocessor,
        *,
        trained_dims: Sequence[int],
        normalize: bool,
    ) -> None:
        super().__init__()
        weights = _Weights([query_tower, document_tower])
        self.query_encoder = QueryEncoder(query_tower, preprocessor, weights=weights)
        self.document_encoder = DocumentEncoder(document_tower, preprocessor, weights=weights)
        self.serve = self.query_encoder.encode
        named: dict[str, Any] = {"serving_default": self.serve}
        for name in ("query_encoder", "document_encoder"):
            functions = encoder_signatures(
                getattr(self, name), trained_dims=trained_dims, normalize=normalize
            )
            named[name] = functions.pop("serving_default")
            named |= {f"{name}_{key}": function for key, function in functions.items()}
        self.signatures_by_name = NotTracked(named)


def _first_numbers(encoder: QueryEncoder | DocumentEncoder, dim: int, *, normalize: bool) -> Any:
    @tf.function(input_signature=encoder.encode.input_signature, autograph=False)
    def encode(*texts: tf.Tensor) -> dict[str, tf.Tensor]:
        embeddings = encoder.encode(*texts)["embeddings"][:, :dim]
        if normalize:
            embeddings = tf.math.l2_normalize(embeddings, axis=-1)
        return {"embeddings": embeddings}

    return encode


def save(
    module: tf.Module,
    directory: Path,
    signatures: Mapping[str, Any],
    *,
    op_namespaces: tuple[str, ...] = (),
    function_aliases: Mapping[str, Any] | None = None,
) -> None:
    """Writes a SavedModel.

    Args:
        module: What holds the variables.
        directory: The version's directory.
        signatures: Functions by signature name.
        op_namespaces: Op libraries, other than TensorFlow's and its text's, that it needs.
        function_aliases: Functions by the names under which a tool that changes graphs finds them.
    """
    options = tf.saved_model.SaveOptions(
        namespace_whitelist=list(op_namespaces) or None,
        # No paths and stack traces of the machine that exported.
        save_debug_info=False,
        function_aliases=dict(function_aliases or {}),
    )
    tf.saved_model.save(module, str(directory), dict(signatures), options)


class Int8Weight(tf.saved_model.experimental.TrackableResource):
    """A matrix as 8-bit integers with a scale for each row or column.

    A resource, not a variable: a SavedModel keeps a variable's values as they are used, but makes
    a resource's anew by running its initializer. So the file holds the integers, memory holds the
    unpacked values, and a call costs nothing more. Every entry is off by at most half a step,
    1/254 of the largest of its row or column, and by the rounding of `dtype`.

    Args:
        value: The matrix, (R, C) float.
        dtype: What it is unpacked to.
        by_row: Whether each row has a scale (tables of embeddings) or each column (kernels).

    Source: derived here.
    """

    def __init__(self, value: np.ndarray, dtype: str, *, by_row: bool) -> None:
        super().__init__()
        value = np.asarray(value, np.float32)
        integers, scales = scale_rows(value if by_row else value.T)
        self._integers = integers if by_row else integers.T
        self._scale = scales[:, np.newaxis] if by_row else scales[np.newaxis]
        self._dtype = tf.as_dtype(dtype)
        # A process holds resources of equal names once: equal names must mean equal contents.
        contents = self._integers.tobytes() + self._scale.tobytes() + dtype.encode()
        self._name = f"int8_weight_{hashlib.sha256(contents).hexdigest()[:32]}"
        if tf.executing_eagerly():
            self._initialize()

    def _create_resource(self) -> tf.Tensor:
        return tf.raw_ops.VarHandleOp(
            dtype=self._dtype, shape=self._integers.shape, shared_name=self._name
        )

    def _initialize(self) -> None:
        value = tf.cast(tf.constant(self._integers), tf.float32) * tf.constant(self._scale)
        tf.raw_ops.AssignVariableOp(
            resource=self.resource_handle, value=tf.cast(value, self._dtype)
        )

    def read(self) -> tf.Tensor:
        """Returns the unpacked matrix, (R, C)."""
        value = tf.raw_ops.ReadVariableOp(resource=self.resource_handle, dtype=self._dtype)
        return tf.ensure_shape(value, self._integers.shape)
