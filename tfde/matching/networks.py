"""The networks of a matcher: what is computed of each text apart, and where they meet."""

from __future__ import annotations

import string
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

import keras
import tensorflow as tf

from tfde.backbones.backbone import Backbone
from tfde.backbones.bert import BertEncoder
from tfde.backbones.transformer import EncoderStates
from tfde.config.matching import MatcherConfig
from tfde.config.model import DenseConfig
from tfde.layers.projection import Projection, UnitNorm
from tfde.matching.interactions import (
    ContextCodes,
    Fusion,
    JoinedTexts,
    MaxSimilarity,
    MeanVector,
    VirtAdaptedInteraction,
)
from tfde.text.tokenizer import Tokenizer
from tfde.towers.weights import named_weights

SIDES = ("first", "second")


@keras.saving.register_keras_serializable(package="tfde")
class TokenFilter(keras.layers.Layer):
    """Takes tokens of given ids out of a mask.

    Args:
        vocabulary_size: Number of ids.
        token_ids: Those that do not count.

    Call arguments:
        token_ids: (B, L) int32.
        mask: (B, L) int32.

    Returns:
        The mask, (B, L) int32, with zeros at these tokens.
    """

    def __init__(self, vocabulary_size: int, token_ids: Collection[int], **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.vocabulary_size = vocabulary_size
        self.token_ids = sorted(token_ids)

    def call(self, token_ids: tf.Tensor, mask: tf.Tensor) -> tf.Tensor:
        """Returns the mask without these tokens."""
        dropped = set(self.token_ids)
        counts = tf.constant([int(i not in dropped) for i in range(self.vocabulary_size)])
        return mask * tf.gather(counts, token_ids)

    def get_config(self) -> dict[str, Any]:
        """Returns the constructor's arguments."""
        own = {"vocabulary_size": self.vocabulary_size, "token_ids": self.token_ids}
        return {**super().get_config(), **own}


@dataclass(frozen=True)
class TextVectors:
    """A text as the interaction takes it.

    Args:
        vectors: (B, V, D) float32.
        mask: (B, V) int32, 1 = a vector that counts.
    """

    vectors: tf.Tensor
    mask: tf.Tensor


class MatcherNetworks:
    """All layers of a matcher, and the functional models that they make.

    Args:
        backbone: The layers with their weights, which both texts share.
        config: Where the texts meet; `config.backbone` describes the backbone.
        tokenizer: Says which tokens are punctuation.
        seed: Seed of new weights and dropout; `None` takes Keras's global seed.

    Attributes:
        encoders: Of the first and the second texts: `token_ids` and `padding_mask` (B, L) ->
            `vectors` (B, V, D) float32 and `mask` (B, V).
        interaction: `first_vectors`, `first_mask`, `second_vectors`, `second_mask` -> logits (B, N)
            float32: all that runs where texts are stored as vectors.
        scorer: `first_token_ids`, `first_padding_mask` and those of the second -> logits.
        apart_layers: How many layers of the encoder see each text apart.
    """

    def __init__(
        self,
        backbone: Backbone,
        config: MatcherConfig,
        *,
        tokenizer: Tokenizer,
        seed: int | None = None,
    ) -> None:
        self.config = config
        self.token_embedder, self.encoder = backbone.token_embedder, backbone.encoder
        self.apart_layers = config.apart_layers or config.backbone.num_layers
        # Layers that read both texts must know which of the two a token is of.
        joint = self.apart_layers < config.backbone.num_layers
        self._has_segments = joint and config.backbone.num_segments > 1
        self._layers = _own_layers(config, tokenizer, seed)
        self.encoders = {side: self._build_encoder(side) for side in SIDES}
        self.interaction = self._build_interaction()
        self.scorer = self._build_scorer()

    def named_weights(self) -> dict[str, keras.Variable]:
        """Returns every weight by `part/...`."""
        parts = {"token_embedder": self.token_embedder, "encoder": self.encoder, **self._layers}
        weights: dict[str, keras.Variable] = {}
        for part, layer in parts.items():
            weights.update(named_weights(part, layer))
        return weights

    def encode(
        self,
        side: str,
        token_ids: tf.Tensor,
        padding_mask: tf.Tensor,
        *,
        training: bool | None = None,
        return_states: bool = False,
    ) -> tuple[TextVectors, EncoderStates | None]:
        """Returns the vectors of texts and, if asked, all that the encoder computed on its way.

        It is the network of `encoders` and, with states, the same computation for training.

        Args:
            side: `first` or `second`.
            token_ids: (B, L) int32.
            padding_mask: (B, L) int32.
            training: Whether dropout is on.
            return_states: Whether queries, keys and hidden states are wanted.
        """
        segments: tuple[tf.Tensor, ...] = ()
        if side == "second" and self._has_segments:
            segments = (keras.ops.ones_like(token_ids),)
        embedded = self.token_embedder(token_ids, *segments, training=training)
        options: dict[str, Any] = {"training": training}
        if self.apart_layers < self.config.backbone.num_layers:
            options["layers"] = (0, self.apart_layers)
        if return_states:
            states = self.encoder(embedded, padding_mask, return_states=True, **options)
            output = states["sequence_output"]
        else:
            states, output = None, self.encoder(embedded, padding_mask, **options)
        return self._reduce(side, output, token_ids, padding_mask), states

    def _reduce(
        self, side: str, output: tf.Tensor, token_ids: tf.Tensor, mask: tf.Tensor
    ) -> TextVectors:
        """Keeps of the encoder's output what the interaction takes."""
        own, config = self._layers, self.config
        kind, second = config.kind, side == "second"
        if kind == "siamese" or (kind == "poly_encoder" and second):
            return _single(own["mean"](output, mask))
        if kind == "multi_vector" and not second:
            return _single(own["unit_norm"](own["projection"](own["mean"](output, mask))))
        output = keras.ops.cast(output, "float32")
        taken = config.second_tokens if second else config.first_tokens
        if taken is not None:
            output, mask = output[:, :taken], mask[:, :taken]
        if "projection" in own:
            output = own["unit_norm"](own["projection"](output))
        if "token_filter" in own and second:
            mask = own["token_filter"](token_ids, mask)
        return TextVectors(output, mask)

    def _meet(self, first: TextVectors, second: TextVectors) -> tf.Tensor:
        """Returns the logits."""
        own = self._layers
        x, y = (first.vectors, first.mask), (second.vectors, second.mask)
        match self.config.kind:
            case "siamese":
                return self._head(own["fusion"](x[0][:, 0], y[0][:, 0]))
            case "poly_encoder":
                v = y[0][:, 0]
                return self._head(own["fusion"](own["codes"](*x, v), v))
            case "virt_encoder":
                return self._head(own["fusion"](*own["virt_adapted_interaction"](*x, *y)))
            case "deformer":
                vectors, mask = own["joined"](*x, *y)
                layers = (self.apart_layers, self.config.backbone.num_layers)
                return self._head(own["mean"](self.encoder(vectors, mask, layers=layers), mask))
            case "dipair":
                vectors, mask = own["joined"](*x, *y)
                return self._head(own["mean"](own["top"](vectors, mask), mask))
            case _:
                return own["max_similarity"](*x, *y)

    def _head(self, x: tf.Tensor) -> tf.Tensor:
        own = self._layers
        return own["classifier"](own["dropout"](own["hidden"](x)))

    def _build_encoder(self, side: str) -> keras.Model:
        inputs = _token_inputs("")
        vectors, _ = self.encode(side, *inputs.values())
        return keras.Model(inputs, vars(vectors), name=f"{side}_encoder")

    def _build_interaction(self) -> keras.Model:
        inputs: dict[str, Any] = {}
        for side in SIDES:
            shape = self.encoders[side].output["vectors"].shape[1:]
            inputs[f"{side}_vectors"] = keras.Input(shape, dtype="float32", name=f"{side}_vectors")
            inputs[f"{side}_mask"] = keras.Input(shape[:1], dtype="int32", name=f"{side}_mask")
        first, second = (
            TextVectors(inputs[f"{side}_vectors"], inputs[f"{side}_mask"]) for side in SIDES
        )
        return keras.Model(inputs, self._meet(first, second), name="interaction")

    def _build_scorer(self) -> keras.Model:
        inputs = {name: x for side in SIDES for name, x in _token_inputs(f"{side}_").items()}
        found = {side: self.encoders[side](tokens_of_side(side, inputs)) for side in SIDES}
        return keras.Model(inputs, self.interaction(meeting(found)), name="scorer")


def tokens_of_side(side: str, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the `first` or `second` side of prepared pairs as its encoder takes it."""
    return {name: inputs[f"{side}_{name}"] for name in ("token_ids", "padding_mask")}


def meeting(found: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """Returns what the interaction takes, from side -> `vectors` and `mask`."""
    return {f"{side}_{name}": x for side, part in found.items() for name, x in part.items()}


def punctuation_ids(tokenizer: Tokenizer) -> list[int]:
    """Returns the ids of tokens that are one of ASCII's punctuation marks and nothing else."""
    return [
        token_id
        for token_id in range(tokenizer.vocabulary_size)
        if _is_punctuation(tokenizer.id_to_token(token_id))
    ]


def _is_punctuation(token: str) -> bool:
    # The list of Khattab and Zaharia 2020; the marks say where words begin or go on.
    for mark in ("##", "\u2581", "\u0120"):
        token = token.removeprefix(mark)
    return len(token) == 1 and token in string.punctuation


def _single(vector: Any) -> TextVectors:
    """One vector a text, as (B, 1, D)."""
    return TextVectors(vector[:, None], keras.ops.ones_like(vector[:, :1], dtype="int32"))


def _token_inputs(prefix: str) -> dict[str, Any]:
    names = (f"{prefix}token_ids", f"{prefix}padding_mask")
    return {name: keras.Input((None,), dtype="int32", name=name) for name in names}


def _heads(hidden_dim: int, most: int) -> int:
    """Returns how many heads share `hidden_dim` evenly; T5's heads may have a size of their own."""
    return next(count for count in range(most, 0, -1) if hidden_dim % count == 0)


def _own_layers(
    config: MatcherConfig, tokenizer: Tokenizer, seed: int | None
) -> dict[str, keras.layers.Layer]:
    """Returns the layers of a kind beside the backbone's, by name."""

    def projection(steps: tuple[DenseConfig, ...], name: str, number: int) -> Projection:
        return Projection(steps, seed=None if seed is None else seed + number, name=name)

    layers: dict[str, keras.layers.Layer] = {}
    hidden_dim = config.backbone.hidden_dim
    kind = config.kind
    if kind in ("siamese", "poly_encoder", "deformer", "dipair", "multi_vector"):
        layers["mean"] = MeanVector(name="mean")
    if kind in ("late_interaction", "multi_vector"):
        width = int(config.embedding_dim or 0)
        layers["projection"] = projection((DenseConfig(width),), "projection", 0)
        layers["unit_norm"] = UnitNorm(name="unit_norm")
        layers["max_similarity"] = MaxSimilarity(name="max_similarity")
        if config.skip_punctuation:
            layers["token_filter"] = TokenFilter(
                config.backbone.vocabulary_size, punctuation_ids(tokenizer), name="token_filter"
            )
        return layers
    if kind in ("deformer", "dipair"):
        layers["joined"] = JoinedTexts(name="joined")
    else:
        layers["fusion"] = Fusion(name="fusion")
    if kind == "poly_encoder":
        layers["codes"] = ContextCodes(int(config.num_codes or 0), seed=seed, name="codes")
    if kind == "virt_encoder":
        name = "virt_adapted_interaction"
        layers[name] = VirtAdaptedInteraction(name=name)
    if kind == "dipair":
        layers["top"] = BertEncoder(
            int(config.top_layers or 0),
            hidden_dim,
            num_heads=_heads(hidden_dim, config.backbone.num_heads),
            intermediate_dim=config.backbone.intermediate_dim,
            dropout=config.backbone.dropout,
            seed=seed,
            name="top",
        )
    hidden = (DenseConfig(hidden_dim, use_bias=True, activation="tanh"),)
    layers["hidden"] = projection(hidden, "hidden", 2)
    layers["dropout"] = keras.layers.Dropout(
        config.dropout, seed=seed, dtype="float32", name="dropout"
    )
    classifier = (DenseConfig(config.num_labels, use_bias=True),)
    layers["classifier"] = projection(classifier, "classifier", 3)
    return layers
