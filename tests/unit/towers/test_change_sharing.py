"""Towers that part from one another, or share what was frozen."""

import numpy as np
import pytest
import tiny

from tfde.config.model import Sharing
from tfde.errors import ConfigError
from tfde.towers.change_sharing import reshare

TEXTS = ["red apple", "one two three"]


@pytest.mark.parametrize("sharing", ["ade", "ade_ste", "ade_fte", "ade_spl", "sde"])
def test_what_parts_starts_alike_and_goes_its_own_way(sharing):
    model = tiny.dual_encoder(tiny.BERT, embedding_dim=4)
    other = reshare(model, sharing)
    assert other.config.sharing == Sharing.of(sharing)
    for encode in ("encode_queries", "encode_documents"):
        np.testing.assert_array_equal(getattr(other, encode)(TEXTS), getattr(model, encode)(TEXTS))
    before = model.encode_queries(TEXTS)
    rng = np.random.default_rng(0)
    for weight in other.towers.document_tower.weights:
        weight.assign(rng.normal(size=weight.shape))
    np.testing.assert_array_equal(model.encode_queries(TEXTS), before)  # a model of its own
    # Changing the documents' tower reaches the queries by what is shared.
    assert np.allclose(other.encode_queries(TEXTS), before, atol=1e-3) is (sharing == "ade")


@pytest.mark.parametrize("sharing", ["ade", "ade_spl", None])
def test_a_new_projection_is_drawn_by_each_tower_that_has_its_own(sharing):
    model = tiny.dual_encoder(tiny.BERT, embedding_dim=4)
    other = reshare(model, sharing, embedding_dim=3)
    assert (model.embedding_dim, other.embedding_dim) == (4, 3)
    query, document = other.towers.query_parts, other.towers.document_parts
    np.testing.assert_array_equal(query.encoder.get_weights()[0], document.encoder.get_weights()[0])
    same = np.array_equal(query.projection.get_weights()[0], document.projection.get_weights()[0])
    assert same is (sharing != "ade")


def test_each_tower_keeps_its_own_weights():
    model = tiny.dual_encoder(tiny.BERT, embedding_dim=4, sharing="ade_ste")
    encoder = model.towers.document_parts.encoder
    encoder.set_weights([weight + 0.1 for weight in encoder.get_weights()])
    other = reshare(model, "ade")
    for encode in ("encode_queries", "encode_documents"):
        np.testing.assert_array_equal(getattr(other, encode)(TEXTS), getattr(model, encode)(TEXTS))


def test_what_was_frozen_trains_again():
    other = reshare(tiny.dual_encoder(tiny.BERT, embedding_dim=4, sharing="ade_fte"), "ade")
    assert other.towers.query_parts.token_embedder.trainable
    frozen = reshare(tiny.dual_encoder(tiny.BERT, embedding_dim=4), "ade_fte")
    assert not frozen.towers.query_parts.token_embedder.trainable


def test_two_sets_of_weights_do_not_become_one():
    model = tiny.dual_encoder(tiny.BERT, embedding_dim=4, sharing="ade")
    with pytest.raises(ConfigError, match=r"`sharing\.projection` must stay separate"):
        reshare(model, "ade_spl")
