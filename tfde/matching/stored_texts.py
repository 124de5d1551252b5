"""The vectors of second texts, computed beforehand: in memory, and as a directory."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from tfde.errors import ConfigError, CorruptError, MismatchError, require
from tfde.storage.atomic import atomic_directory
from tfde.storage.files import (
    check_id,
    check_sha256,
    open_array,
    read_ids,
    read_json,
    sha256,
    write_array,
    write_ids,
    write_json,
)
from tfde.storage.rows import ScaledRows, scale_rows

_MANIFEST = "stored_texts.json"
_DOC_IDS, _VECTORS, _OFFSETS = "doc_ids.txt", "vectors.npy", "offsets.npy"
_SCALES = "scales.npy"  # beside vectors of int8
_FORMAT = 2


class StoredTexts:
    """So many vectors of each of N texts, one text's behind the other's.

    Made by `Matcher.store`, or `load`.

    Args:
        vectors: (T, D) float32, float16 or `ScaledRows` (int8), of all texts.
        offsets: (N + 1,) int64; those of text i are `vectors[offsets[i]:offsets[i + 1]]`.
        doc_ids: N ids in the order of the texts.
        kind: Of matcher, that computed the vectors (see `tfde.MatcherConfig`).
        fingerprint: Of that model.

    Raises:
        MismatchError: offsets, ids and vectors do not belong together.
        ConfigError: an id stands twice.
        DataError: an id is empty or holds white space.
    """

    def __init__(
        self,
        vectors: np.ndarray | ScaledRows,
        offsets: np.ndarray,
        doc_ids: Sequence[str],
        *,
        kind: str,
        fingerprint: str,
    ) -> None:
        if len(offsets) != len(doc_ids) + 1 or offsets[0] != 0 or offsets[-1] != len(vectors):
            raise MismatchError(
                f"`offsets` must lead from 0 to the {len(vectors)} vectors in {len(doc_ids)}"
                f" texts. Received: {len(offsets)} offsets, the last one {offsets[-1]}"
            )
        self.vectors = vectors
        self.offsets = offsets
        self.doc_ids = [check_id(doc_id, "doc_ids", n) for n, doc_id in enumerate(doc_ids, start=1)]
        self.kind = kind
        self.fingerprint = fingerprint
        self._rows = {doc_id: row for row, doc_id in enumerate(self.doc_ids)}
        if len(self._rows) < len(self.doc_ids):
            twice = Counter(self.doc_ids).most_common(1)[0][0]
            raise ConfigError(f"`doc_ids` must be all different. Received: {twice!r} twice")

    def __repr__(self) -> str:
        return f"StoredTexts({len(self):,} documents, {len(self.vectors):,} vectors)"

    def __len__(self) -> int:
        return len(self.doc_ids)

    def row(self, doc_id: str) -> int:
        """Returns the number of a text.

        Raises:
            MismatchError: there is no text of this id.
        """
        if doc_id not in self._rows:
            raise MismatchError(f"`doc_id` must be that of a stored text. Received: {doc_id!r}")
        return self._rows[doc_id]

    def padded(self, rows: Sequence[int]) -> tuple[np.ndarray, np.ndarray]:
        """Returns the vectors of some texts as the interaction takes them.

        Args:
            rows: B numbers of texts.

        Returns:
            vectors (B, V, D) float32, zeros at padding, and mask (B, V) int32.
        """
        starts, stops = self.offsets[list(rows)], self.offsets[[row + 1 for row in rows]]
        counts = stops - starts
        longest = max(int(counts.max(initial=0)), 1)
        vectors = np.zeros((len(rows), longest, self.vectors.shape[1]), np.float32)
        for place, (start, stop) in enumerate(zip(starts, stops, strict=True)):
            vectors[place, : stop - start] = self.vectors[start:stop]
        return vectors, (np.arange(longest) < counts[:, None]).astype(np.int32)

    def save(self, path: str | Path, *, overwrite: bool = False) -> None:
        """Writes a directory; whole or not.

        Raises:
            ConfigError: the directory is not empty, without `overwrite`.
        """
        with atomic_directory(path, overwrite=overwrite) as temporary:
            write_ids(temporary / _DOC_IDS, self.doc_ids)
            arrays = {_OFFSETS: self.offsets}
            if isinstance(self.vectors, ScaledRows):
                arrays |= {_VECTORS: self.vectors.integers, _SCALES: self.vectors.scales}
            else:
                arrays[_VECTORS] = self.vectors
            for name, array in arrays.items():
                write_array(temporary / name, array)
            files = {name: sha256(temporary / name) for name in (_DOC_IDS, *arrays)}
            manifest = {
                "format": _FORMAT,
                "kind": self.kind,
                "fingerprint": self.fingerprint,
                "files": files,
            }
            write_json(temporary / _MANIFEST, manifest)

    @classmethod
    def load(cls, path: str | Path, *, verify: bool = True) -> StoredTexts:
        """Opens what `save` wrote; vectors are mapped, not read.

        Args:
            path: The directory.
            verify: Compare checksums, which reads every file once.

        Raises:
            CorruptError: a file is missing or differs; another format.
        """
        path = Path(path)
        if not (path / _MANIFEST).is_file():
            raise CorruptError(f"{path}: holds no {_MANIFEST}, so no stored texts.")
        manifest = read_json(path / _MANIFEST)
        if manifest.get("format") != _FORMAT:
            raise CorruptError(
                f"{path / _MANIFEST}: `format` must be {_FORMAT}."
                f" Received: {manifest.get('format')}"
            )
        if verify:
            for name, expected in manifest["files"].items():
                check_sha256(path / name, expected)
        vectors: np.ndarray | ScaledRows = open_array(path / _VECTORS)
        if _SCALES in manifest["files"]:
            vectors = ScaledRows(
                open_array(path / _VECTORS), np.asarray(open_array(path / _SCALES))
            )
        return cls(
            vectors,
            np.asarray(open_array(path / _OFFSETS)),
            read_ids(path / _DOC_IDS),
            kind=str(manifest["kind"]),
            fingerprint=str(manifest["fingerprint"]),
        )


def check_stored_dtype(dtype: str) -> None:
    """Raises a `ConfigError` for another type than vectors are stored in."""
    known = dtype in ("float32", "float16", "int8")
    require(known, "dtype", "float32, float16 or int8", dtype)


def join_texts(
    parts: Sequence[np.ndarray], doc_ids: Sequence[str], *, dtype: str, kind: str, fingerprint: str
) -> StoredTexts:
    """Returns texts from the vectors (V, D) of each.

    Args:
        parts: One array a text.
        doc_ids: Their ids.
        dtype: `float32`, `float16` for half the bytes, or `int8` (a scale each) for a quarter.
        kind: Of matcher.
        fingerprint: Of the model.
    """
    require(len(parts) > 0, "documents", "not empty", parts)
    offsets = np.cumsum([0, *(len(part) for part in parts)], dtype=np.int64)
    vectors = np.concatenate(parts)
    stored = (
        ScaledRows(*scale_rows(vectors)) if dtype == "int8" else vectors.astype(dtype, copy=False)
    )
    return StoredTexts(stored, offsets, doc_ids, kind=kind, fingerprint=fingerprint)
