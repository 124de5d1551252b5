"""DPR's files: questions with their contexts in one JSON array, or alone; passages in a TSV."""

from __future__ import annotations

import csv
import io
import json
from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from tfde.data.dataset_directory import DatasetDirectory
from tfde.data.formats.beir import read_pair_file
from tfde.data.formats.csv_rows import read_table, require_columns
from tfde.data.formats.json_array import read_json_array
from tfde.data.formats.records import (
    Answers,
    Judgement,
    Record,
    Source,
    TrainingPair,
    without_repeats,
)
from tfde.data.ids import id_of_text
from tfde.errors import DataError
from tfde.storage.compressed import open_writer, write_lines
from tfde.storage.intake import Intake
from tfde.storage.json_lines import (
    id_field,
    list_field,
    read_json_lines,
    string_field,
    strings_field,
)
from tfde.types import Document, Query

_PASSAGE_IDS = ("passage_id", "psg_id")
_POOLS = ("positive_ctxs", "negative_ctxs", "hard_negative_ctxs")


def read(sources: Sequence[Source], intake: Intake) -> Iterator[Record]:
    """Yields the records of DPR's training files (role `examples`) and passages.

    Without passages the corpus is what the examples hold: positive, negative and hard negative
    contexts. The positive contexts are judged relevant; only the hard negatives become given
    negatives of a pair, for the others are random passages. A context's id is its `passage_id`
    or `psg_id`, a question's its `query_id`; where there is none, a hash of the text.

    Raises:
        DataError: not a JSON array, a field is missing or of a wrong type, a question without a
            positive context; beside passages, a context without id.

    Source: README.md of github.com/facebookresearch/DPR, "Retriever input data format"; the ids
    are attributes of its published files.
    """
    passages = [source for source in sources if source.role == "passages"]
    for source in passages:
        yield from read_passages(source.path, intake)
    examples = [source for source in sources if source.role == "examples"]
    yield from without_repeats(_examples(examples, intake, bool(passages)))


def read_passages(path: Path, intake: Intake) -> Iterator[Document]:
    """Yields the passages of a TSV with the header `id text title`, quoted as CSV.

    Raises:
        DataError: a missing column, a row of another length, a quote that is not closed.
    """
    for row in read_table(path, intake, delimiter="\t", quoted=True):
        require_columns(path, row, ("id", "text", "title"))
        yield Document(row["id"], row["title"], row["text"])


def _examples(sources: Sequence[Source], intake: Intake, passages: bool) -> Iterator[Record]:
    for source in sources:
        for line, example in read_json_array(source.path, intake):
            yield from intake.take(_records, source, line, example, passages) or ()


def _records(source: Source, line: int, example: Any, passages: bool) -> list[Record]:
    path, split = source.path, source.split
    if not isinstance(example, dict):
        raise DataError(path, line, "an element must be an object.", example)
    text = string_field(path, line, example, "question")
    query_id = id_of_text(text)
    if "query_id" in example:
        query_id = id_field(path, line, example, "query_id")
    query = Query(query_id, text)
    pools = {}
    for name in _POOLS:
        # Only positive contexts are there in every file.
        absent = name != "positive_ctxs" and example.get(name) is None
        items = [] if absent else list_field(path, line, example, name)
        pools[name] = [_document(path, line, item, name, passages) for item in items]
    positives = pools["positive_ctxs"]
    if not positives:
        raise DataError(path, line, "field 'positive_ctxs' must not be empty.", text)
    # NQ's files have a passage twice where BM25 found the annotated one.
    relevant = dict.fromkeys(document.doc_id for document in positives)
    negatives = tuple(dict.fromkeys(document.doc_id for document in pools["hard_negative_ctxs"]))
    records: list[Record] = []
    if not passages:
        records += [document for name in _POOLS for document in pools[name]]
    records.append(query)
    answers = strings_field(path, line, example, "answers") if "answers" in example else ()
    if answers:
        records.append(Answers(query_id, answers))
    records += [Judgement(split, query_id, doc_id, 1) for doc_id in relevant]
    if negatives:
        records += [TrainingPair(split, query, doc_id, negatives) for doc_id in relevant]
    return records


def _document(path: Path, line: int, item: Any, name: str, passages: bool) -> Document:
    if not isinstance(item, dict):
        raise DataError(path, line, f"field {name!r} must hold objects.", item)
    title = string_field(path, line, item, "title", optional=True)
    # A document may have a title alone, as in a dataset directory.
    text = string_field(path, line, item, "text", optional=bool(title.strip()))
    for key in _PASSAGE_IDS:
        if isinstance(item.get(key), int | str):
            return Document(id_field(path, line, {key: str(item[key])}, key), title, text)
    if passages:
        rule = "a context must have a 'passage_id' or 'psg_id' where a passages file is given."
        raise DataError(path, line, rule, item)
    return Document(id_of_text(text, title=title), title, text)


def write(
    dataset: DatasetDirectory, directory: Path, *, splits: Sequence[str], suffix: str
) -> dict[str, int]:
    """Writes `passages.tsv`, and `SPLIT.json` for each split.

    Ids are kept as the extra fields `query_id` and `passage_id`. Memory holds the texts of the
    documents that a split names.
    """
    counts = {
        f"passages.tsv{suffix}": _write_passages(dataset, directory / f"passages.tsv{suffix}")
    }
    for split in splits:
        name = f"{split}.json{suffix}"
        count = 0
        with open_writer(directory / name) as file:
            for example in _split_examples(dataset, split):
                file.write(b",\n" if count else b"[\n")
                file.write(json.dumps(example, ensure_ascii=False).encode())
                count += 1
            file.write(b"\n]\n" if count else b"[]\n")
        counts[name] = count
    return counts


def _split_examples(dataset: DatasetDirectory, split: str) -> Iterator[dict[str, Any]]:
    positives = dataset.relevant(split)
    negatives: defaultdict[str, dict[str, None]] = defaultdict(dict)
    if split in dataset.pair_splits:
        for pair in read_pair_file(dataset.pair_file(split), split, Intake()):
            negatives[pair.query.query_id].update(dict.fromkeys(pair.negatives))
    answers = dataset.answers() if dataset.has_answers else {}
    wanted = {doc_id for ids in (*positives.values(), *negatives.values()) for doc_id in ids}
    store = dataset.named_documents(wanted)

    def contexts(ids: Sequence[str]) -> list[dict[str, str]]:
        documents = [store[doc_id] for doc_id in ids]
        return [{"title": d.title, "text": d.text, "passage_id": d.doc_id} for d in documents]

    for query in dataset.queries(split):
        if positives.get(query.query_id):
            yield {
                "query_id": query.query_id,
                "question": query.text,
                "answers": list(answers.get(query.query_id, ())),
                "positive_ctxs": contexts(positives[query.query_id]),
                "negative_ctxs": [],
                "hard_negative_ctxs": contexts(list(negatives[query.query_id])),
            }


def _write_passages(dataset: DatasetDirectory, path: Path) -> int:
    def lines() -> Iterator[str]:
        buffer = io.StringIO()
        # The writer quotes what is part of its line end, and so a line end inside a text.
        table = csv.writer(buffer, delimiter="\t", lineterminator="\r\n")
        rows = ((d.doc_id, d.text, d.title) for d in dataset.documents())
        for part in ([("id", "text", "title")], rows):
            for row in part:
                table.writerow(row)
                yield buffer.getvalue().removesuffix("\r\n")
                buffer.seek(0)
                buffer.truncate()

    return write_lines(path, lines()) - 1


def read_open_questions(sources: Sequence[Source], intake: Intake) -> Iterator[Record]:
    """Yields passages (DPR's TSV), then questions and their answers.

    A question has no id; it gets the name of its file and the number of its line. There are no
    judgements, so the dataset directory has no splits.

    Raises:
        DataError: a field is missing, empty or of a wrong type.

    Source: the files in nq_open of github.com/google-research-datasets/natural-questions.
    """
    for source in sources:
        if source.role == "passages":
            yield from read_passages(source.path, intake)
    for source in sources:
        if source.role == "questions":
            name = "_".join(source.path.name.partition(".jsonl")[0].split())
            for line, record in read_json_lines(source.path, intake):
                yield from intake.take(_open_question, source, line, record, f"{name}-{line}") or ()


def _open_question(
    source: Source, line: int, record: dict[str, Any], query_id: str
) -> list[Record]:
    text = string_field(source.path, line, record, "question")
    answers = strings_field(source.path, line, record, "answer")
    return [Query(query_id, text), Answers(query_id, answers)]
