"""A phrase encoder for all tests, and questions whose answers are words of its passages."""

import json

import pytest
from tiny_phrases import DOCUMENTS, phrase_encoder


@pytest.fixture(scope="session")
def model():
    """A phrase encoder; nobody changes it."""
    return phrase_encoder()


@pytest.fixture
def dataset(tmp_path):
    """A dataset directory: of six questions of the split `dev` two have an answer that is seen."""
    folder = tmp_path / "data"
    (folder / "qrels").mkdir(parents=True)
    questions = {  # answers, and the relevant document
        "q0": (["blue", "Blue."], "d0"),
        "q1": (["dog bird", "lake sea"], "d1"),
        "cut": (["lake sea"], "d1"),
        "absent": (["violet"], "d0"),
        "lost": (["red"], "d9"),
        "open": ([], "d0"),
    }

    def write(name, records):
        lines = "".join(json.dumps(record) + "\n" for record in records)
        (folder / name).write_text(lines, "utf-8")

    write("corpus.jsonl", ({"_id": d.doc_id, "title": d.title, "text": d.text} for d in DOCUMENTS))
    words = dict(zip(questions, ("one", "two", "three", "four", "five", "east"), strict=True))
    write("queries.jsonl", ({"_id": name, "text": f"{words[name]} red"} for name in questions))
    write(
        "answers.jsonl",
        ({"_id": name, "answers": texts} for name, (texts, _) in questions.items() if texts),
    )
    rows = [f"{name}\t{doc_id}\t1\n" for name, (_, doc_id) in questions.items()]
    (folder / "qrels" / "dev.tsv").write_text("query-id\tcorpus-id\tscore\n" + "".join(rows))
    return folder
