"""Stack Exchange's dumps: the questions of a community, each with its accepted or best answer."""

from __future__ import annotations

import html.parser
import re
import xml.etree.ElementTree as ET
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from tfde.data.formats.records import Judgement, Record, Source
from tfde.errors import ConfigError, DataError
from tfde.storage.compressed import read_lines
from tfde.storage.intake import Intake
from tfde.types import Document, Query

MIN_SCORE = 1  # of an answer that nobody accepted
_QUESTION, _ANSWER = "1", "2"
_WHOLE_NUMBER = re.compile(r"-?[0-9]{1,18}", re.ASCII)
_BLOCK_NAMES = """
p li pre blockquote h1 h2 h3 h4 h5 h6 div ul ol hr br td th tr
"""
_BLOCKS = frozenset(_BLOCK_NAMES.split())


def read(sources: Sequence[Source], intake: Intake) -> Iterator[Record]:
    """Yields questions, each with its best answer, of `Posts.xml` files.

    A question's text is its title; its tags are metadata. Its answer is the accepted one; where
    there is none in the file, the one with the highest score, the first of equals, if that is at
    least `MIN_SCORE`. Questions without such an answer and all other posts are left out and
    counted. Ids are the posts'; a file after the first has its folder's name before them, for
    every community counts from 1.

    A file is read twice, line by line. In memory are some 150 bytes a question.

    Raises:
        ConfigError: two files after the first have folders of one name.
        DataError: a line is not UTF-8 or no whole row, or lacks a field; the file has no row.

    Source: Ni et al. 2021, section 3.3 (question-answer pairs of communities); which answer:
    derived here.
    """
    prefixes: set[str] = set()
    for number, source in enumerate(sources):
        prefix = f"{source.path.parent.name}-" if number else ""
        if prefix in prefixes:
            raise ConfigError(
                f"{source.path}: communities must lie in folders of different names."
                f" Received: {source.path.parent.name} twice"
            )
        prefixes.add(prefix)
        chosen, asked = _chosen_answers(source.path), set()
        for line, text in _lines(source.path, intake):
            row = intake.take(_row, source.path, line, text)
            if row is None:
                continue
            kind, post_id = row["PostTypeId"], int(row["Id"])
            if kind == _QUESTION and post_id in chosen:
                title = " ".join(row.get("Title", "").split())
                if not title:
                    intake.bad(DataError(source.path, line, "a question must have a Title."))
                    continue
                tags = row.get("Tags", "").strip("<>|").replace("><", "|")
                metadata = {"tags": tags.split("|")} if tags else None
                asked.add(post_id)
                yield Query(f"{prefix}{post_id}", title, metadata)
            elif kind == _QUESTION:
                intake.leave_out("questions without an answer that was accepted or praised")
            elif kind == _ANSWER and chosen.get(int(row["ParentId"])) == post_id:
                if int(row["ParentId"]) not in asked:
                    intake.leave_out("answers without their question")
                    continue
                doc_id, query_id = f"{prefix}{post_id}", f"{prefix}{row['ParentId']}"
                yield Document(doc_id, "", plain_text(row["Body"]))
                yield Judgement(source.split, query_id, doc_id, 1)
            elif kind == _ANSWER:
                intake.leave_out("other answers")
            else:
                intake.leave_out("posts of other kinds")


def plain_text(body: str) -> str:
    """Returns what a reader sees of a post's HTML, a line a block, code too."""
    parser = _Text()
    parser.feed(body)
    parser.close()
    lines = (" ".join(line.split()) for line in "".join(parser.pieces).split("\n"))
    return "\n".join(line for line in lines if line)


class _Text(html.parser.HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.pieces: list[str] = []

    def handle_starttag(self, tag: str, attrs: object) -> None:
        if tag in _BLOCKS:
            self.pieces.append("\n")

    def handle_endtag(self, tag: str) -> None:
        self.handle_starttag(tag, None)

    def handle_data(self, data: str) -> None:
        self.pieces.append(data)


def _chosen_answers(path: Path) -> dict[int, int]:
    """Returns the answer of each question that has one; bad rows wait for the second reading."""
    accepted: dict[int, int] = {}
    best: dict[int, tuple[int, int]] = {}
    found: dict[int, int] = {}
    for number, line in _lines(path, Intake(skip_bad=True)):
        try:
            row = _row(path, number, line)
        except DataError:  # told when it is read again
            continue
        post_id = int(row["Id"])
        if row["PostTypeId"] == _QUESTION and "AcceptedAnswerId" in row:
            accepted[post_id] = int(row["AcceptedAnswerId"])
        elif row["PostTypeId"] == _ANSWER and plain_text(row.get("Body", "")):
            question, score = int(row["ParentId"]), int(row["Score"])
            if accepted.get(question) == post_id:  # questions stand before their answers
                found[question] = post_id
            if score >= MIN_SCORE:
                best[question] = max(best.get(question, (0, 0)), (score, -post_id))
    return {question: -answer for question, (_, answer) in best.items()} | found


def _lines(path: Path, intake: Intake) -> Iterator[tuple[int, str]]:
    """Yields the rows of a `Posts.xml`, a line each, with their line."""
    found = False
    for number, line in read_lines(path, intake):
        line = line.lstrip("\ufeff \t")
        if line.startswith("<row"):
            found = True
            yield number, line
    if not found:
        raise DataError(path, None, "must hold a <row> in a line, as Stack Exchange's Posts.xml.")


def _row(path: Path, number: int, line: str) -> Mapping[str, str]:
    try:
        row = ET.fromstring(line).attrib
    except ET.ParseError as error:
        reason = str(error).partition(":")[0]
        raise DataError(path, number, f"must be a well-formed <row> ({reason}).", line) from error
    numbers = ["Id", "PostTypeId"]
    if row.get("PostTypeId") == _ANSWER:
        numbers += ["ParentId", "Score"]
    if "AcceptedAnswerId" in row:
        numbers.append("AcceptedAnswerId")
    for name in numbers:
        value = row.get(name)
        if value is None or not _WHOLE_NUMBER.fullmatch(value):
            raise DataError(path, number, f"attribute {name} must be a whole number.", value)
    return row
