"""MultiReQA: sentence boundaries of MRQA's contexts, joined with the MRQA files they belong to."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from tfde.data.formats.mrqa import MARK, read_mrqa
from tfde.data.formats.paragraphs import Paragraph
from tfde.data.formats.records import Answers, Judgement, Record, Source
from tfde.errors import ConfigError, DataError
from tfde.storage.intake import Intake
from tfde.storage.json_lines import id_field, read_json_lines
from tfde.types import CONTEXT, Document

# "SQuAD_<qid>/<qid>/_0": the set, MRQA's ids of the questions about the context, one counter
# ("HotpotQA_<qid>/_0_1": or two).
_CANDIDATE_ID = re.compile(r"(?:[A-Za-z]+_)?(?P<query_ids>.+?)/?(?:_\d+){1,2}")


class _Candidate(NamedTuple):
    candidate_id: str
    start: int
    stop: int
    line: int


def read(sources: Sequence[Source], intake: Intake, *, context: bool = False) -> Iterator[Record]:
    """Yields sentences as documents, and questions; a sentence that holds an answer is relevant.

    Each split needs an MRQA file (role `mrqa`) and the file of boundaries that belongs to it
    (role `boundaries`). A document's id is the candidate's id; with
    `context` it has MRQA's context, without marks. Memory holds the boundaries.

    Raises:
        ConfigError: a split lacks one of the two files.
        DataError: a line breaks a rule of either format; a candidate names no question of the
            MRQA file or lies outside its context; no sentence holds an answer to a question.
    """
    for split in dict.fromkeys(source.split for source in sources):
        given = [source for source in sources if source.split == split]
        if sorted(source.role for source in given) != ["boundaries", "mrqa"]:
            raise ConfigError(
                f"`input` must hold one mrqa file and one boundaries file for split {split!r}."
                f" Received: {', '.join(source.role for source in given)}"
            )
        files = {source.role: source.path for source in given}
        for record in _read_split(files["mrqa"], files["boundaries"], split, intake):
            if isinstance(record, Document) and not context:
                record = record._replace(metadata=None)
            yield record


def question_ids(candidate_id: str) -> tuple[str, ...]:
    """Returns MRQA's ids of the questions about a context, which a candidate's id holds.

    Source: README.md of github.com/google-research-datasets/MultiReQA, "It consists of the
    original qid from the MRQA shared task", and its nine files of candidates.
    """
    match = _CANDIDATE_ID.fullmatch(candidate_id)
    return tuple((match["query_ids"] if match else candidate_id).split("/"))


def read_boundaries(path: Path, intake: Intake) -> dict[tuple[str, ...], list[_Candidate]]:
    """Returns the candidates by MRQA's ids of the questions that they name, in file order.

    Raises:
        DataError: a field is missing or of a wrong type; an empty or negative span.
    """
    candidates: defaultdict[tuple[str, ...], list[_Candidate]] = defaultdict(list)
    for line, record in read_json_lines(path, intake):
        candidate = intake.take(_candidate, path, line, record)
        if candidate is not None:
            candidates[question_ids(candidate.candidate_id)].append(candidate)
    return dict(candidates)


def _candidate(path: Path, line: int, record: dict[str, Any]) -> _Candidate:
    candidate_id = id_field(path, line, record, "candidate_id")
    ends = []
    for name in ("response_start", "response_end"):
        value = record.get(name)
        if type(value) is not int:
            rule = f"field {name!r} must be an integer."
            raise DataError(path, line, rule, record)
        ends.append(value)
    if not 0 <= ends[0] < ends[1]:
        rule = "must hold 0 <= response_start < response_end."
        raise DataError(path, line, rule, ends)
    return _Candidate(candidate_id, ends[0], ends[1], line)


def _read_split(mrqa: Path, boundaries: Path, split: str, intake: Intake) -> Iterator[Record]:
    candidates = read_boundaries(boundaries, intake)
    context_of = {query_id: query_ids for query_ids in candidates for query_id in query_ids}
    known: set[tuple[str, ...]] = set()  # contexts whose sentences were yielded
    for paragraph in read_mrqa(mrqa, intake):
        asked = [context_of.get(question.query.query_id, ()) for question in paragraph.questions]
        sentences = [
            (candidate, query_ids not in known)
            for query_ids in dict.fromkeys(asked)
            for candidate in candidates.get(query_ids, ())
        ]
        known.update(asked)
        yield from _paragraph(paragraph, sentences, mrqa, boundaries, split, intake)
    for query_ids, left in candidates.items():
        if query_ids not in known:
            rule = "field 'candidate_id' must name a question of the MRQA file."
            intake.bad(DataError(boundaries, left[0].line, rule, left[0].candidate_id))


def _paragraph(
    paragraph: Paragraph,
    sentences: list[tuple[_Candidate, bool]],
    mrqa: Path,
    boundaries: Path,
    split: str,
    intake: Intake,
) -> Iterator[Record]:
    context = paragraph.document.text
    metadata = {CONTEXT: MARK.sub(" ", context).strip()}
    kept = []
    for sentence, new in sorted(sentences, key=lambda item: item[0].start):
        text = MARK.sub(" ", context[sentence.start : sentence.stop])
        if sentence.stop > len(context):
            rule = f"field 'response_end' must be at most {len(context)}, the context's length."
            intake.bad(DataError(boundaries, sentence.line, rule, sentence.stop))
        elif text.strip():
            kept.append(sentence)
            if new:
                yield Document(sentence.candidate_id, "", text.strip(), metadata)
    for question in paragraph.questions:
        query_id = question.query.query_id
        relevant = [
            sentence.candidate_id
            for sentence in kept
            if any(sentence.start <= start < sentence.stop for start in question.answer_starts)
        ]
        if not relevant:
            rule = "a sentence of the boundaries must hold an answer."
            intake.bad(DataError(mrqa, intake.line, rule, query_id))
            continue
        yield question.query
        for doc_id in relevant:
            yield Judgement(split, query_id, doc_id, 1)
        yield Answers(query_id, tuple(dict.fromkeys(question.answers)))
