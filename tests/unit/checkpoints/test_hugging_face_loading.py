"""Hugging Face and sentence-transformers directories, written here with safetensors."""

import json
import os
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from tfde.checkpoints.loading import load_backbone
from tfde.config import TextConfig
from tfde.errors import ConfigError, DataError
from tfde.towers.dual_encoder import DualEncoder

VOCABULARY = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"] + [chr(97 + i) for i in range(26)]
V, H, I, P, LAYERS = len(VOCABULARY), 8, 12, 20, 2  # noqa: E741
CONFIG = {
    "model_type": "bert",
    "vocab_size": V,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": 2,
    "hidden_size": H,
    "intermediate_size": I,
    "max_position_embeddings": P,
    "type_vocab_size": 2,
    "hidden_dropout_prob": 0.2,
    "hidden_act": "gelu",
    "layer_norm_eps": 1e-10,
}


def arrays():
    rng = np.random.default_rng(4)
    shapes = {
        "embeddings.word_embeddings.weight": (V, H),
        "embeddings.position_embeddings.weight": (P, H),
        "embeddings.token_type_embeddings.weight": (2, H),
        "embeddings.LayerNorm.weight": (H,),
        "embeddings.LayerNorm.bias": (H,),
    }
    for i in range(LAYERS):
        prefix = f"encoder.layer.{i}"
        for part, rows, columns in (
            *((f"attention.self.{x}", H, H) for x in ("query", "key", "value")),
            ("attention.output.dense", H, H),
            ("intermediate.dense", I, H),
            ("output.dense", H, I),
        ):
            shapes[f"{prefix}.{part}.weight"] = (rows, columns)
            shapes[f"{prefix}.{part}.bias"] = (rows,)
        for part in ("attention.output.LayerNorm", "output.LayerNorm"):
            shapes[f"{prefix}.{part}.weight"] = shapes[f"{prefix}.{part}.bias"] = (H,)
    return {name: rng.standard_normal(s).astype("float32") for name, s in shapes.items()}


def write(directory, *, weights=None, config=None, prefix=""):
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "config.json").write_text(json.dumps({**CONFIG, **(config or {})}))
    (directory / "vocab.txt").write_text("\n".join(VOCABULARY))
    weights = arrays() if weights is None else weights
    save_file({prefix + k: v for k, v in weights.items()}, directory / "model.safetensors")


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

    directory = tmp_path / "shards"
    write(directory)
    (directory / "model.safetensors").unlink()
    where = {name: f"model-{i % 2}.safetensors" for i, name in enumerate(arrays())}
    for shard in set(where.values()):
        part = {name: value for name, value in arrays().items() if where[name] == shard}
        save_file(part, directory / shard)
    index = {"weight_map": where}
    (directory / "model.safetensors.index.json").write_text(json.dumps(index))
    check(load_backbone(directory))

    import ml_dtypes

    half = {name: value.astype(ml_dtypes.bfloat16) for name, value in arrays().items()}
    write(tmp_path / "half", weights=half)
    table = load_backbone(tmp_path / "half").backbone.token_embedder.token_table
    expected = half["embeddings.word_embeddings.weight"].astype("float32")
    np.testing.assert_array_equal(table.numpy(), expected)


def write_sentence_transformers(
    directory, kinds=("Transformer", "Pooling"), *, folder="", new=False
):
    """A directory as version 2 to 5 of the library, or from version 6 on, lists its modules."""
    write(directory / folder)
    module = "sentence_transformers.base.modules.{}." if new else "sentence_transformers.models."
    paths = [folder, *(f"{i}_{kind}" for i, kind in enumerate(kinds[1:], 1))]
    modules = [
        {"idx": i, "path": path, "type": module.format(kind.lower()) + kind}
        for i, (path, kind) in enumerate(zip(paths, kinds, strict=True))
    ]
    (directory / "modules.json").write_text(json.dumps(modules))
    (directory / "1_Pooling").mkdir(exist_ok=True)
    (directory / "1_Pooling" / "config.json").write_text('{"pooling_mode": "mean"}')


@pytest.mark.parametrize(("folder", "new"), [("", True), ("0_Transformer", False)])
def test_sentence_transformers_directory(tmp_path, folder, new):
    write_sentence_transformers(tmp_path, folder=folder, new=new)
    (tmp_path / folder / "sentence_bert_config.json").write_text('{"max_seq_length": 16}')
    pooling = tmp_path / "1_Pooling" / "config.json"
    pooling.write_text('{"pooling_mode_cls_token": true, "pooling_mode_mean_tokens": false}')
    loaded = load_backbone(tmp_path)
    check(loaded)
    assert loaded.max_length_tokens == 16
    assert loaded.steps.pooling == ("first",)
    assert loaded.steps.normalize is True  # the library compares by cosine unless told otherwise
    write_sentence_transformers(
        tmp_path, ("Transformer", "Pooling", "Normalize"), folder=folder, new=new
    )
    loaded = load_backbone(tmp_path)
    assert loaded.steps.pooling == ("mean",)
    assert loaded.steps.normalize is True
    for modes, received in (
        ('{"pooling_mode_max_tokens": true}', "'max_tokens'"),
        ('{"pooling_mode": ["mean", "max"]}', r"\['mean', 'max'\]"),
    ):
        pooling.write_text(modes)
        rule = r"1_Pooling/config.json: pooling must be by mean or cls token"
        with pytest.raises(ConfigError, match=rf"{rule}. Received: {received}"):
            load_backbone(tmp_path)


@pytest.mark.parametrize(
    "kinds",
    [
        ("Transformer", "Pooling", "Dense", "Normalize"),  # LaBSE
        ("Transformer", "Normalize", "Pooling"),
        ("Transformer",),
        ("StaticEmbedding",),
    ],
)
def test_other_modules_are_refused(tmp_path, kinds):
    write_sentence_transformers(tmp_path, kinds)
    rule = "modules.json: the modules must be Transformer, Pooling and, optionally, Normalize"
    with pytest.raises(ConfigError, match=rf"{rule}.*Received: {', '.join(kinds)}$"):
        load_backbone(tmp_path)


def test_the_checkpoints_prompts_and_scale_reach_the_towers(tmp_path):
    """Unless the caller says otherwise."""
    write_sentence_transformers(tmp_path)
    prompts = tmp_path / "config_sentence_transformers.json"
    prompts.write_text('{"prompts": {"query": "a b: ", "passage": "c: ", "other": "x"}}')
    loaded = load_backbone(tmp_path)
    assert (loaded.steps.query_prompt, loaded.steps.document_prompt) == ("a b: ", "c: ")
    model = DualEncoder.from_backbone(tmp_path)
    assert model.config.normalize is False
    assert model.preprocessor.text_config.query_prompt == "a b: "
    model_without = DualEncoder.from_backbone(tmp_path, text=TextConfig(), normalize=True)
    assert model_without.config.normalize is True
    assert model_without.preprocessor.text_config.query_prompt == ""
    got = DualEncoder.from_backbone(tmp_path, normalize=True).encode_queries(["d e"])
    np.testing.assert_allclose(got, model_without.encode_queries(["a b: d e"]), atol=1e-6)
    got = DualEncoder.from_backbone(tmp_path, normalize=True).encode_documents(["d e"])
    np.testing.assert_allclose(got, model_without.encode_documents(["c: d e"]), atol=1e-6)

    prompts.write_text('{"prompts": {"document": "d", "query": ""}}')
    loaded = load_backbone(tmp_path)
    assert (loaded.steps.query_prompt, loaded.steps.document_prompt) == ("", "d")
    settings = '{"pooling_mode": "mean", "include_prompt": false}'
    (tmp_path / "1_Pooling" / "config.json").write_text(settings)
    with pytest.raises(ConfigError, match=r"must include the prompts. Received: include_prompt=F"):
        load_backbone(tmp_path)
    prompts.write_text('{"prompts": ["query"]}')
    with pytest.raises(ConfigError, match=r"`prompts` must be an object. Received: \['query'\]"):
        load_backbone(tmp_path)


def test_dropout_and_names_can_be_replaced(tmp_path):
    write(tmp_path)
    (tmp_path / "tokenizer_config.json").write_text('{"model_max_length": 1e30}')
    loaded = load_backbone(str(tmp_path), dropout=0.0, name_prefix="query_")
    assert loaded.backbone.config.dropout == 0.0
    assert loaded.backbone.encoder.name == "query_encoder"
    assert loaded.max_length_tokens == P


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"model_type": "roberta"}, "`model_type` must be bert .* Received: 'roberta'"),
        ({"hidden_act": "silu"}, "`hidden_act` must be one of gelu, .* Received: 'silu'"),
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
    with pytest.raises(DataError, match=r"config.json: must be JSON"):
        load_backbone(tmp_path)
    (tmp_path / "config.json").write_text("[1]")
    with pytest.raises(ConfigError, match=r"config.json: must hold an object. Received: \[1\]"):
        load_backbone(tmp_path)
    (tmp_path / "config.json").write_text('{"registered_name": "keras_hub>BertBackbone"}')
    with pytest.raises(ConfigError, match=r"config.json: must hold the object `config`. .*None"):
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
    with pytest.raises(DataError, match=rf"{name} must have shape \(12, 8\). Received: \(12, 3\)"):
        load_backbone(tmp_path)
    del weights[name]
    write(tmp_path, weights=weights)
    with pytest.raises(DataError, match=f"weights must hold the array {name}"):
        load_backbone(tmp_path)
    (tmp_path / "model.safetensors").write_bytes(b"\0" * 5)
    with pytest.raises(DataError, match=r"model.safetensors: must be a safetensors file"):
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
    with pytest.raises(ConfigError, match=r"is a pickle and is not read. Convert it"):
        load_backbone(tmp_path)


def test_all_minilm_l6_v2():
    """The real checkpoint: loads, pools, and finds the paraphrase nearer than the stranger."""
    directory = os.environ.get("TFDE_MINILM", "")
    if not directory or not Path(directory).is_dir():
        pytest.skip(f"all-MiniLM-L6-v2 not found: TFDE_MINILM={directory!r} is not a folder")
    loaded = load_backbone(directory)
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
