"""Queries -> run: every shard of the embeddings searched exactly, the best of all merged."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

import apache_beam as beam
import numpy as np
from apache_beam.options.pipeline_options import PipelineOptions
from apache_beam.pvalue import AsIter, AsList, PCollection, TaggedOutput
from apache_beam.utils.shared import Shared

from tfde.beam.dead_letters import BAD, DeadLetter, DeadLetters, write_dead_letters
from tfde.beam.run_pipeline import run_pipeline
from tfde.data.batched import batched
from tfde.errors import ConfigError, MismatchError, require
from tfde.export.bundle_directory import read_manifest
from tfde.retrieval.embeddings import MANIFEST, Embeddings
from tfde.retrieval.exact_index import ExactIndex
from tfde.retrieval.index_directory import check_embeddings
from tfde.retrieval.retrieve import read_queries
from tfde.retrieval.runs import check_tag, run_lines
from tfde.retrieval.top_k import merge_top_k
from tfde.storage.files import sha256
from tfde.storage.resumable_file import PartedFile
from tfde.types import Run

QUERIES_A_PART = 2048
PARTS = "parts"

# Number of a part, its query ids, and its texts or embeddings (Q, D) float32.
Texts = tuple[int, tuple[list[str], list[str]]]
Encoded = tuple[int, tuple[list[str], np.ndarray]]
# Scores (Q, K) float32, positions in the corpus (Q, K) int64, document ids (Q, K).
Best = tuple[np.ndarray, ...]


class ReadQueries(beam.DoFn):
    """The path of a file of queries -> parts of it.

    The number of every part goes to the output `PARTS`; of those that are written already, nothing
    else.

    Args:
        work: The run.
        queries_a_part: Queries a part.
        skip_bad: Whether bad records go to the output `BAD`.
    """

    def __init__(self, work: PartedFile, queries_a_part: int, *, skip_bad: bool) -> None:
        self._work = work
        self._queries_a_part = queries_a_part
        self._skip_bad = skip_bad

    def process(self, path: str) -> Iterator[Texts | TaggedOutput]:
        """Yields the parts, then what was skipped."""
        bad = DeadLetters(skip_bad=self._skip_bad)
        queries = read_queries(path, bad.intake)
        for number, part in enumerate(batched(queries, self._queries_a_part)):
            yield TaggedOutput(PARTS, number)
            if self._work.part(number) is None:
                yield number, ([query.query_id for query in part], [query.text for query in part])
        for letter in bad.letters:
            yield TaggedOutput(BAD, letter)


class EncodeQueries(beam.PTransform):
    """Parts of the queries with texts -> the same with embeddings.

    Args:
        bundle: Whose query encoder each worker loads once.
        batch_size: Queries a batch.
    """

    def __init__(self, bundle: str, *, batch_size: int) -> None:
        super().__init__()
        self._bundle = bundle
        self._batch_size = batch_size

    def expand(self, queries: PCollection) -> PCollection:
        """Adds the steps."""
        encode = beam.ParDo(_EncodeQueries(self._bundle, self._batch_size))
        return queries | beam.Reshuffle() | encode


class _EncodeQueries(beam.DoFn):
    def __init__(self, bundle: str, batch_size: int) -> None:
        self._bundle, self._batch_size, self._shared = bundle, batch_size, Shared()

    def setup(self) -> None:
        # Here, so that the machine that gives the job needs no TensorFlow.
        from tfde.export.saved_encoder import SavedEncoder

        self._encoder = self._shared.acquire(lambda: SavedEncoder(self._bundle))

    def process(self, part: Texts) -> Iterator[Encoded]:
        number, (query_ids, texts) = part
        yield number, (query_ids, self._encoder.encode_queries(texts, batch_size=self._batch_size))


class SearchShards(beam.PTransform):
    """Parts of the queries with embeddings -> number and the `k` best documents of each part.

    Ties keep the order of the corpus, as in exact search on one machine.

    Args:
        embeddings: Directory of the embeddings; every worker reads it under the same path.
        k: Documents a query.
    """

    def __init__(self, embeddings: str, k: int) -> None:
        super().__init__()
        self._embeddings = embeddings
        self._k = k

    def expand(self, encoded: PCollection) -> PCollection:
        """Adds the steps."""
        shards = range(Embeddings.open(self._embeddings).num_shards)
        search = beam.ParDo(_SearchShard(self._embeddings, self._k), AsIter(encoded))
        return (
            encoded.pipeline
            | "Shards" >> beam.Create(shards)
            | beam.Reshuffle()
            | "Search" >> search
            | "Merge" >> beam.CombinePerKey(MergeBest(self._k))
        )


class _SearchShard(beam.DoFn):
    def __init__(self, embeddings: str, k: int) -> None:
        self._path, self._k = embeddings, k

    def setup(self) -> None:
        self._embeddings = Embeddings.open(self._path)

    def process(self, number: int, parts: Iterable[Encoded]) -> Iterator[tuple[int, Best]]:
        shards = self._embeddings.shards()
        first = sum(len(shard) for shard in shards[:number])
        check_embeddings(shards[number], self._path)
        index = ExactIndex([shards[number]], self._embeddings.shard_ids(number))
        for part, (_, queries) in parts:
            scores, positions = index.search_positions(queries, self._k)
            yield part, (scores, positions + first, index.doc_ids[positions])


class MergeBest(beam.CombineFn):
    """Merges the best documents of shards.

    Args:
        k: Documents a query.
    """

    def __init__(self, k: int) -> None:
        super().__init__()
        self._k = k

    def create_accumulator(self) -> list[Best]:
        """Returns nothing found yet."""
        return []

    def add_input(self, accumulator: list[Best], best: Best) -> list[Best]:
        """Merges what one shard gave."""
        return [merge_top_k([*accumulator, best], self._k)]

    def merge_accumulators(self, accumulators: Iterable[list[Best]]) -> list[Best]:
        """Merges what several workers merged."""
        parts = [best for accumulator in accumulators for best in accumulator]
        return [merge_top_k(parts, self._k)] if parts else []

    def extract_output(self, accumulator: list[Best]) -> Best:
        """Returns the best of all."""
        return accumulator[0]


class _WriteRun(beam.DoFn):
    """Query ids and best documents of a part -> its number, once its lines are written."""

    def __init__(self, work: PartedFile, tag: str) -> None:
        self._work, self._tag = work, tag

    def process(self, part: tuple[int, dict[str, list]]) -> Iterator[int]:
        number, found = part
        (query_ids,), ((scores, _, doc_ids),) = found["query_ids"], found["best"]
        run: Run = {
            query_id: dict(zip(row_ids, map(float, row), strict=True))
            for query_id, row_ids, row in zip(query_ids, doc_ids, scores, strict=True)
        }
        lines = run_lines(self._work.output, run, tag=self._tag)
        self._work.write_part(number, lines, {"queries": len(run), "lines": int(scores.size)})
        yield number


def retrieve_with_beam(
    bundle: str | Path,
    embeddings: str | Path,
    queries: str | Path,
    output: str | Path,
    options: PipelineOptions,
    *,
    k: int = 100,
    tag: str = "tfde",
    batch_size: int = 64,
    queries_a_part: int = QUERIES_A_PART,
    skip_bad: bool = False,
) -> dict[str, int]:
    """Writes the run that exact search over all embeddings gives.

    Given again after a kill, it searches for the parts of the queries that are missing; given again
    when all is done, it returns the counts.

    Args:
        bundle: What `tfde export` wrote, of the model that made the embeddings.
        embeddings: Directory of the embeddings, in as many shards as are to be searched at once.
        queries: File of queries.
        output: The run, packed by its name.
        options: Beam's.
        k: Documents a query.
        tag: Last column of the run.
        batch_size: Queries a batch.
        queries_a_part: Queries that are encoded, and merged, in one go.
        skip_bad: Whether bad records are left out, and written to `OUTPUT.skipped.jsonl`.

    Returns:
        How many `queries` and `lines` the run has.

    Raises:
        ConfigError: a number below 1, a tag with white space, no queries, or the output holds
            something else.
        MismatchError: the embeddings were made with another model, or the killed run had other
            settings.
        CorruptError: a file of the killed run differs from what was written.
        FileNotFoundError: no bundle or embeddings there.
        PipelineError: a step failed, or a worker is gone.
    """
    for name, value in (("k", k), ("batch_size", batch_size), ("queries_a_part", queries_a_part)):
        require(value >= 1, name, "at least 1", value)
    check_tag(tag)
    fingerprint = read_manifest(bundle)["towers_fingerprint"]
    made_with = Embeddings.open(embeddings).fingerprint
    if made_with != fingerprint:
        raise MismatchError(
            f"{embeddings}: was made with model {made_with}, the queries would be encoded with"
            f" model {fingerprint}; encode the corpus again with this model."
        )
    settings = {
        "model": fingerprint,
        "embeddings": sha256(Path(embeddings) / MANIFEST),
        "queries": sha256(Path(queries)),
        "k": k,
        "tag": tag,
        "batch_size": batch_size,
        "queries_a_part": queries_a_part,
        "skip_bad": skip_bad,
    }
    work = PartedFile(output, settings)
    counts = work.finished()
    if counts is not None:
        return counts

    def build(pipeline: beam.Pipeline) -> None:
        reader = ReadQueries(work, queries_a_part, skip_bad=skip_bad)
        read = (
            pipeline
            | "Queries" >> beam.Create([str(queries)])
            | "Read" >> beam.ParDo(reader).with_outputs(BAD, PARTS, main="queries")
        )
        encode = EncodeQueries(str(bundle), batch_size=batch_size)
        encoded = read.queries | "Encode" >> encode
        columns = {
            "query_ids": encoded | "Ids" >> beam.MapTuple(lambda part, value: (part, value[0])),
            "best": encoded | "Find" >> SearchShards(str(embeddings), k),
        }
        written = columns | beam.CoGroupByKey() | "Write" >> beam.ParDo(_WriteRun(work, tag))
        _ = (
            pipeline
            | "End" >> beam.Create([str(output)])
            | "Join"
            >> beam.Map(_join, work, AsList(written), AsList(read[PARTS]), AsList(read[BAD]))
        )

    with work.begin():
        run_pipeline(options, build)
    return work.finished() or {}


def _join(
    output: str,
    work: PartedFile,
    written: Iterable[int],
    parts: Iterable[int],
    bad: Iterable[DeadLetter],
) -> None:
    write_dead_letters(output, bad)
    count = len(list(parts))
    if not count:
        raise ConfigError("`queries` must hold at least one query. Received: none")
    # A runner may repeat a step whose end it did not hear of.
    if work.finished() is None:
        work.finish(count)
