"""Our backbones as Hugging Face's directories, written without torch or transformers."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import keras
import ml_dtypes  # noqa: F401  # lets NumPy, and so safetensors, know bfloat16
import numpy as np
from safetensors.numpy import save_file

from tfde.backbones.backbone import Backbone
from tfde.checkpoints.families import FAMILIES
from tfde.config.model import Activation, BackboneConfig, BertConfig, T5Config, backbone_kind
from tfde.errors import ConfigError, require
from tfde.text.tokenizer import Tokenizer

MAX_SHARD_BYTES = 5_000_000_000  # as transformers, until version 5

_ACTIVATIONS: dict[Activation, str] = {
    "gelu": "gelu",
    "gelu_tanh": "gelu_new",
    "relu": "relu",
    "silu": "silu",
}
_FEEDFORWARD: dict[tuple[Activation, bool], str] = {
    ("relu", False): "relu",
    ("gelu", False): "gelu",
    ("gelu_tanh", True): "gated-gelu",
    ("silu", True): "gated-silu",
    ("relu", True): "gated-relu",
}
# What transformers' MPNetModel has in its code, whatever its configuration says.
_MPNET_PAD_ID, _MPNET_BUCKETS, _MPNET_MAX_DISTANCE = 1, 32, 128


def hugging_face_config(
    config: BackboneConfig, tokenizer: Tokenizer, *, dtype: str = "float32"
) -> dict[str, Any]:
    """Returns the `config.json` of the model of transformers that computes the same.

    BERT's kind becomes a `BertModel`, with position biases an `MPNetModel`; T5 a `T5EncoderModel`.

    Args:
        config: Sizes of the backbone.
        tokenizer: Says which token pads.
        dtype: That of the weights.

    Raises:
        ConfigError: transformers has no such model.
    """
    common = {
        "vocab_size": config.vocabulary_size,
        "pad_token_id": tokenizer.pad_id,
        "torch_dtype": dtype,  # version 5 of transformers, which says `dtype`, reads this too
    }
    match config:
        case BertConfig(relative_buckets=0):
            return {**_bert(config), **common, "type_vocab_size": max(config.num_segments, 1)}
        case BertConfig():
            return {**_mpnet(config, tokenizer), **common}
        case T5Config():
            return {**_t5(config, tokenizer), **common}
    raise ConfigError(
        "`model` must have a backbone of BERT's or T5's kind: transformers has no other that"
        f" computes the same. Received: {backbone_kind(config)}"
    )


def write_hugging_face(
    backbone: Backbone,
    tokenizer: Tokenizer,
    directory: Path,
    *,
    max_length_tokens: int,
    max_shard_bytes: int = MAX_SHARD_BYTES,
) -> None:
    """Writes `config.json`, the weights in their dtype, and the tokenizer's files.

    At most one shard of the weights is in memory beside the model.

    Args:
        backbone: The layers.
        tokenizer: Their tokenizer.
        directory: Where; it exists.
        max_length_tokens: Longest text, special tokens included.
        max_shard_bytes: Weights larger than that are spread over several files.

    Raises:
        ConfigError: transformers has no such model.
    """
    dtype = backbone.encoder.weights[0].dtype
    config = hugging_face_config(backbone.config, tokenizer, dtype=dtype)
    files = {"config.json": (json.dumps(config, indent=2, sort_keys=True) + "\n").encode()}
    files |= tokenizer.hugging_face_files(max_length_tokens=max_length_tokens)
    for name, content in files.items():
        (directory / name).write_bytes(content)
    write_arrays(
        _arrays(backbone, FAMILIES[config["model_type"]].sources),
        directory,
        max_shard_bytes=max_shard_bytes,
    )


def write_arrays(
    arrays: Iterator[tuple[str, np.ndarray]],
    directory: Path,
    *,
    max_shard_bytes: int = MAX_SHARD_BYTES,
) -> None:
    """Writes `model.safetensors`, or shards and their index.

    Args:
        arrays: Name and value of each.
        directory: Where; it exists.
        max_shard_bytes: A file holds more only if one array alone does.
    """
    shard: dict[str, np.ndarray] = {}
    written: list[list[str]] = []
    size = total = 0

    def write() -> None:
        # The metadata tells transformers 4 that PyTorch may take the arrays as they are.
        save_file(shard, directory / f"part-{len(written)}", metadata={"format": "pt"})
        written.append(list(shard))
        shard.clear()

    for name, array in arrays:
        if shard and size + array.nbytes > max_shard_bytes:
            write()
            size = 0
        shard[name] = array
        size, total = size + array.nbytes, total + array.nbytes
    write()
    count = len(written)
    shards = [f"model-{i:05d}-of-{count:05d}.safetensors" for i in range(1, count + 1)]
    if count == 1:
        shards = ["model.safetensors"]
    for number, file in enumerate(shards):
        (directory / f"part-{number}").rename(directory / file)
    if count > 1:
        files = {name: f for f, names in zip(shards, written, strict=True) for name in names}
        index = {"metadata": {"total_size": total}, "weight_map": files}
        text = json.dumps(index, indent=2, sort_keys=True) + "\n"
        (directory / "model.safetensors.index.json").write_text(text, "utf-8")


def _arrays(backbone: Backbone, sources: Any) -> Iterator[tuple[str, np.ndarray]]:
    for source in sources(backbone):
        yield from source.split().items()
    config = backbone.config
    if not isinstance(config, BertConfig):
        return
    dtype = keras.ops.convert_to_numpy(backbone.token_embedder.norm_gamma).dtype
    hidden = config.hidden_dim
    if not config.relative_buckets and not config.num_segments:
        # A BertModel adds a segment's row to every token.
        yield "embeddings.token_type_embeddings.weight", np.zeros((1, hidden), dtype)
    # Nothing reads the pooler; without it transformers warns that it is new and must be trained.
    yield "pooler.dense.weight", np.zeros((hidden, hidden), dtype)
    yield "pooler.dense.bias", np.zeros(hidden, dtype)


def _bert(config: BertConfig) -> dict[str, Any]:
    return {
        "model_type": "bert",
        "architectures": ["BertModel"],
        "num_hidden_layers": config.num_layers,
        "num_attention_heads": config.num_heads,
        "hidden_size": config.hidden_dim,
        "intermediate_size": config.intermediate_dim,
        "max_position_embeddings": config.max_sequence_length,
        "hidden_act": _ACTIVATIONS[config.activation],
        "hidden_dropout_prob": config.dropout,
        "attention_probs_dropout_prob": config.dropout,
        "layer_norm_eps": config.layer_norm_epsilon,
    }


def _mpnet(config: BertConfig, tokenizer: Tokenizer) -> dict[str, Any]:
    for name, received, wanted in (
        ("num_segments", config.num_segments, 0),
        ("relative_buckets", config.relative_buckets, _MPNET_BUCKETS),
        ("relative_max_distance", config.relative_max_distance, _MPNET_MAX_DISTANCE),
        # It counts positions by the tokens that are not this one, wherever they stand.
        ("tokenizer.pad_id", tokenizer.pad_id, _MPNET_PAD_ID),
    ):
        require(
            received == wanted,
            name,
            f"{wanted} for transformers' MPNetModel, its only model of BERT's kind with relative"
            " positions",
            received,
        )
    first = _MPNET_PAD_ID + 1  # row of the first token's position
    return {
        **_bert(config),
        "model_type": "mpnet",
        "architectures": ["MPNetModel"],
        "max_position_embeddings": config.max_sequence_length + first,
        "relative_attention_num_buckets": config.relative_buckets,
    }


def _t5(config: T5Config, tokenizer: Tokenizer) -> dict[str, Any]:
    kind = (config.activation, config.gated)
    if kind not in _FEEDFORWARD:
        known = ", ".join(f"{name}{' gated' if gated else ''}" for name, gated in _FEEDFORWARD)
        raise ConfigError(
            f"`activation` must be one of {known} for transformers' T5EncoderModel."
            f" Received: {config.activation}{' gated' if config.gated else ''}"
        )
    return {
        "model_type": "t5",
        "architectures": ["T5EncoderModel"],
        "num_layers": config.num_layers,
        "num_heads": config.num_heads,
        "d_model": config.hidden_dim,
        "d_ff": config.intermediate_dim,
        "d_kv": config.key_value_dim,
        "feed_forward_proj": _FEEDFORWARD[kind],
        "dropout_rate": config.dropout,
        "relative_attention_num_buckets": config.relative_buckets,
        "relative_attention_max_distance": config.relative_max_distance,
        "layer_norm_epsilon": config.layer_norm_epsilon,
        "eos_token_id": tokenizer.end_id,
        "is_encoder_decoder": True,
    }
