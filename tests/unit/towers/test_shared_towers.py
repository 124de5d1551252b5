"""A server's models share what is the same tower."""

import gc
import shutil
import weakref

import numpy as np
import pytest
import tiny

from tfde.engines.shared_towers import shared_tower
from tfde.engines.tower_engine import note_times
from tfde.errors import CorruptError
from tfde.towers.engines import write_engine


def write(directory, seed):
    model = tiny.dual_encoder(tiny.BERT, embedding_dim=5, seed=seed)
    write_engine("openvino", model.query_tower, directory)
    return directory


@pytest.fixture
def written(tmp_path):
    return write(tmp_path / "1", seed=1)


def test_copies_of_a_tower_are_one_and_others_are_not(written, tmp_path):
    shutil.copytree(written, tmp_path / "copy")
    note_times("openvino", tmp_path / "copy", ms=1.0, tensorflow_ms=2.0)  # of another use
    one, copy = (shared_tower("openvino", tmp_path / name) for name in ("1", "copy"))
    other = shared_tower("openvino", write(tmp_path / "other", seed=2))
    assert one is copy
    assert one is not other
    tokens = np.array([[7, 8]], np.int32), np.ones((1, 2), np.int32)
    assert np.abs(one(*tokens) - other(*tokens)).max() > 1e-3


def test_two_encoders_with_one_tower_share_it(tmp_path):
    model = tiny.dual_encoder(tiny.BERT, embedding_dim=5, sharing="sde")
    for name in ("query", "document"):
        write_engine("openvino", getattr(model, f"{name}_tower"), tmp_path / name)
    query, document = (shared_tower("openvino", tmp_path / x) for x in ("query", "document"))
    assert query is document


def test_a_tower_goes_with_the_last_who_asked(written):
    first, second = shared_tower("openvino", written), shared_tower("openvino", written)
    gone = weakref.ref(first)
    del first
    gc.collect()
    assert shared_tower("openvino", written) is second
    del second
    gc.collect()
    assert gone() is None


def test_damage_is_told(written):
    (written / "openvino" / "encode_tokens.xml").write_text("nothing")
    with pytest.raises(CorruptError, match=r"/1/openvino/encode_tokens\.xml: .* Received: "):
        shared_tower("openvino", written)
    with pytest.raises(FileNotFoundError, match=r"encode_tokens\.xml: no such file"):
        shared_tower("openvino", written / "absent")
