"""Titles and texts by document id, so that a client shows passages over the same protocol."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import tensorflow as tf

from tfde.data.metadata import metadata_json
from tfde.storage.files import write_ids
from tfde.towers.saved_models import save
from tfde.types import Document


class DocumentsModel(tf.Module):
    """Looks documents up by id; an unknown id has an empty title and text, and is not found.

    Where a document has metadata, there is an output for it.

    Args:
        documents: With unique ids.
        ids_file: Where the ids are written; the SavedModel copies the file into its assets.
    """

    def __init__(self, documents: Sequence[Document], ids_file: Path) -> None:
        super().__init__()
        write_ids(ids_file, [document.doc_id for document in documents])
        initializer = tf.lookup.TextFileInitializer(
            str(ids_file),
            tf.string,
            tf.lookup.TextFileIndex.WHOLE_LINE,
            tf.int64,
            tf.lookup.TextFileIndex.LINE_NUMBER,
        )
        self._unknown = len(documents)
        self._rows = tf.lookup.StaticHashTable(initializer, self._unknown)
        self._titles = _column([*(document.title for document in documents), ""])
        self._texts = _column([*(document.text for document in documents), ""])
        self._metadata: tf.Variable | None = None
        if any(document.metadata for document in documents):
            # The sentences of a passage have the same, which is kept once.
            places: dict[str, int] = {}
            found = (metadata_json(document.metadata) for document in documents)
            rows = [places.setdefault(text, len(places)) for text in (*found, "")]
            self._metadata = _column(list(places))
            self._metadata_rows = tf.Variable(rows, trainable=False, dtype=tf.int32)

    @tf.function(input_signature=[tf.TensorSpec([None], tf.string, name="doc_ids")])
    def look_up(self, doc_ids: tf.Tensor) -> dict[str, tf.Tensor]:
        """Returns `titles` and `texts`, (B,) string, of `doc_ids` (B,), and `found`, (B,) bool.

        Where any document has it, `metadata` too: a JSON object, "" for none.
        """
        rows = self._rows.lookup(doc_ids)
        outputs = {
            "titles": tf.gather(self._titles, rows),
            "texts": tf.gather(self._texts, rows),
            "found": rows < self._unknown,
        }
        if self._metadata is not None:
            outputs["metadata"] = tf.gather(self._metadata, tf.gather(self._metadata_rows, rows))
        return outputs


def _column(values: list[str]) -> tf.Variable:
    return tf.Variable(values, trainable=False, dtype=tf.string)


def save_documents_model(model: DocumentsModel, directory: Path) -> None:
    """Writes the model with the signature `serving_default`."""
    save(model, directory, {"serving_default": model.look_up})
