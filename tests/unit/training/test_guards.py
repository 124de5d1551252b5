"""What a guard measures is what `tfde evaluate --guard` does."""

import pytest
import tiny

from tfde.config.validation import GuardConfig, ValidationConfig
from tfde.data.dataset_writer import write_dataset_directory
from tfde.evaluation.measures import evaluate
from tfde.retrieval.exact_index import ExactIndex
from tfde.retrieval.retrieve import retrieve
from tfde.training.retrieval_validation import RetrievalValidation
from tfde.types import Document, Query


def test_a_query_of_a_guard_is_not_its_own_answer(tmp_path):
    documents = [Document(f"d{n}", "", text) for n, text in enumerate(tiny.document_texts()[:20])]
    queries = [Query(document.doc_id, document.text) for document in documents[:5]]
    qrels = {query.query_id: {f"d{n + 7}": 1} for n, query in enumerate(queries)}
    write_dataset_directory(tmp_path / "same", documents, queries, {"dev": qrels})
    place = str(tmp_path / "same")
    guards = {"away": GuardConfig(place, "dev", "RR", max_documents=None)}
    validation = RetrievalValidation(ValidationConfig(place, measures=("RR",), guards=guards))
    model = tiny.dual_encoder()
    measured = validation(model)
    ids = [document.doc_id for document in documents]
    run = retrieve(model, ExactIndex.build(model.encode_documents(documents), ids), queries, k=20)
    assert measured["RR"] == pytest.approx(evaluate(run, qrels, "RR")["RR"])
    expected = evaluate(run, qrels, "RR", ignore_identical_ids=True)["RR"]
    assert measured["away RR"] == pytest.approx(expected)
    assert measured["RR"] < expected
