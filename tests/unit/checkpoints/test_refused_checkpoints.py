"""Checkpoints that are not what they say: one clear line each."""

import json

import numpy as np
import pytest
from bert_directory import CONFIG, I, arrays, write

from tfde.checkpoints.checkpoint_files import check_checkpoint
from tfde.checkpoints.loading import load_backbone
from tfde.errors import ConfigError, DataError


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"model_type": "gpt2"}, "`model_type` must be one of bert, .*, mt5. Received: 'gpt2'"),
        ({"hidden_act": "mish"}, "`hidden_act` must be one of gelu, .* Received: 'mish'"),
        ({"position_embedding_type": "relative_key"}, "must be absolute. Received: 'relative_key'"),
    ],
)
def test_other_models_are_refused(tmp_path, change, message):
    write(tmp_path, config=change)
    with pytest.raises(ConfigError, match=message):
        load_backbone(tmp_path)


def test_bad_directories_are_refused_in_one_line(tmp_path):
    with pytest.raises(ConfigError, match=r"must be a directory, the name of a keras-hub preset"):
        load_backbone("no_such_preset")
    with pytest.raises(ConfigError, match="must be the directory of a checkpoint"):
        load_backbone(tmp_path / "nothing")
    with pytest.raises(ConfigError, match=r"must hold config.json. Received: no such file"):
        load_backbone(tmp_path)
    (tmp_path / "config.json").write_text("{not json")
    with pytest.raises(DataError, match=r"config.json:1: must be JSON"):
        load_backbone(tmp_path)
    (tmp_path / "config.json").write_text("[1]")
    with pytest.raises(ConfigError, match=r"config.json: must hold an object. Received: \[1\]"):
        load_backbone(tmp_path)
    (tmp_path / "config.json").write_text('{"architecture": "resnet"}')
    with pytest.raises(ConfigError, match=r"must be a keras-hub preset's .* Received: neither"):
        load_backbone(tmp_path)
    config = {key: value for key, value in CONFIG.items() if key != "hidden_size"}
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(ConfigError, match=r"config.json: has no field 'hidden_size'"):
        load_backbone(tmp_path)
    for modules in ({"0": "Transformer"}, [["Transformer"]], [{"type": "Transformer"}]):
        (tmp_path / "modules.json").write_text(json.dumps(modules))
        with pytest.raises(ConfigError, match=r"modules.json: must be a list of objects with"):
            load_backbone(tmp_path)


def test_bad_weights_are_refused_in_one_line(tmp_path):
    weights = arrays()
    name = "encoder.layer.1.output.dense.weight"
    write(tmp_path, weights={**weights, name: np.zeros((3, I), "float32")})
    with pytest.raises(DataError, match=rf"{name} must have shape \(8, 12\). Received: \(3, 12\)"):
        load_backbone(tmp_path)
    del weights[name]
    write(tmp_path, weights=weights)
    with pytest.raises(DataError, match=f"weights must hold the array {name}"):
        load_backbone(tmp_path)
    (tmp_path / "model.safetensors").write_bytes(b"\0" * 5)
    with pytest.raises(DataError, match=r"model.safetensors: must be a whole safetensors file"):
        load_backbone(tmp_path)
    (tmp_path / "model.safetensors").unlink()
    with pytest.raises(ConfigError, match=r"must hold model.safetensors. Received: no such file"):
        load_backbone(tmp_path)
    index = tmp_path / "model.safetensors.index.json"
    index.write_text("{}")
    with pytest.raises(ConfigError, match=r"index.json: must hold the object `weight_map`"):
        load_backbone(tmp_path)
    index.unlink()
    (tmp_path / "pytorch_model.bin").write_bytes(b"")
    with pytest.raises(ConfigError, match=r"is a pickle, .* is not read. Convert it with AutoM"):
        load_backbone(tmp_path)


def test_a_run_is_no_model_but_holds_one(tmp_path):
    (tmp_path / "best_model").mkdir()
    with pytest.raises(ConfigError, match=r"holds config\.json.*; did you mean .*/best_model\?"):
        check_checkpoint(tmp_path)


@pytest.mark.parametrize(
    "file",
    [
        "config.json",
        "modules.json",
        "saved_model.pb",
        "question_encoder/config.json",
        "manifest.json",
    ],
)
def test_directories_of_each_kind_of_model_pass(tmp_path, file):
    (tmp_path / file).parent.mkdir(exist_ok=True)
    (tmp_path / file).touch()
    check_checkpoint(tmp_path)


def test_a_bundle_is_no_start_of_training(tmp_path):
    (tmp_path / "manifest.json").touch()
    with pytest.raises(ConfigError, match=r"must be a model to train, .* bundle only answers"):
        check_checkpoint(tmp_path, trains=True)


def test_a_path_at_which_nothing_stands_is_called_so(tmp_path):
    with pytest.raises(ConfigError, match=r", a path at which nothing stands"):
        check_checkpoint(tmp_path / "best_modell")


def test_no_name_is_no_model():
    with pytest.raises(ConfigError, match=r"must be a directory, .* Received: ''"):
        check_checkpoint("")
