"""What the directories of all indexes share: manifest, ids, checksums; and common checks."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from tfde.errors import ConfigError, CorruptError, DataError, MismatchError, require
from tfde.storage.atomic import LOCK, atomic_directory, directory_lock
from tfde.storage.files import check_id, check_sha256, read_json, sha256, write_json
from tfde.storage.rows import Rows

MANIFEST = "index.json"
DOC_IDS = "doc_ids.txt"
VECTORS = "vectors.npy"
CHANGES = "changes.sqlite"  # made since the index was built
FORMAT = 1
CHANGING = "changing this index"
# Far above any embedding. ScaNN misses neighbours from 1e15 on and aborts the process at 1e30, for
# what it computes of such numbers is beyond float32; so are dot products from 1e19 on.
LARGEST = 1e9
_ROWS_AT_ONCE = 65_536


def write_index(
    output: str | Path,
    manifest: dict[str, Any],
    write: Callable[[Path], None],
    *,
    overwrite: bool = False,
) -> None:
    """Lets `write` fill a temporary directory, adds the manifest, and renames it to `output`.

    Raises:
        ConfigError: `output` is a file, or a directory that is not empty without `overwrite`; or
            it is to replace an index that another process is changing.
    """
    with contextlib.ExitStack() as stack:
        if overwrite and any((Path(output) / name).is_file() for name in (MANIFEST, LOCK)):
            stack.enter_context(directory_lock(Path(output), CHANGING))
        temporary = stack.enter_context(atomic_directory(output, overwrite=overwrite))
        write(temporary)
        files = {
            str(file.relative_to(temporary)): {"bytes": file.stat().st_size, "sha256": sha256(file)}
            for file in sorted(temporary.rglob("*"))
            if file.is_file()
        }
        write_json(temporary / MANIFEST, {"format": FORMAT, **manifest, "files": files})


def read_manifest(path: Path) -> dict[str, Any]:
    """Returns the manifest of an index, whose files it lists.

    Raises:
        FileNotFoundError: no index there.
        CorruptError: it lacks a field, or names a file elsewhere.
    """
    if not (path / MANIFEST).is_file():
        raise FileNotFoundError(f"{path}: no {MANIFEST} there.")
    manifest = read_json(path / MANIFEST)
    missing = {"format", "kind", "rows", "dim", "fingerprint", "files"} - set(manifest)
    if missing or manifest["format"] != FORMAT:
        what = f"has no {sorted(missing)[0]!r}" if missing else "has another format"
        raise CorruptError(f"{path / MANIFEST}: {what}; expected format {FORMAT}.")
    for name in manifest["files"]:
        if Path(name).is_absolute() or ".." in Path(name).parts:
            raise CorruptError(f"{path / MANIFEST}: names a file outside of {path}: {name!r}")
    return manifest


def read_index(path: Path, kind: str | None = None, *, verify: bool) -> dict[str, Any]:
    """Returns the manifest after comparing all files with it.

    Args:
        path: The directory.
        kind: Which engine's it must be; `None` takes any.
        verify: Compare checksums, not only sizes.

    Raises:
        FileNotFoundError: no index there.
        MismatchError: an index of another kind.
        CorruptError: a file is missing or differs.
    """
    manifest = read_manifest(path)
    if kind is not None and manifest["kind"] != kind:
        raise MismatchError(
            f"{path}: must be an index of kind {kind}. Received: {manifest['kind']!r}"
        )
    for name, recorded in manifest["files"].items():
        file = path / name
        if verify:
            check_sha256(file, recorded["sha256"])
        elif not file.is_file() or file.stat().st_size != recorded["bytes"]:
            raise CorruptError(f"{file}: must have {recorded['bytes']} bytes.")
    return manifest


def index_bytes(path: Path) -> int:
    """Returns how many bytes the files of an index have, without its manifest."""
    return sum(file["bytes"] for file in read_manifest(path)["files"].values())


def copy_index(path: Path, target: Path) -> None:
    """Copies the files of an index, and no others, to a directory that is there."""
    for name in (*read_manifest(path)["files"], MANIFEST):
        (target / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path / name, target / name)


def remove_index(path: Path) -> None:
    """Removes the files of an index, and no others; the manifest last, so that a kill leaves it."""
    for name in read_manifest(path)["files"]:
        (path / name).unlink(missing_ok=True)
        if (path / name).parent != path:
            with contextlib.suppress(OSError):  # not empty yet, or gone
                (path / name).parent.rmdir()
    (path / MANIFEST).unlink()


def check_embeddings(embeddings: Rows, name: str = "embeddings") -> None:
    """Refuses what is not a matrix of finite numbers of which scores can be computed.

    Raises:
        MismatchError: not two axes.
        ConfigError: empty, not finite, or a number beyond `LARGEST` (the message names the first
            such row).
    """
    if embeddings.ndim != 2:
        raise MismatchError(f"`{name}` must be (rows, dim). Received: shape {embeddings.shape}")
    if 0 in embeddings.shape:
        raise ConfigError(f"`{name}` must not be empty. Received: shape {embeddings.shape}")
    for start in range(0, len(embeddings), _ROWS_AT_ONCE):
        block = np.asarray(embeddings[start : start + _ROWS_AT_ONCE])
        if float(block.min()) >= -LARGEST and float(block.max()) <= LARGEST:  # not so with a NaN
            continue
        sizes = np.abs(block).max(axis=1).astype(np.float64)
        row = int(np.argmin(sizes <= LARGEST))
        rule = f"at most {LARGEST:g} in size" if np.isfinite(sizes[row]) else "finite"
        raise ConfigError(f"`{name}` must be {rule}. Received: row {start + row}")


def search_one_or_many(
    search: Callable[[np.ndarray, int], tuple[np.ndarray, np.ndarray]],
    query_embeddings: np.ndarray,
    k: int,
) -> tuple[np.ndarray, np.ndarray]:
    """Returns what `search` finds for (Q, D) queries; for (D,), one alone, without the axis of Q.

    Raises:
        ConfigError: texts in the place of embeddings.
    """
    queries = np.asarray(query_embeddings)
    rule = "embeddings, as `model.encode_queries(texts)` gives them"
    require(queries.dtype.kind not in "USO", "query_embeddings", rule, query_embeddings)
    if queries.ndim != 1:
        return search(queries, k)
    scores, doc_ids = search(queries[None], k)
    return scores[0], doc_ids[0]


def check_queries(query_embeddings: np.ndarray, k: int, dim: int) -> np.ndarray:
    """Returns the queries as contiguous float32 `(Q, D)`; Q may be 0.

    Raises:
        ConfigError: `k` below 1, or a query is not finite.
        MismatchError: another dimension than the index.
    """
    require(k >= 1, "k", "at least 1", k)
    queries = np.ascontiguousarray(query_embeddings, np.float32)
    if queries.ndim != 2 or queries.shape[1] != dim:
        raise MismatchError(
            f"`query_embeddings` must be (queries, {dim}), the index's dimension."
            f" Received: shape {queries.shape}"
        )
    if len(queries):
        check_embeddings(queries, "query_embeddings")
    return queries


def check_doc_ids(doc_ids: Sequence[str], rows: int) -> list[str]:
    """Returns the ids as a list.

    Raises:
        MismatchError: another number of ids than vectors.
        DataError: an id is no text, holds white space, or stands twice.
    """
    doc_ids = list(doc_ids)
    if len(doc_ids) != rows:
        raise MismatchError(
            f"`doc_ids` must name each of the {rows} vectors. Received: {len(doc_ids)} ids"
        )
    seen = set()
    for number, doc_id in enumerate(doc_ids, start=1):
        if check_id(doc_id, "doc_ids", number) in seen:
            raise DataError("doc_ids", number, "a document id must be unique.", doc_id)
        seen.add(doc_id)
    return doc_ids
