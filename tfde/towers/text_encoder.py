"""`TextEncoder`: a model of two towers that embeds texts, whatever they come as."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from tfde.argument_types import typed
from tfde.config.engines import EngineChoice, Use
from tfde.config.model import TowersConfig
from tfde.engines.tower_engine import require_engine
from tfde.errors import ConfigError, require, shorten
from tfde.text.cut_texts import CutTexts
from tfde.text.preprocessor import TextPreprocessor
from tfde.towers.encodes_texts import EncodesTexts
from tfde.towers.engines import precision_of
from tfde.towers.measured import refuse_callbacks
from tfde.towers.other_words import OF_DUAL_ENCODER, OtherWords
from tfde.towers.pair_input import texts_of_pairs
from tfde.towers.pair_trainer import PairTrainer
from tfde.towers.texts import elements_of, is_texts, query_text, texts_of_steps
from tfde.towers.tower_encoder import TowerEncoder
from tfde.types import Query


class TextEncoder(OtherWords, EncodesTexts, PairTrainer):
    """What a model of two towers does with texts; `DualEncoder` says what the towers are.

    Args:
        preprocessor: Texts to token ids, for both towers.
        **kwargs: As `PairTrainer`.
    """

    config: TowersConfig
    other_words = OF_DUAL_ENCODER

    def __init__(self, preprocessor: TextPreprocessor, **kwargs: Any) -> None:
        super().__init__(preprocessor, **kwargs)
        self._encoders: dict[tuple[str, int | None], TowerEncoder] = {}
        self._engine: EngineChoice = "tensorflow"

    def __call__(self, inputs: Any, *args: Any, **kwargs: Any) -> Any:
        """Returns what `call` does.

        Raises:
            ConfigError: texts, of which `encode_queries` and `encode_documents` make embeddings.
        """
        if not isinstance(inputs, Mapping):
            raise ConfigError(
                "the model is called on token ids by name, as `prepare_batch` gives them: for texts"
                " write `encode_queries(texts)` or `encode_documents(texts)`."
                f" Received: {shorten(inputs)}"
            )
        return super().__call__(inputs, *args, **kwargs)

    @typed
    def set_max_lengths(
        self,
        *,
        query_max_length_tokens: int | None = None,
        document_max_length_tokens: int | None = None,
    ) -> None:
        """Cuts texts elsewhere than before, in encoding, training, export and saving.

        The lengths belong to the fingerprint: embeddings of the model with others are refused. T5
        has no longest text, for its positions are relative; BERT has no positions beyond those it
        was made with.

        Args:
            query_max_length_tokens: Longest query, special tokens included; `None` leaves it.
            document_max_length_tokens: Longest document; `None` leaves it.

        Raises:
            ConfigError: a length below 3, or above the positions of the backbone.
        """
        given = {
            "query_max_length_tokens": query_max_length_tokens,
            "document_max_length_tokens": document_max_length_tokens,
        }
        lengths = {name: length for name, length in given.items() if length is not None}
        if not lengths:
            return
        self.preprocessor = self._cut_at(**lengths)
        self._encoders, self._single = {}, None

    @typed
    def set_engine(self, engine: EngineChoice) -> None:
        """Runs the towers in another engine from now on; texts are tokenized as before.

        It has the weights of now: after an assignment to one of them, call this again. A model
        trains with `tensorflow` alone.

        Args:
            engine: `tensorflow`; `openvino` or `onnxruntime`, where installed; `auto`: what of
                these is measured to be the fastest on this machine, for queries and for documents.

        Raises:
            MissingExtraError: the engine is not installed.
        """
        require_engine(engine, writes=True)
        self._engine, self._encoders = engine, {}

    def check_trains(self) -> None:
        """Refuses training while the towers run in another engine."""
        rule = "tensorflow in a model that trains: `set_engine('tensorflow')`"
        require(self._engine == "tensorflow", "engine", rule, self._engine)

    def make_train_function(self, force: bool = False) -> None:
        """Makes the step of training, as Keras calls it.

        Raises:
            ConfigError: the towers run in another engine.
        """
        self.check_trains()
        super().make_train_function(force)

    def set_weights(self, weights: Any) -> None:
        """Sets all weights, as in Keras."""
        super().set_weights(weights)
        self._encoders = {}

    def load_weights(self, filepath: Any, skip_mismatch: bool = False, **kwargs: Any) -> None:
        """Loads all weights, as in Keras; of a compiled model those of its optimizer too.

        Args:
            filepath: As of `StoredModel`.
            skip_mismatch: The same.
            **kwargs: As in Keras.

        Raises:
            ConfigError: the file holds those of a model built otherwise; nothing is changed.
        """
        super().load_weights(filepath, skip_mismatch, **kwargs)
        self._encoders = {}

    @property
    def document_fields(self) -> tuple[str, ...]:
        """What is read of a document: title and text, and the context where the template has it."""
        return self.preprocessor.text_config.document_fields

    @property
    def precision(self) -> str:
        """What the towers compute in: `float32`, `bfloat16` or `float16`."""
        return precision_of(self.document_tower)

    @property
    def _normalizes(self) -> bool:
        return bool(self.config.normalize)

    def predict(
        self,
        x: Any,
        *,
        batch_size: int | None = None,
        steps: int | None = None,
        callbacks: Sequence[Any] | None = None,
        verbose: str | int = "auto",
    ) -> dict[str, np.ndarray]:
        """Returns what `call` does, of texts: `query_embeddings` and `document_embeddings`.

        For embeddings of one tower write `encode_queries` or `encode_documents`.

        Args:
            x: Texts as `encode_queries` takes them, each of which both towers read; or pairs as
                `evaluate` takes them: the first texts for one tower, the second ones for the other.
            batch_size: Texts per batch; `None`: 64.
            steps: Batches to take; `None`: all.
            callbacks: None: no step of it is Keras' own.
            verbose: 0 for no progress bar.

        Raises:
            ConfigError: `x` is neither, or never ends; callbacks.
        """
        refuse_callbacks(callbacks)
        size = 64 if batch_size is None else batch_size
        require(size >= 1, "batch_size", "at least 1", size)
        queries: Any
        documents: Any
        if is_texts(x):
            found, alone = elements_of("x", texts_of_steps(x, steps, size), alone=(Query,))
            texts = list(map(query_text, found))
            queries = documents = texts[0] if alone else texts
        else:
            queries, documents = texts_of_pairs(x, steps=steps, batch_size=size)
        options: dict[str, Any] = {"batch_size": size, "show_progress": verbose not in (0, "0")}
        return {
            "query_embeddings": self.encode_queries(queries, **options),
            "document_embeddings": self.encode_documents(documents, **options),
        }

    def similarity(
        self, query_embeddings: np.ndarray, document_embeddings: np.ndarray
    ) -> np.ndarray:
        """Returns the scores that search orders by: dot products, cosines where the model says so.

        Args:
            query_embeddings: (Q, D), or (D,) of one query.
            document_embeddings: (N, D), or (D,) of one document.

        Returns:
            (Q, N) float32, without the axis of what was one.
        """
        sides = np.asarray(query_embeddings), np.asarray(document_embeddings)
        for name, side in zip(("query_embeddings", "document_embeddings"), sides, strict=True):
            fits = side.dtype.kind == "f" and side.shape[-1:] == (self.embedding_dim,)
            rule = f"an array (N, {self.embedding_dim}) of floating numbers"
            require(fits and side.ndim <= 2, name, rule, side)
        scores: np.ndarray = sides[0] @ sides[1].T
        return scores

    def cut_texts(self) -> list[CutTexts]:
        """Returns how many texts were cut at which length in encoding, and how much they lost.

        What is counted began when the model was loaded or last got other lengths; queries and
        documents, and each `max_length_tokens` that was asked for, are apart.
        """
        return [encoder.cut for encoder in self._encoders.values() if encoder.cut.texts]

    def _embeddings_of(
        self,
        side: Use,
        rows: Sequence[tuple[str, ...]],
        *,
        batch_size: int,
        max_length_tokens: int | None,
        show_progress: bool,
    ) -> np.ndarray:
        encoder = self._encoder(side, max_length_tokens)
        return encoder(rows, batch_size=batch_size, show_progress=show_progress)

    def _encoder(self, side: Use, max_length_tokens: int | None = None) -> TowerEncoder:
        key = side, max_length_tokens
        if key not in self._encoders:
            tower = self.query_tower if side == "query" else self.document_tower
            preprocessor = self.preprocessor
            if max_length_tokens is not None:
                preprocessor = self._cut_at(**{f"{side}_max_length_tokens": max_length_tokens})
            self._encoders[key] = TowerEncoder(tower, preprocessor, side=side, engine=self._engine)
        return self._encoders[key]

    def _cut_at(self, **lengths: int) -> TextPreprocessor:
        """Returns the preprocessor with other lengths."""
        longest = self.config.backbone.max_sequence_length or max(lengths.values())
        for name, length in lengths.items():
            rule = f"at most {longest}, the positions that the backbone has"
            require(length <= longest, name, rule, length)
        text = dataclasses.replace(self.preprocessor.text_config, **lengths)
        return TextPreprocessor(self.preprocessor.tokenizer, text)
