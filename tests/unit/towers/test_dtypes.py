"""Models whose weights take half the memory: computing, saving, loading, telling apart."""

import h5py
import keras
import numpy as np
import pytest
import tiny

from tfde.data.pairs.dataset import pairs
from tfde.errors import ConfigError, CorruptError
from tfde.towers.dual_encoder import DualEncoder
from tfde.towers.weights import stored_dtype

TEXTS = ["red apple", "green", "", "one two three four five six seven"]


@pytest.mark.parametrize("backbone", [tiny.T5, tiny.BERT])
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_half_precision_there_and_back(tmp_path, backbone, dtype):
    model = tiny.dual_encoder(backbone, dtype=dtype, embedding_dim=6)
    assert {weight.dtype for weight in model.towers.query_parts.encoder.weights} == {dtype}
    embeddings = model.encode_queries(TEXTS)
    assert embeddings.dtype == np.float32
    model.save_to_preset(tmp_path / "model")
    path = tmp_path / "model" / "model.weights.h5"
    assert stored_dtype(path) == dtype
    with h5py.File(path) as file:
        table = file["token_embedder/shared/token_table"]
        assert table.dtype.itemsize == 2
    again = DualEncoder.from_preset(tmp_path / "model")
    assert again.fingerprint() == model.fingerprint()
    np.testing.assert_array_equal(again.encode_queries(TEXTS), embeddings)

    # In float32 the same numbers are computed with more digits: another model, near it.
    wide = DualEncoder.from_preset(tmp_path / "model", dtype="float32")
    assert wide.fingerprint() != model.fingerprint()
    cosines = (wide.encode_queries(TEXTS) * embeddings).sum(1)
    assert cosines.min() > 0.995
    wide.save_to_preset(tmp_path / "wide")
    assert stored_dtype(tmp_path / "wide" / "model.weights.h5") is None
    narrow = DualEncoder.from_preset(tmp_path / "wide", dtype=dtype)
    assert narrow.fingerprint() == model.fingerprint()


def test_mixed_precision_is_the_same_model(tmp_path):
    """Its weights are those in float32."""
    model = tiny.dual_encoder(tiny.T5)
    model.save_to_preset(tmp_path / "model")
    mixed = DualEncoder.from_preset(tmp_path / "model", dtype="mixed_bfloat16")
    assert mixed.fingerprint() == model.fingerprint()


def test_training_in_half_precision_warns(tmp_path, caplog):
    """A step of 0.001 at a weight of 1 is below what bfloat16 can tell apart."""
    data = pairs(tiny.write_dataset(tmp_path / "data", documents=20), batch_size=8)
    for dtype, told in (("bfloat16", True), ("mixed_bfloat16", False)):
        caplog.clear()
        model = tiny.dual_encoder(dtype=dtype)
        model.compile(keras.optimizers.Adam(0.001), run_eagerly=True)
        model.fit(data, steps=1, verbose=0)
        assert ('dtype="mixed_bfloat16" holds them in float32' in caplog.text) is told


def test_float16_is_trained_with_a_loss_scale(tmp_path):
    """The model's own dtype decides, not Keras' current one."""
    assert keras.config.dtype_policy().name == "float32"
    data = pairs(tiny.write_dataset(tmp_path / "data", documents=20), batch_size=8)
    model = tiny.dual_encoder(tiny.BERT, dtype="mixed_float16")
    model.compile(keras.optimizers.Adam(0.001))
    assert isinstance(model.optimizer, keras.optimizers.LossScaleOptimizer)
    history = model.fit(data, steps=2, verbose=0)
    assert np.isfinite(history.history["loss"]).all()
    model = tiny.dual_encoder(tiny.BERT, dtype="mixed_bfloat16")
    model.compile(keras.optimizers.Adam(0.001))
    assert isinstance(model.optimizer, keras.optimizers.Adam)


def test_a_damaged_file_is_told(tmp_path):
    model = tiny.dual_encoder(tiny.T5, dtype="bfloat16")
    model.save_to_preset(tmp_path / "model")
    path = tmp_path / "model" / "model.weights.h5"
    path.write_bytes(path.read_bytes()[:200])
    with pytest.raises(CorruptError, match=r"model.weights.h5: .*truncated"):
        DualEncoder.from_preset(tmp_path / "model")


@pytest.mark.parametrize("dtype", ["float64", "int8", 32])
def test_other_types_are_refused(dtype):
    with pytest.raises(ConfigError, match=rf"`dtype` must be .*Received: '?{dtype}"):
        tiny.dual_encoder(dtype=dtype)
