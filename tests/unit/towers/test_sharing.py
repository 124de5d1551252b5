"""Parameter counts by arithmetic, and who shares which layer object."""

import numpy as np
import pytest
import tiny

from tfde.config.model import SHARING, Sharing
from tfde.errors import ConfigError

D = 5
# T5 of `tiny.T5`, by hand: table; per layer 2 norms, 4 attention matrices, 3 of the gated network;
# relative position table; last norm; projection without bias.
E = 120 * 8
T = 2 * (2 * 8 + 4 * 8 * (2 * 3) + 3 * 8 * 12) + 8 * 2 + 8
P = 8 * D
EXPECTED = {  # name: (parameters, of which trainable)
    "sde": (E + T + P, E + T + P),
    "ade": (2 * (E + T + P), 2 * (E + T + P)),
    "ade_ste": (E + 2 * (T + P), E + 2 * (T + P)),
    "ade_fte": (E + 2 * (T + P), 2 * (T + P)),
    "ade_spl": (2 * (E + T) + P, 2 * (E + T) + P),
}


def count(weights):
    return sum(int(np.prod(weight.shape)) for weight in weights)


@pytest.mark.parametrize("name", SHARING)
def test_parameter_counts(name):
    model = tiny.dual_encoder(tiny.T5, sharing=name, embedding_dim=D)
    assert (count(model.weights), count(model.trainable_weights)) == EXPECTED[name]


@pytest.mark.parametrize("name", SHARING)
def test_backbones_start_equal_separate_projections_do_not_and_the_table_adds_up(name):
    tokens = {"token_ids": np.array([[5, 6, 3, 0]]), "padding_mask": np.array([[1, 1, 1, 0]])}
    plain = tiny.dual_encoder(tiny.T5, sharing=name)
    np.testing.assert_array_equal(plain.query_tower(tokens), plain.document_tower(tokens))
    model = tiny.dual_encoder(tiny.T5, sharing=name, embedding_dim=D)
    equal = np.array_equal(model.query_tower(tokens), model.document_tower(tokens))
    assert equal is (SHARING[name].projection == "shared")
    total, trainable = EXPECTED[name]
    last = model.summary_of_sharing().splitlines()[-1].split()
    assert last == ["total", f"{total:,}", f"{trainable:,}"]


def test_any_mix_of_parts():
    parts = {"token_embedder": "frozen", "encoder": "shared", "projection": "separate"}
    model = tiny.dual_encoder(tiny.T5, sharing=parts, embedding_dim=D)
    assert count(model.weights) == E + T + 2 * P
    assert count(model.trainable_weights) == T + 2 * P
    assert "frozen" in model.summary_of_sharing()


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("siamese", r"`sharing` must be one of sde, ade, .* Received: 'siamese'"),
        ({"encoder": "tied"}, r"`sharing\.encoder` must be shared, separate or frozen\. Rec.*tied"),
        ({"embedder": "shared"}, r"`sharing` has no field 'embedder'; it has encoder, "),
    ],
)
def test_unknown_sharing(value, message):
    with pytest.raises(ConfigError, match=message):
        Sharing.of(value)
