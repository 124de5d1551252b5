"""Cross-encoders of Hugging Face and of sentence-transformers: an encoder and its classifier."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from tfde.backbones.backbone import Backbone
from tfde.checkpoints.checkpoint_files import CheckpointFiles, transformer_settings
from tfde.checkpoints.families.family import FieldsOfConfig
from tfde.checkpoints.hugging_face import HuggingFaceModel
from tfde.checkpoints.loading import check_lower_case, load_backbone, read_backbone
from tfde.checkpoints.safetensors_arrays import SafetensorsArrays
from tfde.checkpoints.sentence_transformers_files import read_modules
from tfde.config.backbones import BackboneConfig, check_transformer
from tfde.config.model import HiddenActivation, PairTextConfig
from tfde.errors import ConfigError, DataError, shorten
from tfde.text.tokenizer import Tokenizer

_CLASSIFIER = "ForSequenceClassification"


@dataclass(frozen=True)
class HeadNames:
    """Where a model of transformers has the head that gives the logits of a pair.

    Args:
        hidden: Linear layer on the first token.
        activation: What follows it.
        classifier: Linear layer after that.
        dropout: Field of `config.json` with the rate between them; `hidden_dropout_prob` counts
            where it is null.
        two_segments: Whether its tokenizer gives the second text segment 1.
    """

    hidden: str
    activation: HiddenActivation
    classifier: str
    dropout: str
    two_segments: bool = False


_ROBERTA = HeadNames("classifier.dense", "tanh", "classifier.out_proj", "classifier_dropout")
HEADS: dict[str, HeadNames] = {
    f"Bert{_CLASSIFIER}": HeadNames(
        "bert.pooler.dense", "tanh", "classifier", "classifier_dropout", two_segments=True
    ),
    f"DistilBert{_CLASSIFIER}": HeadNames(
        "pre_classifier", "relu", "classifier", "seq_classif_dropout"
    ),
    f"Roberta{_CLASSIFIER}": _ROBERTA,
    f"XLMRoberta{_CLASSIFIER}": _ROBERTA,
    f"MPNet{_CLASSIFIER}": HeadNames(
        "classifier.dense", "tanh", "classifier.out_proj", "hidden_dropout_prob"
    ),
}


@dataclass(frozen=True)
class LoadedHead:
    """The head of a checkpoint.

    Args:
        hidden_activation: What follows the hidden layer.
        dropout: Rate between hidden layer and classifier.
        labels: What the logits are called, in their order; empty where nobody named them.
        hidden: Its kernel (H, H) and bias (H,), float32.
        classifier: Kernel (H, labels) and bias (labels,), float32.
    """

    hidden_activation: HiddenActivation
    dropout: float
    labels: tuple[str, ...]
    hidden: tuple[np.ndarray, np.ndarray]
    classifier: tuple[np.ndarray, np.ndarray]

    @property
    def num_labels(self) -> int:
        """How many logits a pair has."""
        return int(self.classifier[1].shape[0])


@dataclass(frozen=True)
class LoadedCrossEncoder:
    """A cross-encoder's parts, or an encoder's from which one can be trained.

    Args:
        backbone: The layers with the checkpoint's weights.
        config: Their sizes, that is `backbone.config`.
        tokenizer: The checkpoint's tokenizer.
        max_length_tokens: Longest pair, special tokens included.
        num_segments: 2 where the second text has segment 1, else 1.
        head: `None` where the checkpoint is an encoder.
    """

    backbone: Backbone
    config: BackboneConfig
    tokenizer: Tokenizer
    max_length_tokens: int
    num_segments: int
    head: LoadedHead | None


def load_cross_encoder(
    path: str | Path,
    *,
    num_labels: int | None = None,
    dropout: float | None = None,
    dtype: str | None = None,
) -> LoadedCrossEncoder:
    """Loads a sequence classification model, or an encoder for a new head.

    Args:
        path: A directory of Hugging Face or sentence-transformers, a `hf://` handle; for an
            encoder also a keras-hub preset.
        num_labels: Given, an encoder without a classifier is taken too; a classifier must have so
            many labels.
        dropout: Replaces the rates of the checkpoint's backbone and head.
        dtype: Keras dtype policy of the backbone; `None` takes the current one.

    Raises:
        ConfigError: no classifier and no `num_labels`; another kind of model; a file is missing.
        DataError: a file is not what its name says; an array is missing or has another shape.
    """
    files = _find_classifier(CheckpointFiles(path))
    if files is None:
        return _load_encoder(path, num_labels, dropout=dropout, dtype=dtype)
    fields = files.json_object("config.json")
    names = HEADS[fields["architectures"][0]]
    model = HuggingFaceModel(files, fields)
    head = _read_head(files, names, fields, hidden_dim=model.config.hidden_dim, dropout=dropout)
    if num_labels is not None and num_labels != head.num_labels:
        raise ConfigError(
            f"{files}: `num_labels` must be {head.num_labels}, as many as the checkpoint's"
            f" classifier has. Received: {num_labels}"
        )
    tokenizer = model.read_tokenizer()
    check_lower_case(files, tokenizer)
    backbone = read_backbone(files, model, dropout=dropout, dtype=dtype)
    max_length_tokens = model.read_max_length_tokens()
    # What the tokenizer does not give, the model takes as zeros.
    inputs = files.json_or_empty("tokenizer_config.json").get("model_input_names")
    two = names.two_segments and "token_type_ids" in (inputs or ("token_type_ids",))
    return _join(path, backbone, tokenizer, max_length_tokens, two_segments=two, head=head)


def is_sentence_encoder(path: str | Path) -> bool:
    """Whether it is a sentence-transformers directory of an encoder, which scores no pairs."""
    files = CheckpointFiles(path)
    return files.find("modules.json") is not None and _find_classifier(files) is None


def _load_encoder(
    path: str | Path, num_labels: int | None, *, dropout: float | None, dtype: str | None
) -> LoadedCrossEncoder:
    if num_labels is None:
        raise ConfigError(
            f"{path}: holds no classifier; `num_labels` must say how many labels a new one shall"
            " have, which `tfde train-matcher` then trains. Received: num_labels=None"
        )
    loaded = load_backbone(path, dropout=dropout, dtype=dtype)
    return _join(
        path,
        loaded.backbone,
        loaded.tokenizer,
        loaded.max_length_tokens,
        two_segments=True,
        head=None,
    )


def _join(
    path: str | Path,
    backbone: Backbone,
    tokenizer: Tokenizer,
    max_length_tokens: int | None,
    *,
    two_segments: bool,
    head: LoadedHead | None,
) -> LoadedCrossEncoder:
    config = backbone.config
    check_transformer(config)
    num_segments, limit = pair_limits(config)
    num_segments = num_segments if two_segments else 1
    limit = max_length_tokens or limit
    return LoadedCrossEncoder(backbone, config, tokenizer, limit, num_segments, head)


def pair_limits(config: BackboneConfig) -> tuple[int, int]:
    """Returns how many segments a pair can have, and how many tokens."""
    longest = config.max_sequence_length or PairTextConfig().max_length_tokens
    return min(max(config.num_segments, 1), 2), longest


def _find_classifier(files: CheckpointFiles) -> CheckpointFiles | None:
    """The files of a sequence classification model; `None` where there is an encoder alone."""
    if files.find("modules.json") is not None:
        modules = read_modules(files)
        kinds = [kind for kind, _ in modules]
        if kinds[:2] == ["Transformer", "Pooling"]:
            return None
        if kinds != ["Transformer"]:
            raise ConfigError(
                f"{files}/modules.json: the modules of a cross-encoder must be one Transformer."
                f" Received: {', '.join(kinds) or 'none'}"
            )
        _check_options(files)
        files = modules[0][1]
    kinds = files.json_object("config.json").get("architectures") or []
    if not isinstance(kinds, list) or not kinds or not str(kinds[0]).endswith(_CLASSIFIER):
        return None
    if kinds[0] not in HEADS:
        raise ConfigError(
            f"{files}/config.json: a cross-encoder's architecture must be one of"
            f" {', '.join(HEADS)}. Received: {shorten(kinds[0])}"
        )
    return files


def _check_options(files: CheckpointFiles) -> None:
    own = "config_sentence_transformers.json"
    for file, settings, name, wanted in (
        (*transformer_settings(files), "transformer_task", "sequence-classification"),
        (own, files.json_or_empty(own), "default_prompt_name", None),
    ):
        value = settings.get(name, wanted)
        if value != wanted:
            said = "null" if wanted is None else wanted
            raise ConfigError(
                f"{files}/{file}: `{name}` must be {said}. Received: {shorten(value)}"
            )


def _read_head(
    files: CheckpointFiles,
    names: HeadNames,
    fields: Mapping[str, Any],
    *,
    hidden_dim: int,
    dropout: float | None,
) -> LoadedHead:
    arrays = SafetensorsArrays(files)
    num_labels = next(iter(arrays.shape(f"{names.classifier}.weight")), 0)
    labels = fields.get("id2label")
    if isinstance(labels, Mapping) and len(labels) != num_labels:
        raise DataError(
            f"{files}/config.json",
            None,
            f"`id2label` must agree with the array {names.classifier}.weight, whose shape is"
            f" {arrays.shape(f'{names.classifier}.weight')}.",
            f"{len(labels)} labels",
        )
    for name, shape in (
        (f"{names.hidden}.weight", (hidden_dim, hidden_dim)),
        (f"{names.hidden}.bias", (hidden_dim,)),
        (f"{names.classifier}.weight", (num_labels, hidden_dim)),
        (f"{names.classifier}.bias", (num_labels,)),
    ):
        arrays.check(name, shape)
    if dropout is None:
        rate = fields.get(names.dropout)
        name = names.dropout if rate is not None else "hidden_dropout_prob"
        dropout = FieldsOfConfig(f"{files}/config.json", fields).number(name, 0.1)

    def read(name: str) -> tuple[np.ndarray, np.ndarray]:
        kernel, bias = (arrays.read(f"{name}.{part}") for part in ("weight", "bias"))
        return kernel.T.astype(np.float32), bias.astype(np.float32)

    return LoadedHead(
        names.activation,
        dropout,
        _label_names(labels, num_labels),
        read(names.hidden),
        read(names.classifier),
    )


def _label_names(labels: Any, num_labels: int) -> tuple[str, ...]:
    """Returns the names in `id2label`; none for a score, or where transformers made them up."""
    if num_labels == 1 or not isinstance(labels, Mapping):
        return ()
    names = tuple(str(labels.get(str(number), "")) for number in range(num_labels))
    usable = all(names) and len(set(names)) == num_labels
    return () if not usable or names[0] == "LABEL_0" else names
