"""TREC's topics: the tagged blocks of every year, and the XML ones."""

from __future__ import annotations

import html
import re
from collections.abc import Container, Iterator
from pathlib import Path
from typing import Literal

from tfde.data.formats.trec_markup import Block, plain_text, read_blocks
from tfde.data.intake import Intake
from tfde.errors import DataError
from tfde.types import Query

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
_ATTRIBUTE = re.compile(r"(?<![\w:])([\w:]++)\s*+=\s*(\"[^\"]*\"|'[^']*')")
# "Number: 301", "Description:": part of the form.
_FORM_WORD = re.compile(r"\s*(?:Number|Topic|Description|Narrative|Query)\s*:", re.IGNORECASE)


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
        fields.setdefault(match[1].lower(), plain_text(_FORM_WORD.sub("", match[2], count=1)))
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
