"""TREC's collections: documents in SGML, topics, judgements."""

from __future__ import annotations

import html
import itertools
import logging
import re
from collections.abc import Container, Iterator, Sequence
from pathlib import Path
from typing import Literal

from tfde.data.dataset_directory import DatasetDirectory
from tfde.data.formats.records import Judgement, Record, Source
from tfde.data.formats.trec_markup import Block, plain_text, read_blocks, read_documents
from tfde.data.qrels import read_trec_qrels
from tfde.errors import ConfigError, DataError
from tfde.storage.compressed import read_lines, write_lines
from tfde.storage.intake import Intake
from tfde.types import Document, Query

logger = logging.getLogger(__name__)

TopicField = Literal["title", "description", "narrative"]
# The names that a part has had. CLEF puts the language before them (<EN-title>).
_NUMBERS = ("num", "number", "identifier", "topicid", "id")
_NAMES = {
    "title": ("title", "query"),
    "description": ("desc", "description", "question"),
    "narrative": ("narr", "narrative"),
}
# A field ends where the next tag of any name stands; few files close theirs.
_FIELD = re.compile(
    r"<(?:[A-Za-z]{2}-)?([A-Za-z][\w.]*)[^<>]*>(.*?)(?=</?[A-Za-z][^<>]*>|\Z)", re.DOTALL
)
_MARKUP = re.compile(r"<[A-Za-z/!]|-->")
_ATTRIBUTE = re.compile(r"(?<![\w:])([\w:]++)\s*+=\s*(\"[^\"]*\"|'[^']*')")
# "Number: 301", "Description:": part of the form, each in its own field.
_FORM_WORDS = {
    "num": "Number",
    "number": "Number",
    "title": "Topic",
    "desc": "Description",
    "description": "Description",
    "narr": "Narrative",
    "narrative": "Narrative",
}


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

    Runs of white space become one space, as they do in reading. Most readers of topics take `&` and
    `<` as they stand, so entities are written only where a question would else be read as markup;
    a warning counts these.
    """
    counts, escaped = {}, 0

    def write_file(name: str, records: Iterator[str]) -> None:
        counts[f"{name}{suffix}"] = write_lines(directory / f"{name}{suffix}", records)

    write_file("documents.trec", (_sgml(document) for document in dataset.documents()))
    for split in splits:
        texts = {query.query_id: _topic_text(query) for query in dataset.queries(split)}
        escaped += sum(html.unescape(text) != text for text in texts.values())
        write_file(f"topics.{split}.txt", itertools.starmap(_topic_block, texts.items()))
        qrels = dataset.qrels(split)
        write_file(
            f"qrels.{split}.txt",
            (
                f"{query_id} 0 {doc_id} {relevance}"
                for query_id, judged in qrels.items()
                for doc_id, relevance in judged.items()
            ),
        )
    if escaped:
        logger.warning(
            "%d questions hold tags or entities: they stand with &lt; and &amp; in the topics,"
            " which ir_datasets and Anserini do not turn back",
            escaped,
        )
    return counts


def _sgml(document: Document) -> str:
    lines = ["<DOC>", f"<DOCNO> {document.doc_id} </DOCNO>"]
    if document.title:
        lines.append(f"<HEADLINE>{_escaped(document.title)}</HEADLINE>")
    return "\n".join([*lines, "<TEXT>", _escaped(document.text), "</TEXT>", "</DOC>"])


def _topic_text(query: Query) -> str:
    text = " ".join(query.text.split())
    return _escaped(text) if _MARKUP.search(text) or plain_text(text) != text else text


def _without_form_word(name: str, text: str) -> str:
    word = _FORM_WORDS.get(name)
    return re.sub(rf"\A\s*{word}\s*:", "", text, flags=re.IGNORECASE) if word else text


def _topic_block(number: str, text: str) -> str:
    """Returns a topic with all four fields: some readers want a narrative, empty or not."""
    title = text if _without_form_word("title", text) == text else f"Topic: {text}"
    return (
        f"<top>\n\n<num> Number: {number}\n<title> {title}\n\n<desc> Description:\n{text}\n"
        "\n<narr> Narrative:\n\n</top>\n"
    )


def _escaped(text: str) -> str:
    return html.escape(" ".join(text.split()), quote=False)


def read_topics(
    path: Path,
    intake: Intake,
    *,
    topic_field: TopicField = "title",
    judged: Container[str] = (),
    encoding: str = "utf-8",
) -> Iterator[Query]:
    """Yields the topics of a file as queries.

    A topic is a `<top>` or a `<topic>`. Its number stands in an attribute (`number`, `id`) or a
    field; zeros before it (TREC 1 to 3: "Number: 051") go, unless the judgements have them. What
    else a topic says is metadata, under the names of its tags in small letters.

    Args:
        path: The file, plain or packed.
        intake: The place, and what becomes of bad records.
        topic_field: The part of a topic that becomes the query.
        judged: The numbers as the judgements write them.
        encoding: That of the file.

    Raises:
        DataError: a topic without its end, its number or the part; no topic at all.
    """
    skipped, found = intake.skipped, False
    blocks = read_blocks(path, ("top", "topic"), intake, encoding=encoding)
    for block in blocks:
        query = intake.take(_topic, path, block, topic_field, judged)
        if query is not None:
            found = True
            yield query
    if not found and intake.skipped == skipped:
        rule = "must hold at least one topic, <top> ... </top> or <topic> ... </topic>."
        intake.bad(DataError(path, None, rule))


def _topic(path: Path, block: Block, topic_field: TopicField, judged: Container[str]) -> Query:
    fields: dict[str, str] = {}
    for name, value in _ATTRIBUTE.findall(block.attributes):
        fields.setdefault(name.lower(), html.unescape(value[1:-1]))
    for match in _FIELD.finditer(block.text):
        name = match[1].lower()
        fields.setdefault(name, plain_text(_without_form_word(name, match[2])))
    if "<" not in block.text:
        fields.setdefault("query", plain_text(block.text))
    number = next((fields[name] for name in _NUMBERS if name in fields), "")
    if len(number.split()) != 1:
        rule = "a topic must have one number in <num>, <number> or an attribute."
        raise DataError(path, block.line, rule, block.text)
    number = number.strip()
    if number.isdigit() and number not in judged:
        number = number.lstrip("0") or "0"
    names = _NAMES[topic_field]
    text = next((fields[name] for name in names if fields.get(name)), "")
    if not text:
        have = ", ".join(part for part in _NAMES if any(fields.get(name) for name in _NAMES[part]))
        rule = (
            f"topic {number} must have text in <{names[0]}>; it has {have or 'none of the parts'}."
        )
        raise DataError(path, block.line, rule, block.text)
    used = {*_NUMBERS, *names}
    metadata = {name: value for name, value in fields.items() if value and name not in used}
    return Query(number, text, metadata or None)
