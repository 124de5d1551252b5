"""`PhraseEncoder`: a vector a token of passages, and two vectors a query, which meet by product."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, NamedTuple, Self

import keras
import numpy as np
import tensorflow as tf

from tfde.backbones.backbone import Backbone, build_backbone, copy_backbone
from tfde.backbones.functional import seeded
from tfde.checkpoints.initial_backbones import load_start
from tfde.config.backbones import (
    BackboneConfig,
    PairPooling,
    backbone_from_mapping,
    from_mapping,
)
from tfde.config.model import TextConfig
from tfde.config.phrases import WITH_TITLE, PhraseConfig
from tfde.layers.pooling import Pooling
from tfde.matching.model_starts import model_start
from tfde.phrases.passages import Passage, PassageReader, padded
from tfde.text.batch_preprocessor import BatchPreprocessor
from tfde.text.graph_function import graph_function
from tfde.text.preprocessor import TextPreprocessor
from tfde.text.tokenizer import Tokenizer
from tfde.towers.batches import batches_by_length
from tfde.towers.checkpoint_rules import cut_lengths
from tfde.towers.keras_saving import StoredModel
from tfde.towers.texts import elements_of, query_text
from tfde.towers.weights import named_weights
from tfde.types import Query

ENCODERS = ("passage", "query_start", "query_end")
_STRINGS = tf.TensorSpec([None], tf.string)
_TOKENS = tf.TensorSpec([None, None], tf.int32)
_RARE = -4.0  # log odds of a token that begins an answer, before anything is learned


class TokenVectors(NamedTuple):
    """What a passage's own tokens become: `vectors` (T, H) float32, and the filter's `logits`.

    `logits` are (T, 2) float32: the log odds that a phrase which answers something begins, and
    ends, at the token.
    """

    vectors: np.ndarray
    logits: np.ndarray


@keras.saving.register_keras_serializable(package="tfde")
class PhraseEncoder(StoredModel):
    """Finds phrases of passages: a phrase's score is q_start . h_first + q_end . h_last.

    All vectors h of a passage come from one pass over it, and serve as start and as end; a query
    has two encoders of its own. Made by `from_backbone` or `from_preset`.

    Args:
        backbones: `passage`, `query_start`, `query_end` -> the layers with their weights.
        config: `config.backbone` must describe them.
        preprocessor: Passages are its documents, with the template `{text}` or
            `{title} [SEP] {text}`.
        seed: Of the filter's weights.

    Attributes:
        passage_encoder: Functional model: `token_ids`, `padding_mask` (B, L) int32 -> `vectors`
            (B, L, H) and `filter` (B, L, 2), float32.
        query_encoder: The same inputs -> `start` and `end`, (B, H) float32.
        reader: Passages as this model reads them.

    Source: Lee et al. 2021, "Learning Dense Representations of Phrases at Scale", section 3.
    """

    kind: ClassVar[str] = "PhraseEncoder"
    config_class: ClassVar[type] = PhraseConfig
    preprocessor_class: ClassVar[type[BatchPreprocessor]] = TextPreprocessor

    config: PhraseConfig
    preprocessor: TextPreprocessor

    def __init__(
        self,
        backbones: Mapping[str, Backbone],
        config: PhraseConfig,
        *,
        preprocessor: TextPreprocessor,
        seed: int | None = None,
    ) -> None:
        super().__init__(name="phrase_encoder", dtype=backbones["passage"].encoder.dtype_policy)
        self.config = config
        self.preprocessor = preprocessor
        self._parts: dict[str, Any] = {}
        outputs = {}
        inputs = {
            name: keras.Input((None,), dtype="int32", name=name)
            for name in ("token_ids", "padding_mask")
        }
        for name in ENCODERS:
            embedder, encoder = backbones[name].token_embedder, backbones[name].encoder
            # Those of passages have the names that other models look for when they start from it.
            prefix = "" if name == "passage" else f"{name}_"
            self._parts |= {f"{prefix}token_embedder": embedder, f"{prefix}encoder": encoder}
            outputs[name] = encoder(embedder(inputs["token_ids"]), inputs["padding_mask"])
        initializer = keras.initializers.GlorotUniform(seed)
        self._parts["filter"] = keras.layers.Dense(
            2,
            kernel_initializer=initializer,
            bias_initializer=keras.initializers.Constant(_RARE),
            dtype="float32",
            name="filter",
        )
        vectors = keras.ops.cast(outputs["passage"], "float32")
        # The filter learns from vectors that are there for the queries alone.
        kept = self._parts["filter"](keras.ops.stop_gradient(vectors))
        pool = Pooling((config.pooling,), dtype="float32", name="pooling")
        start, end = (pool(outputs[name], inputs["padding_mask"]) for name in ENCODERS[1:])
        self.passage_encoder = keras.Model(
            inputs, {"vectors": vectors, "filter": kept}, name="passage_encoder"
        )
        self.query_encoder = keras.Model(inputs, {"start": start, "end": end}, name="query_encoder")
        self._queries = graph_function(self._encode_query_texts, input_signature=[_STRINGS])
        self._passages = graph_function(self._encode_tokens, input_signature=[_TOKENS, _TOKENS])
        self._reader: PassageReader | None = None
        self.built = True

    def __repr__(self) -> str:
        return f"PhraseEncoder({self.config.backbone.summary()})"

    @property
    def reader(self) -> PassageReader:
        """What makes passages of documents, with this model's tokenizer and lengths."""
        if self._reader is None:  # not before `load_assets` has brought the tokenizer
            self._reader = PassageReader(self.preprocessor)
        return self._reader

    # ---- making, saving, loading -------------------------------------------------------------

    @classmethod
    def from_backbone(
        cls,
        backbone: str | Path | BackboneConfig | keras.Model,
        *,
        pooling: PairPooling = "first",
        max_phrase_tokens: int = 20,
        num_layers: int | None = None,
        tokenizer: Tokenizer | None = None,
        text: TextConfig | None = None,
        dtype: str | None = None,
        seed: int | None = None,
    ) -> Self:
        """Builds a phrase encoder whose three encoders start from one checkpoint.

        Args:
            backbone: As for `Matcher.from_backbone`.
            pooling: What of a query becomes a vector: the `first` token, or the `mean`.
            max_phrase_tokens: Longest phrase.
            num_layers: Only the first so many layers; `None` for all.
            tokenizer: Needed for random weights.
            text: Lengths, and whether titles are read; by default 32 tokens of queries, 192 of
                passages, with titles.
            dtype: Keras dtype policy of the encoders.
            seed: Of random weights.

        Raises:
            ConfigError: a tokenizer is missing or does not fit; an option is impossible.
            DataError: a file of the checkpoint is not what its name says.
        """
        with seeded(seed):
            cut: dict[str, Any] = {"num_layers": num_layers, "dropout": None, "dtype": dtype}
            start = model_start(backbone, **cut) or load_start(
                backbone, tokenizer=tokenizer, seed=seed, **cut
            )
            config = PhraseConfig(start.backbone.config, pooling, max_phrase_tokens)
            text = cut_lengths(
                text or TextConfig(32, 192, WITH_TITLE), *[start.max_length_tokens] * 2
            )
            backbones = {"passage": start.backbone}
            for name in ENCODERS[1:]:
                backbones[name] = copy_backbone(start.backbone, name_prefix=f"{name}_", seed=seed)
            preprocessor = TextPreprocessor(start.tokenizer, text)
            return cls(backbones, config, preprocessor=preprocessor, seed=seed)

    @classmethod
    def from_description(
        cls, value: Mapping[str, Any], preprocessor: Any, *, dtype: str | None
    ) -> Self:
        """Returns the model that `description` described, with random weights."""
        value = {**value, "backbone": backbone_from_mapping(value["backbone"])}
        config = from_mapping(PhraseConfig, value, "config")
        backbones = {
            name: build_backbone(
                config.backbone, name_prefix="" if name == "passage" else f"{name}_", dtype=dtype
            )
            for name in ENCODERS
        }
        return cls(backbones, config, preprocessor=preprocessor)

    def named_weights(self) -> dict[str, keras.Variable]:
        """Returns every weight by `part/...`."""
        return {
            name: weight
            for part, layer in self._parts.items()
            for name, weight in named_weights(part, layer)
        }

    def exported(self) -> tuple[tf.Module, dict[str, Any]]:
        """Returns the query encoder: `texts` (B,) string -> `start`, `end` (B, H) float32."""
        spec = tf.TensorSpec([None], tf.string, name="texts")

        @tf.function(input_signature=[spec], autograph=False)
        def serve(texts: tf.Tensor) -> dict[str, tf.Tensor]:
            return self._encode_query_texts(texts)

        module = tf.Module()
        module.preprocessor = self.preprocessor
        module.kept = [variable.value for variable in self.query_encoder.variables]
        module.serve = serve
        return module, {"serving_default": serve}

    # ---- encoding ----------------------------------------------------------------------------

    def call(self, inputs: Mapping[str, tf.Tensor], training: bool = False) -> dict[str, tf.Tensor]:
        """Returns `vectors` and `filter` of passages; inputs as of `passage_encoder`."""
        return self.passage_encoder(inputs, training=training)

    def encode_queries(
        self,
        texts: str | Query | Iterable[str | Query],
        *,
        batch_size: int = 64,
        show_progress: bool = False,
    ) -> np.ndarray:
        """Returns the start and the end vector of queries, (Q, 2, H) float32.

        Args:
            texts: Q queries, as of `DualEncoder.encode_queries`; of one text alone the vectors are
                (2, H). One that is too long is cut.
            batch_size: Queries a batch.
            show_progress: Whether a progress bar goes to stderr.

        Raises:
            ConfigError: no texts; `batch_size` is below 1.
        """
        elements, alone = elements_of("texts", texts, alone=(Query,))
        queries = [query_text(element) for element in elements]
        vectors = np.zeros((len(queries), 2, self.config.backbone.hidden_dim), np.float32)
        for rows in batches_by_length(
            list(map(len, queries)), batch_size, unit="query", show_progress=show_progress
        ):
            found = self._queries(tf.constant([queries[row] for row in rows], tf.string))
            vectors[rows] = np.stack([found["start"].numpy(), found["end"].numpy()], axis=1)
        return vectors[0] if alone else vectors

    def encode_passages(
        self, passages: Sequence[Passage], *, batch_size: int = 32, show_progress: bool = False
    ) -> Iterator[tuple[int, TokenVectors]]:
        """Yields number and vectors of each passage, those of like length one after the other.

        Args:
            passages: As `reader.read` gives them.
            batch_size: Passages a batch.
            show_progress: Whether a progress bar goes to stderr.

        Raises:
            ConfigError: `batch_size` is below 1.
        """
        lengths = [len(passage.token_ids) for passage in passages]
        for rows in batches_by_length(
            lengths, batch_size, unit="passage", show_progress=show_progress
        ):
            ids = [passages[row].token_ids for row in rows]
            table = padded(ids, self.preprocessor.tokenizer.pad_id)
            mask = padded([np.ones_like(row) for row in ids], 0)
            found = self._passages(tf.constant(table), tf.constant(mask))
            vectors, logits = found["vectors"].numpy(), found["filter"].numpy()
            for place, row in enumerate(rows):
                first, count = passages[row].first, len(passages[row].spans)
                own = slice(first, first + count)
                yield row, TokenVectors(vectors[place, own], logits[place, own])

    def _encode_query_texts(self, texts: tf.Tensor) -> dict[str, tf.Tensor]:
        names = ("token_ids", "padding_mask")
        tokens = dict(zip(names, self.preprocessor.queries(texts), strict=True))
        return self.query_encoder(tokens, training=False)

    def _encode_tokens(self, token_ids: tf.Tensor, padding_mask: tf.Tensor) -> dict[str, tf.Tensor]:
        tokens = {"token_ids": token_ids, "padding_mask": padding_mask}
        return self.passage_encoder(tokens, training=False)
