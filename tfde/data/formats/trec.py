"""TREC's collections: documents in SGML, topics, judgements."""

from __future__ import annotations

import html
from collections.abc import Iterator, Sequence
from pathlib import Path

from tfde.data.compressed import read_lines, write_lines
from tfde.data.dataset_directory import DatasetDirectory
from tfde.data.formats.records import Judgement, Record, Source
from tfde.data.formats.trec_documents import read_documents
from tfde.data.formats.trec_lines import read_trec_qrels
from tfde.data.formats.trec_topics import TopicField, read_topics
from tfde.data.intake import Intake
from tfde.errors import ConfigError, DataError
from tfde.types import Document, Query


def read(
    sources: Sequence[Source],
    intake: Intake,
    *,
    topic_field: TopicField = "title",
    encoding: str = "utf-8",
) -> Iterator[Record]:
    """Yields documents, then topics as queries, then judgements.

    A source of documents may be a folder; its files are read in the order of their paths.

    Args:
        sources: Files of the roles `documents`, `topics`, `qrels`.
        intake: The place, and what becomes of bad records.
        topic_field: The part of a topic that becomes the query.
        encoding: That of documents and topics.

    Raises:
        DataError: as `read_documents` and `read_topics`; a source without documents; a bad
            judgement.
    """
    for source in sources:
        if source.role == "documents":
            yield from _documents(source.path, intake, encoding)
    judged = {
        line.split()[0]
        for source in sources
        if source.role == "qrels"
        for _, line in read_lines(source.path, Intake(skip_bad=True))
    }
    for source in sources:
        if source.role == "topics":
            yield from read_topics(
                source.path, intake, topic_field=topic_field, judged=judged, encoding=encoding
            )
    for source in sources:
        if source.role == "qrels":
            for query_id, doc_id, relevance in read_trec_qrels(source.path, intake):
                yield Judgement(source.split, query_id, doc_id, relevance)


def _documents(path: Path, intake: Intake, encoding: str) -> Iterator[Document]:
    skipped, found = intake.skipped, False
    for file in _files(path):
        for document in read_documents(file, intake, encoding=encoding):
            found = True
            yield document
    if not found and intake.skipped == skipped:
        intake.bad(DataError(path, None, "must hold at least one document, <DOC> ... </DOC>."))


def _files(path: Path) -> list[Path]:
    if not path.is_dir():
        return [path]
    files = sorted(file for file in path.rglob("*") if file.is_file())
    if not files:
        raise ConfigError(f"{path}: `input` must be a file, or a folder that holds files.")
    return files


def write(
    dataset: DatasetDirectory, directory: Path, *, splits: Sequence[str], suffix: str
) -> dict[str, int]:
    """Writes `documents.trec`, and `topics.SPLIT.txt` and `qrels.SPLIT.txt` for each split.

    Runs of white space become one space, as they do in reading.
    """
    counts = {}

    def write_file(name: str, records: Iterator[str]) -> None:
        counts[f"{name}{suffix}"] = write_lines(directory / f"{name}{suffix}", records)

    write_file("documents.trec", (_sgml(document) for document in dataset.documents()))
    for split in splits:
        topics = map(_topic_block, dataset.queries(split))
        write_file(f"topics.{split}.txt", topics)
        qrels = dataset.qrels(split)
        write_file(
            f"qrels.{split}.txt",
            (
                f"{query_id} 0 {doc_id} {relevance}"
                for query_id, judged in qrels.items()
                for doc_id, relevance in judged.items()
            ),
        )
    return counts


def _sgml(document: Document) -> str:
    lines = ["<DOC>", f"<DOCNO> {document.doc_id} </DOCNO>"]
    if document.title:
        lines.append(f"<HEADLINE>{_escaped(document.title)}</HEADLINE>")
    return "\n".join([*lines, "<TEXT>", _escaped(document.text), "</TEXT>", "</DOC>"])


def _topic_block(query: Query) -> str:
    text = _escaped(query.text)
    return (
        f"<top>\n\n<num> Number: {query.query_id}\n<title> {text}\n\n<desc> Description:\n{text}\n"
        "\n</top>\n"
    )


def _escaped(text: str) -> str:
    return html.escape(" ".join(text.split()), quote=False)
