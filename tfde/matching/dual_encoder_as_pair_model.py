"""A dual encoder as one that scores pairs: to rerank with it, and to let teachers teach it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tfde.errors import ConfigError
from tfde.matching.networks import SIDES
from tfde.matching.pair_model import PairScorer, prepare_apart, texts_of_pairs
from tfde.matching.pair_states import PairStates, Tokens
from tfde.text.preprocessor import TextPreprocessor
from tfde.towers.dual_encoder import DualEncoder
from tfde.towers.pair_steps import tokens_of
from tfde.types import Document


class DualEncoderScorer(PairScorer):
    """Scores a pair by the similarity of query and document; trains the dual encoder in place.

    Args:
        model: Whose towers are used, not copied.

    Attributes:
        model: The same.
        scorer: Functional model, `first_token_ids`, `first_padding_mask` and those of the second
            -> (B, 1) float32.
    """

    preprocessor: TextPreprocessor

    def __init__(self, model: DualEncoder) -> None:
        inputs = {
            f"{side}_{name}": keras.Input((None,), dtype="int32", name=f"{side}_{name}")
            for side in SIDES
            for name in ("token_ids", "padding_mask")
        }
        towers = (model.query_tower, model.document_tower)
        embeddings = [
            tower(tokens_of(side, inputs)) for side, tower in zip(SIDES, towers, strict=True)
        ]
        scorer = keras.Model(inputs, _similarity(*embeddings), name="scorer")
        super().__init__(
            scorer,
            model.config,
            model.preprocessor,
            name="dual_encoder_scorer",
            dtype=model.dtype_policy,
        )
        # Not an attribute that Keras sees: it would list the towers twice.
        self._model = lambda: model

    @property
    def model(self) -> DualEncoder:
        """The dual encoder."""
        return self._model()

    def check_trains(self) -> None:
        """Refuses training while the towers run in another engine."""
        self.model.check_trains()

    def get_config(self) -> dict[str, Any]:
        """Refuses: what is copied or saved is the dual encoder."""
        raise ConfigError(
            "DualEncoderScorer is not copied itself: copy `scorer.model`, and make a scorer of it."
        )

    def score(
        self,
        pairs: Iterable[tuple[str, str | Document]],
        *,
        batch_size: int = 32,
        show_progress: bool = False,
    ) -> np.ndarray:
        """Returns the scores of pairs as `PairScorer.score`; each text is encoded once."""
        texts = texts_of_pairs(pairs)
        queries: dict[str, int] = {}
        documents: dict[tuple[str, str], int] = {}
        for first, *second in texts:
            queries.setdefault(first, len(queries))
            documents.setdefault((second[0], second[1]), len(documents))
        options: dict[str, Any] = {"batch_size": batch_size, "show_progress": show_progress}
        found = self.model.encode_queries(list(queries), **options)
        others = self.model.encode_documents(
            [Document("", title, text) for title, text in documents], **options
        )
        rows = [(queries[first], documents[title, text]) for first, title, text in texts]
        of_queries, of_documents = np.array(rows, np.int64).reshape(-1, 2).T
        scores = np.einsum("pd,pd->p", found[of_queries], others[of_documents], dtype=np.float32)
        return scores.astype(np.float32)

    def named_weights(self) -> dict[str, keras.Variable]:
        """Returns every weight by `part/shared/...`, or `part/query/...` and so on."""
        return self.model.towers.named_weights()

    def save_to_preset(self, directory: str | Path) -> None:
        """Writes the model directory of the dual encoder."""
        self.model.save_to_preset(directory)

    def save(self, filepath: Any, *args: Any, **kwargs: Any) -> None:
        """Writes the `.keras` file of the dual encoder; arguments as in Keras."""
        self.model.save(filepath, *args, **kwargs)

    def fingerprint(self) -> str:
        """Returns the dual encoder's."""
        return self.model.fingerprint()

    def encoder_and_apart(self) -> tuple[Any, int] | None:
        """Returns the query's encoder and how many layers it has, all of which see one text."""
        num_layers = self.model.config.backbone.num_layers
        return (self.model.towers.query_parts.encoder, num_layers) if num_layers else None

    def prepare_tokens(
        self, first: tf.Tensor, titles: tf.Tensor, texts: tf.Tensor
    ) -> tuple[dict[str, tf.Tensor], Tokens]:
        """Returns what `prepare` does, and where the tokens of both texts stand in it."""
        return prepare_apart(self.preprocessor, first, titles, texts)

    def call_with_states(
        self, inputs: Mapping[str, tf.Tensor], tokens: Tokens, *, training: bool
    ) -> tuple[tf.Tensor, PairStates]:
        """Returns the scores of `call`, and what the encoders computed on their way."""
        towers = self.model.towers
        sides = (
            (towers.query_tower, towers.query_parts),
            (towers.document_tower, towers.document_parts),
        )
        embeddings, states = [], []
        for side, (tower, parts) in zip(SIDES, sides, strict=True):
            of_side = tokens_of(side, inputs)
            mask = of_side["padding_mask"]
            embedded = parts.token_embedder(of_side["token_ids"], training=training)
            found = parts.encoder(embedded, mask, training=training, return_states=True)
            x = tower.get_layer("pooling")(found["sequence_output"], mask)
            if parts.projection is not None and not self.model.config.encode_before_projection:
                x = parts.projection(x)
            if self.model.config.normalize:
                x = tower.get_layer("unit_norm")(x)
            embeddings.append(x)
            states.append(found)
        return _similarity(*embeddings), PairStates(states[0], states[1], tokens)


def _similarity(queries: Any, documents: Any) -> Any:
    product = keras.ops.cast(queries, "float32") * keras.ops.cast(documents, "float32")
    return keras.ops.sum(product, axis=-1, keepdims=True)
