"""Late interaction over all documents: candidates by ScaNN, scores as the matcher's own."""

import numpy as np
import pytest
import tiny

from tfde.config.model import TextConfig
from tfde.errors import ConfigError, MismatchError
from tfde.matching.matcher import Matcher
from tfde.matching.stored_texts import StoredTexts
from tfde.retrieval.multi_vector_index import MultiVectorIndex
from tfde.retrieval.scann_index import ScannIndex

TEXTS = tiny.document_texts()[:120]
QUERIES = ["red apple", "cat", "one two three"]


@pytest.fixture(scope="module")
def matcher():
    return Matcher.from_backbone(
        tiny.BERT, kind="late_interaction", embedding_dim=6, tokenizer=tiny.tokenizer(), seed=1,
        text=TextConfig(8, 12),
    )  # fmt: skip


@pytest.fixture(scope="module")
def stored(matcher):
    return matcher.store(TEXTS)


def test_all_candidates_give_the_matchers_own_order(matcher, stored, tmp_path):
    MultiVectorIndex.build(stored).save(tmp_path / "index")
    index = MultiVectorIndex.load(tmp_path / "index")
    everything = len(stored.vectors)
    found = index.search(*matcher.encode_first(QUERIES), 10, candidates_per_vector=everything)
    for query, hits in zip(QUERIES, found, strict=True):
        scores = matcher.score([(query, text) for text in TEXTS])
        best = sorted(range(len(TEXTS)), key=lambda row: -scores[row])[:10]
        np.testing.assert_allclose([score for _, score in hits], scores[best], atol=1e-5)
        np.testing.assert_allclose(
            [scores[int(doc_id)] for doc_id, _ in hits], scores[best], atol=1e-5
        )


def test_an_index_of_8_bit_integers_finds_nearly_the_same(matcher, stored, tmp_path):
    MultiVectorIndex.build(matcher.store(TEXTS, dtype="int8")).save(tmp_path / "index")
    index = MultiVectorIndex.load(tmp_path / "index")
    everything = len(stored.vectors)
    found = index.search(*matcher.encode_first(QUERIES), 10, candidates_per_vector=everything)
    for query, hits in zip(QUERIES, found, strict=True):
        scores = matcher.score([(query, TEXTS[int(doc_id)]) for doc_id, _ in hits])
        np.testing.assert_allclose([score for _, score in hits], scores, atol=1e-2)


def test_few_candidates_find_less_but_score_alike(matcher, stored):
    index = MultiVectorIndex.build(stored)
    (hits,) = index.search(*matcher.encode_first(QUERIES[:1]), 50, candidates_per_vector=3)
    assert 1 <= len(hits) < 50
    scores = matcher.score([(QUERIES[0], TEXTS[int(doc_id)]) for doc_id, _ in hits])
    np.testing.assert_allclose([score for _, score in hits], scores, atol=1e-5)


def test_a_query_without_vectors_finds_nothing(matcher, stored):
    vectors, mask = matcher.encode_first(QUERIES)
    mask = mask.copy()
    mask[1] = 0
    found = MultiVectorIndex.build(stored).search(vectors, mask, 5)
    assert [len(hits) for hits in found] == [5, 0, 5]
    assert MultiVectorIndex.build(stored).search(vectors, 0 * mask, 5) == [[], [], []]


def test_what_does_not_fit(stored):
    index = MultiVectorIndex.build(stored)
    with pytest.raises(ConfigError, match=r"`k` must be at least 1\. Received: 0"):
        index.search(np.zeros((1, 2, 6), np.float32), np.ones((1, 2)), 0)
    with pytest.raises(ConfigError, match=r"`vectors` must be of shape .* 6\).* \(1, 2, 5\)"):
        index.search(np.zeros((1, 2, 5), np.float32), np.ones((1, 2)), 3)
    with pytest.raises(ConfigError, match=r"`vectors` must be of shape"):
        index.search(np.zeros((2, 6), np.float32), np.ones((1, 2)), 3)
    with pytest.raises(ConfigError, match=r"`mask` must be of shape \(1, 2\).* \(1, 3\)"):
        index.search(np.zeros((1, 2, 6), np.float32), np.ones((1, 3)), 3)
    parts = {"kind": "late_interaction", "fingerprint": ""}
    fewer = StoredTexts(stored.vectors[:4], np.array([0, 4]), ["a"], **parts)
    vectors = ScannIndex.build(np.eye(6, dtype=np.float32), [str(n) for n in range(6)])
    with pytest.raises(MismatchError, match="`vectors` must index the"):
        MultiVectorIndex(fewer, vectors)
    parts["kind"] = "virt_encoder"
    with pytest.raises(MismatchError, match="must be of late_interaction or multi_vector"):
        MultiVectorIndex.build(StoredTexts(stored.vectors, stored.offsets, stored.doc_ids, **parts))
