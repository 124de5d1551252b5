"""Texts of any number through one tower, batch by batch."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tfde.backbones.functional import FEW_TOKENS, for_tokens
from tfde.config.engines import EngineChoice, Use
from tfde.text.cut_texts import CutTexts
from tfde.text.graph_function import graph_function
from tfde.text.preprocessor import TextPreprocessor, cut_counts
from tfde.towers.batches import encode_by_length
from tfde.towers.engines import tower_in

_TOKENS = [tf.TensorSpec([None, None], tf.int32)] * 2


class TowerEncoder:
    """Encodes texts by one tower, those of like length in one batch.

    Args:
        tower: Functional model, `token_ids` and `padding_mask` -> (B, D).
        preprocessor: Texts to token ids.
        side: What the texts are.
        engine: What runs the tower; one other than TensorFlow has the weights of now.

    Attributes:
        cut: How many texts were cut since this object was made.

    Raises:
        ConfigError, MismatchError, MissingExtraError: as `tower_in`.
    """

    def __init__(
        self,
        tower: keras.Model,
        preprocessor: TextPreprocessor,
        *,
        side: Use,
        engine: EngineChoice = "tensorflow",
    ) -> None:
        columns = 1 if side == "query" else len(preprocessor.text_config.document_fields)
        kinds = {
            "query": ("queries", preprocessor.text_config.query_max_length_tokens),
            "document": ("documents", preprocessor.text_config.document_max_length_tokens),
        }
        self.cut = CutTexts(*kinds[side])
        self._embedding_dim = int(tower.output_shape[-1])

        def run(token_ids: tf.Tensor, padding_mask: tf.Tensor) -> tf.Tensor:
            tokens = {"token_ids": token_ids, "padding_mask": padding_mask}
            return tf.cast(tower(tokens, training=False), tf.float32)

        def tokenize(*texts: tf.Tensor) -> tuple[tf.Tensor, ...]:
            if side == "query":
                token_ids, padding_mask, lengths = preprocessor.measured_queries(*texts)
            else:
                token_ids, padding_mask, lengths = preprocessor.measured_documents(*texts)
            return token_ids, padding_mask, cut_counts(lengths)

        self._runner = None
        if engine != "tensorflow":
            function = graph_function(run, input_signature=_TOKENS)
            self._runner = tower_in(
                engine, tower, preprocessor, lambda *tokens: function(*tokens).numpy(), use=side
            )
        self._run = run
        self._towers: dict[bool, Any] = {}
        self._lock = threading.Lock()
        # The one trace that there is: to look for it again is a third of one text's tokenization.
        self._tokenize = graph_function(
            tokenize, input_signature=[tf.TensorSpec([None], tf.string)] * columns
        ).get_concrete_function()

    def __call__(
        self, texts: Sequence[tuple[str, ...]], *, batch_size: int, show_progress: bool
    ) -> np.ndarray:
        """Returns the embeddings, (N, D) float32, in the order given.

        Args:
            texts: Of documents what their template names: title, text and so on.
            batch_size: Texts per batch.
            show_progress: Whether a progress bar goes to stderr.
        """
        return encode_by_length(
            self._encode,
            texts,
            self._embedding_dim,
            batch_size=batch_size,
            show_progress=show_progress,
        )

    def _encode(self, *texts: Sequence[str]) -> np.ndarray:
        columns = (tf.constant(column, tf.string) for column in texts)
        token_ids, padding_mask, counts = self._tokenize(*columns)
        self.cut.add(counts.numpy())
        if self._runner is not None:
            rows: np.ndarray = self._runner(token_ids.numpy(), padding_mask.numpy())
            return rows
        few = int(padding_mask.numpy().sum()) < FEW_TOKENS
        return self._tower_for(few)(token_ids, padding_mask).numpy()

    def _tower_for(self, few: bool) -> Any:
        """Returns the graph for few tokens or for many: a choice within it is traced twice, too."""
        with self._lock:
            if few not in self._towers:
                with for_tokens(few=few):
                    function = graph_function(self._run, input_signature=_TOKENS)
                    self._towers[few] = function.get_concrete_function()
            return self._towers[few]
