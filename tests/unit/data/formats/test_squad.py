import copy
import gzip
import json

import pytest

from tfde.data.dataset_directory import DatasetDirectory
from tfde.data.formats import squad
from tfde.data.formats.paragraphs import paragraph_records
from tfde.data.formats.records import Answers, Judgement, Source
from tfde.data.formats.squad import read_squad
from tfde.errors import DataError
from tfde.storage.intake import Intake
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


def records_of(path, **options):
    return [list(paragraph_records(p, "dev", **options)) for p in read_squad(path)]


def test_paragraphs(tmp_path):
    title = "1973 oil crisis"
    records = records_of(write(tmp_path / "s.json", SQUAD))
    assert records[0] == [Document("1973_oil_crisis-0", title, "Empty of questions.")]
    assert records[1] == [
        Document("1973_oil_crisis-1", title, CONTEXT),
        Query("a", "When did it begin?"),
        Judgement("dev", "a", "1973_oil_crisis-1", 1),
        Answers("a", ("1973",)),
        Query("b", "What then?"),
        Judgement("dev", "b", "1973_oil_crisis-1", 1),
        Answers("b", ("It", "rose", "Prices")),
        Query("c", "Undecided?"),
        Judgement("dev", "c", "1973_oil_crisis-1", 1),
        Answers("c", ("It ended", "It")),
    ]


def test_sentences_by_the_majority_of_answers_then_the_first(tmp_path):
    path = tmp_path / "s.json.gz"
    path.write_bytes(gzip.compress(json.dumps(SQUAD).encode()))
    records = records_of(path, level="sentence")[1]
    assert [(r.doc_id, r.text) for r in records if isinstance(r, Document)] == [
        ("1973_oil_crisis-1.0", "It began in 1973."),
        ("1973_oil_crisis-1.1", "It ended in March 1974."),
        ("1973_oil_crisis-1.2", "Prices rose."),
    ]
    assert [r.doc_id[-2:] for r in records if isinstance(r, Judgement)] == [".0", ".2", ".1"]


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
        (change(*ARTICLE, "paragraphs", to={"a": 1}), r"data\[0\]\.paragraphs must be a list"),
        (change(*PARAGRAPH, "context"), INSIDE + r"\.context is missing"),
        (change(*PARAGRAPH, "context", to=" "), INSIDE + r"\.context must not be empty"),
        (change(*QUESTION, "id", to=5.5), INSIDE + r"\.qas\[0\]\.id must be a string\..*: 5\.5"),
        (change(*ARTICLE, "title", to=7), r"s\.json: data\[0\]\.title must be a string\. .*: 7"),
        (change(*QUESTION, "id", to="a b"), INSIDE + r"\.qas\[0\]\.id must not hold white space"),
        (change(*QUESTION, "id", to="b"), INSIDE + r"\.qas\[1\]\.id must be unique\..*'b'"),
        (change(*QUESTION, "question"), INSIDE + r"\.qas\[0\]\.question is missing"),
        (
            change(*QUESTION, "answers", 0, "answer_start", to=True),
            INSIDE + r"\.qas\[0\]\.answers\[0\]\.answer_start must be an integer\. Received: True",
        ),
        (
            change(*QUESTION, "answers", 0, "answer_start", to=len(CONTEXT)),
            INSIDE + r"\.qas\[0\]\.answers\[0\]\.answer_start must be in \[0, 50\], the answer ins",
        ),
        (change(*QUESTION, "answers", 0, "text"), r"answers\[0\]\.text is missing"),
        (change(*QUESTION, "answers", 0, "text", to=""), r"answers\[0\]\.text must not be empty"),
    ],
)
def test_what_is_wrong_is_named_by_its_place(tmp_path, content, message):
    with pytest.raises(DataError, match=message):
        list(read_squad(write(tmp_path / "s.json", content)))


def test_bad_parts_are_skipped_and_counted(tmp_path):
    for content, questions in (
        (change(*QUESTION, "answers"), ["b", "c"]),
        (change(*PARAGRAPH, "context"), []),
        (change(*ARTICLE, "title", to=7), []),
        ({}, []),
    ):
        intake = Intake(skip_bad=True)
        paragraphs = list(read_squad(write(tmp_path / "s.json", content), intake))
        assert [q.query.query_id for p in paragraphs for q in p.questions] == questions
        assert intake.skipped == 1


def article(context, question_id, *, answer="is", **fields):
    answers = [{"text": answer, "answer_start": context.index(answer)}] if answer else []
    question = {"id": question_id, "question": f"{context}?", "answers": answers}
    question |= {name: fields.pop(name) for name in ("is_impossible",) if name in fields}
    return {"paragraphs": [{"context": context, "qas": [question]}], **fields}


def test_files_of_squads_shape(tmp_path):
    first = [
        article("The mill is red.", 379458),  # CovidQA: no title, ids that are numbers
        article("The inn is blue.", 379459, title=None),
        article("The hut is green.", "c", title=" "),
        article("One is one.", "d", title="Same"),
        article("Two is two.", "e", title="Same"),
    ]
    second = [article("Three is three.", "f", title="Same"), article("It is.", "g")]
    paths = [
        write(tmp_path / name, {"data": data})
        for name, data in (("1.json", first), ("2.json", second))
    ]
    intake = Intake()
    records = list(squad.read([Source("articles", path, "dev") for path in paths], intake))
    assert [(r.doc_id, r.title, r.text) for r in records if isinstance(r, Document)] == [
        ("untitled-0", "", "The mill is red."),
        ("untitled-1", "", "The inn is blue."),
        ("untitled-2", "", "The hut is green."),
        ("Same-0", "Same", "One is one."),
        ("Same-1", "Same", "Two is two."),
        ("Same-2", "Same", "Three is three."),
        ("untitled-3", "", "It is."),
    ]
    judged = [(r.query_id, r.doc_id) for r in records if isinstance(r, Judgement)]
    assert judged[:2] == [("379458", "untitled-0"), ("379459", "untitled-1")]
    assert not intake.left_out


def test_unanswerable_questions_are_left_out_and_counted(tmp_path):
    data = [
        article("The mill is red.", "a", is_impossible=False),
        article("The inn is blue.", "b", answer="", is_impossible=True),
        article("The hut is green.", "c", answer="hut", is_impossible=True),  # a plausible one
    ]
    intake = Intake()
    paragraphs = list(read_squad(write(tmp_path / "v2.json", {"data": data}), intake))
    assert len(paragraphs) == 3
    assert [q.query.query_id for p in paragraphs for q in p.questions] == ["a"]
    assert intake.left_out == {"questions without an answer": 2}
    assert not intake.skipped


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
    records = [record for part in records_of(path) for record in part]
    reference = DatasetDirectory(data_dir / "squad")
    qrels = reference.qrels("test")
    store = reference.document_store({doc_id for judged in qrels.values() for doc_id in judged})
    ours = {r.doc_id: r for r in records if isinstance(r, Document)}
    assert len(ours) == 2067
    asked = {r[:2] for r in records if isinstance(r, Query)}
    assert asked == {query[:2] for query in reference.queries("test")}
    judged = [r for r in records if isinstance(r, Judgement)]
    assert len(judged) == 10_570
    for judgement in judged:
        (expected,) = qrels[judgement.query_id]
        assert ours[judgement.doc_id][1:3] == store[expected][1:3]


def test_official_dev_file_at_sentence_level(data_dir):
    path = data_dir / "squad" / "dev-v1.1.squad.json.gz"
    records = [record for part in records_of(path, level="sentence") for record in part]
    ours = {r.doc_id: r.text for r in records if isinstance(r, Document)}
    judged = {r.query_id: ours[r.doc_id] for r in records if isinstance(r, Judgement)}
    reference = DatasetDirectory(data_dir / "multireqa_squad")
    store = reference.document_store()
    same = 0
    for query_id, documents in reference.qrels("test").items():
        (doc_id,) = documents
        same += store[doc_id].text in judged[query_id] or judged[query_id] in store[doc_id].text
    # Answers that occur in several sentences: the file's offset is the first one, MultiReQA's
    # labels were settled by the question's words.
    assert same / len(judged) > 0.9
