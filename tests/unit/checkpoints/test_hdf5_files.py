"""Weights in HDF5 that lie elsewhere, and weights that are no numbers."""

import h5py
import keras_hub
import ml_dtypes
import numpy as np
import pytest
import tiny
import tiny_seq2seq
from bert_directory import arrays, write

from tfde.checkpoints.checkpoint_files import CheckpointFiles
from tfde.checkpoints.hdf5_file import Hdf5Arrays
from tfde.checkpoints.loading import load_backbone
from tfde.config.negatives import GenerationRules
from tfde.errors import CorruptError, DataError
from tfde.negatives.keras_hub_generator import KerasHubGenerator
from tfde.towers.dual_encoder import DualEncoder

WEIGHTS = "model.weights.h5"
SECRET = np.arange(4096, dtype=np.uint8)
ELSEWHERE = [
    ("external", "the array .* must lie in this file, and has external storage. Received: '/"),
    ("virtual", "the array .* must lie in this file, and is a virtual data set. Received: '/"),
    ("external link", "must lie in this file, and is a link to another place. Received: '/"),
    ("external group", "must lie in this file, and is a link to another place. Received: '/"),
    ("soft link", "must lie in this file, and is a link to another place. Received: '/elsewhere'"),
    ("cycle", "the group .* must stand in one place, 64 deep at most"),
    ("depth", "the group .* must stand in one place, 64 deep at most"),
]


def named_arrays(file):
    """The shapes of all arrays of a weight file by their names."""
    found = {}
    file.visititems(lambda n, item: found.update({n: item.shape} if hasattr(item, "shape") else {}))
    return found


def point_elsewhere(path, how, name=None):
    """Makes the first array of a weight file one of bytes that lie in another file."""
    secret = path.parent / "secret"
    SECRET.tofile(secret)
    with h5py.File(path.parent / "other.h5", "w") as other:
        other["x"] = SECRET.view("f4")
    with h5py.File(path, "a") as file:
        name = name or next(iter(named_arrays(file)))
        shape = file[name].shape
        if how in ("cycle", "depth"):
            group = file[name.partition("/")[0]]
            if how == "cycle":
                group["again"] = file
            for _ in range(80 if how == "depth" else 0):
                group = group.create_group("g")
            return
        del file[name]
        if how == "external":
            size = int(np.prod(shape)) * 4
            file.create_dataset(name, shape, "f4", external=[(str(secret), 0, size)])
        elif how == "virtual":
            layout = h5py.VirtualLayout(shape, "f4")
            layout[...] = h5py.VirtualSource(str(path.parent / "other.h5"), "x", shape=shape)
            file.create_virtual_dataset(name, layout)
        elif how == "external link":
            file[name] = h5py.ExternalLink(str(path.parent / "other.h5"), "x")
        elif how == "external group":
            file["more"] = h5py.ExternalLink(str(path.parent / "other.h5"), "/")
        else:
            file[name] = h5py.SoftLink("/elsewhere")


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    path = tmp_path_factory.mktemp("saved") / "model"
    tiny.dual_encoder().save_to_preset(path)
    return {file.name: file.read_bytes() for file in path.iterdir() if file.is_file()}, path


@pytest.mark.parametrize(("how", "message"), ELSEWHERE)
def test_arrays_that_lie_elsewhere_are_refused(tmp_path, saved, how, message):
    file = tmp_path / WEIGHTS
    file.write_bytes(saved[0][WEIGHTS])
    point_elsewhere(file, how)
    with pytest.raises(DataError, match=message) as caught:
        Hdf5Arrays(CheckpointFiles(tmp_path))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(("how", "message"), ELSEWHERE)
def test_a_model_directory_with_arrays_elsewhere_is_refused(saved, how, message):
    contents, path = saved
    point_elsewhere(path / WEIGHTS, how)
    with pytest.raises(CorruptError, match=message) as caught:
        DualEncoder.from_preset(path)
    assert "\n" not in str(caught.value)
    (path / WEIGHTS).write_bytes(contents[WEIGHTS])
    DualEncoder.from_preset(path)


def test_so_is_a_generator_of_queries_and_keras_itself_refuses_them(tmp_path):
    path = tiny_seq2seq.bart(tmp_path / "bart")
    whole = (path / WEIGHTS).read_bytes()
    rules = GenerationRules(document_max_length_tokens=16, query_max_length_tokens=8, top_k=5)
    with h5py.File(path / WEIGHTS) as file:
        name = list(named_arrays(file))[-1]
    for how, message in ELSEWHERE[:2]:
        point_elsewhere(path / WEIGHTS, how, name)
        with pytest.raises(DataError, match=message):
            KerasHubGenerator(path, rules)
        # For presets of a hub, which nobody can look at before: it must go on refusing.
        with pytest.raises(ValueError, match="could not be loaded"):
            keras_hub.models.Seq2SeqLM.from_preset(str(path))
        (path / WEIGHTS).write_bytes(whole)
    with h5py.File(path / WEIGHTS, "a") as file:
        file[name][..., 0] = np.nan
    with pytest.raises(DataError, match=r"the array .* must hold finite float32\. Received: nan"):
        KerasHubGenerator(path, rules)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("dtype", ["float32", "float16", ml_dtypes.bfloat16])
def test_weights_that_are_not_finite_are_told(tmp_path, value, dtype):
    name = "encoder.layer.1.output.dense.weight"
    weights = {key: array.astype(dtype) for key, array in arrays().items()}
    weights[name][3, 2] = value
    write(tmp_path, weights=weights)
    message = rf"model.safetensors: the array {name} must hold finite float32. Received: {value}"
    with pytest.raises(DataError, match=message):
        load_backbone(tmp_path)


def test_weights_beyond_float32_are_told(tmp_path):
    weights = {key: array.astype("float64") for key, array in arrays().items()}
    weights["embeddings.LayerNorm.bias"][0] = 1e39
    write(tmp_path, weights=weights)
    with pytest.raises(DataError, match=r"LayerNorm.bias must hold finite float32. Received: 1e"):
        load_backbone(tmp_path)


def test_a_model_directory_with_weights_that_are_not_finite_is_told(saved):
    contents, path = saved
    with h5py.File(path / WEIGHTS, "a") as file:
        name = next(iter(named_arrays(file)))
        file[name][..., 0] = np.nan
    with pytest.raises(CorruptError, match=rf"the array {name} must hold finite float32"):
        DualEncoder.from_preset(path)
    (path / WEIGHTS).write_bytes(contents[WEIGHTS])


def test_a_model_directory_with_weights_of_another_kind_is_told(saved):
    contents, path = saved
    with h5py.File(path / WEIGHTS, "a") as file:
        name, shape = next(iter(named_arrays(file).items()))
        del file[name]
        file.create_dataset(name, shape, "S1000000")  # would be read as terabytes
    with pytest.raises(CorruptError, match=r"must have dtype float16 or .* Received: \|S1000000"):
        DualEncoder.from_preset(path)
    (path / WEIGHTS).write_bytes(contents[WEIGHTS])
