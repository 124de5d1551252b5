"""A projection that is part of training alone: Dong et al.'s text allows both readings."""

import numpy as np
import pytest
import tensorflow as tf
import tiny

import tfde
from tfde.errors import ConfigError

TEXTS = ["red apple", "cat"]


def models(**options):
    """Two with equal weights, of which one encodes before its projection."""
    return [
        tiny.dual_encoder(tiny.BERT, embedding_dim=3, encode_before_projection=before, **options)
        for before in (False, True)
    ]


@pytest.mark.parametrize("sharing", ["sde", "ade"])
def test_it_encodes_the_pooled_vectors_and_trains_the_projected(sharing, tmp_path):
    whole, model = models(sharing=sharing)
    plain = tiny.dual_encoder(tiny.BERT, sharing=sharing)
    assert (model.embedding_dim, whole.embedding_dim) == (8, 3)
    np.testing.assert_allclose(model.encode_queries(TEXTS), plain.encode_queries(TEXTS), atol=1e-6)
    np.testing.assert_allclose(
        model.encode_documents(TEXTS), plain.encode_documents(TEXTS), atol=1e-6
    )
    ids, mask = model.preprocessor.queries(tf.constant(TEXTS))
    inputs = {f"{side}_{name}": x for side in ("query", "document")
              for name, x in (("token_ids", ids), ("padding_mask", mask))}  # fmt: skip
    for side in ("query_embeddings", "document_embeddings"):
        np.testing.assert_allclose(model(inputs)[side], whole(inputs)[side], atol=1e-6)

    pairs = tfde.pairs([(word, f"{word} {word}") for word in tiny.WORDS[:8]], batch_size=4)
    losses = []
    for each in (whole, model):
        before = [x.numpy() for name, x in each.named_weights().items() if "projection" in name]
        each.compile(tfde.adamw(1e-2, decay_steps=10), task=tfde.RetrievalTask(0.1))
        losses.append(each.fit(pairs, epochs=1, verbose=0).history["loss"])
        after = [x.numpy() for name, x in each.named_weights().items() if "projection" in name]
        assert all(np.abs(x - y).max() > 1e-4 for x, y in zip(before, after, strict=True))
    np.testing.assert_allclose(*losses, rtol=1e-5)

    model.save_to_preset(tmp_path / "model")
    model.save(tmp_path / "model.keras")
    for path in ("model", "model.keras"):
        loaded = tfde.DualEncoder.from_preset(tmp_path / path)
        assert loaded.config.encode_before_projection
        assert loaded.fingerprint() == model.fingerprint()
        np.testing.assert_allclose(loaded(inputs)["query_embeddings"],
                                   model(inputs)["query_embeddings"], atol=1e-6)  # fmt: skip


def test_without_a_projection_there_is_nothing_to_leave_out():
    with pytest.raises(ConfigError, match="`encode_before_projection` must be false where there"):
        tiny.dual_encoder(tiny.BERT, encode_before_projection=True)


def test_files_of_models_without_it_do_not_name_it():
    assert "encode_before_projection" not in tiny.dual_encoder().description()
