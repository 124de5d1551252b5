"""Small files of each format, as its repository describes it, and what they become."""

import csv
import json
from types import SimpleNamespace

import pytest

from tfde.data.dataset_directory import DatasetDirectory
from tfde.data.dataset_writer import write_dataset
from tfde.data.formats import (
    dpr,
    mrqa,
    msmarco,
    multireqa,
)
from tfde.data.formats.json_array import read_json_array
from tfde.data.formats.records import Answers, Judgement, Source, TrainingPair
from tfde.data.formats.registry import write_format
from tfde.data.ids import id_of_text
from tfde.storage.compressed import write_lines
from tfde.storage.intake import Intake
from tfde.types import Document, Query

CONTEXT = "It began in 1973. Prices rose in 1973."


def read(module, *sources, **options):
    return list(module.read(sources, Intake(), **options))


def of_kind(records, kind):
    return [record for record in records if isinstance(record, kind)]


def mrqa_file(path):
    question = {
        "qid": "0a1b",
        "question": " When  did it begin? ",
        "question_tokens": [["When", 1]],
        "detected_answers": [{"text": "1973", "char_spans": [[12, 15], [33, 36]]}],
        "answers": ["1973", "in 1973", "1973"],
    }
    write_lines(
        path,
        [
            json.dumps({"header": {"dataset": "SQuAD", "split": "train"}}),
            json.dumps({"context": CONTEXT, "qas": [question]}),
            json.dumps({"context": CONTEXT, "qas": [question | {"qid": "0a1c"}]}),
        ],
    )
    return path


def test_mrqa_keeps_a_context_once(tmp_path):
    records = read(mrqa, Source("contexts", mrqa_file(tmp_path / "m.jsonl"), "dev"))
    doc_id = id_of_text(CONTEXT)
    assert records == [
        Document(doc_id, "", CONTEXT),
        Query("0a1b", "When did it begin?"),
        Judgement("dev", "0a1b", doc_id, 1),
        Answers("0a1b", ("1973", "in 1973")),
        Query("0a1c", "When did it begin?"),
        Judgement("dev", "0a1c", doc_id, 1),
        Answers("0a1c", ("1973", "in 1973")),
    ]


def test_multireqa_every_sentence_with_an_answer_is_relevant(tmp_path):
    spans = [(0, 17), (18, 38), (0, 8)]
    write_lines(
        tmp_path / "c.jsonl",
        (
            json.dumps(
                {"candidate_id": f"SQuAD_0a1b/_0_{n}", "response_start": a, "response_end": b}
            )
            for n, (a, b) in enumerate(spans)
        ),
    )
    first = json.loads(mrqa_file(tmp_path / "m.jsonl").read_text().splitlines()[1])
    write_lines(tmp_path / "one.jsonl", [json.dumps(first)])
    records = read(
        multireqa,
        Source("mrqa", tmp_path / "one.jsonl", "dev"),
        Source("boundaries", tmp_path / "c.jsonl", "dev"),
    )
    assert of_kind(records, Document) == [
        Document("SQuAD_0a1b/_0_0", "", "It began in 1973."),
        Document("SQuAD_0a1b/_0_2", "", "It began"),
        Document("SQuAD_0a1b/_0_1", "", "Prices rose in 1973."),
    ]
    assert [j.doc_id for j in of_kind(records, Judgement)] == ["SQuAD_0a1b/_0_0", "SQuAD_0a1b/_0_1"]


ASKED = ("001012c630234d09b19c65f6964af34a", "7028edd2a82f4b7287fc6a9d15f6f359")


@pytest.mark.parametrize(
    ("candidate_id", "question_ids"),
    [
        (f"SQuAD_{ASKED[0]}/{ASKED[1]}/_0", ASKED),
        (f"NaturalQuestions_{ASKED[0]}/_12", ASKED[:1]),
        (f"HotpotQA_{ASKED[0]}/_0_1", ASKED[:1]),
        (f"{ASKED[0]}_0_1", ASKED[:1]),
        (ASKED[0], ASKED[:1]),
    ],
)
def test_multireqa_question_ids(candidate_id, question_ids):
    """The first three are forms of the repository's own files."""
    assert multireqa.question_ids(candidate_id) == question_ids


def test_multireqa_sentences_of_a_context_with_several_questions(tmp_path):
    candidates = [
        {"candidate_id": f"SQuAD_0a1b/0a1c/_{n}", "response_start": a, "response_end": b}
        for n, (a, b) in enumerate([(0, 17), (18, 38)])
    ]
    write_lines(tmp_path / "c.jsonl", map(json.dumps, candidates))
    records = read(
        multireqa,
        Source("mrqa", mrqa_file(tmp_path / "m.jsonl"), "dev"),
        Source("boundaries", tmp_path / "c.jsonl", "dev"),
    )
    assert [d.doc_id for d in of_kind(records, Document)] == [
        "SQuAD_0a1b/0a1c/_0",
        "SQuAD_0a1b/0a1c/_1",
    ]
    assert {j.query_id for j in of_kind(records, Judgement)} == {"0a1b", "0a1c"}


def test_nq_open_questions_with_answers(tmp_path):
    line = {"question": "who wrote it", "answer": ["Bobby Scott", "Bob Russell"]}
    write_lines(tmp_path / "NQ-open.dev.jsonl", [json.dumps(line)])
    write_lines(tmp_path / "psgs.tsv", ["id\ttext\ttitle", "1\tHe ain't heavy.\tA song"])
    records = read(
        SimpleNamespace(read=dpr.read_open_questions),
        Source("questions", tmp_path / "NQ-open.dev.jsonl"),
        Source("passages", tmp_path / "psgs.tsv"),
    )
    assert records == [
        Document("1", "A song", "He ain't heavy."),
        Query("NQ-open.dev-1", "who wrote it"),
        Answers("NQ-open.dev-1", ("Bobby Scott", "Bob Russell")),
    ]


def test_msmarco_files(tmp_path):
    write_lines(tmp_path / "collection.tsv", ["0\tThe presence of", '1\t"Quoted" text'])
    write_lines(tmp_path / "queries.tsv", ["10\twhat is it", "11\tnever judged"])
    write_lines(tmp_path / "qrels.tsv", ["10\t0\t1\t1"])
    write_lines(tmp_path / "triples.tsv", ["10\t1\t0"])
    records = read(
        msmarco,
        Source("collection", tmp_path / "collection.tsv"),
        Source("queries", tmp_path / "queries.tsv"),
        Source("qrels", tmp_path / "qrels.tsv", "train"),
        Source("id_triples", tmp_path / "triples.tsv", "train"),
    )
    assert records == [
        Document("0", "", "The presence of"),
        Document("1", "", '"Quoted" text'),
        Query("10", "what is it"),
        Query("11", "never judged"),
        Judgement("train", "10", "1", 1),
        TrainingPair("train", Query("10", "what is it"), "1", ("0",)),
    ]


def test_dpr_as_published(tmp_path):
    """Fields beyond those of the README are left alone; a passage may stand there twice."""
    positive = {"title": "Big", "text": "seven episodes", "score": 1000, "passage_id": "18768923"}
    example = {
        "dataset": "nq_train_psgs_w100",
        "question": "big little lies season 2 how many episodes",
        "answers": ["seven"],
        "positive_ctxs": [positive, positive | {"score": 13.4}],
        "negative_ctxs": [{"title": "", "text": "random", "psg_id": 7}],
        "hard_negative_ctxs": [{"title": "Little", "text": "no", "passage_id": "5"}],
    }
    (tmp_path / "train.json").write_text(json.dumps([example, example], indent=4))
    records = read(dpr, Source("examples", tmp_path / "train.json", "train"))
    query = Query(id_of_text(example["question"]), example["question"])
    pair = TrainingPair("train", query, "18768923", ("5",))
    assert records == [
        Document("18768923", "Big", "seven episodes"),
        Document("7", "", "random"),
        Document("5", "Little", "no"),
        query,
        Answers(query.query_id, ("seven",)),
        Judgement("train", query.query_id, "18768923", 1),
        pair,
        pair,
    ]


def test_dpr_passages_are_quoted_as_csv(tmp_path):
    with open(tmp_path / "p.tsv", "w", newline="", encoding="utf-8") as file:
        table = csv.writer(file, delimiter="\t")
        table.writerows(
            [("id", "text", "title"), (1, 'a "b"\n\nc', "T\t2"), (2, "é" * 200_000, "")]
        )
    assert list(dpr.read_passages(tmp_path / "p.tsv", Intake())) == [
        Document("1", "T\t2", 'a "b"\n\nc'),
        Document("2", "", "é" * 200_000),
    ]


@pytest.mark.parametrize("indent", [None, 4])
@pytest.mark.parametrize("name", ["a.json", "a.json.gz"])
def test_long_json_arrays_come_element_by_element(tmp_path, indent, name):
    items = [{"n": n, "é\n": ["\U0001f600" * 50] * 40} for n in range(400)]  # 8 chunks or more
    items.insert(3, {"long": "x" * 3_000_000})
    text = json.dumps(items, indent=indent)
    write_lines(tmp_path / name, [text])
    found = list(read_json_array(tmp_path / name, Intake()))
    assert [item for _, item in found] == items
    lines = text.splitlines()
    for number, item in found[:10]:
        assert lines[number - 1].strip().startswith("[{" if indent is None else "{"), item


def test_empty_json_array(tmp_path):
    (tmp_path / "a.json").write_bytes(b"\xef\xbb\xbf [ \n ] \n")
    assert list(read_json_array(tmp_path / "a.json", Intake())) == []


def test_dpr_contexts_may_have_a_title_alone(tmp_path):
    document = Document("d", "Only a title", "")
    records = [document, Query("q", "what?"), Judgement("test", "q", "d", 1)]
    write_dataset(tmp_path / "data", records)
    write_format("dpr", DatasetDirectory(tmp_path / "data"), tmp_path / "dpr")
    source = Source("examples", tmp_path / "dpr" / "test.json", "test")
    assert list(dpr.read([source], Intake())) == records


CONTEXTS = {
    "[PAR] [TLE] York mill [SEP] It stands. Built in 1820. [PAR] [TLE] Leeds inn [SEP] Old.": (
        "",
        "York mill\nIt stands. Built in 1820.\nLeeds inn\nOld.",
    ),
    "[DOC] [TLE] A made up page [PAR] First. [PAR] Second of 1820.": (
        "A made up page",
        "First.\nSecond of 1820.",
    ),
    "No marks, 1820 [brackets].": ("", "No marks, 1820 [brackets]."),
}


@pytest.mark.parametrize("context", CONTEXTS)
def test_marks_of_mrqa_are_structure(tmp_path, context):
    title, text = CONTEXTS[context]
    at = context.index("1820")
    spans = {"text": "1820", "char_spans": [[at, at + 3]], "token_spans": [[0, 0]]}
    question = {"qid": "q", "question": "When?", "answers": ["1820"], "detected_answers": [spans]}
    (tmp_path / "m").write_text(json.dumps({"id": "", "context": context, "qas": [question]}))
    (paragraph,) = map(mrqa.without_marks, mrqa.read_mrqa(tmp_path / "m", Intake()))
    assert paragraph.document[1:3] == (title, text)
    (start,) = paragraph.questions[0].answer_starts
    assert text[start : start + 4] == "1820"
