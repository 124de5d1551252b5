"""BEIR's layout, which is also ours: reading checks and packs it, writing unpacks it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from tfde.data.dataset_directory import (
    DatasetDirectory,
    stream_answers,
    stream_documents,
    stream_queries,
)
from tfde.data.formats.records import Answers, Judgement, Record, Source, TrainingPair
from tfde.data.metadata import document_record, query_record
from tfde.data.qrels import HEADER, qrel_line, stream_qrels
from tfde.storage.compressed import write_lines
from tfde.storage.intake import Intake
from tfde.storage.json_lines import (
    id_field,
    read_json_lines,
    string_field,
    strings_field,
    write_json_lines,
)
from tfde.types import Query


def read(sources: Sequence[Source], intake: Intake) -> Iterator[Record]:
    """Yields everything that stands in directories of BEIR's layout, all splits.

    Raises:
        ConfigError: a directory or its corpus is missing.
        DataError: a line breaks a rule of its file.
    """
    for source in sources:
        dataset = DatasetDirectory(source.path)
        yield from stream_documents(dataset.file("corpus.jsonl"), intake)
        yield from stream_queries(dataset.file("queries.jsonl"), intake)
        for split in dataset.splits:
            for query_id, doc_id, relevance in stream_qrels(dataset.qrels_file(split), intake):
                yield Judgement(split, query_id, doc_id, relevance)
        if dataset.has_answers:
            for query_id, texts in stream_answers(dataset.file("answers.jsonl"), intake):
                yield Answers(query_id, texts)
        for split in dataset.pair_splits:
            yield from read_pair_file(dataset.pair_file(split), split, intake)


def read_pair_file(path: Path, split: str, intake: Intake) -> Iterator[TrainingPair]:
    """Yields the pairs of a dataset directory's own pair file, which names texts by their ids.

    Raises:
        DataError: a field is missing or of a wrong type.
    """
    for line, record in read_json_lines(path, intake):
        pair = intake.take(_pair, path, line, record, split)
        if pair is not None:
            yield pair


def _pair(path: Path, line: int, record: dict[str, object], split: str) -> TrainingPair:
    query = Query(
        id_field(path, line, record, "query_id"), string_field(path, line, record, "query")
    )
    positive = id_field(path, line, record, "positive")
    return TrainingPair(split, query, positive, strings_field(path, line, record, "negatives"))


def write(
    dataset: DatasetDirectory, directory: Path, *, splits: Sequence[str], suffix: str
) -> dict[str, int]:
    """Writes `corpus.jsonl`, `queries.jsonl` and `qrels/SPLIT.tsv`.

    Of some splits their queries alone; of all splits those that none judges too.
    """
    names = {name: f"{name}{suffix}" for name in ("corpus.jsonl", "queries.jsonl")}
    counts = {
        names["corpus.jsonl"]: write_json_lines(
            directory / names["corpus.jsonl"],
            map(document_record, dataset.documents()),
        )
    }
    wanted = None
    if set(splits) != set(dataset.splits):
        wanted = {query_id for split in splits for query_id in dataset.qrels(split)}
    counts[names["queries.jsonl"]] = write_json_lines(
        directory / names["queries.jsonl"],
        (query_record(q) for q in dataset.queries() if wanted is None or q.query_id in wanted),
    )
    for split in splits:
        name = f"qrels/{split}.tsv{suffix}"
        lines = (
            qrel_line(query_id, doc_id, relevance)
            for query_id, judged in dataset.qrels(split).items()
            for doc_id, relevance in judged.items()
        )
        table = (line for part in (["\t".join(HEADER)], lines) for line in part)
        counts[name] = write_lines(directory / name, table) - 1
    return counts
