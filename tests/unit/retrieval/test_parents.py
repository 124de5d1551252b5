"""Documents with a share of their parents, in encoding to shards and in searching a corpus."""

import dataclasses
import functools
import shutil

import numpy as np
import pytest
import tiny

from tfde.config.model import ParentConfig
from tfde.errors import ConfigError, MismatchError
from tfde.retrieval.encode_corpus import encode_corpus
from tfde.retrieval.parents import in_parents
from tfde.retrieval.retrieve import retrieve_from_corpus
from tfde.types import Document, Query

DOCUMENTS = [
    Document("a.0", "red", "apple cat"),
    Document("a.1", "red", "blue dog"),
    Document("b.c.0", "", "green pear"),
    Document("d.0", "hill", "lake"),
    Document("d.1", "hill", "sea"),
    Document("d.2", "hill", "river"),
]
PARENTS = [("red", "apple cat blue dog")] * 2 + [("", "green pear")]
PARENTS += [("hill", "lake sea river")] * 3


@pytest.fixture(scope="module")
def model():
    return tiny.dual_encoder(tiny.BERT)


@functools.cache
def own_and_parents(length):
    model = tiny.dual_encoder(tiny.BERT)
    own = model.encode_documents(DOCUMENTS)
    model.set_max_lengths(document_max_length_tokens=length)
    parents = model.encode_documents([{"title": t, "text": text} for t, text in PARENTS])
    return own, parents


def expected(weight, *, length):
    own, parents = own_and_parents(length)
    return own + weight * parents


def test_the_texts_of_a_parent_are_put_in_a_row():
    found = [(document.title, document.parent_text) for document in in_parents(DOCUMENTS, ".")]
    assert found == PARENTS
    assert list(in_parents(DOCUMENTS, ".")) == DOCUMENTS


@pytest.mark.parametrize("shard_size", [2, 100])
def test_shards_hold_the_sums(tmp_path, model, shard_size):
    parents = ParentConfig(weight=0.25, max_length_tokens=4)
    embeddings = encode_corpus(
        model, iter(DOCUMENTS), tmp_path / "e", shard_size=shard_size, parents=parents
    )
    wanted = expected(0.25, length=4)
    np.testing.assert_allclose(embeddings.read(), wanted, atol=1e-5)
    assert not np.allclose(wanted, expected(0.25, length=5), atol=1e-3)
    # They go with the model's queries, and say what they are.
    assert embeddings.fingerprint == model.fingerprint()
    assert embeddings.manifest["parents"] == {
        "weight": 0.25, "separator": ".", "max_length_tokens": 4,
    }  # fmt: skip


def test_a_score_is_the_sum_of_both_scores(model):
    query = Query("q", "blue lake")
    parents = ParentConfig(weight=2.0, max_length_tokens=16)
    run = retrieve_from_corpus(model, iter(DOCUMENTS), [query], 6, parents=parents)
    scores = expected(2.0, length=16) @ model.encode_queries([query.text])[0]
    assert list(run["q"]) == [DOCUMENTS[i].doc_id for i in np.argsort(-scores)]
    np.testing.assert_allclose(list(run["q"].values()), sorted(scores)[::-1], atol=1e-5)


def test_a_run_with_another_weight_does_not_go_on(tmp_path, model):
    parents = ParentConfig(weight=0.25, max_length_tokens=16)
    encode_corpus(model, DOCUMENTS, tmp_path / "e", parents=parents)
    encode_corpus(model, DOCUMENTS, tmp_path / "e", parents=parents)
    other = dataclasses.replace(parents, weight=0.5)
    with pytest.raises(MismatchError, match=r"was begun otherwise: parents.weight"):
        encode_corpus(model, DOCUMENTS, tmp_path / "e", parents=other)
    with pytest.raises(MismatchError, match="was begun otherwise: parents"):
        encode_corpus(model, DOCUMENTS, tmp_path / "e")


def test_ids_and_order_that_tell_no_parents(tmp_path, model):
    parents = ParentConfig(separator="#", max_length_tokens=16)
    with pytest.raises(ConfigError, match=r"must have an id PARENT#PART. Received: 'a.0'"):
        encode_corpus(model, DOCUMENTS, tmp_path / "e", parents=parents)
    # Nothing was finished, so that the mended command begins anew in the same place.
    parents = dataclasses.replace(parents, separator=".")
    assert len(encode_corpus(model, DOCUMENTS, tmp_path / "e", parents=parents)) == 6
    torn = [DOCUMENTS[0], DOCUMENTS[2], DOCUMENTS[1]]
    with pytest.raises(ConfigError, match=r"must follow one another .* Received: 'a' again after"):
        list(in_parents(torn, "."))
    with pytest.raises(
        ConfigError, match=r"`parents.max_length_tokens`: .* at most 32, the positions"
    ):
        encode_corpus(model, DOCUMENTS, tmp_path / "e2", parents=ParentConfig())
    assert not (tmp_path / "e2").exists()


@pytest.mark.parametrize(
    ("fields", "rule"),
    [
        ({"weight": 0.0}, "`weight` must be above 0"),
        ({"weight": float("nan")}, "`weight` must be above 0"),
        ({"separator": ""}, "`separator` must be one or more characters"),
        ({"max_length_tokens": 2}, "`max_length_tokens` must be an integer of at least 3"),
    ],
)
def test_impossible_configurations(fields, rule):
    with pytest.raises(ConfigError, match=rule):
        ParentConfig(**fields)


def test_a_parent_that_changed_is_not_gone_on_with(tmp_path):
    """Its text is in the vectors of a shard that is finished, though their own texts are equal."""
    model = tiny.dual_encoder()
    parents = ParentConfig(weight=0.5)
    parts = [Document(f"p.{n}", "", tiny.WORDS[n]) for n in range(3)]

    encode = functools.partial(encode_corpus, model, shard_size=2, parents=parents)
    first = encode(parts, tmp_path / "whole")
    kept = tmp_path / "killed"
    shutil.copytree(tmp_path / "whole", kept)
    for file in [*kept.glob("shard-00001*"), kept / "embeddings.json"]:
        file.unlink()
    np.testing.assert_array_equal(encode(parts, kept).read(), first.read())
    for file in [*kept.glob("shard-00001*"), kept / "embeddings.json"]:
        file.unlink()
    with pytest.raises(MismatchError, match="encoded from other texts under the same ids"):
        encode([*parts[:2], Document("p.2", "", "house")], kept)
