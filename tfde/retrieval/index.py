"""What an index is, whatever searches it; an engine is a subclass and a line of `ENGINES`."""

from __future__ import annotations

import dataclasses
import errno
import importlib
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np

from tfde.argument_types import typed
from tfde.config.model import ParentConfig
from tfde.environment import require_extra
from tfde.errors import ConfigError, CorruptError, MismatchError, require
from tfde.retrieval.embeddings import Embeddings
from tfde.retrieval.index_directory import (
    CHANGES,
    DOC_IDS,
    MANIFEST,
    check_doc_ids,
    check_embeddings,
    check_queries,
    read_index,
    read_manifest,
    search_one_or_many,
    write_index,
)
from tfde.retrieval.recall import Recall, measure_recall, sample_queries
from tfde.storage.files import read_ids, write_ids
from tfde.storage.rows import Rows, in_memory

# Kind, as the manifest of a saved index names it -> module and class, imported when it is needed,
# and the extra that brings its library.
ENGINES = {
    "exact": ("tfde.retrieval.exact_index", "ExactIndex", None),
    "scann": ("tfde.retrieval.scann_index", "ScannIndex", "scann"),
    "faiss": ("tfde.retrieval.faiss_index", "FaissIndex", "faiss"),
}


class Index(ABC):
    """Vectors of documents, searched by dot product, which never change; use `build` or `load`.

    An engine says how it builds and searches its structure, and keeps its files; all else is here.

    Args:
        parts: Consecutive blocks of the vectors, each `(rows, D)` floating, perhaps on the disk.
        doc_ids: N document ids in the order of the vectors.
        structure: What the engine searches; `None` where that is the vectors themselves.
        parameters: What it was built with, resolved; `None` where the engine has none.
        fingerprint: Of the model that encoded the vectors; "" if unknown.
        parents: How they have a share of their documents' parents, if they do.

    Raises:
        ConfigError: one array in place of blocks.
    """

    kind: ClassVar[str]
    # A frozen dataclass of options, each with a default; `None` where the engine has none.
    parameters_class: ClassVar[type | None] = None

    def __init__(
        self,
        parts: Sequence[Rows],
        doc_ids: Sequence[str] | np.ndarray,
        structure: Any = None,
        parameters: Any = None,
        *,
        fingerprint: str = "",
        parents: ParentConfig | None = None,
    ) -> None:
        if isinstance(parts, np.ndarray):
            raise ConfigError(
                f"vectors make no index: write `{type(self).__name__}.build(embeddings, doc_ids)`."
                f" Received: an array of {parts.shape}"
            )
        self._parts = tuple(parts)
        self._structure = structure
        self.doc_ids = np.array(doc_ids, dtype=object)
        self.shape: tuple[int, int] = (len(self.doc_ids), self._parts[0].shape[1])
        self.parameters = parameters
        self.fingerprint = fingerprint
        self.parents = parents

    def __repr__(self) -> str:
        count, numbers = self.shape
        return f"{type(self).__name__}({count:,} documents, {numbers} numbers)"

    def __len__(self) -> int:
        return self.shape[0]

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        return np.array(self.vectors(), dtype) if copy else np.asarray(self.vectors(), dtype)

    @classmethod
    @abstractmethod
    def _build(cls, parts: Sequence[Rows], parameters: Any) -> tuple[Sequence[Rows], Any, Any]:
        """Returns the vectors as the index shall keep them, their structure, its parameters."""

    @abstractmethod
    def search_positions(
        self, query_embeddings: np.ndarray, k: int
    ) -> tuple[np.ndarray, np.ndarray]:
        """Like `search`, with positions `(Q, K)` int64 in place of ids."""

    @abstractmethod
    def _write(self, directory: Path) -> None:
        """Writes vectors and structure."""

    @classmethod
    @abstractmethod
    def _read(cls, path: Path, parameters: Any) -> tuple[Sequence[Rows], Any]:
        """Returns vectors and structure that `_write` wrote."""

    @abstractmethod
    def __str__(self) -> str:
        """Returns how it searches, in a few words."""

    def parameters_for(self, rows: int) -> Any:
        """Returns the parameters with which this index of `rows` vectors would be built."""
        return self.parameters

    @classmethod
    def build(
        cls,
        embeddings: np.ndarray,
        doc_ids: Sequence[str],
        *,
        fingerprint: str = "",
        parents: ParentConfig | None = None,
        parameters: Any = None,
    ) -> Self:
        """Builds an index of embeddings in memory; what it finds is measured with `recall`.

        Args:
            embeddings: `(N, D)` floating.
            doc_ids: N ids in the same order.
            fingerprint: Of the model that encoded them.
            parents: How they have a share of their documents' parents, if they do.
            parameters: Of the engine; what is left open follows from N.

        Raises:
            MissingExtraError: the engine's library is not installed.
            ConfigError: embeddings empty or not finite, or parameters that do not fit them.
            MismatchError: not (N, D), or another number of ids than vectors.
            DataError: an id is no text, holds white space, or stands twice.
        """
        parts = [np.asarray(embeddings)]
        about: Any = {"fingerprint": fingerprint, "parents": parents}
        return cls._checked(parts, "embeddings", doc_ids, parameters, **about)

    @classmethod
    def from_embeddings(cls, embeddings: Embeddings, *, parameters: Any = None) -> Self:
        """Builds an index of a directory of embeddings.

        Raises:
            MissingExtraError, ConfigError, MismatchError, DataError: as of `build`.
        """
        about: Any = {"fingerprint": embeddings.fingerprint, "parents": embeddings.parents}
        parts, name = embeddings.shards(), str(embeddings.path)
        return cls._checked(parts, name, embeddings.doc_ids, parameters, **about)

    @classmethod
    def _checked(
        cls, parts: Sequence[Rows], name: str, doc_ids: Sequence[str], parameters: Any, **about: Any
    ) -> Self:
        for part in parts:
            check_embeddings(part, name)
        doc_ids = check_doc_ids(doc_ids, sum(map(len, parts)))
        own = cls.parameters_class or type(None)
        known = parameters is None or isinstance(parameters, own)
        require(known, "parameters", f"a {own.__name__}", parameters)
        parts, *structure = cls._build(parts, parameters)
        return cls(parts, doc_ids, *structure, **about)

    def rebuilt(self, parts: Sequence[Rows], doc_ids: Sequence[str] | np.ndarray) -> Self:
        """Returns an index of other vectors of the same model, built as this one was.

        Args:
            parts: Consecutive blocks of the vectors, each `(rows, D)` float32, finite.
            doc_ids: Ids that differ, in the order of the vectors.
        """
        parts, *structure = self._build(parts, self.parameters_for(len(doc_ids)))
        about: Any = {"fingerprint": self.fingerprint, "parents": self.parents}
        return type(self)(parts, doc_ids, *structure, **about)

    @typed
    def search(self, query_embeddings: np.ndarray, k: int) -> tuple[np.ndarray, np.ndarray]:
        """Returns the `k` documents of highest dot product, or those that the engine takes for it.

        Args:
            query_embeddings: `(Q, D)` floating; `(D,)` of one query.
            k: At least 1; K = min(k, N).

        Returns:
            scores `(Q, K)` float32, descending, ties in the order of the index, and doc_ids
            `(Q, K)` str; `(K,)` each for one query.

        Raises:
            ConfigError: `k` below 1, or a query is not finite.
            MismatchError: another dimension than the index.
        """

        def search(queries: np.ndarray, k: int) -> tuple[np.ndarray, np.ndarray]:
            scores, positions = self.search_positions(queries, k)
            return scores, self.doc_ids[positions]

        return search_one_or_many(search, query_embeddings, k)

    def vectors(self) -> np.ndarray:
        """Returns `(N, D)` float32, memory-mapped where they are so in one file of float32."""
        return in_memory(self._parts)

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
        vectors = self.vectors()
        if query_embeddings is None:
            query_embeddings = sample_queries(vectors, sample, seed)
        queries = check_queries(query_embeddings, k, self.shape[1])
        return measure_recall(self, vectors, queries, k)

    def save(self, output: str | Path, *, overwrite: bool = False) -> None:
        """Writes a new directory: `index.json`, `doc_ids.txt`, and the engine's own files.

        Raises:
            ConfigError: `output` is not empty without `overwrite`, or is a file.
            OSError: the disk is full.
        """

        def write(directory: Path) -> None:
            write_ids(directory / DOC_IDS, self.doc_ids)
            try:
                self._write(directory)
            except RuntimeError as error:  # so libraries in C++ say that the disk is full
                reason = f"the files of {self.kind} cannot be written ({error})"
                raise OSError(errno.EIO, reason, str(output)) from error

        rows, dim = self.shape
        manifest = {
            "kind": self.kind,
            "rows": rows,
            "dim": dim,
            "fingerprint": self.fingerprint,
            "parents": self.parents and dataclasses.asdict(self.parents),
        }
        if self.parameters is not None:
            manifest["parameters"] = dataclasses.asdict(self.parameters)
        write_index(output, manifest, write, overwrite=overwrite)

    @classmethod
    def load(cls, path: str | Path, *, verify: bool = True) -> Self:
        """Opens a saved index of this kind; what can stay on the disk stays there.

        Args:
            path: The directory.
            verify: Compare checksums (reads every file once), not only sizes.

        Raises:
            FileNotFoundError: no index there.
            MismatchError: an index of another kind, or one that was changed since it was built.
            CorruptError: a file is missing or differs.
        """
        if (Path(path) / CHANGES).is_file():
            raise MismatchError(
                f"{path}: was changed since it was built; `tfde.LiveIndex.open(PATH)` reads it as"
                " it is now."
            )
        return cls.as_built(path, verify=verify)

    @classmethod
    def as_built(cls, path: str | Path, *, verify: bool = True) -> Self:
        """Does what `load` does, without a look at changes made since."""
        path = Path(path)
        manifest = read_index(path, cls.kind, verify=verify)
        try:
            parameters = cls.parameters_of(manifest.get("parameters") or {})
        except ConfigError as error:
            raise CorruptError(f"{path / MANIFEST}: {error}") from error
        parts, structure = cls._read(path, parameters)
        return cls(
            parts,
            read_ids(path / DOC_IDS),
            structure,
            parameters,
            fingerprint=manifest["fingerprint"],
            parents=ParentConfig.from_manifest(manifest),
        )

    def saved_at(self, path: Path) -> Self:
        """Returns this index from where it was saved, so that its vectors need no memory.

        Raises:
            CorruptError: the files there are damaged.
        """
        return self.as_built(path, verify=False)

    @classmethod
    def parameters_of(cls, options: Mapping[str, Any]) -> Any:
        """Returns the engine's parameters from its options by name.

        Raises:
            ConfigError: an option that the engine does not have, or an impossible value.
        """
        if cls.parameters_class is None and not options:
            return None
        own = cls.parameters_class
        known = [] if own is None else [field.name for field in dataclasses.fields(own)]
        for name in options:
            rule = f"an option of {cls.kind}, which has {', '.join(known) or 'none'}"
            require(name in known, name, rule, options[name])
        return own and own(**options)


def index_class(kind: str) -> type[Index]:
    """Returns an engine by its kind, to build or to load one: its library is there.

    Raises:
        ConfigError: there is no such engine.
        MissingExtraError: the engine's library is not installed.
    """
    require(kind in ENGINES, "engine", f"one of {', '.join(ENGINES)}", kind)
    module, name, extra = ENGINES[kind]
    if extra is not None:
        require_extra(extra, f"engine {kind}")
    return getattr(importlib.import_module(module), name)


def open_index(path: str | Path, *, verify: bool = True) -> Index:
    """Opens the index of one directory, of any kind, without a look at changes made since.

    Args:
        path: The directory.
        verify: Compare checksums (reads every file once), not only sizes.

    Raises:
        FileNotFoundError: no index there.
        MismatchError: an index of a kind that this version does not know.
        CorruptError: a file is missing or differs.
    """
    path = Path(path)
    kind = read_manifest(path)["kind"]
    if kind not in ENGINES:
        rule = f"must be an index of kind {' or '.join(ENGINES)}"
        raise MismatchError(f"{path}: {rule}. Received: {kind!r}")
    return index_class(kind).as_built(path, verify=verify)
