"""The passages of sentences: kept by `convert`, read once into memory, found again in a bundle."""

import gzip
import json
import runpy
import sys
from pathlib import Path

import pytest
import tensorflow as tf

from tfde.cli.main import main
from tfde.data.dataset_directory import DatasetDirectory
from tfde.data.dataset_writer import write_dataset
from tfde.data.formats.records import Judgement
from tfde.data.pairs.dataset import PairDataset
from tfde.data.pairs.table import PairTable
from tfde.errors import ConfigError
from tfde.export.documents_model import DocumentsModel
from tfde.types import Document, Pair, Query

PIPELINES = Path(__file__).parents[3] / "pipelines"
SCRIPT = PIPELINES / "sentence_contexts.py"
FIRST, SECOND = "A ship left. It sank near Rome.", "A boat left. It sank near Oslo."


def squad_file(path):
    paragraphs = [
        {
            "context": context,
            "qas": [
                {
                    "id": f"q{number}",
                    "question": "Where did it sink?",
                    "answers": [{"text": context[-5:-1], "answer_start": len(context) - 5}],
                }
            ],
        }
        for number, context in enumerate((FIRST, SECOND))
    ]
    path.write_text(json.dumps({"data": [{"title": "Ships", "paragraphs": paragraphs}]}))
    return str(path)


def test_convert_keeps_the_paragraph_of_each_sentence(tmp_path, capsys):
    given = ["--format", "squad", "--input", squad_file(tmp_path / "s.json"), "--split", "dev"]
    output = ["--output", str(tmp_path / "d")]
    assert main(["convert", *given, *output, "--level", "sentence", "--context"]) == 0
    dataset = DatasetDirectory(tmp_path / "d")
    documents = list(dataset.documents())
    assert [(d.text, d.context) for d in documents] == [
        ("A ship left.", FIRST),
        ("It sank near Rome.", FIRST),
        ("A boat left.", SECOND),
        ("It sank near Oslo.", SECOND),
    ]
    assert documents[0].context is documents[1].context  # one text in memory
    relevant = {
        q: dataset.document_store(ids)[ids[0]] for q, ids in dataset.relevant("dev").items()
    }
    assert {q: d.text for q, d in relevant.items()} == {
        "q0": "It sank near Rome.",
        "q1": "It sank near Oslo.",
    }
    capsys.readouterr()
    for more, message in (
        (["--context"], "`context` must be left out where documents are paragraphs"),
        (["--level", "paragraph", "--context"], "`context` must be left out where"),
    ):
        assert main(["convert", *given, "--output", str(tmp_path / "e"), *more]) == 1
        error = capsys.readouterr().err
        assert message in error
        assert error.count("\n") == 1
    beir = ["--format", "beir", "--input", str(tmp_path / "d"), "--context"]
    assert main(["convert", *beir, "--output", str(tmp_path / "e")]) == 1
    assert "`--context` is for squad, mrqa, multireqa." in capsys.readouterr().err


def test_contexts_are_read_beside_the_text_or_in_metadata(tmp_path):
    lines = [
        {"_id": "a", "text": "one", "context": "one two", "page": 1},
        {"_id": "b", "text": "two", "metadata": {"context": "one two", "page": 2}},
        {"_id": "c", "text": "three", "metadata": {"page": 2}},
        {"_id": "d", "text": "four", "context": ""},
    ]
    (tmp_path / "corpus.jsonl").write_text("\n".join(map(json.dumps, lines)))
    documents = list(DatasetDirectory(tmp_path).documents())
    assert [d.context for d in documents] == ["one two", "one two", None, ""]
    assert documents[0].context is documents[1].context
    assert [d.metadata["page"] for d in documents[:3]] == [1, 2, 2]


def test_a_bundle_has_equal_metadata_once(tmp_path):
    corpus = [
        Document("a", "", "one", {"context": FIRST}),
        Document("b", "", "two", {"context": FIRST}),
        Document("c", "", "three"),
        Document("d", "", "four", {"context": SECOND}),
    ]
    model = DocumentsModel(corpus, tmp_path / "ids.txt")
    outputs = model.look_up(tf.constant(["d", "b", "nowhere", "c", "a"]))
    found = outputs["metadata"].numpy()
    assert outputs["found"].numpy().tolist() == [True, True, False, True, True]
    expected = [json.dumps({"context": text}).encode() for text in (SECOND, FIRST, FIRST)]
    assert found.tolist() == [expected[0], expected[1], b"", b"", expected[2]]
    kept = [variable for variable in model.variables if variable.dtype == tf.string]
    assert sum(FIRST.encode() in text for v in kept for text in v.numpy()) == 1


def test_sentences_get_their_passages_from_another_data_set(tmp_path, monkeypatch, capsys):
    sentences = [Document("p0.0", "", "A ship left."), Document("p1.0", "", "A boat left.")]
    write_dataset(tmp_path / "s", [*sentences, Query("q", "what?")])
    passages = [Document("p0", "", FIRST), Document("p1", "", SECOND)]
    write_dataset(tmp_path / "p", passages)
    script = runpy.run_path(str(SCRIPT))["main"]

    def run(passages, output):
        names = {"dataset": "s", "passages": passages, "output": output}
        given = [x for name, folder in names.items() for x in (f"--{name}", str(tmp_path / folder))]
        monkeypatch.setattr(sys, "argv", ["script", *given])
        return script()

    assert run("p", "out") == 0
    assert [d.context for d in DatasetDirectory(tmp_path / "out").documents()] == [FIRST, SECOND]
    write_dataset(tmp_path / "few", passages[:1])
    assert run("few", "other") == 1
    assert "few: must hold the passage 'p1'." in capsys.readouterr().err
    assert not (tmp_path / "other").exists()


@pytest.mark.parametrize("context", [True, False])
def test_multireqa_keeps_mrqas_context(tmp_path, context):
    text = f"[PAR] {FIRST}"
    at = text.index("Rome")
    answer = {"text": "Rome", "char_spans": [[at, at + 3]]}
    question = {"qid": "x", "question": "Where?", "answers": ["Rome"], "detected_answers": [answer]}
    (tmp_path / "m.jsonl").write_text(json.dumps({"context": text, "qas": [question]}))
    middle = text.index("It sank")
    boundaries = [
        {"candidate_id": "x/_0", "response_start": 6, "response_end": middle},
        {"candidate_id": "x/_1", "response_start": middle, "response_end": len(text)},
    ]
    (tmp_path / "b.jsonl").write_text("\n".join(map(json.dumps, boundaries)))
    given = [x for name in ("mrqa=m", "boundaries=b") for x in ("--input", f"{name}.jsonl")]
    given = [x.replace("=", f"={tmp_path}/") for x in given]
    options = ["--split", "test", "--output", str(tmp_path / "d"), *["--context"] * context]
    assert main(["convert", "--format", "multireqa", *given, *options]) == 0
    found = list(DatasetDirectory(tmp_path / "d").documents())
    assert [d.text for d in found] == ["A ship left.", "It sank near Rome."]
    assert {d.context for d in found} == {FIRST if context else None}


def test_a_context_is_of_the_document_and_its_words_are_of_the_vocabulary():
    documents = [Document(i, "", t, {"context": FIRST}) for i, t in (("a", "one"), ("b", "two"))]
    pairs = [Pair(Query(f"q{d.doc_id}", "what?"), d) for d in documents]
    texts = list(PairDataset(pairs, batch_size=2).texts())
    assert texts == ["what?", "what?", " one", " two", FIRST]
    other = documents[0]._replace(metadata={"context": SECOND})
    with pytest.raises(ConfigError, match=f"'a' must stand .* one context.*{FIRST}.*{SECOND}"):
        PairTable([*pairs, Pair(Query("q", "where?"), other)])


def test_sentences_before_each_are_put_behind_it(tmp_path, monkeypatch, capsys):
    texts = ["A ship left.", "It sank.", "Rome was near.", "All swam."]
    sentences = [Document(f"p0.{number}", "Ships", text) for number, text in enumerate(texts)]
    sentences.append(Document("p1.0", "Ships", "A boat left."))
    query = Query("q", "what sank?")
    write_dataset(tmp_path / "s", [*sentences, query, Judgement("test", "q", "p0.1", 1)])
    pair = {"query": "what sank?", "positive": {"title": "Ships", "text": "It sank."}}
    pair["negatives"] = [{"title": "Ships", "text": "All swam."}]
    (tmp_path / "pairs.jsonl").write_text(json.dumps(pair) + "\n")

    def script(*more):
        given = ["--dataset", str(tmp_path / "s"), *more]
        monkeypatch.setattr(sys, "argv", ["preceding_sentences.py", *given])
        with pytest.raises(SystemExit) as end:
            runpy.run_path(str(PIPELINES / "preceding_sentences.py"), run_name="__main__")
        return end.value.code

    pairs = ["--pairs", str(tmp_path / "pairs.jsonl")]
    assert script("--output", str(tmp_path / "out"), *pairs) == 0
    made = DatasetDirectory(tmp_path / "out")
    assert {document.doc_id: document.text for document in made.documents()} == {
        "p0.0": "A ship left.",
        "p0.1": "It sank. | A ship left.",
        "p0.2": "Rome was near. | A ship left. It sank.",
        "p0.3": "All swam. | It sank. Rome was near.",
        "p1.0": "A boat left.",
    }
    assert made.qrels("test") == {"q": {"p0.1": 1}}
    with gzip.open(tmp_path / "out.pairs.jsonl.gz", "rt") as lines:
        (row,) = map(json.loads, lines)
    assert row["positive"]["text"] == "It sank. | A ship left."
    assert row["negatives"][0]["text"] == "All swam. | It sank. Rome was near."
    assert script("--output", str(tmp_path / "no"), "--pairs", "none") == 1
    assert "none: `--pairs` must be a file that exists." in capsys.readouterr().err
    by_id = {**pair, "positive": "p0.1", "negatives": ["p0.3"]}
    (tmp_path / "pairs.jsonl").write_text(json.dumps(by_id) + "\n")
    assert script("--output", str(tmp_path / "ids"), *pairs) == 0
    with gzip.open(tmp_path / "ids.pairs.jsonl.gz", "rt") as lines:
        assert list(map(json.loads, lines)) == [row]
    pair["negatives"][0]["text"] = "Not there."
    (tmp_path / "pairs.jsonl").write_text(json.dumps(pair) + "\n")
    assert script("--output", str(tmp_path / "no"), *pairs) == 1
    assert "pairs.jsonl:1: must name sentences of" in capsys.readouterr().err
    assert not (tmp_path / "no").exists()  # so the command can be given again


def test_equal_sentences_and_padded_numbers(tmp_path, monkeypatch, capsys):
    texts = {"a.00": "A king ruled.", "a.01": "Yes.", "b.00": "A ship left.", "b.01": "Yes."}
    documents = [Document(doc_id, "", text) for doc_id, text in texts.items()]
    write_dataset(
        tmp_path / "s", [*documents, Query("q", "Who?"), Judgement("test", "q", "b.01", 1)]
    )
    rows = [{"query": "Who?", "positive": {"text": "Yes."}}, {"query": "Who?", "positive": "b.01"}]
    (tmp_path / "p.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    given = [
        "--dataset",
        tmp_path / "s",
        "--pairs",
        tmp_path / "p.jsonl",
        "--output",
        tmp_path / "o",
    ]
    monkeypatch.setattr(sys, "argv", ["preceding_sentences.py", *map(str, given)])
    with pytest.raises(SystemExit) as end:
        runpy.run_path(str(PIPELINES / "preceding_sentences.py"), run_name="__main__")
    assert end.value.code == 0
    made = {one.doc_id: one.text for one in DatasetDirectory(tmp_path / "o").documents()}
    assert made["b.01"] == "Yes. | A ship left."
    with gzip.open(tmp_path / "o.pairs.jsonl.gz", "rt") as lines:
        found = [json.loads(line)["positive"]["text"] for line in lines]
    assert found == ["Yes. | A king ruled.", "Yes. | A ship left."]
    assert "1 texts stand in several places" in capsys.readouterr().err
