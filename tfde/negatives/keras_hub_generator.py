"""Queries by a sequence-to-sequence model of keras-hub: T5, BART, and what else it has."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import keras_hub
import numpy as np
import tensorflow as tf

from tfde.checkpoints.hdf5_file import check_finite, open_hdf5, stored_arrays
from tfde.config.model import DEFAULT_BUCKETS
from tfde.config.negatives import GenerationRules
from tfde.data.ids import generator_of
from tfde.errors import ConfigError, first_line, require
from tfde.negatives.generate_queries import text_of
from tfde.towers.batches import batches_by_length
from tfde.towers.weights import fingerprint
from tfde.types import Document


class KerasHubGenerator:
    """Samples queries from a `keras_hub.models.Seq2SeqLM`.

    Args:
        preset: A directory that `save_to_preset` wrote, or any other preset that keras-hub reads:
            its names (`t5_small_multi`), `kaggle://` and `hf://` handles.
        rules: Lengths and sampling.
        batch_size: Documents a batch.

    Raises:
        ConfigError: no such preset, a preset of another kind of model, lengths for which the
            model has no positions, more tokens to draw from than it has, or no documents a batch.
        DataError: weights of a directory lie in other files, or are not finite.
    """

    def __init__(self, preset: str | Path, rules: GenerationRules, *, batch_size: int = 16) -> None:
        require(batch_size >= 1, "batch_size", "at least 1", batch_size)
        self._rules, self._batch_size = rules, batch_size
        self._model = _load(str(preset))
        self._preprocessor = self._model.preprocessor
        self._tokenizer = self._preprocessor.tokenizer
        _check_sizes(rules, self._model)
        self._sampler = DrawnSampler(rules.top_k, rules.temperature)
        # XLA would compile each length anew, for minutes.
        self._model.compile(sampler=self._sampler, jit_compile=False)

    def describe(self) -> dict[str, Any]:
        """Returns the rules, and what changes with weights and vocabulary."""
        about = [type(self._model).__name__, self._tokenizer.get_vocabulary()]
        weights = fingerprint(json.dumps(about).encode(), self._model.weights)
        return {"kind": "keras_hub", "model": weights, **dataclasses.asdict(self._rules)}

    def generate(self, documents: Sequence[Document]) -> list[list[str]]:
        """Returns `queries_per_document` queries of each document."""
        queries: list[list[str]] = [[] for _ in documents]
        lengths = [len(text_of(document)) for document in documents]
        for rows in batches_by_length(lengths, self._batch_size, unit="doc", show_progress=False):
            found = self._generate_batch([documents[row] for row in rows])
            for row, texts in zip(rows, found, strict=True):
                queries[row] = texts
        return queries

    def _generate_batch(self, documents: Sequence[Document]) -> list[list[str]]:
        rules, count = self._rules, self._rules.queries_per_document
        tokens = self._preprocessor.generate_preprocess(
            [rules.document_prompt + text_of(document) for document in documents],
            encoder_sequence_length=rules.document_max_length_tokens,
            sequence_length=rules.query_max_length_tokens,
        )
        arrays = {name: np.asarray(array) for name, array in tokens.items()}
        longest = int(arrays["encoder_padding_mask"].sum(axis=1).max())
        # Few lengths: each is traced anew.
        length = next((size for size in DEFAULT_BUCKETS if size >= longest), None)
        for name in ("encoder_token_ids", "encoder_padding_mask"):
            arrays[name] = arrays[name][:, :length]
        inputs = {name: tf.repeat(array, count, axis=0) for name, array in arrays.items()}
        self._sampler.begin(np.concatenate([self._fractions(document) for document in documents]))
        generate = self._model.make_generate_function()
        found = generate(inputs, stop_token_ids=[self._tokenizer.end_token_id])
        texts = list(self._preprocessor.generate_postprocess(found))
        return [texts[start : start + count] for start in range(0, len(texts), count)]

    def _fractions(self, document: Document) -> np.ndarray:
        """Returns the random number of each token of each query."""
        shape = (self._rules.queries_per_document, self._rules.query_max_length_tokens)
        generator = generator_of(self._rules.seed, "query", document.doc_id)
        return generator.random(shape, dtype=np.float32)


def _load(preset: str) -> Any:
    # Keras refuses these too, but not in a line that says so.
    for path in sorted(Path(preset).glob("*.weights.h5")):
        with open_hdf5(path) as file:
            stored_arrays(path, file)
    try:
        model = keras_hub.models.Seq2SeqLM.from_preset(preset)
    except Exception as error:  # keras-hub, Keras and each hub's client raise their own kinds
        reason = first_line(error).removesuffix(" A preset must be a one of:")  # and none follows
        raise ConfigError(
            f"{preset}: must be a SavedModel, or a keras-hub preset of a sequence-to-sequence"
            f" model. Received: {reason}"
        ) from error
    if not isinstance(model.preprocessor, keras_hub.models.Seq2SeqLMPreprocessor):
        raise ConfigError(
            f"{preset}: the model must read and write text, with a tokenizer of its own."
            f" Received: {type(model).__name__}"
        )
    for weight in model.weights:
        check_finite(Path(preset), weight.path, np.asarray(weight))
    return model


def _check_sizes(rules: GenerationRules, model: Any) -> None:
    vocabulary = model.backbone.vocabulary_size
    rule = f"at most the model's vocabulary, {vocabulary}"
    require(rules.top_k <= vocabulary, "top_k", rule, rules.top_k)
    positions = getattr(model.backbone, "max_sequence_length", None)
    for name in ("query_max_length_tokens", "document_max_length_tokens"):
        value = getattr(rules, name)
        fits = positions is None or value <= positions
        require(fits, name, f"at most the model's, {positions}", value)


class DrawnSampler(keras_hub.samplers.Sampler):
    """Draws tokens from the most probable ones, each by a number that was drawn for its place.

    keras-hub's own samplers share one random state among the rows of all batches, so that a text
    would depend on the texts before and beside it.

    Args:
        top_k: How many tokens may be drawn at each place.
        temperature: Divides the logits.
    """

    def __init__(self, top_k: int, temperature: float) -> None:
        super().__init__(temperature=temperature)
        self.top_k = top_k
        # Variables, since the compiled generation takes no further inputs.
        self._fractions = tf.Variable(tf.zeros((0, 0)), shape=(None, None), trainable=False)
        self._place = tf.Variable(0, trainable=False)

    def begin(self, fractions: np.ndarray) -> None:
        """Gives the numbers for the next batch.

        Args:
            fractions: In [0, 1), (B, L) float32, one for each token that may be drawn.
        """
        self._fractions.assign(fractions)
        self._place.assign(0)

    def get_next_token(self, probabilities: tf.Tensor) -> tf.Tensor:
        """Returns the tokens of the next place.

        The k largest probabilities lie side by side on a line from 0 to their sum; the token is
        that in whose stretch the fraction of the line ends.

        Args:
            probabilities: (B, vocabulary) float32.

        Returns:
            Token ids, (B,) int32.
        """
        values, token_ids = tf.math.top_k(probabilities, self.top_k)
        ends = tf.cumsum(values, axis=-1)
        fractions = tf.gather(self._fractions, self._place, axis=1)[:, tf.newaxis]
        self._place.assign_add(1)
        passed = tf.cast(ends <= fractions * ends[:, -1:], tf.int32)
        # Rounding may let the fraction end where the line does.
        choice = tf.minimum(tf.reduce_sum(passed, axis=-1), self.top_k - 1)
        return tf.gather(token_ids, choice, axis=1, batch_dims=1)
