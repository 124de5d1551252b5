"""Modules, prompts, pairs and code of a checkpoint that cannot be taken as they are."""

import json
import shutil

import numpy as np
import pytest
from bert_directory import CONFIG, VOCABULARY, arrays, write, write_sentence_transformers

from tfde.checkpoints.loading import load_backbone, load_backbones
from tfde.errors import ConfigError, DataError, TfdeError


def refused(path, kind, match, **options):
    with pytest.raises(kind, match=match) as caught:
        load_backbones(path, **options)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("path", ["../..", "1_Pooling/../..", "/etc", "C:\\x", "..\\x"])
def test_modules_outside_the_directory(tmp_path, path):
    write_sentence_transformers(tmp_path)
    modules = json.loads((tmp_path / "modules.json").read_text())
    modules[1]["path"] = path
    (tmp_path / "modules.json").write_text(json.dumps(modules))
    refused(tmp_path, ConfigError, "a module's folder must be inside the checkpoint. Received: ")


def test_modules_with_code_of_their_own(tmp_path):
    write_sentence_transformers(tmp_path)
    modules = json.loads((tmp_path / "modules.json").read_text())
    modules[0]["type"] = "custom_st.Transformer"
    (tmp_path / "modules.json").write_text(json.dumps(modules))
    refused(tmp_path, ConfigError, "the modules must be .* Received: custom_st.Transformer, Poolin")


def test_code_beside_a_model_is_not_run(tmp_path):
    """`model_type` decides, and the arrays must fit it."""
    write(tmp_path, config={"auto_map": {"AutoModel": "modeling.Model"}})
    (tmp_path / "modeling.py").write_text("open('ran', 'w')\nraise SystemExit(3)\n")
    load_backbone(tmp_path)
    assert not (tmp_path / "ran").exists()
    write(tmp_path, config={"auto_map": {"AutoModel": "modeling.Model"}, "model_type": "own"})
    refused(tmp_path, ConfigError, "`model_type` must be one of bert")


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"prompts": ["query"]}, r"`prompts` must be an object. Received: \['query'\]"),
        ({"prompts": {"query": 3}}, "`prompts` must hold strings. Received: 3"),
        ({"prompts": {"query": ["a"]}}, "`prompts` must hold strings. Received: "),
        ({"similarity_fn_name": "euclidean"}, "`similarity_fn_name` must be cosine or dot"),
        ({"similarity_fn_name": ["dot"]}, "`similarity_fn_name` must be cosine or dot"),
    ],
)
def test_settings_that_cannot_be(tmp_path, settings, message):
    write_sentence_transformers(tmp_path)
    (tmp_path / "config_sentence_transformers.json").write_text(json.dumps(settings))
    refused(tmp_path, ConfigError, message)


@pytest.mark.parametrize("mode", ["sum", ["mean", "sum"], [["mean"]], 3, [], {}, None])
def test_other_poolings(tmp_path, mode):
    write_sentence_transformers(tmp_path)
    (tmp_path / "1_Pooling" / "config.json").write_text(json.dumps({"pooling_mode": mode}))
    refused(tmp_path, ConfigError, "1_Pooling/config.json: pooling must be by one or several of ")


@pytest.mark.parametrize("limit", ["16", True, 0, -1, float("-inf")])
def test_limits_that_cannot_be(tmp_path, limit):
    write_sentence_transformers(tmp_path)
    options = tmp_path / "sentence_bert_config.json"
    options.write_text(json.dumps({"max_seq_length": limit}))
    refused(tmp_path, ConfigError, "`max_seq_length` must be a number of at least 3. Received: ")
    options.write_text('{"do_lower_case": true}')
    (tmp_path / "tokenizer_config.json").write_text('{"do_lower_case": false}')
    refused(tmp_path, ConfigError, "`do_lower_case` must be False where the tokenizer keeps cap")


def test_json_that_is_not(tmp_path):
    write_sentence_transformers(tmp_path)
    for content in (b"\xff\xfe{\x00}\x00", '{"a": "é"}'.encode("latin-1"), b"[" * 10**5, b""):
        (tmp_path / "config_sentence_transformers.json").write_bytes(content)
        refused(tmp_path, DataError, r"config_sentence_transformers\.json(:1)?: must be JSON")


def test_pairs_that_do_not_fit(tmp_path):
    write(tmp_path / "a", config={"model_type": "dpr"}, prefix="question_encoder.bert_model.")
    refused(tmp_path / "a", ConfigError, "is one of DPR's two encoders; give that of questions")
    write(tmp_path / "b", config={"model_type": "dpr"}, prefix="ctx_encoder.bert_model.")
    both = f"{tmp_path / 'a'},{tmp_path / 'b'}"
    assert len(load_backbones(both)) == 2
    with pytest.raises(ConfigError, match=r"must be one encoder. Received: one for queries, one"):
        load_backbone(both)

    vocabulary = [*VOCABULARY[:-1], "other"]
    (tmp_path / "b" / "vocab.txt").write_text("\n".join(vocabulary))
    refused(both, ConfigError, "a and .*b: two encoders of one model must have equal tokenizers")
    write(tmp_path / "b", config={"model_type": "bert"})
    refused(both, ConfigError, "two encoders of one model must have equal poolings")
    wide = {**arrays(), "embeddings.token_type_embeddings.weight": arrays_of_segments()}
    write(
        tmp_path / "b",
        config={"model_type": "dpr", "type_vocab_size": 3},
        weights=wide,
        prefix="ctx_encoder.bert_model.",
    )
    refused(both, ConfigError, "two encoders of one model must have equal sizes")
    shutil.rmtree(tmp_path / "b")
    refused(both, ConfigError, "must be a directory, the name of a keras-hub preset, or a kaggle")
    refused(f"{tmp_path / 'a'},", ConfigError, "must be a directory, .* Received: ''")


def arrays_of_segments():
    return arrays()["embeddings.position_embeddings.weight"][:3]


def test_more_tokens_than_the_model_knows(tmp_path):
    write(tmp_path)
    (tmp_path / "vocab.txt").write_text("\n".join([*VOCABULARY, "more"]))
    rule = f"the tokenizer must have at most vocab_size={CONFIG['vocab_size']} tokens. Received: 32"
    refused(tmp_path, TfdeError, rule)


def test_dpr_encoders_the_wrong_way_round(tmp_path):
    for name, prefix, kind in (
        ("q", "question_encoder.bert_model.", "DPRQuestionEncoder"),
        ("p", "ctx_encoder.bert_model.", "DPRContextEncoder"),
    ):
        config = {"model_type": "dpr", "architectures": [kind]}
        write(tmp_path / name, config=config, prefix=prefix)
    questions, passages = tmp_path / "q", tmp_path / "p"
    assert len(load_backbones(f"{questions},{passages}")) == 2
    message = "encoder of questions must come first, that of passages second. Received: .*p,.*q"
    refused(f"{passages},{questions}", ConfigError, message)
    refused(passages, ConfigError, message, document_path=questions)
    refused(questions, ConfigError, "encoder of questions must come", document_path=questions)


def test_a_cross_encoder_is_no_dual_encoder(tmp_path, caplog):
    """Of sentence-transformers refused; of transformers a fine start, but not a retriever."""
    config = {"architectures": ["BertForSequenceClassification"]}
    write(tmp_path / "plain", config=config, prefix="bert.")
    load_backbone(tmp_path / "plain")
    assert "a sequence classifier; its transformer is taken with pooling" in caplog.text
    caplog.clear()
    write(tmp_path / "encoder", config={"architectures": ["BertModel"]})
    load_backbone(tmp_path / "encoder")
    assert not caplog.text

    write_sentence_transformers(tmp_path / "modules")
    path = tmp_path / "modules" / "modules.json"
    path.write_text(json.dumps(json.loads(path.read_text())[:1]))
    refused(tmp_path / "modules", ConfigError, "Router; a cross-encoder is for tfde.CrossE")


def test_texts_that_lose_their_beginning(tmp_path):
    write(tmp_path)
    (tmp_path / "tokenizer_config.json").write_text('{"truncation_side": "left"}')
    rule = "tokenizer_config.json: `truncation_side` must be right. Received: 'left'"
    refused(tmp_path, ConfigError, rule)


def test_a_model_directory_of_tfde_is_no_checkpoint(tmp_path):
    record = {"module": "tfde.towers.dual_encoder", "class_name": "DualEncoder", "config": {}}
    (tmp_path / "config.json").write_text(json.dumps(record))
    refused(tmp_path, ConfigError, "of tfde is loaded by tfde.DualEncoder.from_preset")


@pytest.mark.parametrize(
    ("dtype", "rows", "message"),
    [
        ("float32", 4, r"encode_proj.weight must have shape \(3, 8\). Received: \(4, 8\)"),
        ("int8", 3, r"encode_proj.weight must have a dtype of F16, .* Received: 'I8'"),
    ],
)
def test_a_dpr_projection_that_lies(tmp_path, dtype, rows, message):
    prefix = "question_encoder.bert_model."
    weights = {prefix + name: value for name, value in arrays().items()}
    weights["question_encoder.encode_proj.weight"] = np.ones((rows, 8), dtype)
    weights["question_encoder.encode_proj.bias"] = np.ones(rows, dtype)
    write(tmp_path / "q", weights=weights, config={"model_type": "dpr", "projection_dim": 3})
    refused(f"{tmp_path / 'q'},{tmp_path / 'q'}", DataError, message)


def test_what_is_normalized_is_the_embedding(tmp_path):
    write_sentence_transformers(tmp_path, ("Transformer", "Pooling", "Normalize"))
    (tmp_path / "2_Normalize").mkdir(exist_ok=True)
    options = tmp_path / "2_Normalize" / "config.json"
    options.write_text('{"module_input_name": "sentence_embedding"}')
    assert load_backbone(tmp_path).steps.normalize is True
    options.write_text('{"module_input_name": "token_embeddings"}')
    refused(tmp_path, ConfigError, "`module_input_name` must be sentence_embedding")
