"""A backbone added by this file alone: a description, a layer, a builder and one line.

What docs/architecture.md says under "add a backbone" is shown here.
"""

import dataclasses

import keras
import numpy as np
import pytest
import tensorflow as tf
import tiny

from tfde.backbones.backbone import build_backbone, copy_backbone
from tfde.backbones.registry import register_backbone
from tfde.backbones.seeded_layer import SeededLayer, arguments_of
from tfde.backbones.token_table import TokenTable
from tfde.config.backbones import BACKBONES, BackboneConfig, backbone_from_mapping
from tfde.data.pairs.dataset import pairs
from tfde.errors import ConfigError
from tfde.matching.cross_encoder import CrossEncoder
from tfde.tasks.retrieval_task import RetrievalTask
from tfde.towers.dual_encoder import DualEncoder
from tfde.towers.saved_models import QueryEncoder, save_encoder

# ---- the backbone --------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class NeighboursConfig(BackboneConfig):
    """Each token becomes a mix of itself and its neighbours, `num_mixes` times."""

    kind = "neighbours"

    vocabulary_size: int = 120
    hidden_dim: int = 8
    num_mixes: int = 2
    dropout: float = 0.1


@keras.saving.register_keras_serializable(package="test")
class NeighboursEncoder(SeededLayer):
    """x + tanh((x before + x + x after) W), where padding is zeros."""

    def __init__(self, hidden_dim, *, num_mixes, dropout, seed=None, **kwargs):
        super().__init__(dropout=dropout, seed=seed, **kwargs)
        self.hidden_dim = hidden_dim
        self.num_mixes = num_mixes

    def build(self, input_shape):
        for i in range(self.num_mixes):
            initializer = keras.initializers.GlorotUniform(seed=next(self._seeds))
            self._add(f"kernel_{i}", (self.hidden_dim, self.hidden_dim), initializer)

    def call(self, x, padding_mask, training=None):
        mask = tf.cast(padding_mask, x.dtype)[:, :, None]
        for i in range(self.num_mixes):
            x *= mask
            around = tf.pad(x, ((0, 0), (1, 1), (0, 0)))
            kernel = tf.cast(getattr(self, f"kernel_{i}").value, x.dtype)
            mixed = tf.tanh(tf.matmul(around[:, :-2] + x + around[:, 2:], kernel))
            x += self._drop(mixed, training)
        return x * mask


def build_neighbours(config, embedder, encoder):
    return (
        TokenTable(**arguments_of(TokenTable, config), deviation=0.5, **embedder),
        NeighboursEncoder(**arguments_of(NeighboursEncoder, config), **encoder),
    )


@pytest.fixture(scope="module", autouse=True)
def registered():
    register_backbone(NeighboursConfig, build_neighbours)
    yield
    del BACKBONES["neighbours"]


# ---- all that it can do --------------------------------------------------------------------------

TEXTS = ["red apple", "blue plum cat", "zzz"]


def test_it_trains_saves_loads_and_exports(tmp_path):
    model = tiny.dual_encoder(NeighboursConfig(dropout=0.0), sharing="ade_spl", embedding_dim=8)
    assert np.allclose(np.linalg.norm(model.encode_queries(TEXTS), axis=1), 1, atol=1e-6)
    data = tiny.write_dataset(tmp_path / "data", documents=64)
    model.compile(keras.optimizers.Adam(0.01), task=RetrievalTask(0.1))
    history = model.fit(pairs(data, batch_size=16), epochs=8, verbose=0).history
    assert history["loss"][-1] < 0.9 * history["loss"][0]

    model.save_to_preset(tmp_path / "model")
    again = DualEncoder.from_preset(tmp_path / "model")
    assert again.config.backbone == NeighboursConfig(dropout=0.0)
    assert again.fingerprint() == model.fingerprint()
    expected = model.encode_queries(TEXTS)
    np.testing.assert_array_equal(again.encode_queries(TEXTS), expected)

    save_encoder(QueryEncoder(again.query_tower, again.preprocessor), tmp_path / "q")
    exported = tf.saved_model.load(str(tmp_path / "q")).signatures["serving_default"]
    found = exported(text=tf.constant(TEXTS))["embeddings"]
    np.testing.assert_allclose(found, expected, atol=1e-5)


def test_its_sizes_follow_from_the_description():
    config = NeighboursConfig(vocabulary_size=31, hidden_dim=6, num_mixes=3)
    backbone = build_backbone(config, seed=1)
    assert backbone.encoder.count_params() == 3 * 6 * 6
    arguments = backbone.encoder.get_config()
    assert {name: arguments[name] for name in ("hidden_dim", "num_mixes", "dropout")} == {
        "hidden_dim": 6,
        "num_mixes": 3,
        "dropout": 0.1,
    }
    copy = copy_backbone(backbone, name_prefix="document_")
    for ours, theirs in zip(backbone.encoder.weights, copy.encoder.weights, strict=True):
        np.testing.assert_array_equal(ours, theirs)


def test_a_recipe_and_bad_sizes():
    mapping = {"kind": "neighbours", "hidden_dim": 4}
    assert backbone_from_mapping(mapping) == NeighboursConfig(hidden_dim=4)
    with pytest.raises(ConfigError, match=r"`num_mixes` must be a whole number of at least 1"):
        NeighboursConfig(num_mixes=0)
    with pytest.raises(ConfigError, match=r"`backbone` must be one with Transformer layers"):
        CrossEncoder.from_backbone(NeighboursConfig(), tokenizer=tiny.tokenizer())
    with pytest.raises(ConfigError, match="one with Transformer layers"):
        tiny.dual_encoder(NeighboursConfig(), num_layers=1)


def test_what_is_no_backbone():
    class Other(NeighboursConfig):
        kind = "t5"

    with pytest.raises(ConfigError, match=r"`Other.kind` must be a name that no .* 't5'"):
        register_backbone(Other, build_neighbours)
    with pytest.raises(ConfigError, match=r"`config` must be a dataclass on tfde.BackboneConfig"):
        register_backbone(dict, build_neighbours)

    @dataclasses.dataclass(frozen=True)
    class Unknown(BackboneConfig):
        vocabulary_size: int = 120
        hidden_dim: int = 8
        dropout: float = 0.0

    with pytest.raises(ConfigError, match=r"or made known by tfde.register_backbone.*Unknown"):
        tiny.dual_encoder(Unknown())
