"""Retrieval by several vectors a document: ScaNN finds candidates, all their vectors score them."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from tfde.argument_types import typed
from tfde.config.matching import SCORE_ALONE
from tfde.errors import MismatchError, require
from tfde.matching.stored_texts import StoredTexts
from tfde.retrieval.index import Index, open_index
from tfde.retrieval.scann_index import ScannIndex
from tfde.retrieval.scann_parameters import ScannParameters
from tfde.storage.atomic import atomic_directory

_TEXTS, _VECTORS = "texts", "vectors"


class MultiVectorIndex:
    """Documents of several vectors each, searched by the mean of each query vector's best.

    ScaNN finds the nearest stored vectors of each query vector; whose they are is a candidate, and
    is scored exactly with all of its vectors.

    Args:
        stored: Vectors of the documents, as `Matcher.store` gives them; of `late_interaction` or
            `multi_vector`, whose scores follow from the vectors alone.
        vectors: An index of all these vectors, in their order.

    Raises:
        MismatchError: the index holds another number of vectors; another kind of matcher computed
            them.

    Source: Khattab and Zaharia 2020, section 3.6 (end-to-end retrieval).
    """

    def __init__(self, stored: StoredTexts, vectors: Index) -> None:
        _check_kind(stored)
        if vectors.shape != stored.vectors.shape:
            raise MismatchError(
                f"`vectors` must index the {stored.vectors.shape} stored ones."
                f" Received: {vectors.shape}"
            )
        self.stored = stored
        self._vectors = vectors
        counts = np.diff(stored.offsets)
        self._owners = np.repeat(np.arange(len(stored)), counts)

    def __repr__(self) -> str:
        return f"MultiVectorIndex({len(self.stored):,} documents, {len(self._owners):,} vectors)"

    @classmethod
    def build(
        cls, stored: StoredTexts, *, parameters: ScannParameters | None = None
    ) -> MultiVectorIndex:
        """Builds the index of all vectors.

        Args:
            stored: Vectors of the documents.
            parameters: Of ScaNN; by default decided by the number of vectors.
        """
        _check_kind(stored)
        ids = [str(number) for number in range(len(stored.vectors))]
        vectors = ScannIndex.build(
            np.asarray(stored.vectors, np.float32),
            ids,
            fingerprint=stored.fingerprint,
            parameters=parameters,
        )
        return cls(stored, vectors)

    @typed
    def search(
        self, vectors: np.ndarray, mask: np.ndarray, k: int, *, candidates_per_vector: int = 100
    ) -> list[list[tuple[str, float]]]:
        """Returns the best documents of each query with their scores, the best first.

        Args:
            vectors: (Q, X, D) float32, of queries; they and `mask` are `Matcher.encode_first`'s.
            mask: (Q, X), 1 = a vector that counts.
            k: Documents a query gets, at most; fewer where fewer are candidates.
            candidates_per_vector: Nearest stored vectors that are looked up for a query's vector.

        Raises:
            ConfigError: `k` or `candidates_per_vector` is below 1; vectors or mask have another
                shape.
        """
        require(k >= 1, "k", "at least 1", k)
        least = candidates_per_vector >= 1
        require(least, "candidates_per_vector", "at least 1", candidates_per_vector)
        vectors, counts = np.asarray(vectors, np.float32), np.asarray(mask) > 0
        dim = self.stored.vectors.shape[1]
        fits = vectors.ndim == 3 and vectors.shape[2] == dim
        require(fits, "vectors", f"of shape (queries, vectors of each, {dim})", vectors.shape)
        fits = counts.shape == vectors.shape[:2]
        require(fits, "mask", f"of shape {vectors.shape[:2]}, as `vectors`", counts.shape)
        flat = vectors[counts]
        if not len(flat):
            return [[] for _ in counts]
        _, positions = self._vectors.search_positions(flat, candidates_per_vector)
        owners = self._owners[positions]
        ends = np.cumsum(counts.sum(axis=1))
        return [
            self._best(flat[start:end], np.unique(owners[start:end]), k)
            for start, end in zip([0, *ends[:-1]], ends, strict=True)
        ]

    def save(self, path: str | Path, *, overwrite: bool = False) -> None:
        """Writes a directory; whole or not.

        Raises:
            ConfigError: the directory is not empty, without `overwrite`.
        """
        with atomic_directory(path, overwrite=overwrite) as temporary:
            self.stored.save(temporary / _TEXTS)
            self._vectors.save(temporary / _VECTORS)

    @classmethod
    def load(cls, path: str | Path, *, verify: bool = True) -> MultiVectorIndex:
        """Opens what `save` wrote.

        Args:
            path: The directory.
            verify: Compare checksums.

        Raises:
            CorruptError: a file is missing or differs.
        """
        stored = StoredTexts.load(Path(path) / _TEXTS, verify=verify)
        return cls(stored, open_index(Path(path) / _VECTORS, verify=verify))

    def _best(self, query: np.ndarray, rows: np.ndarray, k: int) -> list[tuple[str, float]]:
        """Scores some documents exactly; returns the best."""
        if not len(query) or not len(rows):
            return []
        offsets = self.stored.offsets
        parts = [self.stored.vectors[offsets[row] : offsets[row + 1]] for row in rows]
        starts = np.cumsum([0, *(len(part) for part in parts[:-1])])
        products = query @ np.concatenate(parts).astype(np.float32).T
        scores = np.maximum.reduceat(products, starts, axis=1).mean(axis=0)
        found = [(self.stored.doc_ids[row], float(s)) for row, s in zip(rows, scores, strict=True)]
        return sorted(found, key=lambda hit: (-hit[1], hit[0]))[:k]


def _check_kind(stored: StoredTexts) -> None:
    if stored.kind not in SCORE_ALONE:
        raise MismatchError(
            f"`stored` must be of {' or '.join(SCORE_ALONE)}; other matchers score vectors by"
            f" a network, not by products. Received: {stored.kind}"
        )
