"""TREC's collections: documents in SGML, topics, judgements."""

from __future__ import annotations

import html
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Literal, NamedTuple

from tfde.data.compressed import read_lines, write_lines
from tfde.data.dataset_directory import DatasetDirectory
from tfde.data.formats.records import Judgement, Record, Source
from tfde.data.formats.trec_lines import read_trec_qrels
from tfde.data.intake import Intake
from tfde.errors import ConfigError, DataError
from tfde.types import Document, Query

TopicField = Literal["title", "description", "narrative"]

_TITLE = re.compile(r"<(HEADLINE|TITLE|HEAD|HL|TTL|TI)\b[^>]*>(.*?)</\1\s*>", re.DOTALL | re.I)
_TEXT = re.compile(r"<(TEXT|LEADPARA|LP)\b[^>]*>(.*?)</\1\s*>", re.DOTALL | re.I)
_DOC_ID = re.compile(r"<DOCNO>(.*?)</DOCNO>", re.DOTALL | re.I)
_TAG = re.compile(r"</?[A-Za-z][^<>]*>|<!--.*?-->", re.DOTALL)
# A topic's fields end where the next begins; few files close them. "Number:" is part of the form.
_TOPIC_FIELD = re.compile(
    r"<(?P<name>num|title|desc|narr)>\s*(?:(?:Number|Topic|Description|Narrative):)?"
    r"(?P<text>.*?)(?=<(?:num|title|desc|narr|/?top|docid|url)\b|\Z)",
    re.DOTALL | re.I,
)
_FIELD_NAMES = {"title": "title", "description": "desc", "narrative": "narr"}


def read(
    sources: Sequence[Source], intake: Intake, *, topic_field: TopicField = "title"
) -> Iterator[Record]:
    """Yields documents, then topics as queries, then judgements.

    A source of documents may be a folder; its files are read in the order of their paths. The
    title of a document is its headline; the text is what stands in TEXT, LP and LEADPARA, without
    tags, entities resolved, runs of white space as one space.

    Args:
        sources: Files of the roles `documents`, `topics`, `qrels`.
        intake: The place, and what becomes of bad records.
        topic_field: The part of a topic that becomes the query.

    Raises:
        DataError: a document or topic without its end, id or text; a bad judgement.
    """
    for source in sources:
        if source.role == "documents":
            for path in _files(source.path):
                yield from read_documents(path, intake)
    for source in sources:
        if source.role == "topics":
            yield from read_topics(source.path, intake, topic_field=topic_field)
    for source in sources:
        if source.role == "qrels":
            for query_id, doc_id, relevance in read_trec_qrels(source.path, intake):
                yield Judgement(source.split, query_id, doc_id, relevance)


def read_documents(path: Path, intake: Intake) -> Iterator[Document]:
    """Yields the documents of an SGML file.

    Raises:
        DataError: a document without </DOC>, DOCNO, or any title and text.
    """
    for block in _blocks(path, "DOC", intake):
        document = intake.take(_document, path, block)
        if document is not None:
            yield document


def read_topics(path: Path, intake: Intake, *, topic_field: TopicField) -> Iterator[Query]:
    """Yields the topics of a file of `<top>` blocks.

    Raises:
        DataError: a topic without </top>, number, or the field that is asked for.
    """
    for block in _blocks(path, "top", intake):
        query = intake.take(_topic, path, block, topic_field)
        if query is not None:
            yield query


class _Block(NamedTuple):
    line: int
    text: str


def _blocks(path: Path, tag: str, intake: Intake) -> Iterator[_Block]:
    begin = re.compile(rf"\s*<{tag}>", re.I)
    end = re.compile(rf"</{tag}>", re.I)
    lines: list[str] = []
    start = 0
    for number, line in read_lines(path, intake):
        if begin.match(line):
            if lines:
                intake.bad(_open_block(path, start, tag))
            lines, start = [], number
        elif not lines:
            continue  # between two blocks
        lines.append(line)
        if end.search(line):
            yield _Block(start, "\n".join(lines))
            lines = []
    if lines:
        intake.bad(_open_block(path, start, tag))


def _open_block(path: Path, line: int, tag: str) -> DataError:
    return DataError(path, line, f"<{tag}> must be closed by </{tag}>; the file is cut or damaged.")


def _document(path: Path, block: _Block) -> Document:
    found = _DOC_ID.search(block.text)
    if found is None or len(found[1].split()) != 1:
        rule = "a document must have an id without white space in <DOCNO>."
        raise DataError(path, block.line, rule, block.text)
    titles = (match[2] for match in _TITLE.finditer(block.text))
    texts = (match[2] for match in _TEXT.finditer(block.text))
    document = Document(found[1].strip(), _plain(" ".join(titles)), _plain(" ".join(texts)))
    if not document.title and not document.text:
        rule = "a document must have text in <TEXT> or a <HEADLINE>."
        raise DataError(path, block.line, rule, document.doc_id)
    return document


def _topic(path: Path, block: _Block, topic_field: TopicField) -> Query:
    fields = {match["name"].lower(): match["text"] for match in _TOPIC_FIELD.finditer(block.text)}
    number = _plain(fields.get("num", ""))
    text = _plain(fields.get(_FIELD_NAMES[topic_field], ""))
    if len(number.split()) != 1:
        raise DataError(path, block.line, "a topic must have one number in <num>.", block.text)
    if not text:
        name = _FIELD_NAMES[topic_field]
        raise DataError(path, block.line, f"topic {number} must have text in <{name}>.", block.text)
    return Query(number, text)


def _plain(markup: str) -> str:
    return " ".join(html.unescape(_TAG.sub(" ", markup)).split())


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
