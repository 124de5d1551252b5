"""Means of models' weights, from Python and by `tfde average`."""

import dataclasses
import json
import re

import bert_directory
import numpy as np
import pytest
import tiny

from tfde.cli.main import main
from tfde.config.model import TextConfig
from tfde.errors import ConfigError, MismatchError
from tfde.towers.average import average_models
from tfde.towers.dual_encoder import DualEncoder

MOVED = "encoder/query/transformer_layer_0/qkv_kernel"


def saved(directory, *args, **options):
    tiny.dual_encoder(*args, **options).save_to_preset(directory)
    return directory


def weights_of(path):
    weights = DualEncoder.load(path).towers.named_weights()
    return {name: np.array(weight) for name, weight in weights.items()}


@pytest.mark.parametrize("sharing", ["sde", "ade_spl"])
def test_each_weight_is_the_weighted_mean(tmp_path, sharing):
    paths = [
        saved(tmp_path / str(seed), tiny.BERT, seed=seed, sharing=sharing, embedding_dim=5)
        for seed in (1, 2, 3)
    ]
    found = average_models(paths, [3, 2, 1])
    first, second, third = map(weights_of, paths)
    for name, weight in found.towers.named_weights().items():
        expected = first[name] / 2 + second[name] / 3 + third[name] / 6
        np.testing.assert_allclose(weight, expected, atol=1e-6, err_msg=name)
    for name, weight in average_models(paths[:2]).towers.named_weights().items():
        np.testing.assert_allclose(weight, (first[name] + second[name]) / 2, atol=1e-6)


def test_the_first_brings_its_texts_and_dropout_may_differ(tmp_path):
    text = TextConfig(query_max_length_tokens=6, document_max_length_tokens=9)
    first = saved(tmp_path / "first", tiny.BERT, text=text)
    other = saved(tmp_path / "other", dataclasses.replace(tiny.BERT, dropout=0.0), seed=2)
    found = average_models([first, other])
    assert found.preprocessor.text_config == text.filled()
    assert found.config.backbone.dropout == tiny.BERT.dropout


def test_a_model_and_the_checkpoint_it_started_from(tmp_path):
    bert_directory.write(tmp_path / "start")
    model = DualEncoder.from_backbone(tmp_path / "start", sharing="ade")
    moved = model.towers.named_weights()[MOVED]
    moved.assign(moved + 1.0)
    model.save_to_preset(tmp_path / "trained")
    mean = average_models([tmp_path / "trained", tmp_path / "start"], [0.75, 0.25])
    trained = weights_of(tmp_path / "trained")
    for name, weight in mean.towers.named_weights().items():
        expected = trained[name] - (0.25 if name == MOVED else 0.0)
        np.testing.assert_allclose(weight, expected, atol=1e-6, err_msg=name)


@pytest.mark.parametrize(
    ("options", "rule"),
    [
        ({"sharing": "ade"}, "`sharing` must be alike"),
        ({"pooling": "max"}, "`pooling` must be alike. Received: ('max',) and ('mean',)"),
        ({"embedding_dim": 4}, "`projection` must be alike"),
        ({"backbone": tiny.T5}, "`backbone."),
        (
            {"backbone": dataclasses.replace(tiny.BERT, num_layers=1)},
            "`backbone.num_layers` must be alike. Received: 1 and 2",
        ),
    ],
)
def test_other_models_are_refused(tmp_path, options, rule):
    first = saved(tmp_path / "first", tiny.BERT)
    other = saved(tmp_path / "other", **{"backbone": tiny.BERT, **options})
    with pytest.raises(MismatchError, match=re.escape(rule)) as caught:
        average_models([first, other])
    assert str(caught.value).startswith(f"{other} and {first} cannot be averaged: ")


def test_other_vocabularies_are_refused(tmp_path):
    first = saved(tmp_path / "first", tiny.BERT)
    other = saved(tmp_path / "other", tiny.BERT)
    words = (other / "vocab.txt").read_text().splitlines()
    (other / "vocab.txt").write_text("\n".join([*words[:5], *reversed(words[5:])]) + "\n")
    with pytest.raises(MismatchError, match="their tokenizers must be alike"):
        average_models([first, other])


@pytest.mark.parametrize("weights", [[1.0], [1.0, -1.0], [1.0, float("nan")], [0.0, 1.0]])
def test_bad_weights_are_refused_before_a_model_is_read(weights):
    with pytest.raises(ConfigError, match="`weights` must be 2 numbers above 0, one for each"):
        average_models(["nowhere/a", "nowhere/b"], weights)
    with pytest.raises(ConfigError, match="`models` must be two or more"):
        average_models(["nowhere/a"])


def test_the_command_writes_a_model_and_its_card(tmp_path, capsys):
    first = saved(tmp_path / "first", tiny.BERT)
    other = saved(tmp_path / "other", tiny.BERT, seed=2)
    output = tmp_path / "mean"
    command = ["average", "--model", str(first), "--model", str(other)]
    command += ["--weights", "0.7", "0.3", "--output", str(output)]
    assert main(command) == 0
    assert capsys.readouterr().out == f"{output}: the mean of 2 models, 0.7 + 0.3\n"
    one, two = weights_of(first), weights_of(other)
    for name, weight in weights_of(output).items():
        np.testing.assert_allclose(weight, 0.7 * one[name] + 0.3 * two[name], atol=1e-6)
    prints = [DualEncoder.from_preset(path).fingerprint() for path in (first, other)]
    told = f"\n- 0.7 of `{first}` (`{prints[0]}`)\n- 0.3 of `{other}` (`{prints[1]}`)\n"
    assert told in (output / "README.md").read_text()
    assert main(command) == 1
    assert "the output exists and is not empty" in capsys.readouterr().err
    metadata = json.loads((first / "metadata.json").read_text())
    del metadata["fingerprint"]  # as keras-hub writes it
    (first / "metadata.json").write_text(json.dumps(metadata))
    assert main([*command[:-1], str(tmp_path / "again")]) == 0
    assert f"\n- 0.7 of `{first}`\n" in (tmp_path / "again" / "README.md").read_text()
