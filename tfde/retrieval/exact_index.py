"""Exact search: every vector is scored, block by block."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

import numpy as np

from tfde.argument_types import typed
from tfde.config.model import ParentConfig
from tfde.retrieval.embeddings import Embeddings
from tfde.retrieval.index_directory import (
    DOC_IDS,
    check_doc_ids,
    check_embeddings,
    check_queries,
    read_index,
    write_index,
)
from tfde.retrieval.selected_rows import SelectedRows
from tfde.retrieval.top_k import TopK
from tfde.storage.files import new_file, open_array, read_ids, write_ids
from tfde.storage.rows import ScaledRows

VECTORS = "vectors.npy"
_QUERIES_AT_ONCE = 512
_VECTORS_AT_ONCE = 8192  # with 512 queries: 16 MB of scores


class ExactIndex:
    """All vectors, searched by dot product; use `ExactIndex.build` or `from_embeddings`.

    Memory beyond the vectors is bounded; memory-mapped vectors stay on the disk.

    Args:
        parts: Consecutive blocks of the vectors, each `(rows, D)` floating.
        doc_ids: N document ids in the order of the vectors.
        fingerprint: Of the model that encoded them; "" if unknown.
        parents: How they have a share of their parents, if they do.
    """

    def __init__(
        self,
        parts: Sequence[np.ndarray | ScaledRows | SelectedRows],
        doc_ids: Sequence[str] | np.ndarray,
        *,
        fingerprint: str = "",
        parents: ParentConfig | None = None,
    ) -> None:
        self._parts = tuple(parts)
        self.doc_ids = np.array(doc_ids, dtype=object)
        self.fingerprint = fingerprint
        self.parents = parents
        self.shape = (len(self.doc_ids), self._parts[0].shape[1])

    @classmethod
    def build(
        cls, embeddings: np.ndarray, doc_ids: Sequence[str], *, fingerprint: str = ""
    ) -> ExactIndex:
        """Returns an index of `(N, D)` embeddings in memory.

        Raises:
            ConfigError: empty or not finite.
            MismatchError: not (N, D), or another number of ids than vectors.
            DataError: an id is no text, holds white space, or stands twice.
        """
        embeddings = np.asarray(embeddings)
        check_embeddings(embeddings)
        return cls([embeddings], check_doc_ids(doc_ids, len(embeddings)), fingerprint=fingerprint)

    @classmethod
    def from_embeddings(cls, embeddings: Embeddings) -> ExactIndex:
        """Returns an index over a directory of embeddings, which stays on the disk.

        Raises:
            ConfigError, MismatchError, DataError: as of `build`.
        """
        shards = embeddings.shards()
        for shard in shards:
            check_embeddings(shard, str(embeddings.path))
        doc_ids = check_doc_ids(embeddings.doc_ids, len(embeddings))
        return cls(shards, doc_ids, fingerprint=embeddings.fingerprint, parents=embeddings.parents)

    @typed
    def search(self, query_embeddings: np.ndarray, k: int) -> tuple[np.ndarray, np.ndarray]:
        """Returns the `k` documents of highest dot product, ties in the order of the index.

        Args:
            query_embeddings: `(Q, D)` floating.
            k: At least 1; K = min(k, N).

        Returns:
            scores `(Q, K)` float32, descending, and doc_ids `(Q, K)` str.

        Raises:
            ConfigError: `k` below 1, or a query is not finite.
            MismatchError: another dimension than the index.
        """
        scores, positions = self.search_positions(query_embeddings, k)
        return scores, self.doc_ids[positions]

    @typed
    def search_positions(
        self, query_embeddings: np.ndarray, k: int
    ) -> tuple[np.ndarray, np.ndarray]:
        """Like `search`, with positions `(Q, K)` int64 in place of ids."""
        queries = check_queries(query_embeddings, k, self.shape[1])
        k = min(k, self.shape[0])
        groups = [
            queries[start : start + _QUERIES_AT_ONCE]
            for start in range(0, len(queries), _QUERIES_AT_ONCE)
        ]
        best = [TopK(len(group), k) for group in groups]
        first = 0
        # Vectors in the outer loop: what lies on the disk is read once for all queries.
        for part in self._parts:
            for start in range(0, len(part), _VECTORS_AT_ONCE):
                block = np.asarray(part[start : start + _VECTORS_AT_ONCE], np.float32)
                for group, top in zip(groups, best, strict=True):
                    top.update(_dot_products(group, block), first)
                first += len(block)
        if not groups:
            return np.empty((0, k), np.float32), np.empty((0, k), np.int64)
        return (
            np.concatenate([top.scores for top in best]),
            np.concatenate([top.positions for top in best]),
        )

    def vectors(self) -> np.ndarray:
        """Returns `(N, D)` float32, memory-mapped where the index was loaded from one file."""
        if len(self._parts) == 1:
            return np.asarray(self._parts[0], np.float32)
        return np.concatenate([np.asarray(part, np.float32) for part in self._parts])

    def save(self, output: str | Path, *, overwrite: bool = False) -> None:
        """Writes `index.json`, `doc_ids.txt` and `vectors.npy` (float32) to a new directory.

        Raises:
            ConfigError: `output` is not empty without `overwrite`, or is a file.
        """

        def write(directory: Path) -> None:
            write_ids(directory / DOC_IDS, self.doc_ids)
            # Not a memory map: where the disk is full, writing to one kills the process.
            header = {"descr": "<f4", "fortran_order": False, "shape": self.shape}
            with new_file(directory / VECTORS) as file:
                np.lib.format.write_array_header_1_0(file, header)
                for part in self._parts:
                    for start in range(0, len(part), _VECTORS_AT_ONCE):
                        block = np.asarray(part[start : start + _VECTORS_AT_ONCE], "<f4")
                        file.write(block.tobytes())

        rows, dim = self.shape
        manifest = {
            "kind": "exact",
            "rows": rows,
            "dim": dim,
            "fingerprint": self.fingerprint,
            "parents": self.parents and asdict(self.parents),
        }
        write_index(output, manifest, write, overwrite=overwrite)

    @classmethod
    def load(cls, path: str | Path, *, verify: bool = True) -> ExactIndex:
        """Opens a saved index; its vectors stay on the disk.

        Args:
            path: The directory.
            verify: Compare checksums (reads every file once), not only sizes.

        Raises:
            FileNotFoundError: no index there.
            MismatchError: an index of another kind.
            CorruptError: a file is missing or differs.
        """
        path = Path(path)
        manifest = read_index(path, ["exact"], verify=verify)
        return cls(
            [open_array(path / VECTORS)],
            read_ids(path / DOC_IDS),
            fingerprint=manifest["fingerprint"],
            parents=ParentConfig.from_manifest(manifest),
        )


def _dot_products(queries: np.ndarray, vectors: np.ndarray) -> np.ndarray:
    if len(queries) == 1:
        # BLAS would wake its threads for each block and wait for them: 16 ms where cores are busy.
        return np.einsum("qd,nd->qn", queries, vectors)
    return queries @ vectors.T
