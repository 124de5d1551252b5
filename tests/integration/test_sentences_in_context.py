"""Sentences with the paragraph around them, from a dataset directory of sentences."""

import json
import runpy
import sys
from pathlib import Path

from tfde.data.dataset_directory import DatasetDirectory

SCRIPT = Path(__file__).parents[2] / "pipelines" / "sentences_in_context.py"


def test_a_sentence_is_followed_by_the_rest_of_its_paragraph(tmp_path, monkeypatch):
    data = tmp_path / "data"
    (data / "qrels").mkdir(parents=True)
    sentences = [("p.0", "One."), ("p.1", "Two."), ("p.2", "Three."), ("q.r.0", "Alone.")]
    lines = [json.dumps({"_id": name, "title": "T", "text": text}) for name, text in sentences]
    (data / "corpus.jsonl").write_text("\n".join(lines))
    (data / "queries.jsonl").write_text('{"_id": "x", "text": "what?"}\n')
    (data / "qrels" / "test.tsv").write_text("query-id\tcorpus-id\tscore\nx\tp.1\t2\n")
    output = tmp_path / "context"
    monkeypatch.setattr(sys, "argv", ["script", "--dataset", str(data), "--output", str(output)])
    runpy.run_path(str(SCRIPT), run_name="__main__")
    written = DatasetDirectory(output)
    assert [document[0::2] for document in written.documents()] == [
        ("p.0", "One. | Two. Three."),
        ("p.1", "Two. | One. Three."),
        ("p.2", "Three. | One. Two."),
        ("q.r.0", "Alone."),
    ]
    assert {document.title for document in written.documents()} == {"T"}
    assert written.qrels("test") == {"x": {"p.1": 2}}
    assert [query.text for query in written.queries()] == ["what?"]
