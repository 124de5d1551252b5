"""A `.keras` file wherever a command takes a model, and one that is damaged."""

import json
import warnings
import zipfile

import keras
import numpy as np
import pytest
import tiny

import tfde
from tfde.checkpoints.checkpoint_files import check_checkpoint
from tfde.cli.main import main
from tfde.errors import ConfigError, CorruptError
from tfde.retrieval.embeddings import Embeddings
from tfde.towers.checkpoint_rules import load_preprocessor


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("keras")
    tiny.write_dataset(folder / "data", documents=20)
    tiny.dual_encoder().save(folder / "model.keras")
    return folder


def test_commands_take_a_file(folder, tmp_path, capsys):
    model = keras.saving.load_model(folder / "model.keras")
    given = ("--model", str(folder / "model.keras"))
    data = ("--dataset", str(folder / "data"))
    assert main(["encode", *given, *data, "--output", str(tmp_path / "e")]) == 0
    assert Embeddings.open(tmp_path / "e").fingerprint == model.fingerprint()
    assert main(["evaluate", *given, *data, "--split", "dev", "--measures", "RR"]) == 0
    assert "model.keras" in capsys.readouterr().out
    assert main(["export", *given, "--output", str(tmp_path / "bundle"), "--golden", "1"]) == 0
    encoder = tfde.SavedEncoder(tmp_path / "bundle")
    assert encoder.fingerprint() == model.fingerprint()
    expected = model.encode_queries(["red apple"])
    found = encoder.encode_queries(
        ["red apple"], normalize_embeddings=True, convert_to_numpy=True, prompt_name="query"
    )
    np.testing.assert_allclose(found, expected, atol=1e-6)
    with pytest.raises(ConfigError, match=r"`encode_documents` has no `prompt`; instead"):
        encoder.encode_documents(["a"], prompt="x")


def test_hdf5_is_refused_before_the_tokenizer_is_lost(folder, tmp_path):
    encoder = tfde.DualEncoder.load(folder / "model.keras")
    for name in ("x.h5", "x.hdf5"):
        with pytest.raises(ConfigError, match=r"`filepath` must be a \.keras file, for HDF5 holds"):
            encoder.save(tmp_path / name)
    assert not list(tmp_path.iterdir())


def test_what_a_file_is_to_checks_and_checkpoints(folder, tmp_path):
    path = folder / "model.keras"
    check_checkpoint(path)
    assert load_preprocessor(path).fingerprint_bytes()
    (tmp_path / "other.h5").write_bytes(b"x")
    for no_file in (tmp_path / "other.h5", tmp_path / "none.keras"):
        with pytest.raises(ConfigError, match=r"must be a directory, a \.keras file, the name of"):
            check_checkpoint(no_file)
    for wanted in (path, str(path)):
        with pytest.raises(ConfigError, match=r"model\.keras: must be .*`from_preset`.*`save_to_p"):
            tfde.DualEncoder.from_backbone(wanted)
    matcher = {"kind": "siamese", "num_labels": 2}
    with pytest.raises(ConfigError, match=r"`backbone` must be a model directory \(`save_to_pre"):
        tfde.Matcher.from_backbone(path, **matcher)


def without(path, name):
    with zipfile.ZipFile(path) as file:
        return {other: file.read(other) for other in file.namelist() if other != name}


def zipped(path, members):
    with zipfile.ZipFile(path, "w") as file:
        for name, content in members.items():
            file.writestr(name, content)


def test_damaged_files_say_so_in_one_line(folder, tmp_path):
    whole = folder / "model.keras"
    config = json.loads(zipfile.ZipFile(whole).read("config.json"))
    damaged = {}
    for name in zipfile.ZipFile(whole).namelist():
        content = whole.read_bytes()
        place = content.index(zipfile.ZipFile(whole).read(name))
        flipped = bytearray(content)
        flipped[place + 30] ^= 255
        damaged[f"flipped {name}"] = bytes(flipped)
        if name != "metadata.json":  # which nothing needs
            zipped(tmp_path / "z", without(whole, name))
            damaged[f"no {name}"] = (tmp_path / "z").read_bytes()
    for field in ("config", "class_name"):
        text = json.dumps({**config, field: {}})
        zipped(tmp_path / "z", {**without(whole, "config.json"), "config.json": text})
        damaged[f"empty {field}"] = (tmp_path / "z").read_bytes()
    damaged["half"] = whole.read_bytes()[: whole.stat().st_size // 2]
    damaged["empty"] = b""
    path = tmp_path / "bad.keras"
    for name, content in damaged.items():
        path.write_bytes(content)
        for load in (tfde.DualEncoder.from_preset, tfde.DualEncoder.load):
            with pytest.raises(CorruptError) as caught:
                pytest.fail(f"{name}: {load(path)}")
            assert str(caught.value).startswith(f"{path}: "), name
            assert "\n" not in str(caught.value), name


def test_a_compiled_model_that_was_never_fitted_loads_in_silence(tmp_path):
    model = tiny.dual_encoder()
    model.compile("adam")
    model.save(tmp_path / "model.keras")
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        again = keras.saving.load_model(tmp_path / "model.keras")
    again.fit([("red", "red apple"), ("blue", "blue plum")], verbose=0)
    again.save(tmp_path / "model.keras")
    assert int(keras.saving.load_model(tmp_path / "model.keras").optimizer.iterations) == 1
