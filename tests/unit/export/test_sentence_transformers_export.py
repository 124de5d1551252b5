"""What an exported sentence-transformers directory holds, and what is refused."""

import dataclasses
import json

import ml_dtypes
import numpy as np
import pytest
import tiny
from safetensors.numpy import load_file

from tfde.backbones.backbone import build_backbone
from tfde.checkpoints.families.family import FieldsOfConfig
from tfde.checkpoints.families.registry import FAMILIES
from tfde.checkpoints.hugging_face_writer import hugging_face_config, write_arrays
from tfde.config.model import DenseConfig, Sharing, TextConfig, TowersConfig
from tfde.errors import ConfigError
from tfde.export.sentence_transformers import export_sentence_transformers, limitations
from tfde.text.preprocessor import TextPreprocessor
from tfde.text.sentence_piece.tokenizer import SentencePieceTokenizer
from tfde.text.sentence_piece.train import train_sentencepiece
from tfde.text.word_piece.tokenizer import WordPieceTokenizer
from tfde.towers.dual_encoder import DualEncoder

TEXT = TextConfig(query_max_length_tokens=16, document_max_length_tokens=16, query_prompt="query: ")
STEPS = (DenseConfig(7, use_bias=True, activation="tanh"), DenseConfig(5))


def model_of(backbone=tiny.BERT, *, text=TEXT, dtype=None, sharing="sde", **towers):
    config = TowersConfig(backbone=backbone, sharing=Sharing.of(sharing), **towers)
    parts = build_backbone(backbone, seed=1, dtype=dtype)
    return DualEncoder(parts, config, preprocessor=TextPreprocessor(tiny.tokenizer(), text))


def mpnet_tokenizer():
    special = ["<s>", "<pad>", "</s>", "[UNK]", "<mask>"]
    roles = {"start_token": "<s>", "pad_token": "<pad>", "end_token": "</s>"}
    return WordPieceTokenizer([*special, *tiny.VOCABULARY[5:]], special_tokens=special, **roles)


def read(path):
    return json.loads(path.read_text("utf-8"))


def kinds(directory):
    return [(module["type"], module["path"]) for module in read(directory / "modules.json")]


def assert_same_weights(model, other):
    for tower in ("query_tower", "document_tower"):
        pairs = zip(getattr(model, tower).weights, getattr(other, tower).weights, strict=True)
        for weight, value in pairs:
            if "seed" not in weight.path:
                np.testing.assert_array_equal(weight.numpy(), value.numpy(), err_msg=weight.path)


def test_modules_of_a_siamese_model(tmp_path):
    model = model_of(pooling=("first", "max"), projection=STEPS, pool_prompts=False)
    directory = export_sentence_transformers(model, tmp_path / "model")
    old = "sentence_transformers.models."
    assert kinds(directory) == [
        (f"{old}Transformer", ""),
        (f"{old}Pooling", "1_Pooling"),
        (f"{old}Dense", "2_Dense"),
        (f"{old}Dense", "3_Dense"),
        (f"{old}Normalize", "4_Normalize"),
    ]
    assert read(directory / "1_Pooling" / "config.json") == {
        "word_embedding_dimension": 8,
        "pooling_mode_cls_token": True,
        "pooling_mode_max_tokens": True,
        "pooling_mode_mean_tokens": False,
        "pooling_mode_mean_sqrt_len_tokens": False,
        "pooling_mode_weightedmean_tokens": False,
        "pooling_mode_lasttoken": False,
        "include_prompt": False,
    }
    assert read(directory / "2_Dense" / "config.json") == {
        "in_features": 16,
        "out_features": 7,
        "bias": True,
        "activation_function": "torch.nn.modules.activation.Tanh",
    }
    dense = load_file(directory / "2_Dense" / "model.safetensors")
    projection = model.towers.query_parts.projection
    np.testing.assert_array_equal(dense["linear.weight"], projection.kernel.numpy().T)
    np.testing.assert_array_equal(dense["linear.bias"], projection.bias.numpy())
    assert list(load_file(directory / "3_Dense" / "model.safetensors")) == ["linear.weight"]
    settings = read(directory / "config_sentence_transformers.json")
    assert settings["prompts"] == {"query": "query: ", "document": ""}
    assert settings["similarity_fn_name"] == "cosine"
    assert read(directory / "sentence_bert_config.json")["max_seq_length"] == 16
    assert read(directory / "tokenizer_config.json")["model_max_length"] == 16


def test_a_dot_product_has_no_normalize(tmp_path):
    directory = export_sentence_transformers(model_of(normalize=False), tmp_path / "model")
    assert [kind.rpartition(".")[2] for kind, _ in kinds(directory)] == ["Transformer", "Pooling"]
    settings = read(directory / "config_sentence_transformers.json")
    assert settings["similarity_fn_name"] == "dot"


def test_arrays_of_bert_have_the_names_of_transformers(tmp_path):
    directory = export_sentence_transformers(
        model := model_of(dataclasses.replace(tiny.BERT, num_segments=0, dropout=0.25)),
        tmp_path / "model",
    )
    config = read(directory / "config.json")
    assert (config["model_type"], config["architectures"]) == ("bert", ["BertModel"])
    assert (config["type_vocab_size"], config["vocab_size"]) == (1, 120)
    assert (config["hidden_dropout_prob"], config["attention_probs_dropout_prob"]) == (0.25, 0.25)
    assert (config["pad_token_id"], config["max_position_embeddings"]) == (0, 32)
    arrays = load_file(directory / "model.safetensors")
    layer = model.towers.query_parts.encoder.transformer_layers[1]
    key = layer.qkv_kernel.numpy()[:, 8:16].T
    name = "encoder.layer.1.attention.self.key.weight"
    np.testing.assert_array_equal(arrays[name], key)
    np.testing.assert_array_equal(
        arrays["embeddings.token_type_embeddings.weight"], np.zeros((1, 8), np.float32)
    )
    assert arrays["pooler.dense.weight"].shape == (8, 8)
    assert arrays["embeddings.position_embeddings.weight"].shape == (32, 8)


def test_positions_of_mpnet_start_at_the_third_row(tmp_path):
    backbone = dataclasses.replace(tiny.BERT, num_segments=0, relative_buckets=32)
    config = TowersConfig(backbone=backbone)
    model = DualEncoder(
        build_backbone(backbone, seed=1),
        config,
        preprocessor=TextPreprocessor(mpnet_tokenizer(), TEXT),
    )
    directory = export_sentence_transformers(model, tmp_path / "model")
    arrays = load_file(directory / "model.safetensors")
    positions = arrays["embeddings.position_embeddings.weight"]
    np.testing.assert_array_equal(positions[:2], 0.0)
    table = model.towers.query_parts.token_embedder.position_table.numpy()
    np.testing.assert_array_equal(positions[2:], table)
    assert limitations(model) == ["A text that spells out <pad> has other positions in MPNetModel."]
    stored = read(directory / "config.json")
    assert stored["model_type"] == "mpnet"
    assert stored["max_position_embeddings"] == 34


@pytest.mark.parametrize("sharing", ["ade", "ade_spl"])
def test_modules_of_two_encoders(sharing, tmp_path):
    text = TextConfig(query_max_length_tokens=8, document_max_length_tokens=16)
    model = model_of(sharing=sharing, projection=STEPS[1:], text=text)
    directory = export_sentence_transformers(model, tmp_path / "model")
    router = read(directory / "router_config.json")
    after = ["Router", "Dense", "Normalize"] if sharing == "ade_spl" else ["Router", "Normalize"]
    assert [kind.rpartition(".")[2] for kind, _ in kinds(directory)] == after
    for side, length in (("query", 8), ("document", 16)):
        route = [f"{side}_0_Transformer", f"{side}_1_Pooling"]
        route += [f"{side}_2_Dense"] if sharing == "ade" else []
        assert router["structure"][side] == route
        assert all((directory / name / "config.json").is_file() for name in route)
        settings = read(directory / route[0] / "sentence_bert_config.json")
        assert settings["max_seq_length"] == length
    assert set(router["types"]) == {*router["structure"]["query"], *router["structure"]["document"]}


@pytest.mark.parametrize(
    ("backbone", "dtype"),
    [(tiny.BERT, None), (tiny.T5, None), (tiny.T5, "bfloat16")],
)
def test_it_comes_back(backbone, dtype, tmp_path):
    model = model_of(backbone, projection=STEPS, dtype=dtype)
    directory = export_sentence_transformers(model, tmp_path / "model")
    back = DualEncoder.from_backbone(directory, dtype=dtype)
    assert_same_weights(back, model)
    assert back.preprocessor.text_config == model.preprocessor.text_config
    if backbone == tiny.BERT:
        texts = ["", "red pear", "cat dog bird fish horse cow river lake sea hill road house tree"]
        np.testing.assert_array_equal(back.encode_queries(texts), model.encode_queries(texts))


def test_bfloat16_stays(tmp_path):
    directory = export_sentence_transformers(model_of(dtype="bfloat16"), tmp_path / "model")
    arrays = load_file(directory / "model.safetensors").values()
    assert {array.dtype for array in arrays} == {np.dtype(ml_dtypes.bfloat16)}
    assert read(directory / "config.json")["torch_dtype"] == "bfloat16"


def test_shards(tmp_path):
    """4 arrays of 400 bytes in files of at most 900, one of 2,000 bytes alone."""
    sizes = {"a": 100, "b": 100, "c": 500, "d": 100, "e": 100}
    arrays = {name: np.full(size, i, np.float32) for i, (name, size) in enumerate(sizes.items())}
    write_arrays(iter(arrays.items()), tmp_path, max_shard_bytes=900)
    names = [f"model-0000{i}-of-00003.safetensors" for i in (1, 2, 3)]
    assert sorted(file.name for file in tmp_path.iterdir()) == sorted(
        [*names, "model.safetensors.index.json"]
    )
    index = read(tmp_path / "model.safetensors.index.json")
    assert index["metadata"]["total_size"] == 3600
    assert index["weight_map"] == dict(zip("abcde", np.array(names)[[0, 0, 1, 2, 2]], strict=True))
    for name, array in arrays.items():
        stored = load_file(tmp_path / index["weight_map"][name])
        np.testing.assert_array_equal(stored[name], array)


def test_sharded_models_come_back(tmp_path):
    model = model_of()
    directory = export_sentence_transformers(model, tmp_path / "model", max_shard_bytes=3000)
    assert len(list(directory.glob("model-*.safetensors"))) > 2
    assert_same_weights(DualEncoder.from_backbone(directory), model)


@pytest.mark.parametrize("activation", ["gelu", "gelu_tanh", "relu", "silu"])
@pytest.mark.parametrize("kind", ["bert", "t5", "t5_gated"])
def test_configurations_come_back(kind, activation):
    """Whatever is written is read as it was; what could not be is refused."""
    if kind == "bert":
        config = dataclasses.replace(tiny.BERT, activation=activation, dropout=0.3)
    else:
        config = dataclasses.replace(tiny.T5, activation=activation, gated=kind == "t5_gated")
    if (kind, activation) in {("t5", "gelu_tanh"), ("t5", "silu"), ("t5_gated", "gelu")}:
        with pytest.raises(ConfigError, match=r"`activation` must be one of relu, gelu, .*T5Enc"):
            hugging_face_config(config, tiny.tokenizer())
        return
    written = hugging_face_config(config, tiny.tokenizer())
    family = FAMILIES[written["model_type"]]
    assert family.read_config(FieldsOfConfig("config.json", written)) == config


def test_the_bag_of_words_is_refused(tmp_path):
    match = r"`model` must have a backbone of BERT's or T5's kind: .*Received: bag_of_words"
    with pytest.raises(ConfigError, match=match):
        export_sentence_transformers(model_of(tiny.BAG_OF_WORDS), tmp_path / "model")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("changes", "tokenizer", "match"),
    [
        ({"num_segments": 2}, mpnet_tokenizer, r"`num_segments` must be 0 .* Received: 2"),
        ({"relative_buckets": 16}, mpnet_tokenizer, r"`relative_buckets` must be 32 .*: 16"),
        (
            {"relative_max_distance": 64},
            mpnet_tokenizer,
            r"`relative_max_distance` must be 128 .*: 64",
        ),
        ({}, tiny.tokenizer, r"`tokenizer.pad_id` must be 1 .* MPNetModel.* Received: 0"),
    ],
)
def test_what_mpnet_cannot_be_is_refused(changes, tokenizer, match):
    changes = {"num_segments": 0, "relative_buckets": 32, **changes}
    with pytest.raises(ConfigError, match=match):
        hugging_face_config(dataclasses.replace(tiny.BERT, **changes), tokenizer())


def test_an_output_that_exists_is_refused(tmp_path):
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "mine").write_text("kept")
    with pytest.raises(ConfigError, match="the output exists and is not empty"):
        export_sentence_transformers(model_of(), tmp_path / "model")
    assert [path.name for path in tmp_path.rglob("*")] == ["model", "mine"]


def test_limitations_are_named():
    one = TextConfig(query_max_length_tokens=8, document_max_length_tokens=16)
    other = TextConfig(query_max_length_tokens=16, document_max_length_tokens=8)
    assert limitations(model_of()) == []
    (line,) = limitations(model_of(text=one))
    assert line.startswith("sentence-transformers cuts queries at 16 tokens, as documents; ")
    assert "tfde cuts them at 8 (from version 6 on, `model[0].query_length = 8`" in line
    (line,) = limitations(model_of(text=other))
    assert line.startswith("sentence-transformers cuts documents at 16 tokens, as queries; ")
    lines = limitations(model_of(sharing="ade_ste", pooling=("max", "first")))
    assert [line.partition(":")[0] for line in lines[:2]] == [
        "Queries and documents have encoders of their own",
        "Shared by the towers, but written twice",
    ]
    assert lines[1].endswith(": token_embedder.")
    (line,) = limitations(model_of(pooling=("first",), pool_prompts=False))
    assert line.startswith("Its pooling takes the first token after the prompt: before ")
    assert lines[2] == "The order of its poolings needs sentence-transformers 6 or later."


def test_special_tokens_that_are_text_here_are_named(tmp_path):
    """A vocabulary that tfde trained, with the words of the sentencepiece library."""
    path = train_sentencepiece(tiny.document_texts(), tmp_path / "t.model", vocabulary_size=60)
    config = TowersConfig(backbone=tiny.T5)
    model = DualEncoder(
        build_backbone(tiny.T5, seed=1),
        config,
        preprocessor=TextPreprocessor(SentencePieceTokenizer.from_file(path), TEXT),
    )
    (line,) = limitations(model)
    assert line.startswith("A text that spells out a special token, such as </s>, ")


def test_poolings_in_another_order_keep_it(tmp_path):
    model = model_of(pooling=("mean", "first"))
    directory = export_sentence_transformers(model, tmp_path / "model")
    assert read(directory / "1_Pooling" / "config.json")["pooling_mode"] == ["mean", "cls"]


def test_the_card_names_prompts_template_and_lengths(tmp_path):
    text = TextConfig(
        query_max_length_tokens=8,
        document_max_length_tokens=16,
        document_template="{title} [SEP] {text}",
        query_prompt="query: ",
    )
    model = model_of(text=text)
    card = (export_sentence_transformers(model, tmp_path / "model") / "README.md").read_text()
    assert card.startswith("---\nlibrary_name: sentence-transformers\n")
    for part in (
        "at most 8 tokens, prompt `query: ` |",
        "at most 16 tokens, prompt none |",
        "`{title} [SEP] {text}` |",
        f"fingerprint `{model.fingerprint()}`",
        "- sentence-transformers cuts queries at 16 tokens",
    ):
        assert part in card
