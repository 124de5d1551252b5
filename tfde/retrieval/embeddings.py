"""A directory of embeddings: shards that can be memory-mapped, ids beside them, checksums."""

from __future__ import annotations

from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from tfde.config.model import ParentConfig
from tfde.errors import CorruptError
from tfde.storage.files import check_sha256, open_array, read_ids, read_json
from tfde.storage.rows import ScaledRows, in_memory

MANIFEST = "embeddings.json"
FORMAT = 1


class Embeddings:
    """The embeddings of a corpus as `encode_corpus` wrote them; use `Embeddings.open`.

    The vectors are memory-mapped: only what is read takes memory.

    Args:
        path: The directory.
        manifest: Content of its `embeddings.json`.
    """

    def __init__(self, path: Path, manifest: dict[str, Any]) -> None:
        self.path = path
        self.manifest = manifest
        self.fingerprint: str = manifest["fingerprint"]
        self.parents = ParentConfig.from_manifest(manifest)
        self.shape: tuple[int, int] = (manifest["rows"], manifest["dim"])
        self.dtype = np.dtype(manifest["dtype"])

    @classmethod
    def open(cls, path: str | Path) -> Embeddings:
        """Opens a directory and checks that its files have the sizes that were recorded.

        Raises:
            FileNotFoundError: no finished embeddings there.
            CorruptError: the manifest or a shard is damaged; `verify` looks closer.
        """
        path = Path(path)
        if not (path / MANIFEST).is_file():
            hint = (
                " (unfinished: encode again to resume)" if (path / "encoding.json").exists() else ""
            )
            raise FileNotFoundError(f"{path}: no {MANIFEST} there{hint}.")
        manifest = read_json(path / MANIFEST)
        missing = {"format", "rows", "dim", "dtype", "fingerprint", "shards"} - set(manifest)
        if missing or manifest["format"] != FORMAT:
            what = f"has no {sorted(missing)[0]!r}" if missing else "has another format"
            raise CorruptError(f"{path / MANIFEST}: {what}; expected format {FORMAT}.")
        embeddings = cls(path, manifest)
        if sum(shard["rows"] for shard in manifest["shards"]) != manifest["rows"]:
            raise CorruptError(f"{path / MANIFEST}: rows of the shards do not add up.")
        embeddings.shards()
        return embeddings

    def shards(self) -> list[np.ndarray | ScaledRows]:
        """Returns the shards in order, each `(rows, D)`, memory-mapped; int8 reads as float32.

        Raises:
            CorruptError: a shard is missing or has another shape than recorded.
        """
        arrays: list[np.ndarray | ScaledRows] = []
        for shard in self.manifest["shards"]:
            file = self.path / f"{shard['name']}.npy"
            array = _open_checked(file, (shard["rows"], self.shape[1]), self.dtype)
            if self.dtype != np.int8:
                arrays.append(array)
                continue
            file = self.path / f"{shard['name']}.scales.npy"
            scales = _open_checked(file, (shard["rows"],), np.dtype(np.float32))
            arrays.append(ScaledRows(array, scales))
        return arrays

    @cached_property
    def doc_ids(self) -> list[str]:
        """Document ids in the order of the vectors.

        Raises:
            CorruptError: a file of ids holds another number of lines than its shard rows.
        """
        return [doc_id for number in range(self.num_shards) for doc_id in self.shard_ids(number)]

    @property
    def num_shards(self) -> int:
        """How many shards there are."""
        return len(self.manifest["shards"])

    def shard_ids(self, number: int) -> list[str]:
        """Returns the document ids of one shard.

        Raises:
            CorruptError: as `doc_ids`.
        """
        shard = self.manifest["shards"][number]
        file = self.path / f"{shard['name']}.ids.txt"
        if not file.is_file():
            raise CorruptError(f"{file}: is missing.")
        ids = read_ids(file)
        if len(ids) != shard["rows"]:
            raise CorruptError(f"{file}: must hold {shard['rows']} ids. Received: {len(ids)}")
        return ids

    def read(self) -> np.ndarray:
        """Returns all vectors, `(N, D)` float32, in memory."""
        return in_memory(self.shards())

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        """Returns what `read` does, for `numpy.asarray`."""
        return self.read().astype(dtype or np.float32, copy=False)

    def verify(self) -> None:
        """Compares every file with its checksum.

        Raises:
            CorruptError: a file is missing or differs; the message names it.
        """
        for shard in self.manifest["shards"]:
            check_sha256(self.path / f"{shard['name']}.npy", shard["sha256"])
            if "scales_sha256" in shard:
                check_sha256(self.path / f"{shard['name']}.scales.npy", shard["scales_sha256"])
            check_sha256(self.path / f"{shard['name']}.ids.txt", shard["ids_sha256"])

    def __len__(self) -> int:
        return self.shape[0]

    def __repr__(self) -> str:
        return (
            f"Embeddings({str(self.path)!r}, shape={self.shape}, dtype={self.dtype},"
            f" fingerprint={self.fingerprint!r})"
        )


def _open_checked(file: Path, shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
    if not file.is_file():
        raise CorruptError(f"{file}: is missing.")
    array = open_array(file)
    if array.shape != shape or array.dtype != dtype:
        raise CorruptError(
            f"{file}: must hold {shape} {dtype}. Received: {array.shape} {array.dtype}"
        )
    return array
