"""Loading a pre-trained encoder with its tokenizer, whatever wrote it."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tensorflow as tf

from tfde.backbones.backbone import Backbone, build_backbone
from tfde.backbones.seeded_layer import zero_weights
from tfde.checkpoints.checkpoint_files import (
    CheckpointFiles,
    EncoderSteps,
    transformer_settings,
)
from tfde.checkpoints.hugging_face import HuggingFaceModel
from tfde.checkpoints.keras_hub_presets import KerasHubModel
from tfde.checkpoints.sentence_transformers_files import read_sentence_transformers
from tfde.errors import ConfigError, DataError, shorten
from tfde.text.tokenizer import Tokenizer
from tfde.text.word_piece.tokenizer import WordPieceTokenizer

_LOG = logging.getLogger(__name__)
# A pair of DPR's encoders in one directory.
_PAIR = ("question_encoder", "ctx_encoder")


@dataclass(frozen=True)
class LoadedBackbone:
    """A pre-trained backbone and what came with it.

    Args:
        backbone: The layers with the checkpoint's weights.
        tokenizer: The checkpoint's tokenizer.
        max_length_tokens: Longest text, special tokens included; `None` where there is no limit.
        steps: What the checkpoint says about the way from here to the embedding.
    """

    backbone: Backbone
    tokenizer: Tokenizer
    max_length_tokens: int | None
    steps: EncoderSteps


@dataclass(frozen=True)
class OpenedBackbone:
    """A `LoadedBackbone` before its weights are in memory.

    Args:
        files: The checkpoint.
        model: Its transformer, described.
        tokenizer: As in `LoadedBackbone`.
        max_length_tokens: As in `LoadedBackbone`.
        steps: As in `LoadedBackbone`.
    """

    files: CheckpointFiles
    model: HuggingFaceModel | KerasHubModel
    tokenizer: Tokenizer
    max_length_tokens: int | None
    steps: EncoderSteps


def load_backbones(
    path: str | Path,
    document_path: str | Path | None = None,
    *,
    dropout: float | None = None,
    dtype: str | None = None,
) -> list[LoadedBackbone]:
    """Loads one backbone for both towers, or that of queries and that of documents.

    Args:
        path: A directory of keras-hub, Hugging Face or sentence-transformers; a keras-hub preset
            name; a `kaggle://` or `hf://` handle, whose files are fetched and cached. Two of them
            with a comma between are queries' and documents'. So is a directory with the folders
            `question_encoder` and `ctx_encoder` (DPR), and one with a Router.
        document_path: The documents' checkpoint, where it is another.
        dropout: Replaces the checkpoint's dropout rate.
        dtype: Keras dtype policy; `None` takes the current one.

    Raises:
        ConfigError: a file is missing or cannot be fetched; the model or tokenizer is of a kind
            that is not supported; the two checkpoints do not fit together.
        DataError: a file is not what its name says; an array is missing or has another shape.
    """
    opened = open_backbones(path, document_path)
    # Only now is memory taken: what can be refused has been.
    return [
        LoadedBackbone(
            read_backbone(side.files, side.model, dropout=dropout, dtype=dtype, name_prefix=prefix),
            side.tokenizer,
            side.max_length_tokens,
            side.steps,
        )
        for side, prefix in zip(opened, ("", "document_"), strict=False)
    ]


def open_backbones(
    path: str | Path, document_path: str | Path | None = None
) -> list[OpenedBackbone]:
    """Reads all of a checkpoint but its weights; arguments and errors as in `load_backbones`."""
    opened = [_open(files, steps) for files, steps in _find_encoders(path, document_path)]
    if len(opened) == 2:
        _check_pair(*opened)
    return opened


def load_backbone(
    path: str | Path, *, dropout: float | None = None, dtype: str | None = None
) -> LoadedBackbone:
    """Loads a checkpoint with one backbone; arguments and errors as in `load_backbones`."""
    return only_one(path, load_backbones(path, dropout=dropout, dtype=dtype))


def only_one(path: object, loaded: Sequence[LoadedBackbone]) -> LoadedBackbone:
    """Returns the backbone of a checkpoint that must not have one for each tower.

    Raises:
        ConfigError: it has.
    """
    if len(loaded) == 2:
        raise ConfigError(f"{path}: must be one encoder. Received: one for queries, one for texts")
    return loaded[0]


def _find_encoders(
    path: str | Path, document_path: str | Path | None
) -> list[tuple[CheckpointFiles, EncoderSteps]]:
    """The transformer's files and the steps after it, of one encoder or of two."""
    names = path.split(",") if isinstance(path, str) and not Path(path).exists() else []
    if document_path is None and len(names) == 2:
        path, document_path = (name.strip() for name in names)
    if document_path is None and all((Path(path) / folder).is_dir() for folder in _PAIR):
        path, document_path = (Path(path) / folder for folder in _PAIR)
    if document_path is None:
        encoders = _read_files(CheckpointFiles(path))
        kind = encoders[0][0].json_object("config.json").get("model_type")
        if kind == "dpr" and len(encoders) == 1:
            raise ConfigError(
                f"{path}: is one of DPR's two encoders; give that of questions and that of"
                " passages, with a comma between. Received: one"
            )
        return encoders
    pair = [_read_files(CheckpointFiles(p)) for p in (path, document_path)]
    for side, other in zip(pair, ("DPRContextEncoder", "DPRQuestionEncoder"), strict=True):
        if _architecture(side[0][0]) == other:
            raise ConfigError(
                "DPR's encoder of questions must come first, that of passages second."
                f" Received: {path},{document_path}"
            )
    # Of two complete pairs, each gives the side it is asked for.
    return [pair[0][0], pair[1][-1]]


def _read_files(files: CheckpointFiles) -> list[tuple[CheckpointFiles, EncoderSteps]]:
    if files.find("modules.json") is not None:
        return read_sentence_transformers(files)
    if _architecture(files).endswith("ForSequenceClassification"):
        _LOG.warning(
            "%s: a sequence classifier; its transformer is taken with pooling, its head is not"
            " (tfde.CrossEncoder.from_backbone takes both)",
            files,
        )
    return [(files, EncoderSteps())]


def _architecture(files: CheckpointFiles) -> str:
    """The class that wrote the weights, where `config.json` says."""
    kinds = files.json_or_empty("config.json").get("architectures")
    return str(kinds[0]) if isinstance(kinds, list) and kinds else ""


def _open(files: CheckpointFiles, steps: EncoderSteps) -> OpenedBackbone:
    value = files.json_object("config.json")
    if str(value.get("module")).startswith("tfde."):
        raise ConfigError(
            f"{files}: must be a checkpoint of another library; a model directory of tfde is loaded"
            f" by tfde.{value.get('class_name')}.from_preset."
        )
    model: Any
    if "registered_name" in value:
        model = KerasHubModel(files, value)
    elif "model_type" in value:
        model = HuggingFaceModel(files, value)
    else:
        raise ConfigError(
            f"{files}/config.json: must be a keras-hub preset's or a Hugging Face model's."
            " Received: neither `registered_name` nor `model_type`"
        )
    tokenizer = model.read_tokenizer()
    check_lower_case(files, tokenizer)
    if steps.pooling is None:
        steps = model.read_steps()
    if tokenizer.vocabulary_size > model.config.vocabulary_size:
        rule = f"the tokenizer must have at most vocab_size={model.config.vocabulary_size} tokens."
        raise DataError(str(files), None, rule, tokenizer.vocabulary_size)
    _check_projection(files, model.config.hidden_dim, steps)
    return OpenedBackbone(files, model, tokenizer, model.read_max_length_tokens(), steps)


def check_lower_case(files: CheckpointFiles, tokenizer: Tokenizer) -> None:
    """Refuses sentence-transformers' `do_lower_case` where the tokenizer keeps capital letters.

    It lowercases texts before the tokenizer does. BAAI/bge-*-en say it of an uncased BERT, whose
    tokenizer does the same once more.

    Raises:
        ConfigError: the tokenizer keeps them.
    """
    name, found = transformer_settings(files)
    uncased = isinstance(tokenizer, WordPieceTokenizer) and tokenizer.settings()["lowercase"]
    if found.get("do_lower_case") and not uncased:
        raise ConfigError(
            f"{files}/{name}: `do_lower_case` must be False where the tokenizer keeps capital"
            f" letters. Received: {shorten(found['do_lower_case'])}"
        )


def read_backbone(
    files: CheckpointFiles,
    model: HuggingFaceModel | KerasHubModel,
    *,
    dropout: float | None,
    dtype: str | None,
    name_prefix: str = "",
) -> Backbone:
    """Returns the layers of an opened checkpoint with its weights.

    Args:
        files: The checkpoint, for messages.
        model: Its transformer.
        dropout: Replaces the checkpoint's dropout rate.
        dtype: Keras dtype policy; `None` takes the current one.
        name_prefix: Put before the names of the two layers.

    Raises:
        DataError: an array is missing or has another shape.
    """
    config = model.config
    if dropout is not None:
        config = config.replace(dropout=dropout)
    with zero_weights():
        backbone = build_backbone(config, name_prefix=name_prefix, dtype=dtype)
    for variable, array, name in model.read_weights(backbone):
        if array.shape != tuple(variable.shape):
            rule = f"the array {name} must have shape {tuple(variable.shape)}."
            raise DataError(str(files), None, rule, array.shape)
        # In NumPy: what TensorFlow's allocator frees leaves holes, which count as memory.
        variable.assign(array.astype(tf.as_dtype(variable.dtype).as_numpy_dtype, copy=False))
    return backbone


def _check_projection(files: CheckpointFiles, hidden_dim: int, steps: EncoderSteps) -> None:
    rows = hidden_dim * len(steps.pooling or ())
    kernels = [array for array in steps.projection_weights if array.ndim == 2]
    for kernel in kernels:
        if kernel.shape[0] != rows:
            rule = f"a Dense module gets vectors of {rows} numbers; its in_features must be that."
            raise DataError(str(files), None, rule, kernel.shape[0])
        rows = kernel.shape[1]


def _check_pair(query: OpenedBackbone, document: OpenedBackbone) -> None:
    """Refuses two encoders that cannot be the towers of one model."""

    def facts(opened: OpenedBackbone) -> dict[str, object]:
        steps = opened.steps
        return {
            "tokenizers": opened.tokenizer.fingerprint_bytes(),
            "sizes": opened.model.config.replace(dropout=0.0),
            "poolings": (steps.pooling, steps.pool_prompts),
            "projections": steps.projection,
            "similarities": steps.normalize,
        }

    ours, theirs = facts(query), facts(document)
    for name, value in ours.items():
        if value != theirs[name]:
            raise ConfigError(
                f"{query.files} and {document.files}: two encoders of one model must have equal"
                f" {name}."
            )
