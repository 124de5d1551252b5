"""A directory of embeddings while it is made: shard by shard, by one process or by many."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal, Protocol

import numpy as np

from tfde.errors import ConfigError, CorruptError, MismatchError, require
from tfde.retrieval.embeddings import FORMAT, MANIFEST, Embeddings
from tfde.retrieval.index_directory import LARGEST
from tfde.storage.atomic import directory_lock, make_directories, remove_left
from tfde.storage.files import (
    check_id,
    check_sha256,
    read_ids,
    read_json,
    sha256,
    write_array,
    write_ids,
    write_json,
)
from tfde.storage.resumable_file import first_difference
from tfde.storage.rows import scale_rows
from tfde.types import Document

EmbeddingDtype = Literal["float32", "float16", "int8"]
SETTINGS = "encoding.json"
_USUAL = "float32"
BATCHES_PER_WINDOW = 32  # texts are sorted by length within one


class DocumentEncoder(Protocol):
    """What encoding a corpus needs of a model; `tfde.DualEncoder` has it."""

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


def precision_setting(precision: str) -> dict[str, str]:
    """Returns what a model computes in as a setting of `EmbeddingsWriter`.

    A model has one fingerprint in all precisions, for queries in one may search documents in
    another; a directory holds embeddings of one.
    """
    return {} if precision == _USUAL else {"precision": precision}


class EmbeddingsWriter:
    """Encodes shards of a corpus, each once, and makes them one directory.

    Shards can be written in any order and by several processes; the bytes are the same.

    Args:
        output: The directory, new or of an interrupted run.
        fingerprint: Of the model.
        dim: D, the length of an embedding.
        shard_size: Documents a shard.
        batch_size: Documents a batch.
        dtype: Of the stored embeddings; int8 has a float32 scale for each vector.
        settings: What else decides about the embeddings, as JSON values; it goes into the
            manifest, and a run with others does not resume.

    Raises:
        ConfigError: an impossible setting.
    """

    def __init__(
        self,
        output: str | Path,
        *,
        fingerprint: str,
        dim: int,
        shard_size: int = 10_000,
        batch_size: int = 64,
        dtype: EmbeddingDtype = "float32",
        settings: Mapping[str, Any] = MappingProxyType({}),
    ) -> None:
        for name, value in (("shard_size", shard_size), ("batch_size", batch_size)):
            require(value >= 1, name, "at least 1", value)
        known = dtype in ("float32", "float16", "int8")
        require(known, "dtype", "float32, float16 or int8", dtype)
        self._output = Path(output)
        self.shard_size = shard_size
        self._batch_size = batch_size
        self._dtype = dtype
        self._settings = {
            "format": FORMAT,
            "fingerprint": fingerprint,
            "dim": dim,
            "dtype": dtype,
            "shard_size": shard_size,
            "batch_size": batch_size,
            **settings,
        }

    @contextmanager
    def begin(self) -> Iterator[None]:
        """Notes the settings, or compares them with those of a killed run, and keeps others out.

        Raises:
            ConfigError: the output holds something else, or another process encodes into it now.
            MismatchError: it was begun with another model or setting.
        """
        output = self._output
        foreign = output.exists() and (not output.is_dir() or any(output.glob("[!.]*")))
        if foreign and not (output / SETTINGS).exists():
            raise ConfigError(f"{output}: exists and holds no embeddings; choose a new directory.")
        make_directories(output)
        with directory_lock(output, "encoding into it"):
            if any(output.glob("shard-*.json")):
                self._take_up(read_json(output / SETTINGS))
            else:  # a run that failed before its first shard leaves nothing to go on with
                write_json(output / SETTINGS, self._settings)
            yield

    def write(
        self,
        number: int,
        documents: Sequence[Document],
        model: DocumentEncoder,
        *,
        done: Callable[[int], object] = lambda count: None,
    ) -> None:
        """Encodes a shard and writes it, unless it was finished earlier from the same documents.

        Args:
            number: The shard's place, from 0.
            documents: `shard_size` documents, fewer in the last shard.
            model: Encodes them.
            done: Is told of each so many documents that are done.

        Raises:
            ConfigError: embeddings that are not finite.
            MismatchError: the shard was finished from other documents.
            CorruptError: the finished shard is damaged.
            DataError: an id with white space.
        """
        name = _name(number)
        for line, document in enumerate(documents, start=1 + number * self.shard_size):
            check_id(document.doc_id, "documents", line)
        if self._finished(name, documents):
            done(len(documents))
            return
        self._write_shard(name, documents, self._encode(documents, model, done))

    def finish(self, shards: int) -> Embeddings:
        """Writes the manifest that makes the shards a whole.

        Args:
            shards: How many there are.

        Raises:
            ConfigError: there is no shard.
            MismatchError: an earlier run left more shards than that.
            CorruptError: a shard is missing.
        """
        for file in sorted(self._output.glob("shard-*.json")):
            if int(file.stem.removeprefix("shard-")) >= shards:
                raise MismatchError(
                    f"{self._output}: {file.stem} was encoded from a longer corpus than this one."
                )
        if not shards:
            raise ConfigError("`documents` must hold at least one document. Received: none")
        records = []
        for name in map(_name, range(shards)):
            if not (self._output / f"{name}.json").is_file():
                raise CorruptError(f"{self._output / f'{name}.json'}: is missing.")
            records.append({"name": name, **read_json(self._output / f"{name}.json")})
        rows = sum(record["rows"] for record in records)
        write_json(self._output / MANIFEST, {**self._settings, "rows": rows, "shards": records})
        return Embeddings.open(self._output)

    def _take_up(self, begun: Mapping[str, Any]) -> None:
        odd = first_difference(begun, self._settings)
        if odd:
            raise MismatchError(
                f"{self._output}: was begun otherwise: {odd}; give the command with which it was"
                " begun, or choose another directory."
            )
        remove_left(self._output)

    def _finished(self, name: str, documents: Sequence[Document]) -> bool:
        """Returns whether an earlier run finished the shard from the same documents."""
        output = self._output
        if not (output / f"{name}.json").exists():
            return False
        record = read_json(output / f"{name}.json")
        if not {"rows", "sha256", "ids_sha256", "source_sha256"} <= set(record):
            raise CorruptError(f"{output / f'{name}.json'}: is no record of a shard.")
        check_sha256(output / f"{name}.npy", record["sha256"])
        if "scales_sha256" in record:
            check_sha256(output / f"{name}.scales.npy", record["scales_sha256"])
        check_sha256(output / f"{name}.ids.txt", record["ids_sha256"])
        if record["source_sha256"] == _source_sha256(documents):
            return True
        before = read_ids(output / f"{name}.ids.txt")
        now = [document.doc_id for document in documents]
        if before == now:
            raise MismatchError(
                f"{output}: {name} was encoded from other texts under the same ids;"
                " remove the directory, or choose another."
            )
        row = next(
            (row for row, (old, new) in enumerate(zip(before, now, strict=False)) if old != new),
            min(len(before), len(now)),
        )
        old, new = (repr(ids[row]) if row < len(ids) else "no document" for ids in (before, now))
        raise MismatchError(
            f"{output}: {name} was encoded from another corpus: row {row} was {old}, now {new}."
        )

    def _encode(
        self, documents: Sequence[Document], model: DocumentEncoder, done: Callable[[int], object]
    ) -> np.ndarray:
        """Returns the shard's rows; texts are sorted by length inside windows."""
        dtype = np.dtype("float32" if self._dtype == "int8" else self._dtype)
        rows = np.empty((len(documents), model.embedding_dim), dtype)
        window = self._batch_size * BATCHES_PER_WINDOW
        for start in range(0, len(documents), window):
            group = list(documents[start : start + window])
            rows[start : start + len(group)] = encode_finite(
                model, group, batch_size=self._batch_size, dtype=dtype
            )
            done(len(group))
        return rows

    def _write_shard(self, name: str, documents: Sequence[Document], rows: np.ndarray) -> None:
        output, scales_record = self._output, {}
        if self._dtype == "int8":
            rows, scales = scale_rows(rows)
            write_array(output / f"{name}.scales.npy", scales)
            scales_record = {"scales_sha256": sha256(output / f"{name}.scales.npy")}
        write_array(output / f"{name}.npy", rows)
        write_ids(output / f"{name}.ids.txt", (document.doc_id for document in documents))
        record: dict[str, Any] = {
            "rows": len(documents),
            "sha256": sha256(output / f"{name}.npy"),
            "ids_sha256": sha256(output / f"{name}.ids.txt"),
            "source_sha256": _source_sha256(documents),
            **scales_record,
        }
        # Last: a shard counts as finished once its record is there.
        write_json(output / f"{name}.json", record)


def encode_finite(
    model: DocumentEncoder, documents: list[Document], *, batch_size: int, dtype: np.dtype
) -> np.ndarray:
    """Returns the embeddings of documents, (N, D) in `dtype`.

    Raises:
        ConfigError: one is not finite in it, or too large to be searched.
    """
    embeddings = model.encode_documents(documents, batch_size=batch_size)
    with np.errstate(over="ignore"):  # said below
        embeddings = embeddings.astype(dtype, copy=False)
    sizes = np.abs(embeddings).max(axis=1).astype(np.float64)  # float16 has no 1e9
    good = sizes <= LARGEST  # not so NaN
    if not good.all():
        row = int(np.argmin(good))
        rule = f"at most {LARGEST:g}" if np.isfinite(sizes[row]) else f"finite in {dtype}"
        doc_id = documents[row].doc_id
        raise ConfigError(f"embeddings must be {rule}. Received: document {doc_id!r}")
    return embeddings


def _name(number: int) -> str:
    return f"shard-{number:05d}"


def _source_sha256(documents: Sequence[Document]) -> str:
    digest = hashlib.sha256()
    for document in documents:
        # Texts beside these are hashed where there are some, as before there were such things.
        others = document.context, getattr(document, "parent_text", None)
        for field in (*document[:3], *(text for text in others if isinstance(text, str))):
            content = field.encode()
            digest.update(len(content).to_bytes(8, "little"))
            digest.update(content)
    return digest.hexdigest()
