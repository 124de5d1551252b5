"""Corpus -> embeddings: shards of documents, each encoded by whoever is free."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import apache_beam as beam
from apache_beam.options.pipeline_options import PipelineOptions
from apache_beam.pvalue import AsList, PCollection, TaggedOutput
from apache_beam.utils.shared import Shared

from tfde.beam.dead_letters import BAD, DeadLetter, DeadLetters, write_dead_letters
from tfde.beam.run_pipeline import run_pipeline
from tfde.data.batched import batched
from tfde.data.dataset_directory import DatasetDirectory
from tfde.export.bundle_directory import precision_of_bundle, read_manifest
from tfde.retrieval.embeddings import Embeddings
from tfde.retrieval.embeddings_writer import EmbeddingDtype, EmbeddingsWriter, precision_setting
from tfde.types import CONTEXT, Document

# Number of a shard, and title and text of its documents with their ids.
Shard = tuple[int, list[tuple[Any, ...]]]


class ReadShards(beam.DoFn):
    """The path of a dataset directory -> the shards of its corpus, in order.

    A packed corpus has to be read by one worker; that is a thousand times faster than encoding.

    Args:
        shard_size: Documents a shard.
        skip_bad: Whether bad records go to the output `BAD`.
    """

    def __init__(self, shard_size: int, *, skip_bad: bool) -> None:
        self._shard_size = shard_size
        self._skip_bad = skip_bad

    def process(self, path: str) -> Iterator[Shard | TaggedOutput]:
        """Yields the shards, then what was skipped."""
        bad = DeadLetters(skip_bad=self._skip_bad)
        documents = DatasetDirectory(path).documents_through(bad.intake)
        for number, shard in enumerate(batched(documents, self._shard_size)):
            # Plain tuples have a fast coder; a class of ours would be pickled, one by one.
            yield number, list(map(_row, shard))
        for letter in bad.letters:
            yield TaggedOutput(BAD, letter)


def _row(document: Document) -> tuple[Any, ...]:
    """Returns what a tower may read of a document."""
    context = document.context
    return document[:3] if context is None else (*document[:3], {CONTEXT: context})


class EncodeShards(beam.PTransform):
    """Shards -> their numbers, once their embeddings are written.

    Args:
        bundle: Whose document encoder each worker loads once.
        writer: The embeddings.
    """

    def __init__(self, bundle: str, writer: EmbeddingsWriter) -> None:
        super().__init__()
        self._bundle = bundle
        self._writer = writer

    def expand(self, shards: PCollection) -> PCollection:
        """Adds the steps."""
        return shards | beam.Reshuffle() | beam.ParDo(_EncodeShard(self._bundle, self._writer))


class _EncodeShard(beam.DoFn):
    def __init__(self, bundle: str, writer: EmbeddingsWriter) -> None:
        self._bundle, self._writer, self._shared = bundle, writer, Shared()

    def setup(self) -> None:
        # Here, so that the machine that gives the job needs no TensorFlow.
        from tfde.export.saved_encoder import SavedEncoder

        self._encoder = self._shared.acquire(lambda: SavedEncoder(self._bundle))

    def process(self, shard: Shard) -> Iterator[int]:
        number, rows = shard
        self._writer.write(number, [Document(*row) for row in rows], self._encoder)
        yield number


def encode_with_beam(
    bundle: str | Path,
    dataset: str | Path,
    output: str | Path,
    options: PipelineOptions,
    *,
    shard_size: int = 20_000,
    batch_size: int = 64,
    dtype: EmbeddingDtype = "float32",
    skip_bad: bool = False,
) -> Embeddings:
    """Encodes a corpus as `encode_corpus` does, with the document encoder of a bundle.

    Given again after a kill, it encodes the shards that are missing.

    Args:
        bundle: What `tfde export` wrote.
        dataset: Dataset directory.
        output: As `encode_corpus`.
        options: Beam's.
        shard_size: As `encode_corpus`; a shard is what a worker encodes in one go.
        batch_size: As `encode_corpus`.
        dtype: As `encode_corpus`.
        skip_bad: Whether bad records are left out, and written to `OUTPUT.skipped.jsonl`.

    Raises:
        ConfigError: an impossible setting, or `output` holds something else.
        MismatchError: `output` was begun with another model or setting.
        FileNotFoundError: no bundle there.
        PipelineError: a step failed, or a worker is gone.
    """
    manifest = read_manifest(bundle)
    path = str(DatasetDirectory(dataset).path)
    writer = EmbeddingsWriter(
        output,
        fingerprint=manifest["towers_fingerprint"],
        dim=manifest["embedding_dim"],
        shard_size=shard_size,
        batch_size=batch_size,
        dtype=dtype,
        settings=precision_setting(precision_of_bundle(manifest)),
    )

    def build(pipeline: beam.Pipeline) -> None:
        read = beam.ParDo(ReadShards(shard_size, skip_bad=skip_bad))
        corpus = (
            pipeline
            | "Corpus" >> beam.Create([path])
            | "Read" >> read.with_outputs(BAD, main="shards")
        )
        encoded = corpus.shards | "Encode" >> EncodeShards(str(bundle), writer)
        _ = (
            pipeline
            | "End" >> beam.Create([str(output)])
            | "Finish" >> beam.Map(_finish, writer, AsList(encoded), AsList(corpus[BAD]))
        )

    with writer.begin():
        run_pipeline(options, build)
    return Embeddings.open(output)


def _finish(
    output: str, writer: EmbeddingsWriter, numbers: Iterable[int], bad: Iterable[DeadLetter]
) -> None:
    write_dead_letters(output, bad)
    writer.finish(len(list(numbers)))
