"""Search with faiss: a graph, lists or codes, as its index factory names them."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from tfde.argument_types import typed
from tfde.environment import require_extra
from tfde.errors import ConfigError, CorruptError
from tfde.retrieval.index import Index
from tfde.retrieval.index_directory import VECTORS, check_queries
from tfde.retrieval.top_k import exact_top_k
from tfde.storage.files import open_array, write_array
from tfde.storage.rows import Rows, in_memory

STRUCTURE = "structure.faiss"
_FLAT_BELOW = 20_000
_GRAPH, _GRAPH_SEARCH = "HNSW32", "efSearch=64"
_GRAPH_BUILD = "efConstruction=200"


@dataclass(frozen=True)
class FaissParameters:
    """What faiss is told; the measure is always the inner product.

    Args:
        factory: A string of faiss's `index_factory`, such as `Flat`, `HNSW32`, `IVF1024,Flat` or
            `IVF4096,PQ64x4fs,RFlat`; by default `Flat` below 20,000 vectors and `HNSW32` above.
        build: Of faiss's `ParameterSpace`, set before vectors are added, such as
            `efConstruction=200`, which is what the default graph has.
        search: The same, set afterwards, such as `nprobe=16` or `efSearch=64`, which is what the
            default graph has.
    """

    factory: str | None = None
    build: str | None = None
    search: str | None = None

    def __post_init__(self) -> None:
        for name, value in dataclasses.asdict(self).items():
            if not (value is None or isinstance(value, str)):
                raise ConfigError(f"`{name}` must be a text. Received: {value!r}")

    def resolved(self, rows: int) -> FaissParameters:
        """Returns the parameters for so many vectors, nothing left open."""
        factory = self.factory or ("Flat" if rows < _FLAT_BELOW else _GRAPH)
        build, search = (_GRAPH_BUILD, _GRAPH_SEARCH) if factory == _GRAPH else ("", "")
        return FaissParameters(
            factory,
            build if self.build is None else self.build,
            search if self.search is None else self.search,
        )


class FaissIndex(Index):
    """A faiss index, whose ids are positions, beside the vectors; use `build` or `load`.

    A query for which faiss finds fewer documents than asked for is answered by scoring every
    vector.
    """

    kind = "faiss"
    parameters_class = FaissParameters
    parameters: FaissParameters

    @classmethod
    def _build(cls, parts: Sequence[Rows], parameters: Any) -> tuple[Sequence[Rows], Any, Any]:
        faiss = _faiss()
        vectors = in_memory(parts)
        resolved = (parameters or FaissParameters()).resolved(len(vectors))
        space = faiss.ParameterSpace()
        try:
            structure = faiss.index_factory(
                vectors.shape[1], resolved.factory, faiss.METRIC_INNER_PRODUCT
            )
            space.set_index_parameters(structure, resolved.build)
            structure.train(vectors)
            structure.add(vectors)
            space.set_index_parameters(structure, resolved.search)
        except RuntimeError as error:
            raise ConfigError(
                f"faiss cannot build {resolved.factory!r} of {len(vectors)} vectors of"
                f" {vectors.shape[1]} numbers: {_reason(error)}"
            ) from error
        return [vectors], structure, resolved

    def parameters_for(self, rows: int) -> FaissParameters:
        """Returns how to build this index of `rows` vectors.

        What was asked for stays, unless it is what the size gives by itself: that follows the size.
        """
        open_ = FaissParameters()
        return open_ if open_.resolved(self.shape[0]) == self.parameters else self.parameters

    @typed
    def search_positions(
        self, query_embeddings: np.ndarray, k: int
    ) -> tuple[np.ndarray, np.ndarray]:
        """Like `search`, with positions `(Q, K)` int64 in place of ids."""
        queries = check_queries(query_embeddings, k, self.shape[1])
        k = min(int(k), self.shape[0])
        scores, positions = self._structure.search(queries, k)
        short = np.flatnonzero((positions < 0).any(axis=1))  # what was not found is -1
        if len(short):
            scores[short], positions[short] = exact_top_k(self._parts, queries[short], k)
        order = np.lexsort((positions, -scores), axis=1)
        return np.take_along_axis(scores, order, 1), np.take_along_axis(positions, order, 1)

    def __str__(self) -> str:
        own = self.parameters
        return " ".join(filter(None, ("faiss,", own.factory, own.build, own.search)))

    def _write(self, directory: Path) -> None:
        """Writes the vectors beside faiss's file, which may hold codes alone."""
        write_array(directory / VECTORS, self.vectors())
        _faiss().write_index(self._structure, str(directory / STRUCTURE))

    @classmethod
    def _read(cls, path: Path, parameters: Any) -> tuple[Sequence[Rows], Any]:
        faiss = _faiss()
        try:
            # Memory-mapped, of the kinds of which faiss can do so: Flat and HNSW among them.
            structure = faiss.read_index(str(path / STRUCTURE), faiss.IO_FLAG_MMAP_IFC)
            faiss.ParameterSpace().set_index_parameters(structure, parameters.search)
        except RuntimeError as error:
            raise CorruptError(f"{path / STRUCTURE}: {_reason(error)}") from error
        vectors = open_array(path / VECTORS)
        if (structure.ntotal, structure.d) != vectors.shape:
            raise CorruptError(
                f"{path / STRUCTURE}: must index {vectors.shape}."
                f" Received: {(structure.ntotal, structure.d)}"
            )
        return [vectors], structure


def _faiss() -> Any:
    require_extra("faiss", "a faiss index")
    import faiss

    return faiss


def _reason(error: RuntimeError) -> str:
    """Returns what faiss says without the place in its source."""
    return str(error).rpartition(": ")[2] if ".cpp:" in str(error) else str(error)
