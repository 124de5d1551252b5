"""Exact search: every vector is scored, block by block."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from tfde.argument_types import typed
from tfde.retrieval.index import Index
from tfde.retrieval.index_directory import VECTORS, check_queries
from tfde.retrieval.top_k import exact_top_k
from tfde.storage.files import new_file, open_array
from tfde.storage.rows import Rows

_ROWS_AT_ONCE = 8192


class ExactIndex(Index):
    """All vectors, searched by dot product; use `ExactIndex.build` or `from_embeddings`.

    Memory beyond the vectors is bounded; memory-mapped vectors stay on the disk.
    """

    kind = "exact"

    @classmethod
    def _build(cls, parts: Sequence[Rows], parameters: Any) -> tuple[Sequence[Rows], Any, Any]:
        return parts, None, None

    @typed
    def search_positions(
        self, query_embeddings: np.ndarray, k: int
    ) -> tuple[np.ndarray, np.ndarray]:
        """Like `search`, with positions `(Q, K)` int64 in place of ids."""
        return exact_top_k(self._parts, check_queries(query_embeddings, k, self.shape[1]), k)

    def __str__(self) -> str:
        return "exact"

    def _write(self, directory: Path) -> None:
        # Not a memory map: where the disk is full, writing to one kills the process.
        header = {"descr": "<f4", "fortran_order": False, "shape": self.shape}
        with new_file(directory / VECTORS) as file:
            np.lib.format.write_array_header_1_0(file, header)
            for part in self._parts:
                for start in range(0, len(part), _ROWS_AT_ONCE):
                    file.write(np.asarray(part[start : start + _ROWS_AT_ONCE], "<f4").tobytes())

    @classmethod
    def _read(cls, path: Path, parameters: Any) -> tuple[Sequence[Rows], Any]:
        return [open_array(path / VECTORS)], None
