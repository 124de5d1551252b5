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
from tfde.text.native_queries import NativeRows, native_queries
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
        self._preprocessor = preprocessor
        self._side = side
        kinds = {
            "query": ("queries", preprocessor.text_config.query_max_length_tokens),
            "document": ("documents", preprocessor.text_config.document_max_length_tokens),
        }
        self.cut = CutTexts(*kinds[side])
        self._embedding_dim = int(tower.output_shape[-1])

        def run(token_ids: tf.Tensor, padding_mask: tf.Tensor) -> tf.Tensor:
            tokens = {"token_ids": token_ids, "padding_mask": padding_mask}
            return tf.cast(tower(tokens, training=False), tf.float32)

        self._runner = None
        if engine != "tensorflow":
            function = graph_function(run, input_signature=_TOKENS)
            self._runner = tower_in(
                engine, tower, preprocessor, lambda *tokens: function(*tokens).numpy(), use=side
            )
        self._run = run
        self._towers: dict[bool, Any] = {}
        self._lock = threading.Lock()
        self._graph: Any = None
        self._graph_lock = threading.Lock()
        self._native = native_queries(preprocessor) if side == "query" else None

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
        token_ids, padding_mask, counts = self._tokens(*texts)
        self.cut.add(counts)
        if self._runner is not None:
            rows: np.ndarray = self._runner(token_ids, padding_mask)
            return rows
        few = int(padding_mask.sum()) < FEW_TOKENS
        tokens = tf.constant(token_ids), tf.constant(padding_mask)
        return self._tower_for(few)(*tokens).numpy()

    def _tokens(self, *texts: Sequence[str]) -> NativeRows:
        """Returns the rows of texts: of a few queries natively, else by a graph."""
        found = self._native(*texts) if self._native is not None else None
        if found is not None:
            return found
        with self._graph_lock:  # made when it is asked for: that takes longer than many calls
            self._graph = self._graph or self._tokenize()
        columns = (tf.constant(column, tf.string) for column in texts)
        return NativeRows(*(part.numpy() for part in self._graph(*columns)))

    def _tokenize(self) -> Any:
        """Returns the graph; its one trace: to look for that again is a third of a text's time."""
        preprocessor, is_query = self._preprocessor, self._side == "query"
        columns = 1 if is_query else len(preprocessor.text_config.document_fields)

        def tokenize(*texts: tf.Tensor) -> tuple[tf.Tensor, ...]:
            if is_query:
                token_ids, padding_mask, lengths = preprocessor.measured_queries(*texts)
            else:
                token_ids, padding_mask, lengths = preprocessor.measured_documents(*texts)
            return token_ids, padding_mask, cut_counts(lengths)

        texts = [tf.TensorSpec([None], tf.string)] * columns
        return graph_function(tokenize, input_signature=texts).get_concrete_function()

    def _tower_for(self, few: bool) -> Any:
        """Returns the graph for few tokens or for many: a choice within it is traced twice, too."""
        with self._lock:
            if few not in self._towers:
                with for_tokens(few=few):
                    function = graph_function(self._run, input_signature=_TOKENS)
                    self._towers[few] = function.get_concrete_function()
            return self._towers[few]
