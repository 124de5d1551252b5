"""Masked language modelling of a dual encoder's backbone, the token-level pre-training task."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import keras
import tensorflow as tf

from tfde.backbones.functional import activate, layer_norm
from tfde.backbones.seeded_layer import SeededLayer
from tfde.errors import ConfigError, require
from tfde.tasks.replicas import sum_gradients, sum_over_replicas
from tfde.text.tokenizer import Tokenizer
from tfde.towers.dual_encoder import DualEncoder
from tfde.towers.pair_steps import tokens_of
from tfde.towers.pair_trainer import PairTrainer
from tfde.towers.tower import TowerParts

# Devlin et al. 2019, section 3.1: of the tokens, and of those chosen what becomes the mask and
# what another token; the rest stays.
CHOSEN, MASKED, REPLACED = 0.15, 0.8, 0.1
_NORM_EPSILON = 1e-6


def check_encoder(dual_encoder: DualEncoder) -> None:
    """Finds encoders that could not find a masked token.

    Raises:
        ConfigError: the encoder is no Transformer.
    """
    encoder = dual_encoder.towers.query_parts.encoder
    if not dual_encoder.config.backbone.is_transformer:
        raise ConfigError(
            "`objective` masked_lm needs a Transformer, whose tokens see each other."
            f" Received: {type(encoder).__name__}"
        )


class MaskedLanguageModel(PairTrainer):
    """Trains the token embedder and encoder of a dual encoder to find masked tokens.

    It is fitted on the same pairs as the dual encoder: the queries' texts go through the query
    tower's parts, the documents' through the document tower's. What finds the tokens (one layer,
    and the token table again) belongs to the training alone; neither poolings nor projections
    take part.

    Args:
        dual_encoder: Whose backbone is trained, in place.
        seed: Decides over the tokens that are masked.

    Raises:
        ConfigError: as `check_encoder`.

    Source: Devlin et al. 2019, section 3.1 and appendix A.2; that the padding token stands for
        the mask where the vocabulary has none: derived here.
    """

    def __init__(self, dual_encoder: DualEncoder, *, seed: int | None = None) -> None:
        check_encoder(dual_encoder)
        parts = dual_encoder.towers.query_parts
        found = keras.metrics.Mean(name="masked_token_accuracy")
        super().__init__(
            dual_encoder.preprocessor,
            name="masked_language_model",
            dtype=parts.encoder.dtype_policy,
            accuracy=found,
        )
        self._found = found
        self.dual_encoder = dual_encoder
        self.query_tower = dual_encoder.query_tower
        self.document_tower = dual_encoder.document_tower
        backbone, hidden_dim = dual_encoder.config.backbone, parts.encoder.hidden_dim
        self._head = MaskedTokenHead(
            dual_encoder.preprocessor.tokenizer,
            hidden_dim,
            vocabulary_size=backbone.vocabulary_size,
            scale=backbone.token_logit_scale,
            seed=seed,
            name="masked_token_head",
        )
        self._head.build(None)
        self.built = True

    @property
    def trainable_weights(self) -> list[keras.Variable]:
        """Those that have a gradient: embedders, encoders and what finds the tokens."""
        towers = self.dual_encoder.towers
        layers = [self._head]
        for parts in (towers.query_parts, towers.document_parts):
            layers += [parts.token_embedder, parts.encoder]
        weights = [weight for layer in layers for weight in layer.trainable_weights]
        return list({id(weight): weight for weight in weights}.values())

    trainable_variables = trainable_weights

    def compile(self, optimizer: Any = "adam", *, task: Any = None, **options: Any) -> None:  # type: ignore[override]
        """Sets the optimizer; other arguments as of `DualEncoder.compile`.

        Args:
            optimizer: A Keras optimizer.
            task: Passed over: the loss is this model's own.
            options: As there, but no `loss`, `metrics` or `chunk_size`.

        Raises:
            ConfigError: a loss or metrics; as there.
        """
        for name in ("loss", "loss_weights", "metrics", "chunk_size"):
            given = options.get(name)
            require(given is None, name, "None: masked tokens have a loss of their own", given)
        super().compile(optimizer, task=task, **options)

    def save(self, filepath: Any, *args: Any, **kwargs: Any) -> None:
        """Writes the `.keras` file of the dual encoder; arguments as in Keras."""
        self.dual_encoder.save(filepath, *args, **kwargs)

    def train_step(self, data: Mapping[str, tf.Tensor]) -> dict[str, Any]:
        """Takes one step on a batch that `prepare_batch` returned.

        Returns:
            Loss and share of masked tokens found so far.
        """
        weights = self.trainable_weights
        with tf.GradientTape() as tape:
            scaled = self.optimizer.scale_loss(self._masked_loss(data, training=True))
        gradients = tape.gradient(scaled, weights)
        self.optimizer.apply(sum_gradients(gradients), weights)
        return self.get_metrics_result()

    def test_step(self, data: Mapping[str, tf.Tensor]) -> dict[str, Any]:
        """Returns loss and share of masked tokens found so far; arguments as of `train_step`."""
        self._masked_loss(data, training=False)
        return self.get_metrics_result()

    def _masked_loss(self, data: Mapping[str, tf.Tensor], *, training: bool) -> tf.Tensor:
        """Returns this replica's share of the mean over masked tokens, and counts it."""
        towers = self.dual_encoder.towers
        sides = {"query": towers.query_parts, "document": towers.document_parts}
        replicas = self.distribute_strategy.num_replicas_in_sync
        sums = [
            self._sums(parts, tokens_of(side, data), training=training)
            for side, parts in sides.items()
        ]
        loss, found, count = (tf.add_n(column) for column in zip(*sums, strict=True))
        count = sum_over_replicas(count)  # replicas mask more or fewer
        masked = tf.maximum(count, 1.0)  # texts of special tokens alone have none to mask
        loss = loss / masked + self._layer_losses()
        self._loss_tracker.update_state(loss * replicas, sample_weight=count)
        self._found.update_state(found / masked * replicas, sample_weight=count)
        return loss

    def _sums(
        self, parts: TowerParts, tokens: Mapping[str, tf.Tensor], *, training: bool
    ) -> tuple[tf.Tensor, ...]:
        """Returns, over the masked tokens of a side: their losses, how many are found, how many."""
        token_ids, mask = tokens["token_ids"], tokens["padding_mask"]
        places, chosen, shown = self._head.choose(token_ids, mask, training=training)
        x = parts.encoder(parts.token_embedder(shown, training=training), mask, training=training)
        x = tf.gather(x, places, batch_dims=1)
        logits = self._head(x, parts.token_embedder.token_table.value)
        labels = tf.gather(token_ids, places, batch_dims=1)
        losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits)
        right = tf.argmax(logits, -1, tf.int32) == labels
        found = tf.reduce_sum(tf.cast(right, tf.float32) * chosen)
        return tf.reduce_sum(losses * chosen), found, tf.reduce_sum(chosen)


class MaskedTokenHead(SeededLayer):
    """Chooses the tokens to mask, and gives logits of what stood there.

    Args:
        tokenizer: Says which tokens are special and never masked.
        hidden_dim: H.
        vocabulary_size: V, rows of the token table.
        scale: Of the product with the token table.
        seed: Of its weights and its draws.

    Call arguments:
        x: The encoder's output at the chosen places, (B, K, H).
        token_table: (V, H).

    Returns:
        Logits, (B, K, V) float32.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        hidden_dim: int,
        *,
        vocabulary_size: int,
        scale: float = 1.0,
        seed: int | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(dropout=0.0, seed=seed, **kwargs)
        self.hidden_dim = hidden_dim
        self.vocabulary_size = vocabulary_size
        self.scale = scale
        special = (tokenizer.pad_id, tokenizer.start_id, tokenizer.end_id, tokenizer.separator_id)
        self._special = tuple({token_id for token_id in special if token_id is not None})
        self._mask_id = _mask_id(tokenizer)

    def build(self, input_shape: Any) -> None:
        """Creates the layer's weights."""
        initializer = keras.initializers.GlorotUniform(seed=next(self._seeds))
        self._add("kernel", (self.hidden_dim, self.hidden_dim), initializer)
        self._add("bias", (self.hidden_dim,), "zeros")
        self._add("norm_gamma", (self.hidden_dim,), "ones")
        self._add("norm_beta", (self.hidden_dim,), "zeros")
        self._add("output_bias", (self.vocabulary_size,), "zeros")

    def call(self, x: tf.Tensor, token_table: tf.Tensor) -> tf.Tensor:
        """Returns the logits, (B, K, V) float32."""
        x = tf.matmul(x, tf.cast(self.kernel.value, x.dtype)) + tf.cast(self.bias.value, x.dtype)
        x = activate("gelu", x, training=True)
        x = layer_norm(x, self.norm_gamma.value, self.norm_beta.value, _NORM_EPSILON, training=True)
        logits = tf.matmul(x * self.scale, tf.cast(token_table, x.dtype), transpose_b=True)
        return tf.cast(logits, tf.float32) + tf.cast(self.output_bias.value, tf.float32)

    def choose(
        self, token_ids: tf.Tensor, padding_mask: tf.Tensor, *, training: bool
    ) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
        """Chooses tokens and puts what the encoder is shown in their place.

        Args:
            token_ids: (B, L) int32.
            padding_mask: (B, L) int32.
            training: Whether the choice is another each time; else it is that of these tokens.

        Returns:
            Places (B, K) int32; float32 (B, K), 1 = chosen, for short texts have fewer than K;
            and the token ids to show, (B, L) int32.
        """
        ordinary = padding_mask > 0
        for token_id in self._special:
            ordinary &= token_ids != token_id
        shape = tf.shape(token_ids)
        seed = self._next_seed() if training else tf.stack([0, tf.reduce_sum(token_ids)])
        draws = tf.random.stateless_uniform(tf.concat([[3], shape], 0), seed)
        # In random order, ordinary tokens first; every text has at least one chosen, if it can.
        order = tf.where(ordinary, draws[0], -1.0)
        most = 1 + tf.cast(CHOSEN * tf.cast(shape[1], tf.float32), tf.int32)
        best, places = tf.math.top_k(order, tf.minimum(most, shape[1]))
        count = tf.reduce_sum(tf.cast(ordinary, tf.float32), 1, keepdims=True)
        wanted = tf.maximum(tf.round(CHOSEN * count), 1.0)
        ranks = tf.range(tf.shape(places)[1], dtype=tf.float32)
        chosen = (best >= 0) & (ranks < wanted)
        # What stands there instead, decided for all places, used at the chosen ones.
        another = tf.cast(draws[2] * self.vocabulary_size, tf.int32)
        instead = tf.where(draws[1] < MASKED + REPLACED, another, token_ids)
        instead = tf.where(draws[1] < MASKED, self._mask_id, instead)
        rows = tf.broadcast_to(tf.range(shape[0])[:, None], tf.shape(places))
        changed = tf.scatter_nd(
            tf.stack([rows, places], -1), tf.cast(chosen, tf.int32), tf.shape(token_ids)
        )
        return places, tf.cast(chosen, tf.float32), tf.where(changed > 0, instead, token_ids)


def _mask_id(tokenizer: Tokenizer) -> int:
    """Returns the id of the mask token, or of padding, which no text holds."""
    found = map(tokenizer.token_id, ("[MASK]", "<mask>"))
    return next((token_id for token_id in found if token_id is not None), tokenizer.pad_id)
