"""Queries by any SavedModel from texts to texts."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf
import tensorflow_text  # noqa: F401  # registers the ops of tokenizers

from tfde.config.negatives import GenerationRules
from tfde.data.ids import generator_of
from tfde.errors import ConfigError, require
from tfde.negatives.generate_queries import text_of
from tfde.storage.files import sha256
from tfde.types import Document

SIGNATURE = "serving_default"
_INPUTS = {"text": tf.string, "seed": tf.int64}


class SavedModelGenerator:
    """Asks the signature `serving_default` of a SavedModel.

    It takes `text` (B,) string and gives `queries` (B, N) string, of which the first
    `queries_per_document` are taken. A model that draws may take `seed` (B,) int64 too, at least
    0, one for each text; without it, equal queries come again only if the model gives them.

    Args:
        directory: The SavedModel.
        rules: `queries_per_document`, `document_prompt` and `seed`.
        batch_size: Documents a batch.

    Raises:
        ConfigError: the signature is missing or another, or no documents a batch.
        OSError: the SavedModel cannot be read.
    """

    def __init__(
        self, directory: str | Path, rules: GenerationRules, *, batch_size: int = 16
    ) -> None:
        require(batch_size >= 1, "batch_size", "at least 1", batch_size)
        self._directory, self._rules, self._batch_size = Path(directory), rules, batch_size
        self._model = tf.saved_model.load(str(directory))  # the signature does not keep it alive
        signature = self._model.signatures.get(SIGNATURE)
        if signature is None:
            raise ConfigError(
                f"{directory}: must have the signature `{SIGNATURE}`."
                f" Received: {', '.join(self._model.signatures) or 'none'}"
            )
        self._signature: Any = signature
        inputs = signature.structured_input_signature[1]
        self._takes_seed = "seed" in inputs
        if not _as_agreed(inputs, signature.structured_outputs):
            raise ConfigError(
                f"{directory}: `{SIGNATURE}` must take `text` [None] string, and may take `seed`"
                " [None] int64, and must give `queries` [None, N] string."
                f" Received: {_words(inputs)} -> {_words(signature.structured_outputs)}"
            )

    def describe(self) -> dict[str, Any]:
        """Returns the rules and the checksum of every file."""
        files = sorted(path for path in self._directory.rglob("*") if path.is_file())
        sums = {path.relative_to(self._directory).as_posix(): sha256(path) for path in files}
        return {"kind": "saved_model", "files": sums, **dataclasses.asdict(self._rules)}

    def generate(self, documents: Sequence[Document]) -> list[list[str]]:
        """Returns the first `queries_per_document` queries of each document.

        Raises:
            ConfigError: the model gives fewer, or not those of every text.
        """
        queries: list[list[str]] = []
        for start in range(0, len(documents), self._batch_size):
            queries += self._generate_batch(documents[start : start + self._batch_size])
        return queries

    def _generate_batch(self, documents: Sequence[Document]) -> list[list[str]]:
        prompt, wanted = self._rules.document_prompt, self._rules.queries_per_document
        inputs = {"text": tf.constant([prompt + text_of(document) for document in documents])}
        if self._takes_seed:
            seeds = [
                generator_of(self._rules.seed, "query", document.doc_id).integers(2**63)
                for document in documents
            ]
            inputs["seed"] = tf.constant(np.array(seeds, np.int64))
        found = self._signature(**inputs)["queries"].numpy()
        if len(found) != len(documents) or found.shape[1] < wanted:
            raise ConfigError(
                f"{self._directory}: must give at least `queries_per_document`, {wanted}, queries"
                f" for each of {len(documents)} texts. Received: {found.shape}"
            )
        return [[text.decode(errors="replace") for text in row[:wanted]] for row in found]


def _as_agreed(inputs: dict[str, tf.TensorSpec], outputs: dict[str, tf.TensorSpec]) -> bool:
    queries = outputs.get("queries")
    return (
        "text" in inputs
        and all(
            spec.dtype == _INPUTS.get(name) and spec.shape.is_compatible_with((None,))
            for name, spec in inputs.items()
        )
        and queries is not None
        and queries.dtype == tf.string
        and queries.shape.is_compatible_with((None, None))
    )


def _words(specs: dict[str, tf.TensorSpec]) -> str:
    return ", ".join(
        f"{name} {spec.shape.as_list() if spec.shape.rank is not None else '?'} {spec.dtype.name}"
        for name, spec in sorted(specs.items())
    )
