"""Encoding a corpus to shards, streamed, and resumed where an earlier run was killed."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any, Literal, Protocol

import numpy as np
from tqdm import tqdm

from tfde.errors import ConfigError, CorruptError, MismatchError
from tfde.retrieval.embeddings import FORMAT, MANIFEST, Embeddings
from tfde.retrieval.files import (
    check_id,
    check_sha256,
    read_ids,
    read_json,
    sha256,
    write_array,
    write_ids,
    write_json,
)
from tfde.retrieval.scaled_rows import scale_rows
from tfde.types import Document

SETTINGS = "encoding.json"
_BATCHES_PER_WINDOW = 32


class DocumentEncoder(Protocol):
    """What `encode_corpus` needs of a model; `tfde.DualEncoder` has it."""

    @property
    def embedding_dim(self) -> int:
        """D, the length of an embedding."""
        ...

    def fingerprint(self) -> str:
        """Returns what changes with the model."""
        ...

    def encode_documents(self, documents: list[Document], *, batch_size: int) -> np.ndarray:
        """Returns `(N, D)` float32 in the order given."""
        ...


def encode_corpus(
    model: DocumentEncoder,
    documents: Iterable[Document],
    output: str | Path,
    *,
    shard_size: int = 20_000,
    batch_size: int = 64,
    dtype: Literal["float32", "float16", "int8"] = "float32",
    total: int | None = None,
    show_progress: bool = False,
) -> Embeddings:
    """Encodes documents to a directory of shards; called again, it resumes.

    Texts are sorted by length inside windows of 32 batches. A finished shard is not encoded
    again; its ids and texts are compared as the corpus streams by. At most one shard of texts is
    in memory. The files are those of an unbroken run, byte by byte.

    Args:
        model: A `tfde.DualEncoder`.
        documents: The corpus, in an order that is the same when resuming.
        output: The directory, new or of an interrupted run.
        shard_size: Documents a shard.
        batch_size: Documents a batch.
        dtype: Of the stored embeddings; int8 has a float32 scale for each vector.
        total: Number of documents, for the progress bar.
        show_progress: Whether a progress bar goes to stderr.

    Returns:
        The finished embeddings.

    Raises:
        ConfigError: an impossible setting, no documents, embeddings that are not finite, or
            `output` holds something else.
        MismatchError: `output` was begun with another model, setting or corpus.
        CorruptError: a finished shard is damaged.
        DataError: an id with white space.
    """
    output = Path(output)
    _check_settings(shard_size, batch_size, dtype)
    settings = {
        "format": FORMAT,
        "fingerprint": model.fingerprint(),
        "dim": model.embedding_dim,
        "dtype": dtype,
        "shard_size": shard_size,
        "batch_size": batch_size,
    }
    _begin(output, settings)
    shards: list[dict[str, Any]] = []
    stream = iter(documents)
    with tqdm(total=total, unit="doc", desc="encode", disable=not show_progress) as progress:
        for shard in _shards_of(stream, shard_size):
            name = f"shard-{len(shards):05d}"
            for line, document in enumerate(shard, start=1 + len(shards) * shard_size):
                check_id(document.doc_id, "documents", line)
            record = _finished(output, name, shard)
            if record is None:
                kept = np.dtype("float32" if dtype == "int8" else dtype)
                rows = _encode(model, shard, batch_size, kept, progress)
                record = _write_shard(output, name, shard, rows, dtype)
            else:
                progress.update(len(shard))
            shards.append({"name": name, **record})
    _refuse_leftovers(output, len(shards))
    if not shards:
        raise ConfigError("`documents` must hold at least one document. Received: none")
    rows_total = sum(record["rows"] for record in shards)
    write_json(output / MANIFEST, {**settings, "rows": rows_total, "shards": shards})
    return Embeddings.open(output)


def _check_settings(shard_size: int, batch_size: int, dtype: str) -> None:
    for name, value in (("shard_size", shard_size), ("batch_size", batch_size)):
        if value < 1:
            raise ConfigError(f"`{name}` must be at least 1. Received: {value}")
    if dtype not in ("float32", "float16", "int8"):
        raise ConfigError(f"`dtype` must be float32, float16 or int8. Received: {dtype!r}")


def _begin(output: Path, settings: dict[str, Any]) -> None:
    """Notes the settings, or compares them with those of the run that is resumed."""
    if not (output / SETTINGS).exists():
        if output.exists() and (not output.is_dir() or _foreign_files(output)):
            raise ConfigError(f"{output}: exists and holds no embeddings; choose a new directory.")
        output.mkdir(parents=True, exist_ok=True)
        write_json(output / SETTINGS, settings)
        return
    begun = read_json(output / SETTINGS)
    for name, value in settings.items():
        if begun.get(name) != value:
            raise MismatchError(
                f"{output}: was begun with {name}={begun.get(name)!r}; it cannot be resumed with"
                f" {name}={value!r}."
            )
    for left_by_a_killed_run in output.glob(".*.tmp*"):
        left_by_a_killed_run.unlink()


def _foreign_files(output: Path) -> bool:
    return any(not (file.name.startswith(".") and ".tmp" in file.name) for file in output.iterdir())


def _shards_of(stream: Iterator[Document], shard_size: int) -> Iterator[list[Document]]:
    while shard := list(islice(stream, shard_size)):
        yield shard


def _finished(output: Path, name: str, documents: list[Document]) -> dict[str, Any] | None:
    """Returns the record of a shard that an earlier run finished from the same documents."""
    if not (output / f"{name}.json").exists():
        return None
    record = read_json(output / f"{name}.json")
    if not {"rows", "sha256", "ids_sha256", "source_sha256"} <= set(record):
        raise CorruptError(f"{output / f'{name}.json'}: is no record of a shard.")
    check_sha256(output / f"{name}.npy", record["sha256"])
    if "scales_sha256" in record:
        check_sha256(output / f"{name}.scales.npy", record["scales_sha256"])
    check_sha256(output / f"{name}.ids.txt", record["ids_sha256"])
    if record["source_sha256"] == _source_sha256(documents):
        return record
    before = read_ids(output / f"{name}.ids.txt")
    now = [document.doc_id for document in documents]
    if before == now:
        raise MismatchError(f"{output}: {name} was encoded from other texts under the same ids.")
    row = next(
        (row for row, (old, new) in enumerate(zip(before, now, strict=False)) if old != new),
        min(len(before), len(now)),
    )
    old, new = (repr(ids[row]) if row < len(ids) else "no document" for ids in (before, now))
    raise MismatchError(
        f"{output}: {name} was encoded from another corpus: row {row} was {old}, now {new}."
    )


def _source_sha256(documents: list[Document]) -> str:
    digest = hashlib.sha256()
    for document in documents:
        for field in document:
            content = field.encode()
            digest.update(len(content).to_bytes(8, "little"))
            digest.update(content)
    return digest.hexdigest()


def _encode(
    model: DocumentEncoder,
    documents: list[Document],
    batch_size: int,
    dtype: np.dtype,
    progress: Any,
) -> np.ndarray:
    rows = np.empty((len(documents), model.embedding_dim), dtype)
    window = batch_size * _BATCHES_PER_WINDOW
    for start in range(0, len(documents), window):
        group = documents[start : start + window]
        embeddings = model.encode_documents(group, batch_size=batch_size)
        finite = np.isfinite(embeddings.astype(dtype)).all(axis=1)
        if not finite.all():
            doc_id = group[int(np.argmin(finite))].doc_id
            raise ConfigError(
                f"embeddings must be finite in {dtype}. Received: document {doc_id!r}"
            )
        rows[start : start + len(group)] = embeddings
        progress.update(len(group))
    return rows


def _write_shard(
    output: Path, name: str, documents: list[Document], rows: np.ndarray, dtype: str
) -> dict[str, Any]:
    scales_record = {}
    if dtype == "int8":
        rows, scales = scale_rows(rows)
        write_array(output / f"{name}.scales.npy", scales)
        scales_record = {"scales_sha256": sha256(output / f"{name}.scales.npy")}
    write_array(output / f"{name}.npy", rows)
    write_ids(output / f"{name}.ids.txt", (document.doc_id for document in documents))
    record = {
        "rows": len(documents),
        "sha256": sha256(output / f"{name}.npy"),
        "ids_sha256": sha256(output / f"{name}.ids.txt"),
        "source_sha256": _source_sha256(documents),
        **scales_record,
    }
    # Last: a shard counts as finished once its record is there.
    write_json(output / f"{name}.json", record)
    return record


def _refuse_leftovers(output: Path, shards: int) -> None:
    for file in sorted(output.glob("shard-*.json")):
        if int(file.stem.removeprefix("shard-")) >= shards:
            raise MismatchError(
                f"{output}: {file.stem} was encoded from a longer corpus than this one."
            )
