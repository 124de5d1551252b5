"""MS MARCO's passage files: collection, queries, judgements and triples, all TSV."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from tfde.data.dataset_directory import DatasetDirectory
from tfde.data.formats.beir import read_pair_file
from tfde.data.formats.records import Judgement, Record, Source, TrainingPair, without_repeats
from tfde.data.ids import id_of_text
from tfde.data.qrels import read_trec_qrels
from tfde.errors import ConfigError, DataError
from tfde.storage.compressed import read_lines, write_lines
from tfde.storage.intake import Intake
from tfde.types import Document, Query


def read(sources: Sequence[Source], intake: Intake) -> Iterator[Record]:
    """Yields the records of MS MARCO's files.

    `collection` and `queries` are `id TAB text`; `qrels` are TREC's; `id_triples` are
    `query-id TAB positive-id TAB negative-id`, `triples` the same with texts. Triples of texts
    are a data set of their own, with ids from hashes. The queries stay in memory where triples
    name them by id.

    Raises:
        ConfigError: triples of texts beside other files; no collection.
        DataError: a line has another number of columns, an empty one, or an unknown query.

    Source: README.md of github.com/microsoft/MSMARCO-Passage-Ranking.
    """
    files = {role: [s for s in sources if s.role == role] for role in ROLES}
    if files["triples"]:
        if len(files["triples"]) < len(sources):
            raise ConfigError(
                "`input`: triples of texts have no ids, so they stand alone; `id_triples` go with"
                f" the other files. Received: {', '.join(s.role for s in sources)}"
            )
        yield from without_repeats(_triples(files["triples"], intake))
        return
    for source in files["collection"]:
        for row in _rows(source.path, ("pid", "passage"), intake):
            yield Document(row[0], "", row[1])
    texts: dict[str, str] = {}
    for source in files["queries"]:
        for row in _rows(source.path, ("qid", "query"), intake):
            if files["id_triples"]:
                texts[row[0]] = row[1]
            yield Query(row[0], row[1])
    for source in files["qrels"]:
        for query_id, doc_id, relevance in read_trec_qrels(source.path, intake):
            yield Judgement(source.split, query_id, doc_id, relevance)
    for source in files["id_triples"]:
        for query_id, positive, negative in _rows(source.path, ("qid", "pid", "pid"), intake):
            if query_id not in texts:
                rule = "the first column must be an id of the queries file."
                intake.bad(DataError(source.path, intake.line, rule, query_id))
                continue
            query = Query(query_id, texts[query_id])
            yield TrainingPair(source.split, query, positive, (negative,))


ROLES = ("collection", "queries", "qrels", "id_triples", "triples")


def _triples(sources: Sequence[Source], intake: Intake) -> Iterator[Record]:
    for source in sources:
        columns = ("query", "positive passage", "negative passage")
        for text, *passages in _rows(source.path, columns, intake):
            query = Query(id_of_text(text), text)
            positive, negative = (Document(id_of_text(p), "", p) for p in passages)
            yield positive
            yield negative
            yield query
            yield Judgement(source.split, query.query_id, positive.doc_id, 1)
            yield TrainingPair(source.split, query, positive.doc_id, (negative.doc_id,))


def _rows(path: Path, columns: Sequence[str], intake: Intake) -> Iterator[list[str]]:
    for line, text in read_lines(path, intake):
        row = text.split("\t")
        if len(row) != len(columns) or not all(cell.strip() for cell in row):
            rule = f"must have {len(columns)} tab-separated columns: {', '.join(columns)}."
            intake.bad(DataError(path, line, rule, text))
            continue
        yield row


def write(
    dataset: DatasetDirectory, directory: Path, *, splits: Sequence[str], suffix: str
) -> dict[str, int]:
    """Writes `collection.tsv`, and for each split `queries.SPLIT.tsv` and `qrels.SPLIT.tsv`.

    Where the dataset has pairs with negatives, also `qidpidtriples.SPLIT.tsv`. There is no field
    for a title, so it stands before the text. Runs of white space become one space, since a tab
    or a line end would break the table.
    """
    counts = {}

    def table(name: str, rows: Iterator[tuple[str, ...]]) -> None:
        lines = ("\t".join(" ".join(cell.split()) for cell in row) for row in rows)
        counts[f"{name}.tsv{suffix}"] = write_lines(directory / f"{name}.tsv{suffix}", lines)

    table("collection", ((d.doc_id, f"{d.title} {d.text}") for d in dataset.documents()))
    for split in splits:
        table(f"queries.{split}", ((q.query_id, q.text) for q in dataset.queries(split)))
        qrels = dataset.qrels(split)
        table(
            f"qrels.{split}",
            (
                (query_id, "0", doc_id, str(relevance))
                for query_id, judged in qrels.items()
                for doc_id, relevance in judged.items()
            ),
        )
        if split in dataset.pair_splits:
            table(f"qidpidtriples.{split}", _id_triples(dataset, split))
    return counts


def _id_triples(dataset: DatasetDirectory, split: str) -> Iterator[tuple[str, ...]]:
    for pair in read_pair_file(dataset.pair_file(split), split, Intake()):
        for negative in pair.negatives:
            yield pair.query.query_id, pair.positive, negative
