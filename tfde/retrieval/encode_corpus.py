"""Encoding a corpus to shards, streamed, and resumed where an earlier run was killed."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path
from typing import Any, cast

from tfde.argument_types import typed
from tfde.config.model import ParentConfig
from tfde.data.batched import batched
from tfde.errors import require
from tfde.progress import progress_bar
from tfde.retrieval.embeddings import Embeddings
from tfde.retrieval.embeddings_writer import (
    DocumentEncoder,
    EmbeddingDtype,
    EmbeddingsWriter,
    precision_setting,
)
from tfde.retrieval.parents import ParentEncoder, ParentModel, in_parents
from tfde.types import Document


@typed
def encode_corpus(
    model: DocumentEncoder,
    documents: Iterable[Document],
    output: str | Path,
    *,
    shard_size: int = 10_000,
    batch_size: int = 64,
    dtype: EmbeddingDtype = "float32",
    parents: ParentConfig | None = None,
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
        parents: Embeddings are to have a share of what the documents are parts of; `model` must
            then be a `tfde.DualEncoder`.
        total: Number of documents, for the progress bar.
        show_progress: Whether a progress bar goes to stderr.

    Returns:
        The finished embeddings.

    Raises:
        ConfigError: an impossible setting, no documents, embeddings that are not finite, or
            `output` holds something else, or another process encodes into it now.
        MismatchError: `output` was begun with another model, setting or corpus.
        CorruptError: a finished shard is damaged.
        DataError: an id with white space.
    """
    documents = map(_checked, documents)
    settings: dict[str, Any] = precision_setting(getattr(model, "precision", "float32"))
    if parents is not None:
        settings["parents"] = asdict(parents)
        model = ParentEncoder(cast(ParentModel, model), parents)
        documents = in_parents(documents, parents.separator)
    writer = EmbeddingsWriter(
        output,
        fingerprint=model.fingerprint(),
        dim=model.embedding_dim,
        shard_size=shard_size,
        batch_size=batch_size,
        dtype=dtype,
        settings=settings,
    )
    shards = 0
    with (
        writer.begin(),
        progress_bar(total=total, unit="doc", desc="encode", disable=not show_progress) as progress,
    ):
        for shard in batched(documents, shard_size):
            writer.write(shards, shard, model, done=progress.update)
            shards += 1
        return writer.finish(shards)


def _checked(document: Document) -> Document:
    require(
        isinstance(document, Document),
        "documents",
        "of tfde.Document(doc_id, title, text), which bring their ids",
        document,
    )
    return document
