"""`CrossEncoder`: one encoder that reads both texts of a pair, and the head that scores them."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import keras
import tensorflow as tf

from tfde.backbones.backbone import Backbone, cut_backbone
from tfde.backbones.functional import seeded
from tfde.backbones.transformer import EncoderStates
from tfde.checkpoints.checkpoint_files import check_checkpoint
from tfde.checkpoints.cross_encoder_files import (
    LoadedCrossEncoder,
    LoadedHead,
    load_cross_encoder,
    pair_limits,
)
from tfde.checkpoints.initial_backbones import check_vocabulary, load_start
from tfde.checkpoints.loading import LoadedBackbone
from tfde.config.backbones import BackboneConfig, PairPooling
from tfde.config.model import CrossEncoderConfig, DenseConfig, PairTextConfig
from tfde.errors import ConfigError
from tfde.layers.pooling import Pooling
from tfde.layers.projection import Projection
from tfde.matching.model_starts import model_start
from tfde.matching.pair_model import PairScorer
from tfde.matching.pair_states import PairStates, TextTokens, Tokens
from tfde.text.batch_preprocessor import BatchPreprocessor
from tfde.text.pair_preprocessor import PairPreprocessor
from tfde.text.tokenizer import Tokenizer
from tfde.towers.preset import is_for_from_preset, preset_class
from tfde.towers.weights import named_weights

_LOG = logging.getLogger(__name__)
_WITH_WEIGHTS = ("token_embedder", "encoder", "hidden", "classifier")


@keras.saving.register_keras_serializable(package="tfde")
class CrossEncoder(PairScorer):
    """Scores pairs of texts that it reads together, in the time of a pass for each pair.

    Made by `from_backbone`, `from_preset` or `load`; the constructor joins parts that exist.

    Args:
        backbone: The layers with their weights.
        config: Sizes and head; `config.backbone` must describe `backbone`.
        preprocessor: Pairs to token ids.
        seed: Seed of the head's random weights; `None` takes Keras's global seed.

    Attributes:
        scorer: Functional model, (B, L) `token_ids`, `segment_ids` and `padding_mask` -> logits
            (B, N) float32.

    Source: Nogueira and Cho 2019 (BERT on query and passage).
    """

    kind: ClassVar[str] = "CrossEncoder"
    config_class: ClassVar[type] = CrossEncoderConfig
    preprocessor_class: ClassVar[type[BatchPreprocessor]] = PairPreprocessor

    config: CrossEncoderConfig
    preprocessor: PairPreprocessor

    def __init__(
        self,
        backbone: Backbone,
        config: CrossEncoderConfig,
        *,
        preprocessor: PairPreprocessor,
        seed: int | None = None,
    ) -> None:
        scorer, parts = build_scorer(backbone, config, seed=seed)
        dtype = backbone.encoder.dtype_policy
        super().__init__(scorer, config, preprocessor, name="cross_encoder", dtype=dtype)
        self._parts = parts

    # ---- making, saving, loading -------------------------------------------------------------

    @classmethod
    def from_backbone(
        cls,
        backbone: str | Path | BackboneConfig | keras.Model,
        *,
        num_labels: int | None = None,
        labels: Sequence[str] = (),
        num_layers: int | None = None,
        pooling: PairPooling | None = None,
        tokenizer: Tokenizer | None = None,
        text: PairTextConfig | None = None,
        dropout: float | None = None,
        dtype: str | None = None,
        seed: int | None = None,
    ) -> CrossEncoder:
        """Builds a cross-encoder on a pre-trained checkpoint, or on random weights of given sizes.

        A sequence classification model (BERT, DistilBERT, RoBERTa, XLM-RoBERTa or MPNet, as
        `sentence_transformers.CrossEncoder` and transformers write it) gives its head too. An
        encoder gets a new one, which has to be trained.

        Args:
            backbone: A directory of Hugging Face or sentence-transformers, a `hf://` handle, a
                keras-hub preset; or a description such as `tfde.BertConfig(num_layers=4)`.
            num_labels: Logits of a pair. `None`: those of the checkpoint's classifier, which must
                be there then; 1 for a description.
            labels: What the logits are called, in their order; of one logit, the two labels that
                it tells apart. Empty: what the checkpoint says, if anything. Its own names in
                another order order its logits so; other names are given to them as they stand,
                which is logged.
            num_layers: Only the first so many layers of the checkpoint; `None` for all.
            pooling: What a new head reads: the `first` token or the `mean`; `None` takes the first
                token, for T5 the mean.
            tokenizer: Needed for random weights; otherwise the checkpoint brings its own.
            text: Length and template; `None` takes the checkpoint's length. Length and segments
                beyond what the checkpoint can hold are cut to it.
            dropout: Replaces the checkpoint's rates, the head's included.
            dtype: Keras dtype policy of the backbone, as for `DualEncoder.from_backbone`.
            seed: Seed of random weights.

        Raises:
            ConfigError: there is no classifier and `num_labels` is not given, or they differ; a
                tokenizer is missing or does not fit; another kind of model.
            DataError: a file of the checkpoint is not what its name says.
        """
        with seeded(seed):
            if isinstance(backbone, str | Path):
                loaded = _load(backbone, num_labels, dropout=dropout, dtype=dtype)
            else:
                loaded = _describe(backbone, tokenizer, dropout=dropout, dtype=dtype, seed=seed)
            head, parts = loaded.head, loaded.backbone
            if head is not None and (num_layers is not None or pooling not in (None, "first")):
                raise ConfigError(
                    "`num_layers` and `pooling` are for a new head; this checkpoint brings one, on"
                    f" the first token of all layers. Received: {num_layers} and {pooling}"
                )
            if num_layers is not None:
                parts = cut_backbone(parts, num_layers)
            sizes = parts.config
            tokenizer = tokenizer or loaded.tokenizer
            check_vocabulary(tokenizer, sizes)
            count = 1 if num_labels is None else num_labels
            if head is not None:
                count, labels = head.num_labels, labels or head.labels
            config = CrossEncoderConfig(
                sizes,
                pooling=pooling or sizes.pair_pooling,
                num_labels=count,
                labels=tuple(labels or ()),
                dropout=sizes.dropout,
            )
            if head is not None:
                config = dataclasses.replace(
                    config,
                    hidden_activation=head.hidden_activation,
                    dropout=head.dropout,
                )
            text = text or PairTextConfig(max_length_tokens=loaded.max_length_tokens)
            longest = sizes.max_sequence_length or text.max_length_tokens
            text = dataclasses.replace(
                text,
                max_length_tokens=min(text.max_length_tokens, longest),
                num_segments=min(text.num_segments, loaded.num_segments),
            )
            preprocessor = PairPreprocessor(tokenizer, text)
            model = cls(parts, config, preprocessor=preprocessor, seed=seed)
            model.untrained = head is None and isinstance(backbone, str | Path)
            if head is not None:
                model._parts.hidden.set_weights(list(head.hidden))
                order = _order_of_logits(head, config.labels)
                model._parts.classifier.set_weights([part[..., order] for part in head.classifier])
            return model

    @classmethod
    def load(cls, path: str | Path, *, dtype: str | None = None) -> CrossEncoder:
        """Loads a model directory or `.keras` file, else a checkpoint as `from_backbone` does."""
        check_checkpoint(path)
        if is_for_from_preset(path):
            return cls.from_preset(path, dtype=dtype)
        return cls.from_backbone(path, dtype=dtype)

    def named_weights(self) -> dict[str, keras.Variable]:
        """Returns every weight by `part/...`."""
        return self._parts.named_weights()

    @property
    def encoder(self) -> Any:
        """The encoder, whose attention and hidden states are taught."""
        return self._parts.encoder

    def encoder_and_apart(self) -> tuple[Any, int]:
        """Returns the encoder; no layer of it sees one text alone."""
        return self.encoder, 0

    # ---- scoring -----------------------------------------------------------------------------

    def prepare_tokens(
        self, first: tf.Tensor, titles: tf.Tensor, texts: tf.Tensor
    ) -> tuple[dict[str, tf.Tensor], Tokens]:
        """Returns what `prepare` does, and where the tokens of both texts stand in it.

        T5 takes no `segment_ids`.
        """
        names = ("token_ids", "segment_ids", "padding_mask")
        second = self.preprocessor.documents(titles, texts)
        tensors, counts = self.preprocessor.pairs_and_counts(first, second)
        inputs = dict(zip(names, tensors, strict=True))
        tokenizer = self.preprocessor.tokenizer
        start = tf.fill(tf.shape(counts[0]), int(tokenizer.start_id is not None))
        behind = start + counts[0] + len(tokenizer.pair_separator_ids)
        if not self._parts.segments:
            del inputs["segment_ids"]
        return inputs, (TextTokens(start, counts[0]), TextTokens(behind, counts[1]))

    def call_with_states(
        self, inputs: Mapping[str, tf.Tensor], tokens: Tokens, *, training: bool
    ) -> tuple[tf.Tensor, PairStates]:
        """Returns the logits of `call`, and what the encoder computed on its way."""
        states: Any
        logits, states = self._parts.score(inputs, training=training, return_states=True)
        return logits, PairStates(states, None, tokens)


def _order_of_logits(head: LoadedHead, labels: Sequence[str]) -> list[int]:
    """Returns which logit of a checkpoint's head each label has."""
    as_they_are = list(range(head.num_labels))
    if not head.labels or head.num_labels == 1 or head.labels == tuple(labels):
        return as_they_are
    if set(head.labels) == set(labels):
        return [head.labels.index(label) for label in labels]
    _LOG.warning(
        "the checkpoint's logits are called %s, and %s from now on, in this order",
        ", ".join(head.labels),
        ", ".join(labels),
    )
    return as_they_are


def _load(
    path: str | Path, num_labels: int | None, *, dropout: float | None, dtype: str | None
) -> LoadedCrossEncoder:
    start = model_start(path, num_layers=None, dropout=dropout, dtype=dtype)
    if start is None:
        return load_cross_encoder(path, num_labels=num_labels, dropout=dropout, dtype=dtype)
    if num_labels is None:
        raise ConfigError(
            f"`num_labels` must be given, for a new head on the encoder of {path}; as it is it is"
            f" loaded by tfde.{preset_class(path)}.from_preset. Received: None"
        )
    return _headless(start)


def _describe(
    backbone: BackboneConfig | keras.Model,
    tokenizer: Tokenizer | None,
    *,
    dropout: float | None,
    dtype: str | None,
    seed: int | None,
) -> LoadedCrossEncoder:
    return _headless(
        load_start(
            backbone, num_layers=None, tokenizer=tokenizer, dropout=dropout, dtype=dtype, seed=seed
        )
    )


def _headless(start: LoadedBackbone) -> LoadedCrossEncoder:
    sizes = start.backbone.config
    num_segments, limit = pair_limits(sizes)
    return LoadedCrossEncoder(
        start.backbone, sizes, start.tokenizer, limit, num_segments, head=None
    )


@dataclass(frozen=True)
class ScorerParts:
    """The layers.

    Args:
        token_embedder: `token_ids`, with `segment_ids` where it takes them, (B, L) -> `(B, L, H)`.
        encoder: `(B, L, H)`, `padding_mask (B, L)` -> `sequence_output (B, L, H)`.
        pooling: `sequence_output`, `padding_mask` -> `(B, H)`.
        hidden: `(B, H)` -> `(B, H)`.
        dropout: On `(B, H)`.
        classifier: `(B, H)` -> logits `(B, N)`.
        segments: Whether the token embedder takes segment ids.
    """

    token_embedder: keras.layers.Layer
    encoder: keras.layers.Layer
    pooling: keras.layers.Layer
    hidden: Projection
    dropout: keras.layers.Layer
    classifier: Projection
    segments: bool

    def named_weights(self) -> dict[str, keras.Variable]:
        """Returns every weight by `part/...`."""
        weights: dict[str, keras.Variable] = {}
        for part in _WITH_WEIGHTS:
            weights.update(named_weights(part, getattr(self, part)))
        return weights

    def score(
        self,
        inputs: Mapping[str, tf.Tensor],
        *,
        training: bool | None = None,
        return_states: bool = False,
    ) -> tuple[tf.Tensor, EncoderStates | None]:
        """Returns the logits, (B, N) float32, and if asked all that the encoder computed.

        It is the network of `build_scorer` and, with states, the same computation for training.

        Args:
            inputs: As the functional model takes them.
            training: Whether dropout is on.
            return_states: Whether queries, keys and hidden states are wanted.
        """
        segments = (inputs["segment_ids"],) if self.segments else ()
        embedded = self.token_embedder(inputs["token_ids"], *segments, training=training)
        mask = inputs["padding_mask"]
        options: dict[str, Any] = {"return_states": True} if return_states else {}
        output = self.encoder(embedded, mask, training=training, **options)
        states = output if return_states else None
        pooled = self.pooling(output["sequence_output"] if return_states else output, mask)
        dropped = self.dropout(self.hidden(pooled), training=training)
        return self.classifier(dropped), states


def build_scorer(
    backbone: Backbone, config: CrossEncoderConfig, *, seed: int | None = None
) -> tuple[keras.Model, ScorerParts]:
    """Returns the functional model that scores pairs, and its parts.

    Args:
        backbone: Layers with their weights; `config.backbone` describes them.
        config: What the head is like; its weights are random.
        seed: Seed of the head's weights and dropout; `None` takes Keras's global seed.

    Returns:
        A `keras.Model` from `{"token_ids", "segment_ids", "padding_mask"}`, (B, L) int32 with mask
        1 = real token, to logits (B, N) float32; and the layers in it. Where the backbone takes no
        segment ids (T5), they are no input.

    Source: Nogueira and Cho 2019, section 3.2 (a single layer on BERT's [CLS] vector after its
    pooler); Li et al. 2021, section 4.3.1 (the mean); hidden layers as in the sequence
    classification models of transformers.
    """
    segments = config.backbone.takes_segment_ids
    names = ["token_ids", *(["segment_ids"] if segments else []), "padding_mask"]
    inputs = {name: keras.Input((None,), dtype="int32", name=name) for name in names}
    hidden_dim = config.backbone.hidden_dim
    parts = ScorerParts(
        token_embedder=backbone.token_embedder,
        encoder=backbone.encoder,
        pooling=Pooling((config.pooling,), name="pooling"),
        hidden=Projection(
            (DenseConfig(hidden_dim, use_bias=True, activation=config.hidden_activation),),
            seed=seed,
            name="hidden",
        ),
        dropout=keras.layers.Dropout(config.dropout, seed=seed, dtype="float32", name="dropout"),
        classifier=Projection(
            (DenseConfig(config.num_labels, use_bias=True),),
            seed=None if seed is None else seed + 1,
            name="classifier",
        ),
        segments=segments,
    )
    logits, _ = parts.score(inputs)
    return keras.Model(inputs, logits, name="scorer"), parts
