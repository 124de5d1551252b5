"""Hugging Face directories with a BERT in safetensors."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from typing import Any

import keras
import ml_dtypes  # noqa: F401  # lets NumPy, and so safetensors, know bfloat16
import numpy as np
from safetensors import SafetensorError, safe_open

from tfde.backbones.backbone import Backbone
from tfde.backbones.preset_files import PresetFiles
from tfde.config import Activation, BertConfig
from tfde.errors import ConfigError, DataError, shorten
from tfde.text.tokenizer import Tokenizer
from tfde.text.word_piece_tokenizer import WordPieceTokenizer

_WEIGHTS = "model.safetensors"
_SHARDS = "model.safetensors.index.json"
_NO_LIMIT = 1_000_000  # transformers writes 1e30 where a tokenizer has no limit

Assignment = tuple[keras.Variable, np.ndarray, str]


def read_config(files: PresetFiles, value: Mapping[str, Any]) -> BertConfig:
    """Returns our description of the model in a Hugging Face `config.json`.

    Raises:
        ConfigError: it is no BERT, or a BERT of another build; a field is missing.
    """
    kind = value.get("model_type")
    if kind != "bert":
        raise ConfigError(
            f"{files}/config.json: `model_type` must be bert (keras-hub presets may also be T5)."
            f" Received: {shorten(kind)}"
        )
    positions = value.get("position_embedding_type", "absolute")
    if positions != "absolute":
        raise ConfigError(
            f"{files}/config.json: `position_embedding_type` must be absolute."
            f" Received: {shorten(positions)}"
        )
    activations: dict[str, Activation] = {
        "gelu": "gelu",
        "gelu_new": "gelu_tanh",
        "gelu_pytorch_tanh": "gelu_tanh",
        "relu": "relu",
    }
    activation = value.get("hidden_act", "gelu")
    if activation not in activations:
        raise ConfigError(
            f"{files}/config.json: `hidden_act` must be one of {', '.join(activations)}."
            f" Received: {shorten(activation)}"
        )
    try:
        return BertConfig(
            vocabulary_size=value["vocab_size"],
            num_layers=value["num_hidden_layers"],
            num_heads=value["num_attention_heads"],
            hidden_dim=value["hidden_size"],
            intermediate_dim=value["intermediate_size"],
            max_sequence_length=value["max_position_embeddings"],
            num_segments=value["type_vocab_size"],
            dropout=value.get("hidden_dropout_prob", 0.1),
            activation=activations[activation],
            layer_norm_epsilon=value.get("layer_norm_eps", 1e-12),
        )
    except KeyError as error:
        raise ConfigError(f"{files}/config.json: has no field {error.args[0]!r}.") from error


def read_tokenizer(files: PresetFiles) -> Tokenizer:
    """Returns the WordPiece tokenizer of the directory.

    Raises:
        ConfigError: it has none, or one of another kind.
    """
    # Fetched one by one where the directory is a hub's.
    paths = [files.find(n) for n in ("tokenizer.json", "tokenizer_config.json", "vocab.txt")]
    directory = next((path.parent for path in paths if path), files.path("config.json").parent)
    return WordPieceTokenizer.from_hugging_face(directory)


def read_max_length_tokens(files: PresetFiles) -> int | None:
    """Returns the limit that sentence-transformers, else the tokenizer, puts on a text."""
    for name, key in (
        ("sentence_bert_config.json", "max_seq_length"),
        ("tokenizer_config.json", "model_max_length"),
    ):
        value = files.json_or_empty(name).get(key)
        if value is not None and value < _NO_LIMIT:
            return int(value)
    return None


def read_weights(files: PresetFiles, backbone: Backbone) -> Iterator[Assignment]:
    """Yields each variable of the backbone with its array and the array's name.

    Raises:
        ConfigError: there are no safetensors (a `pytorch_model.bin` is a pickle, which could run
            code, and is refused).
        DataError: an array is missing, or a file is not what its name says.
    """
    with ExitStack() as stack:
        yield from _bert(_Arrays(files, stack), backbone)


class _Arrays:
    """The arrays of `model.safetensors`, or of the shards that its index lists."""

    def __init__(self, files: PresetFiles, stack: ExitStack) -> None:
        self._files = files
        shards = [_WEIGHTS]
        if files.find(_WEIGHTS) is None:
            if files.find(_SHARDS) is None:
                if files.find("pytorch_model.bin") is not None:
                    raise ConfigError(
                        f"{files}: must hold {_WEIGHTS}; pytorch_model.bin is a pickle and is not"
                        " read. Convert it with transformers:"
                        " AutoModel.from_pretrained(DIR).save_pretrained(DIR)"
                    )
                files.path(_WEIGHTS)  # raises
            shards = sorted(set(files.json_object(_SHARDS, "weight_map").values()))
        self._where: dict[str, Any] = {}
        for shard in shards:
            path = files.path(shard)
            try:
                file = stack.enter_context(safe_open(str(path), framework="np"))
            except SafetensorError as error:
                raise DataError(path, None, "must be a safetensors file.", str(error)) from error
            self._where.update((key, file) for key in file.keys())  # noqa: SIM118  # no iterator
        self._prefix = "bert." if "bert.embeddings.word_embeddings.weight" in self._where else ""

    def read(self, name: str) -> tuple[np.ndarray, str]:
        """Returns an array as float32, and its name in the file."""
        name = self._prefix + name
        # Before 2019's rename, layer norms had TensorFlow's names.
        old = name.replace("LayerNorm.weight", "LayerNorm.gamma")
        old = old.replace("LayerNorm.bias", "LayerNorm.beta")
        for key in (name, old):
            if key in self._where:
                return self._where[key].get_tensor(key).astype(np.float32), key
        raise DataError(str(self._files), None, f"the weights must hold the array {name}.")


def _bert(arrays: _Arrays, backbone: Backbone) -> Iterator[Assignment]:
    embedder = backbone.token_embedder
    yield (embedder.token_table, *arrays.read("embeddings.word_embeddings.weight"))
    yield (embedder.position_table, *arrays.read("embeddings.position_embeddings.weight"))
    yield (embedder.segment_table, *arrays.read("embeddings.token_type_embeddings.weight"))
    yield (embedder.norm_gamma, *arrays.read("embeddings.LayerNorm.weight"))
    yield (embedder.norm_beta, *arrays.read("embeddings.LayerNorm.bias"))
    for i, layer in enumerate(backbone.encoder.transformer_layers):
        prefix = f"encoder.layer.{i}"
        parts = [f"{prefix}.attention.self.{part}" for part in ("query", "key", "value")]
        kernels = [arrays.read(f"{part}.weight")[0].T for part in parts]
        biases = [arrays.read(f"{part}.bias")[0] for part in parts]
        yield layer.qkv_kernel, np.concatenate(kernels, axis=1), parts[0]
        yield layer.qkv_bias, np.concatenate(biases), parts[0]
        for part, kernel, bias in (
            (
                "attention.output.dense",
                layer.attention_output_kernel,
                layer.attention_output_bias,
            ),
            ("intermediate.dense", layer.intermediate_kernel, layer.intermediate_bias),
            ("output.dense", layer.output_kernel, layer.output_bias),
        ):
            array, name = arrays.read(f"{prefix}.{part}.weight")
            yield kernel, array.T, name
            yield (bias, *arrays.read(f"{prefix}.{part}.bias"))
        for part, gamma, beta in (
            (
                "attention.output.LayerNorm",
                layer.attention_norm_gamma,
                layer.attention_norm_beta,
            ),
            ("output.LayerNorm", layer.output_norm_gamma, layer.output_norm_beta),
        ):
            yield (gamma, *arrays.read(f"{prefix}.{part}.weight"))
            yield (beta, *arrays.read(f"{prefix}.{part}.bias"))
