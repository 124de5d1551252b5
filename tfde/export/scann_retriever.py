"""Text to about the k best documents, with ScaNN's ops inside the SavedModel.

TensorFlow Serving as released has no ScaNN ops; tfde's own server does. The searcher is the
index's own, not a new one: ScaNN's training draws at random, and a second tree would not have
the recall that was measured.
"""

from __future__ import annotations

import hashlib
import tempfile
from pathlib import Path

import numpy as np
import tensorflow as tf
from scann.scann_ops.py import scann_ops

from tfde.export.retriever import Retriever, checked_hits, save_retriever
from tfde.retrieval.scann_index import SEARCHER, ScannIndex
from tfde.towers.saved_models import QueryEncoder

# ScaNN's own file for each input of its op, in the op's order.
_ASSETS: dict[str, tf.DType] = {
    "dataset.npy": tf.float32,
    "scann_config.pb": tf.string,
    "serialized_partitioner.pb": tf.string,
    "datapoint_to_token.npy": tf.int32,
    "ah_codebook.pb": tf.string,
    "hashed_dataset.npy": tf.uint8,
    "int8_dataset.npy": tf.int8,
    "int8_multipliers.npy": tf.float32,
    "dp_norms.npy": tf.float32,
}


class ScannRetriever(Retriever):
    """Answers as `ScannIndex.search` does.

    Args:
        query_encoder: Text to embeddings.
        index: The index; its ids and its trained searcher are copied.
    """

    def __init__(self, query_encoder: QueryEncoder, index: ScannIndex) -> None:
        super().__init__(query_encoder, list(index.doc_ids), embedding_dim=index.shape[1])
        with tempfile.TemporaryDirectory() as directory:
            index.save(Path(directory) / "index")
            assets = Path(directory) / "index" / SEARCHER
            self._assets = [_read(assets / name, dtype) for name, dtype in _ASSETS.items()]
            # Searchers of equal names are one within a process, whatever their content.
            self._shared_name = f"tfde-{_digest(assets)}"
        self._reorder = index.parameters.reorder
        self._num_leaves = index.parameters.num_leaves or 1
        self._leaves_to_search = index.parameters.num_leaves_to_search or 1

    def _search(self, embeddings: tf.Tensor, k: tf.Tensor) -> dict[str, tf.Tensor]:
        k = checked_hits(k, int(self.doc_ids.shape[0]))
        searcher = scann_ops.tensors_to_scann(*self._assets, shared_name=self._shared_name)
        reorder = tf.maximum(k, self._reorder)

        def ask(leaves: int) -> tuple[tf.Tensor, tf.Tensor]:
            indices, scores = scann_ops.scann_search_batched(
                searcher, embeddings, k, reorder, leaves, False
            )
            # As wide as the query that found most.
            padding = [[0, 0], [0, k - tf.shape(scores)[1]]]
            return tf.pad(indices, padding), tf.pad(scores, padding, constant_values=np.nan)

        def ask_all() -> tuple[tf.Tensor, tf.Tensor]:
            return ask(self._num_leaves)

        # A tree refuses to search for nobody.
        indices, scores = tf.cond(
            tf.shape(embeddings)[0] > 0,
            lambda: ask(self._leaves_to_search),
            lambda: (tf.zeros([0, k], tf.int32), tf.zeros([0, k])),
        )
        # What the searched leaves do not hold comes back as position 0 with score NaN.
        short = tf.reduce_any(tf.math.is_nan(scores), axis=1, keepdims=True)
        all_indices, all_scores = tf.cond(tf.reduce_any(short), ask_all, lambda: (indices, scores))
        indices, scores = tf.where(short, all_indices, indices), tf.where(short, all_scores, scores)
        by_position = tf.argsort(indices, axis=1)
        indices = tf.gather(indices, by_position, batch_dims=1)
        scores = tf.gather(scores, by_position, batch_dims=1)
        by_score = tf.argsort(-scores, axis=1, stable=True)
        return {
            "indices": tf.gather(indices, by_score, batch_dims=1),
            "scores": tf.gather(scores, by_score, batch_dims=1),
        }


def save_scann_retriever(retriever: ScannRetriever, directory: Path) -> None:
    """Writes a retriever with the signatures `serving_default` and `search`."""
    save_retriever(retriever, directory, op_namespaces=("Scann",))


def _read(path: Path, dtype: tf.DType) -> tf.Variable:
    """Returns an input of ScaNN's op; a file that the searcher does not have is an empty one."""
    value: object
    if dtype == tf.string:
        value = [path.read_bytes()] if path.exists() else ""
    else:
        value = np.load(path, allow_pickle=False) if path.exists() else 0
    return tf.Variable(value, trainable=False, dtype=dtype)


def _digest(assets: Path) -> str:
    digest = hashlib.sha256()
    for name in _ASSETS:
        digest.update(name.encode())
        if (assets / name).exists():
            digest.update((assets / name).read_bytes())
    return digest.hexdigest()[:16]
