"""Hugging Face directories: the values, whatever the names, shards and dtype."""

import ml_dtypes
import numpy as np
import pytest
from bert_directory import LAYERS, H, P, V, arrays, write, write_shards

from tfde.checkpoints.loading import load_backbone


def reference(token_ids, lengths):
    """BERT in float64 NumPy from the equations, on real tokens only.

    Source: Devlin et al. 2019 section 3, Vaswani et al. 2017 equation 1, GELU with erf.
    """
    from math import erf

    w = {name: value.astype("float64") for name, value in arrays().items()}

    def norm(x, name):
        x = x - x.mean(-1, keepdims=True)
        x = x / np.sqrt((x**2).mean(-1, keepdims=True) + 1e-10)
        return x * w[f"{name}.weight"] + w[f"{name}.bias"]

    def dense(x, name):
        return x @ w[f"{name}.weight"].T + w[f"{name}.bias"]

    gelu = np.vectorize(lambda x: 0.5 * x * (1 + erf(x / 2**0.5)))
    rows = []
    for ids, length in zip(token_ids, lengths, strict=True):
        x = w["embeddings.word_embeddings.weight"][ids[:length]]
        x = x + w["embeddings.position_embeddings.weight"][:length]
        x = norm(x + w["embeddings.token_type_embeddings.weight"][0], "embeddings.LayerNorm")
        for i in range(LAYERS):
            p = f"encoder.layer.{i}"
            q, k, v = (
                dense(x, f"{p}.attention.self.{part}").reshape(length, 2, H // 2)
                for part in ("query", "key", "value")
            )
            scores = np.exp(np.einsum("iad,jad->aij", q, k) / np.sqrt(H // 2))
            attention = scores / scores.sum(-1, keepdims=True)
            attended = np.einsum("aij,jad->iad", attention, v).reshape(length, H)
            x = norm(
                x + dense(attended, f"{p}.attention.output.dense"),
                f"{p}.attention.output.LayerNorm",
            )
            inner = gelu(dense(x, f"{p}.intermediate.dense"))
            x = norm(x + dense(inner, f"{p}.output.dense"), f"{p}.output.LayerNorm")
        rows.append(x)
    return rows


LENGTHS = (9, 4)
TOKEN_IDS = np.random.default_rng(0).integers(0, V, (2, 9)).astype("int32")
MASK = (np.arange(9) < np.array(LENGTHS)[:, None]).astype("int32")


def check(loaded, atol=1e-5):
    backbone = loaded.backbone
    got = backbone.encoder(backbone.token_embedder(TOKEN_IDS), MASK).numpy()
    for row, expected in zip(got, reference(TOKEN_IDS, LENGTHS), strict=True):
        np.testing.assert_allclose(row[: len(expected)], expected, atol=atol)


@pytest.mark.parametrize("prefix", ["", "bert."])
def test_equals_the_equations(tmp_path, prefix):
    write(tmp_path, prefix=prefix)
    loaded = load_backbone(tmp_path)
    check(loaded)
    assert loaded.max_length_tokens == P
    assert loaded.steps.pooling is None
    assert loaded.backbone.config.dropout == 0.2
    assert loaded.tokenizer.vocabulary_size == V


def test_old_names_shards_and_half_precision(tmp_path):
    old = {
        name.replace("LayerNorm.weight", "LayerNorm.gamma").replace(
            "LayerNorm.bias", "LayerNorm.beta"
        ): value
        for name, value in arrays().items()
    }
    write(tmp_path / "old", weights=old)
    check(load_backbone(tmp_path / "old"))

    write(tmp_path / "shards")
    write_shards(tmp_path / "shards")
    check(load_backbone(tmp_path / "shards"))

    half = {name: value.astype(ml_dtypes.bfloat16) for name, value in arrays().items()}
    write(tmp_path / "half", weights=half)
    table = load_backbone(tmp_path / "half").backbone.token_embedder.token_table
    expected = half["embeddings.word_embeddings.weight"].astype("float32")
    np.testing.assert_array_equal(table.numpy(), expected)


def test_dropout_can_be_replaced(tmp_path):
    write(tmp_path)
    (tmp_path / "tokenizer_config.json").write_text('{"model_max_length": 1e30}')
    loaded = load_backbone(str(tmp_path), dropout=0.0)
    assert loaded.backbone.config.dropout == 0.0
    assert loaded.max_length_tokens == P


@pytest.mark.peers
def test_all_minilm_l6_v2(minilm):
    """The real checkpoint: loads, pools, and finds the paraphrase nearer than the stranger."""
    loaded = load_backbone(minilm)
    backbone, tokenizer = loaded.backbone, loaded.tokenizer
    texts = ["How old is she?", "What is her age?", "The train leaves at noon."]
    ids = tokenizer.tokenize(texts).to_list()
    ids = [[tokenizer.start_id, *row, tokenizer.end_id] for row in ids]
    width = max(map(len, ids))
    mask = np.array([[1] * len(row) + [0] * (width - len(row)) for row in ids], "int32")
    ids = np.array([row + [tokenizer.pad_id] * (width - len(row)) for row in ids], "int32")
    x = backbone.encoder(backbone.token_embedder(ids), mask).numpy()
    mean = (x * mask[:, :, None]).sum(1) / mask.sum(1, keepdims=True)
    mean /= np.linalg.norm(mean, axis=1, keepdims=True)
    similarity = mean @ mean.T
    assert loaded.steps.pooling == ("mean",)
    assert loaded.max_length_tokens == 256
    assert similarity[0, 1] > 0.7
    assert similarity[0, 2] < 0.3
