"""`Answer@k` among the measures of a validation."""

import json

import tiny

from tfde.config.validation import ValidationConfig
from tfde.data.dataset_directory import DatasetDirectory
from tfde.training.retrieval_validation import RetrievalValidation


def test_only_the_documents_that_are_searched_are_looked_at_for_answers(tmp_path):
    path = tiny.write_dataset(tmp_path / "data", documents=40)
    dataset = DatasetDirectory(path)
    store = dataset.document_store()
    relevant = dataset.relevant("dev")
    lines = [
        json.dumps({"_id": query.query_id, "answers": [store[relevant[query.query_id][0]].text]})
        for query in dataset.queries("dev")
    ]
    (path / "answers.jsonl").write_text("\n".join(lines) + "\n")
    measures = ("Answer@1", "P@1", "Answer@9", "R@9")
    config = ValidationConfig(str(path), max_queries=5, max_documents=12, measures=measures)
    found = RetrievalValidation(config)(tiny.dual_encoder())
    # One document a question is relevant, and its whole text is the answer.
    assert list(found) == list(measures)
    assert found["Answer@1"] == found["P@1"]
    assert 0 < found["Answer@9"] == found["R@9"]
