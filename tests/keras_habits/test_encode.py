"""Encoding as users of sentence-transformers, NumPy and a notebook would write it."""

import numpy as np
import pytest
import tensorflow as tf
import tiny

import tfde
from tfde.errors import ConfigError, DataError


def test_one_text_is_one_vector_and_similarity_orders_as_search_does():
    model = tiny.dual_encoder()
    query = model.encode_queries("red apple")
    documents = model.encode_documents(["green apple", "red apple", "moon"])
    assert query.shape == (model.embedding_dim,)
    np.testing.assert_allclose(query, model.encode_queries(["red apple"])[0], atol=1e-6)
    one = model.encode_documents(tfde.Document("d", "red", "apple"))
    np.testing.assert_allclose(one, model.encode_documents([{"title": "red", "text": "apple"}])[0])
    scores = model.similarity(query, documents)
    assert scores.shape == (3,)
    assert model.similarity(model.encode_queries(["a", "b"]), documents).shape == (2, 3)
    index = tfde.ExactIndex.build(documents, ["green", "red", "moon"])
    found, ids = index.search(query[None], k=3)
    best = np.argsort(-scores, kind="stable")
    assert list(ids[0]) == [["green", "red", "moon"][row] for row in best]
    np.testing.assert_allclose(found[0], scores[best], atol=1e-6)


def test_what_things_are_shows_in_a_notebook(tmp_path):
    model = tiny.dual_encoder(sharing="ade_spl")
    assert repr(model) == (
        "DualEncoder(bag_of_words, 6 hidden, ade_spl, 6 numbers, queries of 8 tokens, documents of"
        " 16)"
    )
    path = tiny.write_dataset(tmp_path / "data", documents=20)
    assert repr(tfde.DatasetDirectory(path)) == f"DatasetDirectory({str(path)!r}: train, dev)"
    pairs = tfde.pairs([("a", "b"), ("c", "d"), ("e", "f")], batch_size=2)
    assert repr(pairs) == "PairDataset(3 pairs, 2 in a batch, 1 batches an epoch)"
    index = tfde.ExactIndex.build(model.encode_documents(["a", "b"]), ["1", "2"])
    assert repr(index) == "ExactIndex(2 documents, 6 numbers)"
    assert len(index) == 2
    np.testing.assert_array_equal(np.asarray(index), model.encode_documents(["a", "b"]))
    assert np.asarray(index).dtype == np.float32
    assert repr(tiny.tokenizer()) == "WordPieceTokenizer(92 tokens)"
    scorer = tfde.CrossEncoder.from_backbone(tiny.BERT, tokenizer=tiny.tokenizer(), seed=1)
    assert repr(scorer) == "CrossEncoder(bert, 2 layers of 8 hidden, 1 label)"
    live = tfde.LiveIndex.open(_saved(index, tmp_path / "index"))
    assert repr(live) == f"LiveIndex({str(tmp_path / 'index')!r}: 2 documents, 6 numbers)"


def _saved(index, path):
    index.save(path)
    return path


def test_predict_takes_so_many_batches():
    model = tiny.dual_encoder()
    texts = tiny.document_texts()[:7]
    single = tf.data.Dataset.from_tensor_slices(texts)
    whole = model.predict(texts, verbose=0)["query_embeddings"]
    for given in (texts, np.array(texts), tf.constant(texts), single, single.batch(2).repeat()):
        found = model.predict(given, batch_size=2, steps=2, verbose=0)
        for part in found.values():
            assert part.shape == (4, model.embedding_dim)
        np.testing.assert_allclose(found["query_embeddings"], whole[:4], atol=1e-6)
    pairs = [(text, text) for text in texts]
    assert len(model.predict(pairs, batch_size=2, steps=3, verbose=0)["document_embeddings"]) == 6
    assert len(model.predict(texts, batch_size=2, steps=9, verbose=0)["query_embeddings"]) == 7
    for call in (model.predict, model.encode_queries, model.encode_documents):
        with pytest.raises(ConfigError, match="must be a dataset that ends"):
            call(single.repeat())
    with pytest.raises(ConfigError, match="`steps` must be at least 1"):
        model.predict(texts, steps=0)


def test_predict_reads_queries_as_encode_queries_does():
    model = tiny.dual_encoder()
    texts = tiny.document_texts()[:3]
    queries = [tfde.Query(str(number), text) for number, text in enumerate(texts)]
    expected = model.predict(texts, verbose=0)
    for name, found in model.predict(queries, verbose=0).items():
        np.testing.assert_array_equal(found, expected[name])
    for name, found in model.predict(queries[1], verbose=0).items():
        np.testing.assert_allclose(found, expected[name][1], atol=1e-6)
    for rows in (queries, [tfde.Document("1", "title", "text")]):
        with pytest.raises(DataError, match=r"a pair must be \(query, document"):
            tfde.pairs(rows, batch_size=1)
