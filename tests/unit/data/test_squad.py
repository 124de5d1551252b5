import copy
import gzip
import json

import pytest

from tfde.data.dataset_directory import DatasetDirectory
from tfde.data.squad import read_squad, squad_records
from tfde.errors import DataError
from tfde.types import Document, Query

CONTEXT = "It began in 1973. It ended in March 1974. Prices rose."
SQUAD = {
    "version": "1.1",
    "data": [
        {
            "title": "1973_oil crisis",
            "paragraphs": [
                {"context": "Empty of questions.", "qas": []},
                {
                    "context": CONTEXT,
                    "qas": [
                        {
                            "id": "a",
                            "question": "When did it begin?",
                            "answers": [{"text": "1973", "answer_start": CONTEXT.index("1973")}],
                        },
                        {
                            "id": "b",
                            "question": "What then?",
                            "answers": [
                                {"text": "It", "answer_start": 0},
                                {"text": "rose", "answer_start": CONTEXT.index("rose")},
                                {"text": "Prices", "answer_start": CONTEXT.index("Prices")},
                            ],
                        },
                        {
                            "id": "c",
                            "question": "Undecided?",
                            "answers": [
                                {"text": "It ended", "answer_start": CONTEXT.index("It ended")},
                                {"text": "It", "answer_start": 0},
                            ],
                        },
                    ],
                },
            ],
        }
    ],
}


def write(path, content):
    path.write_text(json.dumps(content))
    return path


def test_paragraphs(tmp_path):
    paragraphs = list(read_squad(write(tmp_path / "s.json", SQUAD)))
    title = "1973 oil crisis"
    records = list(squad_records(paragraphs))
    assert [documents for documents, _ in records] == [
        [Document("1973_oil_crisis-0", title, "Empty of questions.")],
        [Document("1973_oil_crisis-1", title, CONTEXT)],
    ]
    assert records[1][1] == [
        (Query("a", "When did it begin?"), "1973_oil_crisis-1"),
        (Query("b", "What then?"), "1973_oil_crisis-1"),
        (Query("c", "Undecided?"), "1973_oil_crisis-1"),
    ]


def test_sentences_by_the_majority_of_answers_then_the_first(tmp_path):
    path = tmp_path / "s.json.gz"
    path.write_bytes(gzip.compress(json.dumps(SQUAD).encode()))
    records = list(squad_records(read_squad(path), level="sentence"))
    assert [(d.doc_id, d.text) for d in records[1][0]] == [
        ("1973_oil_crisis-1.0", "It began in 1973."),
        ("1973_oil_crisis-1.1", "It ended in March 1974."),
        ("1973_oil_crisis-1.2", "Prices rose."),
    ]
    assert [doc_id[-2:] for _, doc_id in records[1][1]] == [".0", ".2", ".1"]


def change(*path, to=None):
    content = copy.deepcopy(SQUAD)
    place = content
    for key in path[:-1]:
        place = place[key]
    if to is None:
        del place[path[-1]]
    else:
        place[path[-1]] = to
    return content


ARTICLE = ("data", 0)
PARAGRAPH = (*ARTICLE, "paragraphs", 1)
QUESTION = (*PARAGRAPH, "qas", 0)
INSIDE = r"s\.json: data\[0\]\.paragraphs\[1\]"


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ([], r"s\.json: the file must be an object\. Received: \[\]"),
        ({}, r"s\.json: data is missing"),
        (change(*ARTICLE, to="x"), r"s\.json: data\[0\] must be an object\. Received: 'x'"),
        (change(*ARTICLE, "title"), r"s\.json: data\[0\]\.title is missing"),
        (change(*ARTICLE, "paragraphs", to={"a": 1}), r"data\[0\]\.paragraphs must be a list"),
        (change(*PARAGRAPH, "context"), INSIDE + r"\.context is missing"),
        (change(*PARAGRAPH, "context", to=" "), INSIDE + r"\.context must not be empty"),
        (change(*QUESTION, "id", to=5), INSIDE + r"\.qas\[0\]\.id must be a string\. Received: 5"),
        (change(*QUESTION, "id", to="a b"), INSIDE + r"\.qas\[0\]\.id must not hold white space"),
        (change(*QUESTION, "id", to="b"), INSIDE + r"\.qas\[1\]\.id must be unique\..*'b'"),
        (change(*QUESTION, "question"), INSIDE + r"\.qas\[0\]\.question is missing"),
        (change(*QUESTION, "answers", to=[]), INSIDE + r"\.qas\[0\]\.answers must hold at least"),
        (
            change(*QUESTION, "answers", 0, "answer_start", to=True),
            INSIDE + r"\.qas\[0\]\.answers\[0\]\.answer_start must be an integer\. Received: True",
        ),
        (
            change(*QUESTION, "answers", 0, "answer_start", to=len(CONTEXT)),
            INSIDE + r"\.qas\[0\]\.answers\[0\]\.answer_start must be in \[0, 54\)",
        ),
        ({"data": SQUAD["data"] * 2}, r"s\.json: data\[1\]\.title must be unique"),
    ],
)
def test_what_is_wrong_is_named_by_its_place(tmp_path, content, message):
    with pytest.raises(DataError, match=message):
        list(read_squad(write(tmp_path / "s.json", content)))


def test_unreadable_files_are_named(tmp_path):
    path = tmp_path / "s.json"
    for content, message in (
        (b'{\n"data": }', r"s\.json:2: must be JSON"),
        (b'{"data": "caf\xe9"}', r"s\.json: must be UTF-8 \(byte 13\)"),
        (b'{"data": ' + b"7" * 5000 + b"}", r"s\.json: must be JSON \(a number is too long\)"),
    ):
        path.write_bytes(content)
        with pytest.raises(DataError, match=message):
            list(read_squad(path))
    path = tmp_path / "s.json.gz"
    whole = gzip.compress(json.dumps(SQUAD).encode())
    for content in (
        whole[:-20],
        json.dumps(SQUAD).encode(),  # not packed at all
        whole[:20] + b"\xff" * 20 + whole[40:],  # zlib.error
    ):
        path.write_bytes(content)
        with pytest.raises(DataError, match=r"s\.json\.gz: the gzip stream must be whole"):
            list(read_squad(path))


def test_official_dev_file_at_paragraph_level(data_dir):
    path = data_dir / "squad" / "dev-v1.1.squad.json.gz"
    records = list(squad_records(read_squad(path)))
    assert len(records) == 2067
    reference = DatasetDirectory(data_dir / "squad")
    qrels = reference.qrels("test")
    store = reference.document_store({doc_id for judged in qrels.values() for doc_id in judged})
    questions = {query.query_id: query for query in reference.queries("test")}
    ours = {d.doc_id: d for documents, _ in records for d in documents}
    judged = [item for _, judged in records for item in judged]
    assert len(judged) == 10_570
    assert {query for query, _ in judged} == set(questions.values())
    for query, doc_id in judged:
        (expected,) = qrels[query.query_id]
        assert ours[doc_id][1:] == store[expected][1:]


def test_official_dev_file_at_sentence_level(data_dir):
    path = data_dir / "squad" / "dev-v1.1.squad.json.gz"
    records = list(squad_records(read_squad(path), level="sentence"))
    ours = {d.doc_id: d.text for documents, _ in records for d in documents}
    judged = {query.query_id: ours[doc_id] for _, pairs in records for query, doc_id in pairs}
    reference = DatasetDirectory(data_dir / "multireqa_squad")
    store = reference.document_store()
    same = 0
    for query_id, documents in reference.qrels("test").items():
        (doc_id,) = documents
        same += store[doc_id].text in judged[query_id] or judged[query_id] in store[doc_id].text
    # Answers that occur in several sentences: the file's offset is the first one, MultiReQA's
    # labels were settled by the question's words.
    assert same / len(judged) > 0.9
