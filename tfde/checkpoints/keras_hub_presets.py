"""keras-hub's presets: T5 (the encoder only) and BERT, read array by array from HDF5."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from typing import Any

import h5py
import keras
import ml_dtypes
import numpy as np

from tfde.backbones.backbone import Backbone
from tfde.checkpoints.encoder_steps import EncoderSteps
from tfde.checkpoints.preset_files import PresetFiles
from tfde.config import Activation, BertConfig, T5Config
from tfde.errors import ConfigError, DataError, shorten
from tfde.text.sentence_piece_tokenizer import SentencePieceTokenizer
from tfde.text.tokenizer import Tokenizer
from tfde.text.word_piece_tokenizer import WordPieceTokenizer

_WEIGHTS = "model.weights.h5"
_SHARDS = "model.weights.json"

Assignment = tuple[keras.Variable, np.ndarray, str]


class KerasHubModel:
    """One backbone of a preset, opened but not yet in memory.

    Args:
        files: The preset.
        value: The object in its `config.json`.

    Attributes:
        config: Our description of the backbone.

    Raises:
        ConfigError: it is another kind of backbone, or a field is missing.
    """

    def __init__(self, files: PresetFiles, value: Mapping[str, Any]) -> None:
        self._files = files
        self.config = _read_config(files, value)

    def read_tokenizer(self) -> Tokenizer:
        """Returns our tokenizer on the preset's vocabulary.

        Raises:
            ConfigError: the preset has no tokenizer, or one of another kind.
        """
        return _read_tokenizer(self._files)

    def read_max_length_tokens(self) -> int | None:
        """Returns the length that the preset's preprocessor cuts texts to, if it has one."""
        fields = self._files.json_or_empty("preprocessor.json").get("config", {})
        limits = (fields.get("sequence_length"), getattr(self.config, "max_sequence_length", None))
        return min((limit for limit in limits if limit is not None), default=None)

    def read_steps(self) -> EncoderSteps:
        """Returns the steps after the backbone."""
        return EncoderSteps()

    def read_weights(self, backbone: Backbone) -> Iterator[Assignment]:
        """Yields each variable of the backbone with its array and the array's name.

        Of T5 only the encoder is read: keras-hub writes the encoder's layers before the decoder's.

        Raises:
            ConfigError: the weight files are missing.
            DataError: an array is missing.
        """
        with ExitStack() as stack:
            arrays = _Arrays(self._files, stack)
            read = _bert if isinstance(backbone.config, BertConfig) else _t5
            yield from read(arrays, backbone)


def _read_config(files: PresetFiles, value: Mapping[str, Any]) -> T5Config | BertConfig:
    kind, fields = value.get("class_name"), value.get("config")
    if not isinstance(fields, Mapping):
        raise ConfigError(
            f"{files}/config.json: must hold the object `config`. Received: {shorten(fields)}"
        )
    try:
        if kind == "T5Backbone":
            return T5Config(
                vocabulary_size=fields["vocabulary_size"],
                num_layers=fields["num_layers"],
                num_heads=fields["num_heads"],
                hidden_dim=fields["hidden_dim"],
                intermediate_dim=fields["intermediate_dim"],
                key_value_dim=fields.get("key_value_dim")
                or fields["hidden_dim"] // fields["num_heads"],
                dropout=fields["dropout"],
                activation=_activation(files, fields["activation"]),
                gated=fields["use_gated_activation"],
                layer_norm_epsilon=fields["layer_norm_epsilon"],
            )
        if kind == "BertBackbone":
            return BertConfig(
                vocabulary_size=fields["vocabulary_size"],
                num_layers=fields["num_layers"],
                num_heads=fields["num_heads"],
                hidden_dim=fields["hidden_dim"],
                intermediate_dim=fields["intermediate_dim"],
                max_sequence_length=fields["max_sequence_length"],
                num_segments=fields["num_segments"],
                dropout=fields["dropout"],
                activation="gelu_tanh",
            )
    except KeyError as error:
        raise ConfigError(f"{files}/config.json: has no field {error.args[0]!r}.") from error
    raise ConfigError(
        f"{files}/config.json: `class_name` must be T5Backbone or BertBackbone."
        f" Received: {shorten(kind)}"
    )


def _read_tokenizer(files: PresetFiles) -> Tokenizer:
    kind = files.json_object("tokenizer.json").get("class_name")
    if kind == "T5Tokenizer":
        return SentencePieceTokenizer.from_file(files.path("assets/tokenizer/vocabulary.spm"))
    if kind == "BertTokenizer":
        fields = files.json_object("tokenizer.json", "config")
        return WordPieceTokenizer.from_vocabulary_file(
            files.path("assets/tokenizer/vocabulary.txt"),
            lowercase=fields.get("lowercase", False),
            strip_accents=fields.get("strip_accents", False),
        )
    raise ConfigError(
        f"{files}/tokenizer.json: the tokenizer must be a T5Tokenizer or a BertTokenizer."
        f" Received: {shorten(kind)}"
    )


class _Arrays:
    """The arrays of one HDF5 file, or of the shards that `model.weights.json` lists."""

    def __init__(self, files: PresetFiles, stack: ExitStack) -> None:
        self._files = files
        self._stack = stack
        self._open: dict[str, h5py.File] = {}
        self._shards: dict[str, str | list[str]] | None = None
        if files.find(_WEIGHTS) is None:
            if files.find(_SHARDS) is None:
                files.path(_WEIGHTS)  # raises
            self._shards = files.json_object(_SHARDS, "weight_map")

    def read(self, layer: str, index: int = 0) -> tuple[np.ndarray, str]:
        """Returns a layer's array number `index` as float32, and where it stood."""
        group = f"layers/{layer}/vars"
        name = f"{group}/{index}"
        for shard in self._shards_of(group):
            file = self._file(shard)
            if name in file:
                value = file[name]
                if value.attrs.get("dtype") == "bfloat16":
                    return np.array(value, dtype=ml_dtypes.bfloat16).astype(np.float32), name
                return np.asarray(value, dtype=np.float32), name
        raise DataError(str(self._files), None, f"the weights must hold the array {name}.")

    def _shards_of(self, group: str) -> list[str]:
        if self._shards is None:
            return [_WEIGHTS]
        shards = self._shards.get(f"/{group}", [])
        return [shards] if isinstance(shards, str) else list(shards)

    def _file(self, name: str) -> h5py.File:
        if name not in self._open:
            path = self._files.path(name)
            try:
                self._open[name] = self._stack.enter_context(h5py.File(path, "r"))
            except OSError as error:
                raise DataError(path, None, "must be an HDF5 file.", str(error)) from error
        return self._open[name]


def _bert(arrays: _Arrays, backbone: Backbone) -> Iterator[Assignment]:
    embedder, encoder = backbone.token_embedder, backbone.encoder
    yield (embedder.token_table, *arrays.read("reversible_embedding"))
    yield (embedder.position_table, *arrays.read("position_embedding"))
    yield (embedder.segment_table, *arrays.read("embedding"))
    yield (embedder.norm_gamma, *arrays.read("layer_normalization", 0))
    yield (embedder.norm_beta, *arrays.read("layer_normalization", 1))
    hidden = encoder.hidden_dim
    for i, layer in enumerate(encoder.transformer_layers):
        prefix = _numbered("transformer_encoder", i)
        attention = f"{prefix}/_self_attention_layer"
        parts = [f"{attention}/{part}_dense" for part in ("query", "key", "value")]
        kernels = [arrays.read(part, 0)[0].reshape(hidden, -1) for part in parts]
        biases = [arrays.read(part, 1)[0].reshape(-1) for part in parts]
        yield layer.qkv_kernel, np.concatenate(kernels, axis=1), attention
        yield layer.qkv_bias, np.concatenate(biases), attention
        kernel, name = arrays.read(f"{attention}/output_dense", 0)
        yield layer.attention_output_kernel, kernel.reshape(-1, hidden), name
        yield (layer.attention_output_bias, *arrays.read(f"{attention}/output_dense", 1))
        for part, ours in (
            ("_self_attention_layer_norm", (layer.attention_norm_gamma, layer.attention_norm_beta)),
            (
                "_feedforward_intermediate_dense",
                (layer.intermediate_kernel, layer.intermediate_bias),
            ),
            ("_feedforward_output_dense", (layer.output_kernel, layer.output_bias)),
            ("_feedforward_layer_norm", (layer.output_norm_gamma, layer.output_norm_beta)),
        ):
            for index, variable in enumerate(ours):
                yield (variable, *arrays.read(f"{prefix}/{part}", index))


def _t5(arrays: _Arrays, backbone: Backbone) -> Iterator[Assignment]:
    encoder = backbone.encoder
    yield (backbone.token_embedder.token_table, *arrays.read("reversible_embedding"))
    for i, layer in enumerate(encoder.transformer_layers):
        prefix = _numbered("t5_transformer_layer", i)
        attention = f"{prefix}/self_attention"
        if i == 0:
            yield (encoder.relative_table, *arrays.read(attention))
        parts = [f"{attention}/{part}_projector" for part in ("query", "key", "value")]
        kernels = [arrays.read(part)[0] for part in parts]
        yield layer.qkv_kernel, np.concatenate(kernels, axis=1), attention
        yield (
            layer.attention_output_kernel,
            *arrays.read(f"{attention}/output_projector"),
        )
        yield (layer.attention_norm_gamma, *arrays.read(f"{prefix}/self_attention_layer_norm"))
        names = ["input_projector", "gate_projector"] if layer.gated else ["input_projector"]
        kernels = [arrays.read(f"{prefix}/{name}")[0] for name in names]
        yield layer.intermediate_kernel, np.concatenate(kernels, axis=1), prefix
        yield (layer.output_kernel, *arrays.read(f"{prefix}/output_projector"))
        yield (layer.feedforward_norm_gamma, *arrays.read(f"{prefix}/layer_norm"))
    yield (encoder.norm_gamma, *arrays.read("t5_layer_norm"))


def _numbered(name: str, i: int) -> str:
    return name if i == 0 else f"{name}_{i}"


def _activation(files: PresetFiles, value: Any) -> Activation:
    if isinstance(value, Mapping):  # a registered function, serialised
        value = value.get("config")
    name = str(value).rpartition(">")[2]
    names: dict[str, Activation] = {
        "gelu": "gelu",
        "gelu_approximate": "gelu_tanh",
        "relu": "relu",
    }
    if name not in names:
        raise ConfigError(
            f"{files}/config.json: `activation` must be one of {', '.join(names)}."
            f" Received: {shorten(value)}"
        )
    return names[name]
