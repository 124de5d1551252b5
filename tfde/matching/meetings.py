"""Where the two texts of a pair meet: one class for each kind of matcher.

A kind says which layers it has beside the backbone, what it keeps of each text, and how what is
kept becomes logits. Its name and the fields that it has stand in `tfde/config/matching.py`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import keras
import tensorflow as tf

from tfde.backbones.bert import BertEncoder
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

Layers = dict[str, keras.layers.Layer]
Own = Mapping[str, Any]  # the same, called
# The layers that read both texts: vectors (B, L, H) and mask (B, L) -> (B, L, H).
Upper = Callable[[tf.Tensor, tf.Tensor], tf.Tensor]


@dataclass(frozen=True)
class TextVectors:
    """A text as the interaction takes it.

    Args:
        vectors: (B, V, D) float32.
        mask: (B, V) int32, 1 = a vector that counts.
    """

    vectors: tf.Tensor
    mask: tf.Tensor


class Encoded(NamedTuple):
    """Texts alone, after the encoder: `output` (B, L, H), `token_ids` and `mask` (B, L) int32."""

    output: tf.Tensor
    token_ids: tf.Tensor
    mask: tf.Tensor

    def first(self, tokens: int | None) -> Encoded:
        """Returns the first so many tokens of each text."""
        return Encoded(*(part[:, :tokens] for part in self))


class Meeting(ABC):
    """A kind of matcher. Stateless: the layers are given to each method as `own`, by name."""

    @abstractmethod
    def layers(self, config: MatcherConfig, tokenizer: Tokenizer, seed: int | None) -> Layers:
        """Returns the layers that this kind has beside the backbone's.

        Args:
            config: Of the matcher.
            tokenizer: Says which tokens are punctuation.
            seed: Of new weights and dropout; `None` takes Keras's global seed.
        """

    def keep(self, own: Own, config: MatcherConfig, side: str, text: Encoded) -> TextVectors:
        """Returns what of a text the other one meets; by default the vector of each token.

        Args:
            own: The layers.
            config: Of the matcher.
            side: `first` or `second`.
            text: What the encoder gives for the text alone.
        """
        return TextVectors(keras.ops.cast(text.output, "float32"), text.mask)

    @abstractmethod
    def logits(
        self,
        own: Own,
        x: TextVectors,
        y: TextVectors,
        upper: Upper,
        *,
        training: bool | None = None,
    ) -> tf.Tensor:
        """Returns (B, N) float32.

        Args:
            own: The layers.
            x: What was kept of the first texts.
            y: What was kept of the second texts.
            upper: The encoder's layers above `apart_layers`, or the `top` of a DiPair.
            training: Whether dropout is on.
        """


class Classified(Meeting):
    """A kind that makes one vector of a pair, which a hidden layer and a classifier read."""

    @abstractmethod
    def features(self, own: Own, x: TextVectors, y: TextVectors, upper: Upper) -> tf.Tensor:
        """Returns (B, F) float32; arguments as of `logits`."""

    @abstractmethod
    def feature_layers(self, config: MatcherConfig, seed: int | None) -> Layers:
        """Returns the layers that `keep` and `features` use."""

    def layers(self, config: MatcherConfig, tokenizer: Tokenizer, seed: int | None) -> Layers:
        """Returns those of the features, and the head."""
        hidden = DenseConfig(config.backbone.hidden_dim, use_bias=True, activation="tanh")
        return {
            **self.feature_layers(config, seed),
            "hidden": _projection(hidden, "hidden", seed, 2),
            "dropout": keras.layers.Dropout(
                config.dropout, seed=seed, dtype="float32", name="dropout"
            ),
            "classifier": _projection(
                DenseConfig(config.num_labels, use_bias=True), "classifier", seed, 3
            ),
        }

    def logits(
        self,
        own: Own,
        x: TextVectors,
        y: TextVectors,
        upper: Upper,
        *,
        training: bool | None = None,
    ) -> tf.Tensor:
        """Returns the head's answer to the features."""
        features = self.features(own, x, y, upper)
        dropped = own["dropout"](own["hidden"](features), training=training)
        return own["classifier"](dropped)


class Siamese(Classified):
    """Pooled vectors of both texts, side by side."""

    def feature_layers(self, config: MatcherConfig, seed: int | None) -> Layers:
        """Returns mean and fusion."""
        return {"mean": MeanVector(name="mean"), "fusion": _fusion(config)}

    def keep(self, own: Own, config: MatcherConfig, side: str, text: Encoded) -> TextVectors:
        """Returns the mean of the tokens."""
        return _single(own["mean"](text.output, text.mask))

    def features(self, own: Own, x: TextVectors, y: TextVectors, upper: Upper) -> tf.Tensor:
        """Returns both vectors, fused."""
        return own["fusion"](x.vectors[:, 0], y.vectors[:, 0])


class PolyEncoder(Classified):
    """Codes that attend over the first text, and the second text's vector over these."""

    def feature_layers(self, config: MatcherConfig, seed: int | None) -> Layers:
        """Returns mean, fusion and codes."""
        codes = ContextCodes(int(config.num_codes or 0), seed=seed, name="codes")
        return {"mean": MeanVector(name="mean"), "fusion": _fusion(config), "codes": codes}

    def keep(self, own: Own, config: MatcherConfig, side: str, text: Encoded) -> TextVectors:
        """Returns every token of the first text, the mean of the second."""
        if side == "second":
            return _single(own["mean"](text.output, text.mask))
        return super().keep(own, config, side, text)

    def features(self, own: Own, x: TextVectors, y: TextVectors, upper: Upper) -> tf.Tensor:
        """Returns what the second text's vector finds in the codes, beside it."""
        vector = y.vectors[:, 0]
        return own["fusion"](own["codes"](x.vectors, x.mask, vector), vector)


class VirtEncoder(Classified):
    """Attention between the last hidden states of both texts."""

    def feature_layers(self, config: MatcherConfig, seed: int | None) -> Layers:
        """Returns fusion and the interaction."""
        name = "virt_adapted_interaction"
        return {"fusion": _fusion(config), name: VirtAdaptedInteraction(name=name)}

    def features(self, own: Own, x: TextVectors, y: TextVectors, upper: Upper) -> tf.Tensor:
        """Returns each text as the other one sees it, side by side."""
        met = own["virt_adapted_interaction"](x.vectors, x.mask, y.vectors, y.mask)
        return own["fusion"](*met)


class Deformer(Classified):
    """The encoder's upper layers read both texts."""

    def feature_layers(self, config: MatcherConfig, seed: int | None) -> Layers:
        """Returns mean, what joins the texts, and fusion where each text has its own mean."""
        layers: Layers = {"mean": MeanVector(name="mean"), "joined": JoinedTexts(name="joined")}
        return layers if config.fusion == "joint" else {**layers, "fusion": _fusion(config)}

    def features(self, own: Own, x: TextVectors, y: TextVectors, upper: Upper) -> tf.Tensor:
        """Returns the means of the texts after the upper layers, or the mean over both."""
        vectors, of_x, of_y = own["joined"](x.vectors, x.mask, y.vectors, y.mask)
        mask = of_x + of_y
        vectors = upper(vectors, mask)
        if "fusion" not in own:
            return own["mean"](vectors, mask)
        return own["fusion"](own["mean"](vectors, of_x), own["mean"](vectors, of_y))


class DiPair(Deformer):
    """The upper layers, or new ones on top, read the first tokens of each text."""

    def feature_layers(self, config: MatcherConfig, seed: int | None) -> Layers:
        """Returns those of DeFormer, and the new Transformer, if there is one."""
        layers = super().feature_layers(config, seed)
        if config.top_layers is None:
            return layers
        backbone = config.backbone
        top = BertEncoder(
            config.top_layers,
            backbone.hidden_dim,
            num_heads=_heads(backbone.hidden_dim, backbone.num_heads),
            intermediate_dim=backbone.intermediate_dim,
            dropout=backbone.dropout,
            seed=seed,
            name="top",
        )
        return {**layers, "top": top}

    def keep(self, own: Own, config: MatcherConfig, side: str, text: Encoded) -> TextVectors:
        """Returns the first tokens."""
        taken = config.first_tokens if side == "first" else config.second_tokens
        return super().keep(own, config, side, text.first(taken))


class LateInteraction(Meeting):
    """Each token of the first text finds its best of the second (ColBERT)."""

    def layers(self, config: MatcherConfig, tokenizer: Tokenizer, seed: int | None) -> Layers:
        """Returns projection, unit norm, the similarity, and what leaves punctuation out."""
        width = DenseConfig(int(config.embedding_dim or 0))
        layers: Layers = {
            "projection": _projection(width, "projection", seed, 0),
            "unit_norm": UnitNorm(name="unit_norm"),
            "max_similarity": MaxSimilarity(name="max_similarity"),
        }
        if config.skip_punctuation:
            layers["token_filter"] = TokenFilter(
                config.backbone.vocabulary_size, tokenizer.punctuation_ids(), name="token_filter"
            )
        return layers

    def keep(self, own: Own, config: MatcherConfig, side: str, text: Encoded) -> TextVectors:
        """Returns projected vectors of unit length; of the second text without punctuation."""
        kept = super().keep(own, config, side, text)
        mask = text.mask
        if "token_filter" in own and side == "second":
            mask = own["token_filter"](text.token_ids, mask)
        return TextVectors(own["unit_norm"](own["projection"](kept.vectors)), mask)

    def logits(
        self,
        own: Own,
        x: TextVectors,
        y: TextVectors,
        upper: Upper,
        *,
        training: bool | None = None,
    ) -> tf.Tensor:
        """Returns the mean of the best similarities."""
        return own["max_similarity"](x.vectors, x.mask, y.vectors, y.mask)


class MultiVector(LateInteraction):
    """One vector of the first text, so many of the second (ME-BERT)."""

    def layers(self, config: MatcherConfig, tokenizer: Tokenizer, seed: int | None) -> Layers:
        """Returns those of late interaction, and the mean."""
        return {"mean": MeanVector(name="mean"), **super().layers(config, tokenizer, seed)}

    def keep(self, own: Own, config: MatcherConfig, side: str, text: Encoded) -> TextVectors:
        """Returns the mean of the first text, the first tokens of the second."""
        if side == "first":
            return _single(own["unit_norm"](own["projection"](own["mean"](text.output, text.mask))))
        return super().keep(own, config, side, text.first(config.second_tokens))


MEETINGS: dict[str, Meeting] = {
    "siamese": Siamese(),
    "deformer": Deformer(),
    "dipair": DiPair(),
    "poly_encoder": PolyEncoder(),
    "virt_encoder": VirtEncoder(),
    "late_interaction": LateInteraction(),
    "multi_vector": MultiVector(),
}


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


def _fusion(config: MatcherConfig) -> Fusion:
    return Fusion(config.fusion or "difference", name="fusion")


def _single(vector: Any) -> TextVectors:
    """One vector a text, as (B, 1, D)."""
    return TextVectors(vector[:, None], keras.ops.ones_like(vector[:, :1], dtype="int32"))


def _heads(hidden_dim: int, most: int) -> int:
    """Returns how many heads share `hidden_dim` evenly; T5's heads may have a size of their own."""
    return next(count for count in range(most, 0, -1) if hidden_dim % count == 0)


def _projection(step: DenseConfig, name: str, seed: int | None, number: int) -> Projection:
    return Projection((step,), seed=None if seed is None else seed + number, name=name)
