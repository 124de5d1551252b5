"""Weight files that are damaged or lie: one clear line each, before any memory is taken."""

import json
import random

import ml_dtypes
import numpy as np
import pytest
from bert_directory import (
    CONFIG,
    H,
    V,
    arrays,
    write,
    write_dense,
    write_sentence_transformers,
    write_shards,
)
from safetensors.numpy import save_file

from tfde.checkpoints.loading import load_backbone, load_backbones
from tfde.errors import ConfigError, DataError, TfdeError

WORDS = "embeddings.word_embeddings.weight"


def refused(path, kind, match):
    with pytest.raises(kind, match=match) as caught:
        load_backbones(path)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("keep", [0, 5, 8, 100, 0.5, -1])
def test_a_file_cut_short(tmp_path, keep):
    write(tmp_path)
    file = tmp_path / "model.safetensors"
    whole = file.read_bytes()
    file.write_bytes(whole[: int(keep * len(whole)) if isinstance(keep, float) else keep])
    refused(tmp_path, DataError, "model.safetensors: must be a whole safetensors file. Received")


def test_any_flipped_byte_of_the_header_is_told_or_harmless(tmp_path):
    write(tmp_path)
    file = tmp_path / "model.safetensors"
    whole = file.read_bytes()
    end = 8 + int.from_bytes(whole[:8], "little")
    rng = random.Random(5)
    told = 0
    for _ in range(120):
        damaged = bytearray(whole)
        damaged[rng.randrange(end)] ^= 1 << rng.randrange(8)
        file.write_bytes(damaged)
        try:
            load_backbone(tmp_path)
        except TfdeError as error:
            assert "\n" not in str(error)  # noqa: PT017
            told += 1
    assert told > 100


@pytest.mark.parametrize("dtype", ["int8", "bool", "float8_e4m3fn"])
def test_what_is_no_plain_float_is_refused(tmp_path, dtype):
    value = np.zeros((V, H), getattr(ml_dtypes, dtype, dtype))
    write(tmp_path, weights={**arrays(), WORDS: value})
    refused(tmp_path, DataError, rf"{WORDS} must have a dtype of F16, BF16, F32, F64. Received: '")


def test_shards_that_are_missing_or_elsewhere(tmp_path):
    write(tmp_path)
    write_shards(tmp_path)
    (tmp_path / "model-1.safetensors").unlink()
    refused(tmp_path, ConfigError, "must hold model-1.safetensors. Received: no such file")
    index = tmp_path / "model.safetensors.index.json"
    for name in ("../x.safetensors", "..", "/etc/passwd", "config.json", 3, None, ["a"]):
        index.write_text(json.dumps({"weight_map": {WORDS: name}}))
        refused(tmp_path, ConfigError, "index.json: `weight_map` must name files beside it")


@pytest.mark.parametrize(
    "field",
    ["vocab_size", "hidden_size", "intermediate_size", "max_position_embeddings",
     "type_vocab_size", "num_hidden_layers"],
)  # fmt: skip
@pytest.mark.parametrize("factor", [2, 10**9])
def test_sizes_that_disagree_with_the_arrays(tmp_path, field, factor):
    write(tmp_path, config={field: CONFIG[field] * factor})
    refused(tmp_path, DataError, rf"config.json: `{field}` must agree with .*Received: ")
    for value in ("8", -8, 0, 1e12, True, [8], {"a": 1}):
        write(tmp_path, config={field: value})
        refused(tmp_path, ConfigError, rf"config.json: `{field}` must be a whole number of at leas")
    write(tmp_path, config={field: None})
    refused(tmp_path, ConfigError, f"config.json: has no field '{field}'")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"num_hidden_layers": 1}, "`num_hidden_layers` must agree .* which hold 2 layers"),
        ({"num_attention_heads": 3}, "`num_attention_heads` must be a divisor of `hidden_size`=8"),
        ({"hidden_dropout_prob": "0.1"}, "`hidden_dropout_prob` must be a number from 0 to below"),
        ({"layer_norm_eps": -1}, "`layer_norm_eps` must be a number from 0 to below 1"),
        ({"layer_norm_eps": float("nan")}, "`layer_norm_eps` must be a number .* Received: nan"),
        ({"hidden_act": ["gelu"]}, "`hidden_act` must be one of gelu, .* Received: "),
        ({"model_type": ["bert"]}, "`model_type` must be one of bert, .* Received: "),
        ({"is_decoder": True}, "`is_decoder` must be False. Received: True"),
    ],
)
def test_fields_that_cannot_be(tmp_path, change, message):
    write(tmp_path, config=change)
    refused(tmp_path, TfdeError, message)


def test_a_layer_of_another_size(tmp_path):
    """Only one array lies; nothing is read before every array's header has been compared."""
    name = "encoder.layer.1.intermediate.dense.bias"
    write(tmp_path, weights={**arrays(), name: np.zeros(13, "float32")})
    refused(tmp_path, DataError, rf"{name} must have shape \(12,\). Received: \(13,\)")
    weights = arrays() | {"encoder.layer.x.y": np.zeros(1, "float32")}
    write(tmp_path, weights=weights)
    refused(tmp_path, DataError, "`num_hidden_layers` must agree .* which hold 3 layers")


T5 = {
    "model_type": "t5", "vocab_size": 60, "d_model": 6, "d_ff": 10, "d_kv": 5, "num_heads": 2,
    "num_layers": 1, "feed_forward_proj": "relu", "relative_attention_num_buckets": 8,
}  # fmt: skip
_ATTENTION, _FEEDFORWARD = "encoder.block.0.layer.0.", "encoder.block.0.layer.1."
T5_SHAPES = {
    "shared.weight": (60, 6),
    **{f"{_ATTENTION}SelfAttention.{part}.weight": (10, 6) for part in "qkv"},
    f"{_ATTENTION}SelfAttention.o.weight": (6, 10),
    f"{_ATTENTION}SelfAttention.relative_attention_bias.weight": (8, 2),
    f"{_ATTENTION}layer_norm.weight": (6,),
    f"{_FEEDFORWARD}DenseReluDense.wi.weight": (10, 6),
    f"{_FEEDFORWARD}DenseReluDense.wo.weight": (6, 10),
    f"{_FEEDFORWARD}layer_norm.weight": (6,),
    "encoder.final_layer_norm.weight": (6,),
}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"d_kv": 6}, r"`num_heads\*d_kv` must agree with the array .*q.weight.*Received: 12"),
        ({"d_kv": 10**12}, r"`num_heads\*d_kv` must agree"),
        ({"num_heads": 3}, "`num_heads` must agree"),
        ({"d_ff": 11}, "`d_ff` must agree"),
        ({"relative_attention_num_buckets": 32}, "`relative_attention_num_buckets` must agree"),
        ({"num_layers": 2}, "`num_layers` must agree with the weights, which hold 1 layers"),
        ({"feed_forward_proj": "gated-gelu"}, "weights must hold the array .*DenseReluDense.wi_0"),
        ({"feed_forward_proj": "mish"}, "`feed_forward_proj` must be one of relu, .*'mish'"),
        ({"relative_attention_num_buckets": 2}, "`relative_attention_num_buckets` must be at leas"),
        ({"relative_attention_max_distance": 2}, "`relative_attention_max_distance` must be above"),
    ],
)
def test_a_t5_that_lies(tmp_path, change, message):
    (tmp_path / "config.json").write_text(json.dumps({**T5, **change}))
    weights = {name: np.ones(shape, "float32") for name, shape in T5_SHAPES.items()}
    save_file(weights, tmp_path / "model.safetensors")
    refused(tmp_path, TfdeError, message)


def test_dense_modules_that_lie(tmp_path):
    write_sentence_transformers(tmp_path, ("Transformer", "Pooling", "Dense"))
    dense = tmp_path / "2_Dense"
    write_dense(dense, 5, H, in_features=H + 1)
    refused(tmp_path, DataError, r"2_Dense/config.json: \(out_features, in_features\) must be the ")
    write_dense(dense, 5, H + 1)
    refused(tmp_path, DataError, "a Dense module gets vectors of 8 numbers; .* Received: 9")
    write_dense(dense, 5, H, bias="yes")
    refused(tmp_path, ConfigError, "2_Dense/config.json: `bias` must be true or false")
    write_dense(dense, 5, H, activation_function="torch.nn.Softmax")
    refused(tmp_path, ConfigError, "`activation_function` must be one of .* Received: 'torch.nn.So")
    weight, _ = write_dense(dense, 5, H)
    bias = np.zeros(4, "float32")
    save_file({"linear.weight": weight, "linear.bias": bias}, dense / "model.safetensors")
    refused(tmp_path, DataError, r"linear.bias must have shape \(5,\). Received: \(4,\)")
    (dense / "model.safetensors").rename(dense / "pytorch_model.bin")
    convert = r"SentenceTransformer\(DIR\).save_pretrained\(DIR\) of sentence_transformers"
    refused(tmp_path, ConfigError, f"2_Dense: must hold model.safetensors; .*pickle.*{convert}")
    write_dense(dense, 5, H)
    (tmp_path / "model.safetensors").rename(tmp_path / "pytorch_model.bin")
    refused(tmp_path, ConfigError, f"must hold model.safetensors; .*pickle.*{convert}")
