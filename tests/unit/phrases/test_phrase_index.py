"""Search for phrases: against all spans by NumPy, and what does not fit."""

import itertools
import json

import numpy as np
import pytest
from tiny_phrases import DOCUMENTS, phrase_encoder

from tfde.errors import ConfigError, CorruptError, DataError, MismatchError
from tfde.phrases.phrase_encoder import TokenVectors
from tfde.phrases.phrase_index import PhraseIndex, best_span
from tfde.retrieval.index import open_index
from tfde.types import Document

QUERIES = ["red apple", "lake", "two"]


def all_phrases(model, documents, query, *, keep=lambda logits: logits > -np.inf):
    """(score, document, text) of every span, the best first, straight from the definition."""
    read = model.reader.read(documents)
    found = []
    for number, (vectors, logits) in model.encode_passages(read):
        spans, text = read[number].spans, documents[number].text
        sides = keep(logits)
        places = range(len(spans))
        for first, last in itertools.product(places, places):
            if 0 <= last - first < 3 and sides[first, 0] and sides[last, 1]:
                score = query[0] @ vectors[first] + query[1] @ vectors[last]
                found.append((score, number, text[spans[first, 0] : spans[last, 1]]))
    return sorted(found, key=lambda row: -row[0])


def check(index, model, documents, **options):
    vectors = model.encode_queries(QUERIES)
    for query, hits in zip(vectors, index.search(vectors, 8, tokens_per_query=1000), strict=True):
        expected = all_phrases(model, documents, query, **options)[:8]
        np.testing.assert_allclose([h.score for h in hits], [e[0] for e in expected], rtol=1e-4)
        for hit in hits:
            assert any(
                hit.text == text and hit.document is documents[number]
                for score, number, text in expected
                if score == pytest.approx(hit.score, rel=1e-4)
            )


@pytest.fixture(scope="module")
def index(model):
    return PhraseIndex.build(model, DOCUMENTS, engine="exact")


def test_the_best_of_all_spans_are_found(index, model):
    check(index, model, DOCUMENTS)


def test_scann_finds_the_same(model):
    check(PhraseIndex.build(model, DOCUMENTS), model, DOCUMENTS)


def test_few_tokens_looked_up_give_right_scores(index, model):
    """An end that no search found is scored as one that both did."""
    vectors = model.encode_queries(QUERIES)
    every = {
        (hit.document.doc_id, hit.start, hit.end): hit.score
        for hit in index.search(vectors, 1000, tokens_per_query=1000)[0]
    }
    some = index.search(vectors, 1000, tokens_per_query=2)[0]
    assert 0 < len(some) < len(every)
    for hit in some:
        key = (hit.document.doc_id, hit.start, hit.end)
        assert hit.score == pytest.approx(every[key], rel=1e-5)


def test_the_filter_leaves_tokens_out(index, model):
    logits = np.concatenate(
        [found.logits for _, found in model.encode_passages(model.reader.read(DOCUMENTS))]
    )
    threshold = float(np.quantile(logits, 0.8))
    filtered = PhraseIndex.build(
        model, DOCUMENTS, engine="exact", least_probability=1 / (1 + np.exp(-threshold))
    )
    assert len(filtered.tokens) < len(index.tokens)
    check(filtered, model, DOCUMENTS, keep=lambda logits: logits >= threshold - 1e-6)


def test_the_best_span_of_one_passage(index, model):
    only = [DOCUMENTS[1]]
    query = model.encode_queries(QUERIES)[0]
    (passage,) = model.reader.read(only)
    ((_, found),) = model.encode_passages([passage])
    first, last = best_span(query, found, max_phrase_tokens=3)
    text = only[0].text[passage.spans[first, 0] : passage.spans[last, 1]]
    assert text == all_phrases(model, only, query)[0][2]
    nothing = TokenVectors(np.zeros((0, 8), np.float32), np.zeros((0, 2), np.float32))
    assert best_span(query, nothing, max_phrase_tokens=3) is None


def test_saved_and_loaded(tmp_path, index, model):
    index.save(tmp_path / "index")
    loaded = PhraseIndex.load(tmp_path / "index")
    vectors = model.encode_queries(QUERIES)
    assert loaded.search(vectors, 5) == index.search(vectors, 5)
    loaded.check_model(model)
    with pytest.raises(MismatchError, match="`model` must be the one that made the index"):
        loaded.check_model(phrase_encoder(seed=2))
    with pytest.raises(ConfigError, match="not empty"):
        index.save(tmp_path / "index")


@pytest.mark.parametrize(
    "name", ["tokens.npy", "passages.jsonl", "vectors/vectors.npy", "vectors/index.json"]
)
def test_damaged_files(tmp_path, index, name):
    index.save(tmp_path / "index")
    content = bytearray((tmp_path / "index" / name).read_bytes())
    content[-3] ^= 1
    (tmp_path / "index" / name).write_bytes(content)
    with pytest.raises(CorruptError, match=name):
        PhraseIndex.load(tmp_path / "index")


def test_other_directories(tmp_path, index):
    with pytest.raises(FileNotFoundError, match=r"no index\.json there"):
        PhraseIndex.load(tmp_path)
    index.save(tmp_path / "index")
    with pytest.raises(MismatchError, match=r"must be an index of kind phrases\. .*: 'exact'"):
        PhraseIndex.load(tmp_path / "index" / "vectors")
    with pytest.raises(MismatchError, match=r"must be an index of kind exact or .*: 'phrases'"):
        open_index(tmp_path / "index")
    path = tmp_path / "index" / "index.json"
    manifest = json.loads(path.read_text())
    for name in manifest:
        path.write_text(json.dumps({key: manifest[key] for key in manifest if key != name}))
        with pytest.raises(CorruptError, match=rf"index\.json: .*{name}"):
            PhraseIndex.load(tmp_path / "index")


def test_refusals(index, model):
    vectors = model.encode_queries(QUERIES)
    with pytest.raises(ConfigError, match="`k` must be at least 1"):
        index.search(vectors, 0)
    with pytest.raises(ConfigError, match="`tokens_per_query` must be at least 1"):
        index.search(vectors, tokens_per_query=0)
    with pytest.raises(
        MismatchError, match=r"must be \(queries, 2, 8\). Received: shape \(2, 2, 8, 1\)"
    ):
        index.search(vectors[:2, ..., None])
    with pytest.raises(ConfigError, match="`query_vectors` must be vectors, as"):
        index.search(["red apple"])
    with pytest.raises(ConfigError, match="`documents` must be a list"):
        PhraseIndex.build(model, "red")
    with pytest.raises(DataError, match="a document id must be unique"):
        PhraseIndex.build(model, [DOCUMENTS[0], DOCUMENTS[0]])
    with pytest.raises(ConfigError, match=r"`least_probability` must be in \[0, 1\)"):
        PhraseIndex.build(model, DOCUMENTS, least_probability=1.0)
    for documents in ([], [Document("d", "red", "")]):
        with pytest.raises(ConfigError, match="`documents` must hold a text"):
            PhraseIndex.build(model, documents)
    with pytest.raises(MismatchError, match="`tokens` must say of each"):
        PhraseIndex(index.vectors, index.tokens[1:], DOCUMENTS, max_phrase_tokens=3)


def test_one_query_and_plain_texts(model):
    index = PhraseIndex.build(model, ["red green", {"title": "sea", "text": "lake"}])
    (best, *_) = index.search(model.encode_queries("red"), 1)
    assert best.document in [Document("0", "", "red green"), Document("1", "sea", "lake")]
    assert best.text == best.document.text[best.start : best.end]


def test_no_queries(index):
    assert index.search(np.zeros((0, 2, 8), np.float32)) == []


def test_ids_and_metadata_stay(model, tmp_path):
    """A mapping may be a line of `corpus.jsonl`; what has no id is called by its number."""
    given = [{"_id": "d7", "text": "red apple"}, Document("d8", "", "blue", {"year": 3}), "one cat"]
    PhraseIndex.build(model, given, engine="exact").save(tmp_path / "i")
    found = PhraseIndex.load(tmp_path / "i").documents
    assert [document.doc_id for document in found] == ["d7", "d8", "2"]
    assert [document.metadata for document in found] == [None, {"year": 3}, None]
