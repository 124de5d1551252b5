"""Approximate search with ScaNN; document ids stay in a file of ours, never in its pickle."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Self

import numpy as np

from tfde.argument_types import typed
from tfde.environment import require_extra, usable_cores
from tfde.errors import ConfigError, CorruptError
from tfde.retrieval.index import Index
from tfde.retrieval.index_directory import VECTORS, check_queries
from tfde.retrieval.scann_parameters import LEAST_SAMPLE, ScannParameters
from tfde.storage.files import open_array, write_array
from tfde.storage.rows import Rows, in_memory

SEARCHER = "scann"
# ScaNN keeps float32 vectors itself where it scores with them; then there is no second copy.
SCANN_VECTORS = f"{SEARCHER}/dataset.npy"
_MAX_BATCH = 256  # queries that a thread searches at a time
_DEFAULT_K = 10


class ScannIndex(Index):
    """A ScaNN searcher beside the vectors it was made of; use `build` or `load`.

    A query whose leaves hold fewer documents than asked for searches all leaves.
    """

    kind = "scann"
    parameters_class = ScannParameters
    parameters: ScannParameters

    @classmethod
    def _build(cls, parts: Sequence[Rows], parameters: Any) -> tuple[Sequence[Rows], Any, Any]:
        vectors = in_memory(parts)
        resolved = (parameters or ScannParameters()).resolved(*vectors.shape)
        return [vectors], _build_searcher(vectors, resolved), resolved

    def searched_as(self, parameters: ScannParameters) -> Self:
        """Returns the same index with another `num_leaves_to_search` or `reorder`.

        Raises:
            ConfigError: the parameters differ in what the index was built with.
        """
        own = dataclasses.replace(
            self.parameters,
            num_leaves_to_search=parameters.num_leaves_to_search,
            reorder=parameters.reorder,
        )
        if own != parameters or bool(parameters.reorder) != bool(self.parameters.reorder):
            raise ConfigError(
                "only `num_leaves_to_search` and `reorder` may differ from what the index was"
                f" built with, {self.parameters}. Received: {parameters}"
            )
        return self._changed(parameters=parameters)

    @typed
    def search_positions(
        self,
        query_embeddings: np.ndarray,
        k: int,
        *,
        leaves_to_search: int | None = None,
        pre_reorder_num_neighbors: int | None = None,
    ) -> tuple[np.ndarray, np.ndarray]:
        """Like `search`, with positions `(Q, K)` int64 in place of ids."""
        queries = check_queries(query_embeddings, k, self.shape[1])
        k = min(k, self.shape[0])
        if not len(queries):
            return np.empty((0, k), np.float32), np.empty((0, k), np.int64)
        reorder = max(k, pre_reorder_num_neighbors or self.parameters.reorder)
        leaves_to_search = leaves_to_search or self.parameters.num_leaves_to_search
        positions, scores = self._ask(queries, k, reorder, leaves_to_search)
        if k > 1 and (scores[:, :-1] > scores[:, 1:]).all():  # as it is nearly always
            return scores, positions.astype(np.int64)
        # ScaNN fills what it did not find with position 0 and score NaN.
        missing = np.isnan(scores)
        if missing.any():
            short = np.flatnonzero(missing.any(axis=1))
            leaves = self.parameters.num_leaves
            positions[short], scores[short] = self._ask(queries[short], k, reorder, leaves)
        order = np.lexsort((positions, -scores), axis=1)
        rows = np.arange(len(order))[:, np.newaxis]
        return scores[rows, order], positions[rows, order].astype(np.int64)

    def _ask(
        self, queries: np.ndarray, k: int, reorder: int, leaves: int | None
    ) -> tuple[np.ndarray, np.ndarray]:
        options = {
            "final_num_neighbors": k,
            "pre_reorder_num_neighbors": reorder,
            "leaves_to_search": leaves,
        }
        if len(queries) == 1:
            return self._structure.search_batched(queries, **options)
        # A batch is one thread's work, so the queries are dealt to all.
        share = math.ceil(len(queries) / usable_cores())
        size = min(share, _MAX_BATCH)
        return self._structure.search_batched_parallel(queries, batch_size=size, **options)

    def __str__(self) -> str:
        own = self.parameters
        if own.kind != "tree":
            return f"scann, {own.kind}"
        return f"scann, tree ({own.num_leaves_to_search} of {own.num_leaves} leaves)"

    def _write(self, directory: Path) -> None:
        """Writes ScaNN's own files to `scann/`.

        The vectors are in `scann/dataset.npy`, or in `vectors.npy` where ScaNN keeps none.
        """
        (directory / SEARCHER).mkdir()
        self._structure.serialize(str(directory / SEARCHER), relative_path=True)
        if not (directory / SCANN_VECTORS).exists():
            write_array(directory / VECTORS, self.vectors())

    def parameters_for(self, rows: int) -> ScannParameters:
        """Returns how to build this index of `rows` vectors.

        What followed from the number of its vectors follows from the new one; what was asked for
        stays, but for more leaves than there are vectors, and fewer samples than there are leaves.
        """
        old = self.parameters
        open_search = dataclasses.replace(old, num_leaves_to_search=None)
        open_leaves = dataclasses.replace(open_search, num_leaves=None)
        open_kind = dataclasses.replace(open_leaves, kind=None)
        choices = [
            dataclasses.replace(asked, training_sample_size=sample)
            for asked in (open_kind, open_leaves, open_search, old)
            for sample in (None, old.training_sample_size)
        ]
        for asked in choices:  # the first has the most that follows from the size, the last nothing
            if asked.resolved(*self.shape) == old:
                break
        chosen = open_leaves if (asked.num_leaves or 0) > rows else asked
        try:
            chosen.resolved(rows, self.shape[1])
        except ConfigError:  # fewer samples than there are leaves for so many vectors
            return dataclasses.replace(chosen, training_sample_size=None)
        return chosen

    def saved_at(self, path: Path) -> Self:
        """Returns this index with its vectors memory-mapped from where it was saved.

        In place of `load`, which would keep all threads of the process waiting.

        Raises:
            CorruptError: the vectors there are damaged.
        """
        return self._changed(parts=[_open_vectors(path)])

    @classmethod
    def _read(cls, path: Path, parameters: Any) -> tuple[Sequence[Rows], Any]:
        # ScaNN would unpickle such a file; an index of ours has none.
        if list((path / SEARCHER).glob("*.pkl")):
            raise CorruptError(f"{path / SEARCHER}: holds a pickle, which is never read.")
        return [_open_vectors(path)], _pybind().load_searcher(str(path / SEARCHER))

    def _changed(
        self, *, parts: Sequence[Rows] | None = None, parameters: ScannParameters | None = None
    ) -> Self:
        return type(self)(
            parts or self._parts,
            self.doc_ids,
            self._structure,
            parameters or self.parameters,
            fingerprint=self.fingerprint,
            parents=self.parents,
        )


def _pybind() -> Any:
    require_extra("scann", "a ScaNN index")
    from scann import scann_ops_pybind

    return scann_ops_pybind


def _open_vectors(path: Path) -> np.ndarray:
    scanns_own = path / SCANN_VECTORS
    return open_array(scanns_own if scanns_own.is_file() else path / VECTORS)


def _build_searcher(vectors: np.ndarray, parameters: ScannParameters) -> Any:
    k = min(_DEFAULT_K, len(vectors))
    builder = _pybind().builder(vectors, k, "dot_product")
    if parameters.kind == "exact":
        return builder.score_brute_force().build()
    if parameters.kind == "tree":
        builder = builder.tree(
            parameters.num_leaves,
            parameters.num_leaves_to_search,
            training_sample_size=parameters.training_sample_size,
        )
    threshold = parameters.anisotropic_quantization_threshold
    builder = builder.score_ah(
        parameters.dimensions_per_block,
        anisotropic_quantization_threshold=float("nan") if threshold is None else threshold,
        training_sample_size=min(parameters.training_sample_size or LEAST_SAMPLE, LEAST_SAMPLE),
    )
    if parameters.reorder:
        builder = builder.reorder(parameters.reorder)
    return builder.build()
