"""A server's models share what is the same tower, and it may be loaded before they ask."""

import gc
import shutil
import threading
import weakref

import numpy as np
import pytest
import tiny

from tfde.engines.shared_towers import open_early, shared_tower
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


def early_threads():
    return [thread for thread in threading.enumerate() if thread.name == "early tower"]


def wait_for_early_threads():
    for thread in early_threads():
        thread.join(60)


def test_copies_of_a_tower_are_one_and_others_are_not(written, tmp_path):
    shutil.copytree(written, tmp_path / "copy")
    note_times("openvino", tmp_path / "copy", ms=1.0, tensorflow_ms=2.0)  # of another use
    one, copy = (shared_tower("openvino", tmp_path / name) for name in ("1", "copy"))
    other = shared_tower("openvino", write(tmp_path / "other", seed=2))
    assert one is copy
    assert one is not other
    tokens = np.array([[7, 8]], np.int32), np.ones((1, 2), np.int32)
    assert np.abs(one(*tokens) - other(*tokens)).max() > 1e-3


@pytest.mark.parametrize("engine", ["openvino", "auto"])
def test_an_early_one_is_what_comes_and_goes_with_who_asked(written, engine):
    note_times("openvino", written, ms=1.0, tensorflow_ms=2.0)
    open_early(engine, written)
    wait_for_early_threads()
    gc.collect()  # held though nobody has asked
    first, second = shared_tower("openvino", written), shared_tower("openvino", written)
    assert first is second
    gone = weakref.ref(first)
    open_early(engine, written)  # of what is open: nothing more is held
    wait_for_early_threads()
    del first, second
    gc.collect()
    assert gone() is None


def test_nothing_is_loaded_early_for_tensorflow(written):
    note_times("openvino", written, ms=3.0, tensorflow_ms=2.0)
    open_early("auto", written)
    wait_for_early_threads()
    gc.collect()
    towers = [o for o in gc.get_objects() if type(o).__name__ == "Tower"]
    assert not towers


def test_damage_is_told_to_who_asks(written):
    (written / "openvino" / "encode_tokens.xml").write_text("nothing")
    open_early("openvino", written)
    with pytest.raises(CorruptError, match=r"/1/openvino/encode_tokens\.xml: .* Received: "):
        shared_tower("openvino", written)
    wait_for_early_threads()
    with pytest.raises(FileNotFoundError, match=r"encode_tokens\.xml: no such file"):
        shared_tower("openvino", written / "absent")
