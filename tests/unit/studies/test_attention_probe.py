"""Attention between two texts as numbers and as a picture."""

import numpy as np
import pytest
import tiny

from tfde.cli.main import main
from tfde.config.model import PairTextConfig, TextConfig
from tfde.errors import ConfigError
from tfde.matching.cross_encoder import CrossEncoder
from tfde.matching.matcher import Matcher
from tfde.studies.attention_probe import PairAttention, draw_attention, pair_attention


@pytest.fixture(scope="module")
def models():
    options = {"tokenizer": tiny.tokenizer(), "seed": 1, "num_labels": 2}
    return {
        "teacher": CrossEncoder.from_backbone(tiny.BERT, text=PairTextConfig(24), **options),
        "student": Matcher.from_backbone(
            tiny.BERT, kind="siamese", text=TextConfig(8, 12), **options
        ),
    }


@pytest.mark.parametrize("name", ["teacher", "student"])
def test_rows_are_weights_of_the_other_texts_tokens(models, name):
    found = pair_attention(models[name], "red apple tree", "cat dog", layer=0)
    assert (found.first, found.second) == (["red", "apple", "tree"], ["cat", "dog"])
    assert (found.to_second.shape, found.to_first.shape) == ((3, 2), (2, 3))
    for part in (found.to_second, found.to_first):
        np.testing.assert_allclose(part.sum(axis=1), 1.0, atol=1e-5)
    heads = [pair_attention(models[name], "red apple tree", "cat dog", layer=0, head=h)
             for h in (0, 1)]  # fmt: skip
    mean = (heads[0].to_second + heads[1].to_second) / 2
    np.testing.assert_allclose(found.to_second, mean, atol=1e-6)


def test_what_is_not_there(models):
    with pytest.raises(ConfigError, match=r"`layer` must be in \[-2, 1\]\. Received: 2"):
        pair_attention(models["student"], "red", "cat", layer=2)
    with pytest.raises(ConfigError, match=r"`head` must be in \[-2, 1\]\. Received: 9"):
        pair_attention(models["teacher"], "red", "cat", head=9)
    with pytest.raises(ConfigError, match="`second` must be a text with tokens"):
        pair_attention(models["teacher"], "red", "")


def test_tokens_are_no_formulas(tmp_path):
    weights = np.full((2, 1), 0.5)
    found = PairAttention(["$$", "_a"], ["$\\b$"], weights, weights.T, "layer")
    draw_attention({"_m$": found}, tmp_path / "maps.png", title="$ and $")
    assert (tmp_path / "maps.png").read_bytes().startswith(b"\x89PNG")


def test_a_picture_with_a_row_for_each_model(models, tmp_path, capsys):
    arguments = ["probe", "attention", "--first", "red apple", "--second", "cat dog bird"]
    for name, model in models.items():
        model.save_to_preset(tmp_path / name / "model")
        arguments += ["--model", str(tmp_path / name / "model")]
    assert main([*arguments, "--output", str(tmp_path / "maps.png")]) == 0
    assert capsys.readouterr().out == f"{tmp_path / 'maps.png'}: teacher, student\n"
    assert (tmp_path / "maps.png").read_bytes().startswith(b"\x89PNG")
