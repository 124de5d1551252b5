"""The encoders of a bundle as a worker uses them: SavedModels, no Keras."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

# Registers the text ops that the SavedModels hold.
import tensorflow_text  # noqa: F401

from tfde.export.bundle_directory import read_manifest
from tfde.towers.batches import encode_by_length
from tfde.types import Document


class SavedEncoder:
    """Encodes documents and queries as the model does that was exported.

    Each SavedModel is loaded when it is first used.

    Args:
        bundle: What `tfde export` wrote; the two encoders are enough.

    Raises:
        FileNotFoundError: no bundle there.
        CorruptError: its manifest cannot be read.
    """

    def __init__(self, bundle: str | Path) -> None:
        self._bundle = Path(bundle)
        self._manifest = read_manifest(bundle)
        self._models: dict[str, Any] = {}

    @property
    def embedding_dim(self) -> int:
        """D, the length of an embedding."""
        return int(self._manifest["embedding_dim"])

    def fingerprint(self) -> str:
        """Returns the fingerprint of the model that was exported."""
        return str(self._manifest["towers_fingerprint"])

    def encode_documents(self, documents: list[Document], *, batch_size: int) -> np.ndarray:
        """Returns the embeddings, (N, D) float32, in the order given."""
        encode = self._signature("document_encoder")
        return encode_by_length(
            lambda titles, texts: encode(title=_strings(titles), text=_strings(texts)),
            [(document.title, document.text) for document in documents],
            self.embedding_dim,
            batch_size=batch_size,
        )

    def encode_queries(self, texts: list[str], *, batch_size: int) -> np.ndarray:
        """Returns the embeddings, (Q, D) float32, in the order given."""
        encode = self._signature("query_encoder")
        return encode_by_length(
            lambda _, texts: encode(text=_strings(texts)),
            [("", text) for text in texts],
            self.embedding_dim,
            batch_size=batch_size,
        )

    def _signature(self, name: str) -> Callable[..., np.ndarray]:
        if name not in self._models:
            directory = self._bundle / "models" / name / str(self._manifest["version"])
            self._models[name] = tf.saved_model.load(str(directory))
        signature = self._models[name].signatures["serving_default"]
        return lambda **inputs: signature(**inputs)["embeddings"].numpy()


def _strings(texts: list[str]) -> tf.Tensor:
    return tf.constant(texts, tf.string)
