"""Approximate search with ScaNN; document ids stay in a file of ours, never in its pickle."""

from __future__ import annotations

import dataclasses
import errno
import math
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from tfde.argument_types import typed
from tfde.config.model import ParentConfig
from tfde.environment import require_extra
from tfde.errors import ConfigError, CorruptError
from tfde.retrieval.embeddings import Embeddings
from tfde.retrieval.index_directory import (
    DOC_IDS,
    check_doc_ids,
    check_embeddings,
    check_queries,
    read_index,
    write_index,
)
from tfde.retrieval.recall import Recall, measure_recall, sample_queries
from tfde.retrieval.scann_parameters import LEAST_SAMPLE, ScannParameters
from tfde.storage.files import open_array, read_ids, write_array, write_ids

SEARCHER = "scann"
VECTORS = "vectors.npy"
# ScaNN keeps float32 vectors itself where it scores with them; then there is no second copy.
SCANN_VECTORS = f"{SEARCHER}/dataset.npy"
_MAX_BATCH = 256  # queries that a thread searches at a time
_DEFAULT_K = 10


class ScannIndex:
    """A ScaNN searcher, the ids of its vectors and the vectors; use `build` or `load`.

    Args:
        searcher: From ScaNN's pybind builder, without docids.
        vectors: `(N, D)` float32, in memory or memory-mapped.
        doc_ids: N document ids in the order of the vectors.
        parameters: What the searcher was built with, resolved.
        fingerprint: Of the model that encoded the vectors; "" if unknown.
        parents: How they have a share of their documents' parents, if they do.
    """

    def __init__(
        self,
        searcher: Any,
        vectors: np.ndarray,
        doc_ids: Sequence[str] | np.ndarray,
        parameters: ScannParameters,
        *,
        fingerprint: str = "",
        parents: ParentConfig | None = None,
    ) -> None:
        self._searcher = searcher
        self._vectors = vectors
        self.doc_ids = np.array(doc_ids, dtype=object)
        self.parameters = parameters
        self.fingerprint = fingerprint
        self.parents = parents
        self.shape: tuple[int, int] = vectors.shape

    @classmethod
    def build(
        cls,
        embeddings: np.ndarray,
        doc_ids: Sequence[str],
        *,
        fingerprint: str = "",
        parents: ParentConfig | None = None,
        parameters: ScannParameters | None = None,
    ) -> ScannIndex:
        """Trains and fills an index; its recall is to be measured with `recall`.

        Args:
            embeddings: `(N, D)` floating.
            doc_ids: N ids in the same order.
            fingerprint: Of the model that encoded them.
            parents: How they have a share of their documents' parents, if they do.
            parameters: Kind and sizes; by default decided by N.

        Raises:
            ConfigError: embeddings empty or not finite, or parameters that do not fit them.
            MismatchError: not (N, D), or another number of ids than vectors.
            DataError: an id is no text, holds white space, or stands twice.
        """
        vectors = np.ascontiguousarray(embeddings, np.float32)
        check_embeddings(vectors)
        doc_ids = check_doc_ids(doc_ids, len(vectors))
        resolved = (parameters or ScannParameters()).resolved(*vectors.shape)
        searcher = _build_searcher(vectors, resolved)
        return cls(searcher, vectors, doc_ids, resolved, fingerprint=fingerprint, parents=parents)

    @classmethod
    def from_embeddings(
        cls, embeddings: Embeddings, *, parameters: ScannParameters | None = None
    ) -> ScannIndex:
        """Builds an index of a directory of embeddings (read into memory, as ScaNN needs).

        Raises:
            ConfigError, MismatchError, DataError: as of `build`.
        """
        return cls.build(
            embeddings.read(),
            embeddings.doc_ids,
            fingerprint=embeddings.fingerprint,
            parents=embeddings.parents,
            parameters=parameters,
        )

    def searched_as(self, parameters: ScannParameters) -> ScannIndex:
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
    def search(
        self,
        query_embeddings: np.ndarray,
        k: int,
        *,
        leaves_to_search: int | None = None,
        pre_reorder_num_neighbors: int | None = None,
    ) -> tuple[np.ndarray, np.ndarray]:
        """Returns about the `k` documents of highest dot product.

        A query whose leaves hold fewer than K documents searches all leaves.

        Args:
            query_embeddings: `(Q, D)` floating.
            k: At least 1; K = min(k, N).
            leaves_to_search: Overrides `num_leaves_to_search`.
            pre_reorder_num_neighbors: Overrides `reorder`; never below K.

        Returns:
            scores `(Q, K)` float32, descending, and doc_ids `(Q, K)` str.

        Raises:
            ConfigError: `k` below 1, or a query is not finite.
            MismatchError: another dimension than the index.
        """
        scores, positions = self.search_positions(
            query_embeddings,
            k,
            leaves_to_search=leaves_to_search,
            pre_reorder_num_neighbors=pre_reorder_num_neighbors,
        )
        return scores, self.doc_ids[positions]

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
            return self._searcher.search_batched(queries, **options)
        # A batch is one thread's work, so the queries are dealt to all.
        share = math.ceil(len(queries) / len(os.sched_getaffinity(0)))
        size = min(share, _MAX_BATCH)
        return self._searcher.search_batched_parallel(queries, batch_size=size, **options)

    def recall(
        self,
        k: int = 10,
        *,
        sample: int = 1000,
        seed: int = 0,
        query_embeddings: np.ndarray | None = None,
    ) -> Recall:
        """Measures this index against exact search.

        Args:
            k: At least 1.
            sample: How many stored vectors, moved to cosine 0.8 of themselves, stand in for
                queries (see `sample_queries`).
            seed: Of the sample.
            query_embeddings: `(Q, D)` real queries in place of the sample.

        Raises:
            ConfigError: `k` or the number of queries below 1, or a query is not finite.
            MismatchError: another dimension than the index.
        """
        if query_embeddings is None:
            query_embeddings = sample_queries(self._vectors, sample, seed)
        queries = check_queries(query_embeddings, k, self.shape[1])
        return measure_recall(self, self._vectors, queries, k)

    def vectors(self) -> np.ndarray:
        """Returns the indexed vectors, `(N, D)` float32; memory-mapped after `load`."""
        return self._vectors

    def save(self, output: str | Path, *, overwrite: bool = False) -> None:
        """Writes a new directory: `index.json`, `doc_ids.txt`, ScaNN's own files in `scann/`.

        The vectors are in `scann/dataset.npy`, or in `vectors.npy` where ScaNN keeps none.

        Raises:
            ConfigError: `output` is not empty without `overwrite`, or is a file.
            OSError: the disk is full.
        """

        def write(directory: Path) -> None:
            write_ids(directory / DOC_IDS, self.doc_ids)
            (directory / SEARCHER).mkdir()
            try:
                self._searcher.serialize(str(directory / SEARCHER), relative_path=True)
            except RuntimeError as error:  # so ScaNN says that the disk is full
                reason = f"ScaNN's files cannot be written ({error})"
                raise OSError(errno.EIO, reason, str(output)) from error
            if not (directory / SCANN_VECTORS).exists():
                write_array(directory / VECTORS, self._vectors)

        rows, dim = self.shape
        manifest = {
            "kind": "scann",
            "rows": rows,
            "dim": dim,
            "fingerprint": self.fingerprint,
            "parents": self.parents and dataclasses.asdict(self.parents),
            "parameters": dataclasses.asdict(self.parameters),
        }
        write_index(output, manifest, write, overwrite=overwrite)

    def parameters_for(self, rows: int) -> ScannParameters:
        """Returns how to build this index of `rows` vectors.

        What followed from the number of its vectors follows from the new one; what was asked for
        stays, but for more leaves than there are vectors.
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
        return open_leaves if (asked.num_leaves or 0) > rows else asked

    def with_vectors_of(self, path: str | Path) -> ScannIndex:
        """Returns this index with its vectors memory-mapped from where it was saved.

        In place of `load`, which would keep all threads of the process waiting.

        Raises:
            CorruptError: the vectors there are damaged.
        """
        return self._changed(vectors=_open_vectors(Path(path)))

    @classmethod
    def load(cls, path: str | Path, *, verify: bool = True) -> ScannIndex:
        """Loads a saved index.

        Args:
            path: The directory.
            verify: Compare checksums (reads every file once), not only sizes.

        Raises:
            FileNotFoundError: no index there.
            MismatchError: an index of another kind.
            CorruptError: a file is missing or differs.
        """
        path = Path(path)
        manifest = read_index(path, ["scann"], verify=verify)
        # ScaNN would unpickle such a file; an index of ours has none.
        if list((path / SEARCHER).glob("*.pkl")):
            raise CorruptError(f"{path / SEARCHER}: holds a pickle, which is never read.")
        return cls(
            _pybind().load_searcher(str(path / SEARCHER)),
            _open_vectors(path),
            read_ids(path / DOC_IDS),
            ScannParameters(**manifest["parameters"]),
            fingerprint=manifest["fingerprint"],
            parents=ParentConfig.from_manifest(manifest),
        )

    def _changed(
        self, *, vectors: np.ndarray | None = None, parameters: ScannParameters | None = None
    ) -> ScannIndex:
        return ScannIndex(
            self._searcher,
            self._vectors if vectors is None else vectors,
            self.doc_ids,
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
