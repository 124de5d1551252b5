"""The networks of a matcher: what is computed of each text apart, and where they meet."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import keras
import tensorflow as tf

from tfde.backbones.backbone import Backbone
from tfde.backbones.transformer import EncoderStates
from tfde.config.matching import MatcherConfig
from tfde.matching.meetings import MEETINGS, Encoded, TextVectors
from tfde.text.tokenizer import Tokenizer
from tfde.towers.pair_steps import tokens_of
from tfde.towers.weights import named_weights

SIDES = ("first", "second")


class MatcherNetworks:
    """All layers of a matcher, and the functional models that they make.

    Args:
        backbone: The layers with their weights, which both texts share.
        config: Where the texts meet; `config.backbone` describes the backbone.
        tokenizer: Says which tokens are punctuation.
        filled: Whether first texts have tokens in place of padding, which count.
        seed: Seed of new weights and dropout; `None` takes Keras's global seed.

    Attributes:
        encoders: Of the first and the second texts: `token_ids` and `padding_mask` (B, L) ->
            `vectors` (B, V, D) float32 and `mask` (B, V).
        interaction: `first_vectors`, `first_mask`, `second_vectors`, `second_mask` -> logits (B, N)
            float32: all that runs where texts are stored as vectors.
        scorer: `first_token_ids`, `first_padding_mask` and those of the second -> logits.
        apart_layers: How many layers of the encoder see each text apart.
        layers: Those of the kind, beside the backbone's, by name.
    """

    def __init__(
        self,
        backbone: Backbone,
        config: MatcherConfig,
        *,
        tokenizer: Tokenizer,
        filled: bool = False,
        seed: int | None = None,
    ) -> None:
        self.config, self._filled = config, filled
        self.token_embedder, self.encoder = backbone.token_embedder, backbone.encoder
        self.apart_layers = config.apart_layers or config.backbone.num_layers
        # Layers that read both texts must know which of the two a token is of.
        joint = self.apart_layers < config.backbone.num_layers
        self._has_segments = joint and config.backbone.num_segments > 1
        self._meeting = MEETINGS[config.kind]
        self.layers = self._meeting.layers(config, tokenizer, seed)
        # What reads both texts: the encoder's upper layers, or a Transformer of the kind's own.
        self._top = self.layers.get("top")
        self.encoders = {side: self._build_encoder(side) for side in SIDES}
        self.interaction = self._build_interaction()
        self.scorer = self._build_scorer()

    def named_weights(self) -> dict[str, keras.Variable]:
        """Returns every weight by `part/...`."""
        parts = {"token_embedder": self.token_embedder, "encoder": self.encoder, **self.layers}
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
        counted = padding_mask
        if self._filled and side == "first":
            counted = options["computed"] = keras.ops.ones_like(padding_mask)
        if return_states:
            states = self.encoder(embedded, padding_mask, return_states=True, **options)
            output = states["sequence_output"]
        else:
            states, output = None, self.encoder(embedded, padding_mask, **options)
        encoded = Encoded(output, token_ids, counted)
        kept = self._meeting.keep(self.layers, self.config, side, encoded)
        return kept, states

    def meet(
        self,
        first: TextVectors,
        second: TextVectors,
        *,
        training: bool | None = None,
        return_states: bool = False,
    ) -> tuple[tf.Tensor, EncoderStates | None]:
        """Returns the logits, (B, N), and if asked what the encoder's upper layers computed.

        It is the network of `interaction` and, with states, the same computation for training.

        Args:
            first: What was kept of the first texts.
            second: What was kept of the second texts.
            training: Whether dropout is on.
            return_states: Whether the states are wanted, if there are such layers.
        """
        found: list[EncoderStates] = []

        def upper(vectors: tf.Tensor, mask: tf.Tensor) -> tf.Tensor:
            if self._top is not None:
                return self._top(vectors, mask, training=training)
            layers = (self.apart_layers, self.config.backbone.num_layers)
            options: dict[str, Any] = {"layers": layers, "training": training}
            if not return_states:
                return self.encoder(vectors, mask, **options)
            states = self.encoder(vectors, mask, return_states=True, **options)
            found.append(states)
            return states["sequence_output"]

        logits = self._meeting.logits(self.layers, first, second, upper, training=training)
        return logits, found[0] if found else None

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
        logits, _ = self.meet(first, second)
        return keras.Model(inputs, logits, name="interaction")

    def _build_scorer(self) -> keras.Model:
        inputs = {name: x for side in SIDES for name, x in _token_inputs(f"{side}_").items()}
        found = {side: self.encoders[side](tokens_of(side, inputs)) for side in SIDES}
        return keras.Model(inputs, self.interaction(meeting(found)), name="scorer")


def meeting(found: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """Returns what the interaction takes, from side -> `vectors` and `mask`."""
    return {f"{side}_{name}": x for side, part in found.items() for name, x in part.items()}


def _token_inputs(prefix: str) -> dict[str, Any]:
    names = (f"{prefix}token_ids", f"{prefix}padding_mask")
    return {name: keras.Input((None,), dtype="int32", name=name) for name in names}
