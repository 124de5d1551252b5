import json

import numpy as np
import pytest

from tfde.errors import ConfigError, CorruptError, DataError, MismatchError
from tfde.retrieval.encode_corpus import encode_corpus
from tfde.retrieval.exact_index import ExactIndex


def test_search_of_a_hand_made_corpus():
    index = ExactIndex.build(np.array([[1, 0], [0, 1], [1, 1]], np.float32), ["x", "y", "xy"])
    scores, doc_ids = index.search(np.array([[2, 1], [0, -1]], np.float32), 2)
    np.testing.assert_array_equal(scores, [[3, 2], [0, -1]])
    assert doc_ids.tolist() == [["xy", "x"], ["x", "y"]]
    assert scores.dtype == np.float32


def test_ties_keep_the_order_of_the_index_and_k_is_cut_to_n():
    index = ExactIndex.build(np.ones((5, 3), np.float32), list("edcba"))
    scores, doc_ids = index.search(np.ones((1, 3)), 100)
    assert doc_ids.tolist() == [list("edcba")]
    np.testing.assert_array_equal(scores, np.full((1, 5), 3))


def test_no_queries_give_no_rows():
    index = ExactIndex.build(np.ones((5, 3), np.float32), list("abcde"))
    scores, doc_ids = index.search(np.empty((0, 3)), 2)
    assert scores.shape == doc_ids.shape == (0, 2)


def test_permuted_documents_permute_the_result():
    generator = np.random.default_rng(0)
    vectors = generator.standard_normal((200, 8)).astype(np.float32)
    queries = generator.standard_normal((5, 8)).astype(np.float32)
    ids = [f"d{i}" for i in range(200)]
    order = generator.permutation(200)
    before = ExactIndex.build(vectors, ids).search(queries, 10)[1]
    after = ExactIndex.build(vectors[order], [ids[i] for i in order]).search(queries, 10)[1]
    assert before.tolist() == after.tolist()


def test_shards_on_the_disk_give_the_same_as_memory(tmp_path, encoder, documents):
    embeddings = encode_corpus(encoder, documents, tmp_path / "e", shard_size=10)
    index = ExactIndex.from_embeddings(embeddings)
    assert index.fingerprint == "hashing"
    queries = encoder.encode_queries(["word3 word1", "title 5"])
    ids = [document.doc_id for document in documents]
    expected = ExactIndex.build(encoder.encode_documents(documents), ids).search(queries, 7)
    scores, doc_ids = index.search(queries, 7)
    np.testing.assert_allclose(scores, expected[0], atol=1e-6)
    assert doc_ids.tolist() == expected[1].tolist()
    np.testing.assert_array_equal(index.vectors(), embeddings.read())


def test_save_and_load(tmp_path):
    vectors = np.random.default_rng(0).standard_normal((20, 4)).astype(np.float32)
    ids = [f"dö{i}" for i in range(20)]
    index = ExactIndex.build(vectors, ids, fingerprint="abc")
    index.save(tmp_path / "index")
    loaded = ExactIndex.load(tmp_path / "index")
    assert loaded.fingerprint == "abc"
    assert loaded.search(vectors[:3], 5)[1].tolist() == index.search(vectors[:3], 5)[1].tolist()
    np.testing.assert_array_equal(loaded.vectors(), vectors)
    with pytest.raises(ConfigError, match="exists and is not empty"):
        index.save(tmp_path / "index")
    index.save(tmp_path / "index", overwrite=True)
    assert sorted(file.name for file in tmp_path.iterdir()) == ["index"]


def test_damage_is_named(tmp_path):
    index = ExactIndex.build(np.eye(4, dtype=np.float32), list("abcd"))
    index.save(tmp_path / "i")
    ids = tmp_path / "i/doc_ids.txt"
    ids.write_text("a\nb\nc\nx\n")
    with pytest.raises(CorruptError, match=r"doc_ids\.txt: differs from what was written"):
        ExactIndex.load(tmp_path / "i")
    ExactIndex.load(tmp_path / "i", verify=False)
    ids.write_text("a\n")
    with pytest.raises(CorruptError, match=r"doc_ids\.txt: must have 8 bytes"):
        ExactIndex.load(tmp_path / "i", verify=False)
    manifest = tmp_path / "i/index.json"
    fields = json.loads(manifest.read_text())
    manifest.write_text(json.dumps({**fields, "format": 7}))
    with pytest.raises(CorruptError, match="another format"):
        ExactIndex.load(tmp_path / "i")
    manifest.write_text(json.dumps({**fields, "kind": "scann"}))
    with pytest.raises(MismatchError, match=r"must be an index of kind exact. Received: 'scann'"):
        ExactIndex.load(tmp_path / "i")
    with pytest.raises(FileNotFoundError, match=r"no index\.json there"):
        ExactIndex.load(tmp_path)


def test_bad_input_is_named():
    vectors = np.eye(3, dtype=np.float32)
    index = ExactIndex.build(vectors, list("abc"))
    with pytest.raises(ConfigError, match=r"`k` must be at least 1\. Received: 0"):
        index.search(vectors, 0)
    with pytest.raises(MismatchError, match=r"must be \(queries, 3\).* Received: shape \(1, 2\)"):
        index.search(np.ones((1, 2)), 1)
    with pytest.raises(ConfigError, match=r"`query_embeddings` must be finite\. Received: row 1"):
        index.search(np.array([[0, 0, 0], [0, np.inf, 0]]), 1)
    with pytest.raises(ConfigError, match=r"`embeddings` must be finite\. Received: row 2"):
        ExactIndex.build(np.diag([1, 1, np.nan]), list("abc"))
    with pytest.raises(ConfigError, match=r"`embeddings` must not be empty\."):
        ExactIndex.build(np.empty((0, 3)), [])
    with pytest.raises(MismatchError, match=r"`embeddings` must be \(rows, dim\)"):
        ExactIndex.build(np.ones(3), ["a"])
    with pytest.raises(MismatchError, match=r"each of the 3 vectors\. Received: 2 ids"):
        ExactIndex.build(vectors, ["a", "b"])
    with pytest.raises(DataError, match=r"doc_ids:3: .*unique\. Received: 'a'"):
        ExactIndex.build(vectors, ["a", "b", "a"])
    with pytest.raises(DataError, match=r"doc_ids:2: .*without white space\. Received: ''"):
        ExactIndex.build(vectors, ["a", "", "c"])
    with pytest.raises(DataError, match=r"doc_ids:1: .*Received: 1"):
        ExactIndex.build(vectors, [1, 2, 3])
