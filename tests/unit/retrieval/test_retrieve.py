import json

import numpy as np
import pytest

from tfde.errors import ConfigError, DataError, MismatchError
from tfde.retrieval.encode_corpus import encode_corpus
from tfde.retrieval.exact_index import ExactIndex
from tfde.retrieval.live.load_index import load_index
from tfde.retrieval.retrieve import read_queries, retrieve, retrieve_from_corpus
from tfde.retrieval.scann_index import ScannIndex
from tfde.types import Document, Query

QUERIES = [Query(f"q{i}", f"word{i} title {i}") for i in range(6)]


@pytest.fixture
def embeddings(tmp_path, encoder, documents):
    return encode_corpus(encoder, documents, tmp_path / "e", shard_size=10)


def expected_run(encoder, documents, k):
    scores = (
        encoder.encode_queries([q.text for q in QUERIES]) @ encoder.encode_documents(documents).T
    )
    order = np.argsort(-scores, axis=1, kind="stable")[:, :k]
    return {
        q.query_id: [documents[i].doc_id for i in row]
        for q, row in zip(QUERIES, order, strict=True)
    }


def test_an_index_and_the_corpus_itself_answer_alike(encoder, documents, embeddings):
    expected = expected_run(encoder, documents, 5)
    by_index = retrieve(encoder, ExactIndex.from_embeddings(embeddings), QUERIES, 5)
    by_corpus = retrieve_from_corpus(encoder, documents, iter(QUERIES), 5, batch_size=1)
    for run in (by_index, by_corpus):
        assert {query_id: list(results) for query_id, results in run.items()} == expected
        for results in run.values():
            assert all(type(score) is float for score in results.values())
    assert by_index["q0"] == pytest.approx(by_corpus["q0"], abs=1e-6)


def test_another_models_index_is_refused(encoder_class, embeddings):
    index = ExactIndex.from_embeddings(embeddings)
    with pytest.raises(MismatchError, match=r"made with model hashing, .* with model hashing2"):
        retrieve(encoder_class("2"), index, QUERIES, 5)
    index.fingerprint = ""
    assert len(retrieve(encoder_class("2"), index, QUERIES, 5)) == 6


def test_documents_of_later_windows_keep_their_names(encoder):
    corpus = [Document(f"d{i}", "", f"word{i} word{i * i}") for i in range(100)]
    run = retrieve_from_corpus(encoder, corpus, QUERIES, 7, batch_size=1)  # windows of 32
    expected = expected_run(encoder, corpus, 7)
    assert {query_id: list(results) for query_id, results in run.items()} == expected


def test_saved_indexes_of_any_kind_open(tmp_path, encoder, embeddings):
    ExactIndex.from_embeddings(embeddings).save(tmp_path / "exact")
    ScannIndex.from_embeddings(embeddings).save(tmp_path / "scann")
    exact, scann = load_index(tmp_path / "exact"), load_index(tmp_path / "scann")
    assert (type(exact), type(scann)) == (ExactIndex, ScannIndex)
    runs = [retrieve(encoder, index, QUERIES, 3) for index in (exact, scann)]
    assert runs[0].keys() == runs[1].keys()
    for query_id in runs[0]:  # equal scores may go to either of two documents
        scores = [list(run[query_id].values()) for run in runs]
        assert scores[0] == pytest.approx(scores[1], abs=1e-5)
    with pytest.raises(FileNotFoundError, match=r"no index\.json there"):
        load_index(tmp_path / "e")


def test_bad_input_is_named(encoder, documents, embeddings):
    index = ExactIndex.from_embeddings(embeddings)
    with pytest.raises(ConfigError, match=r"`k` must be at least 1\. Received: 0"):
        retrieve(encoder, index, QUERIES, 0)
    with pytest.raises(ConfigError, match="at least one query"):
        retrieve(encoder, index, [], 5)
    with pytest.raises(ConfigError, match="at least one document"):
        retrieve_from_corpus(encoder, [], QUERIES, 5)
    with pytest.raises(DataError, match=r"queries:2: a query id must be unique\. Received: 'q0'"):
        retrieve(encoder, index, [QUERIES[0], QUERIES[0]], 5)
    with pytest.raises(DataError, match=r"queries:1: a query id must be UTF-8 text without white"):
        retrieve_from_corpus(encoder, documents, [Query("q 0", "x")], 5)


def test_models_that_give_nan_are_refused(encoder, documents):
    class NoQueries(type(encoder)):
        def encode_queries(self, texts, *, batch_size=64):
            return super().encode_queries(texts) * np.nan

    class NoDocuments(type(encoder)):
        def encode_documents(self, documents, *, batch_size=64):
            return super().encode_documents(documents) * np.nan

    with pytest.raises(ConfigError, match="embeddings of queries must be finite"):
        retrieve_from_corpus(NoQueries(), documents, QUERIES, 5)
    with pytest.raises(ConfigError, match=r"finite in float32\. Received: document 'd0'"):
        retrieve_from_corpus(NoDocuments(), documents, QUERIES, 5)


def test_read_queries(tmp_path):
    file = tmp_path / "q.jsonl"
    rows = [{"_id": "a", "text": "wer?"}, {"_id": "b", "text": "où?", "metadata": {}}]
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert list(read_queries(file)) == [Query("a", "wer?"), Query("b", "où?")]
    file.write_text("".join(json.dumps(row) + "\n" for row in [*rows, rows[0]]))
    with pytest.raises(DataError, match=r"q\.jsonl:3: .*unique; line 1 has it too"):
        list(read_queries(file))
    file.write_text('{"_id": "a"}\n')
    with pytest.raises(DataError, match=r"q\.jsonl:1: field 'text' is missing"):
        list(read_queries(file))
