"""Our backbones as Hugging Face's directories, written without torch or transformers."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import ml_dtypes  # noqa: F401  # lets NumPy, and so safetensors, know bfloat16
import numpy as np

from tfde.backbones.backbone import Backbone
from tfde.checkpoints.families.family import HuggingFaceFamily
from tfde.checkpoints.families.registry import FAMILIES, WRITERS
from tfde.checkpoints.safetensors_arrays import write_safetensors
from tfde.config.backbones import BackboneConfig
from tfde.errors import ConfigError
from tfde.text.tokenizer import Tokenizer

MAX_SHARD_BYTES = 5_000_000_000  # as transformers, until version 5


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
    write = WRITERS.get(type(config))
    if write is None:
        raise ConfigError(
            "`model` must have a backbone of BERT's or T5's kind: transformers has no other that"
            f" computes the same. Received: {config.kind}"
        )
    return {**write(config, tokenizer), **common}


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
        _arrays(backbone, FAMILIES[config["model_type"]]),
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
        write_safetensors(directory / f"part-{len(written)}", shard, {"format": "pt"})
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


def _arrays(backbone: Backbone, family: HuggingFaceFamily) -> Iterator[tuple[str, np.ndarray]]:
    for source in family.sources(backbone):
        yield from source.split().items()
    yield from family.unread(backbone)
