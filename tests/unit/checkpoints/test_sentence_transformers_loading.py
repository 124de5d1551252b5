"""sentence-transformers directories: their modules and prompts reach the towers."""

import json

import numpy as np
import pytest
from bert_directory import H, write_dense, write_sentence_transformers

from tfde.checkpoints.loading import load_backbone, load_backbones
from tfde.config.model import DenseConfig, TextConfig
from tfde.errors import ConfigError
from tfde.towers.dual_encoder import DualEncoder


@pytest.mark.parametrize(("folder", "new"), [("", True), ("0_Transformer", False)])
def test_both_layouts(tmp_path, folder, new):
    write_sentence_transformers(tmp_path, folder=folder, new=new)
    (tmp_path / folder / "sentence_bert_config.json").write_text('{"max_seq_length": 16}')
    pooling = tmp_path / "1_Pooling" / "config.json"
    pooling.write_text('{"pooling_mode_cls_token": true, "pooling_mode_mean_tokens": false}')
    loaded = load_backbone(tmp_path)
    assert loaded.max_length_tokens == 16
    assert loaded.steps.pooling == ("first",)
    assert loaded.steps.normalize is True  # the library compares by cosine unless told otherwise
    write_sentence_transformers(
        tmp_path, ("Transformer", "Pooling", "Normalize"), folder=folder, new=new
    )
    loaded = load_backbone(tmp_path)
    assert loaded.steps.pooling == ("mean",)
    assert loaded.steps.normalize is True
    pooling.write_text('{"pooling_mode_max_tokens": true, "pooling_mode_mean_tokens": true}')
    assert load_backbone(tmp_path).steps.pooling == ("max", "mean")
    pooling.write_text('{"pooling_mode": ["mean", "max"]}')
    assert load_backbone(tmp_path).steps.pooling == ("mean", "max")


def test_similarity_decides_on_unit_length(tmp_path):
    write_sentence_transformers(tmp_path)
    settings = tmp_path / "config_sentence_transformers.json"
    for name, expected in ((None, True), ("cosine", True), ("dot", False)):
        settings.write_text(json.dumps({"similarity_fn_name": name}))
        assert load_backbone(tmp_path).steps.normalize is expected
        assert DualEncoder.from_backbone(tmp_path).config.normalize is expected
    write_sentence_transformers(tmp_path, ("Transformer", "Pooling", "Normalize"))
    assert load_backbone(tmp_path).steps.normalize is True


def test_dense_modules_follow_the_pooling(tmp_path):
    """The reference is the same towers without projection, and a matrix product in NumPy."""
    write_sentence_transformers(tmp_path, ("Transformer", "Pooling", "Dense", "Dense"))
    first = write_dense(tmp_path / "2_Dense", 5, H)
    second, _ = write_dense(
        tmp_path / "3_Dense", 3, 5, bias=False, activation_function="torch.nn.Identity"
    )
    (tmp_path / "config_sentence_transformers.json").write_text('{"similarity_fn_name": "dot"}')
    model = DualEncoder.from_backbone(tmp_path)
    assert model.config.projection == (DenseConfig(5, True, "tanh"), DenseConfig(3))
    write_sentence_transformers(tmp_path)
    pooled = DualEncoder.from_backbone(tmp_path, normalize=False).encode_queries(["a b", "c"])
    expected = np.tanh(pooled @ first[0].T + first[1]) @ second.T
    np.testing.assert_allclose(model.encode_queries(["a b", "c"]), expected, atol=1e-5)


def test_the_checkpoints_prompts_reach_the_towers(tmp_path, caplog):
    """Unless the caller says otherwise."""
    write_sentence_transformers(tmp_path)
    prompts = tmp_path / "config_sentence_transformers.json"
    prompts.write_text('{"prompts": {"query": "a b: ", "document": "c: ", "other": ""}}')
    loaded = load_backbone(tmp_path)
    assert (loaded.steps.query_prompt, loaded.steps.document_prompt) == ("a b: ", "c: ")
    model = DualEncoder.from_backbone(tmp_path)
    assert model.preprocessor.text_config.query_prompt == "a b: "
    no_prompts = TextConfig(query_prompt="", document_prompt="")
    plain = DualEncoder.from_backbone(tmp_path, text=no_prompts)
    assert plain.preprocessor.text_config.query_prompt == ""
    got = model.encode_queries(["d e"])
    np.testing.assert_allclose(got, plain.encode_queries(["a b: d e"]), atol=1e-6)
    # What is not given is the checkpoint's.
    mine = DualEncoder.from_backbone(tmp_path, text=TextConfig(9, query_prompt="d: "))
    text = mine.preprocessor.text_config
    assert (text.query_prompt, text.document_prompt) == ("d: ", "c: ")
    whole = model.preprocessor.text_config.document_max_length_tokens
    assert (text.query_max_length_tokens, text.document_max_length_tokens) == (9, whole) != (9, 9)
    got = model.encode_documents(["d e"])
    np.testing.assert_allclose(got, plain.encode_documents(["c: d e"]), atol=1e-6)

    # As in the library, whose encode_document knows `document` alone; it says so.
    prompts.write_text('{"prompts": {"passage": "p", "query": "q"}, "default_prompt_name": "x"}')
    loaded = load_backbone(tmp_path)
    assert (loaded.steps.query_prompt, loaded.steps.document_prompt) == ("q", "")
    assert "no use is made of the prompt 'passage'" in caplog.text
    prompts.write_text('{"prompts": {"document": "d", "query": ""}}')
    loaded = load_backbone(tmp_path)
    assert (loaded.steps.query_prompt, loaded.steps.document_prompt) == ("", "d")
    assert "truncate_dim" not in caplog.text
    prompts.write_text('{"truncate_dim": 4}')
    assert load_backbone(tmp_path).steps.query_prompt == ""
    assert "keeps their first 4 numbers (`truncate_dim`)" in caplog.text
    settings = '{"pooling_mode": "mean", "include_prompt": false}'
    (tmp_path / "1_Pooling" / "config.json").write_text(settings)
    assert load_backbone(tmp_path).steps.pool_prompts is False


def write_router(directory, routes):
    write_sentence_transformers(directory)
    for folder in ("query_0_Pooling", "document_0_Pooling"):
        (directory / folder).mkdir(exist_ok=True)
        (directory / folder / "config.json").write_text('{"pooling_mode": "mean"}')
    for folder in ("query_0_Transformer", "document_0_Transformer"):
        write_sentence_transformers(directory / folder)
        (directory / folder / "modules.json").unlink()
    modules = [{"idx": 0, "path": "", "type": "sentence_transformers.models.Router"}]
    (directory / "modules.json").write_text(json.dumps(modules))
    kinds = {
        f"{side}_0_{kind}": f"sentence_transformers.models.{kind}"
        for side in ("query", "document")
        for kind in ("Transformer", "Pooling")
    }
    value = {"types": kinds, "structure": routes}
    (directory / "router_config.json").write_text(json.dumps(value))


ROUTES = {side: [f"{side}_0_Transformer", f"{side}_0_Pooling"] for side in ("query", "document")}


def test_a_router_has_two_encoders(tmp_path):
    write_router(tmp_path, ROUTES)
    assert len(load_backbones(tmp_path)) == 2
    assert DualEncoder.from_backbone(tmp_path).config.sharing.encoder == "separate"
    same = dict.fromkeys(("query", "passage"), ROUTES["query"])
    write_router(tmp_path, same)
    assert len(load_backbones(tmp_path)) == 1


@pytest.mark.parametrize(
    "routes",
    [
        {"query": ROUTES["query"]},
        {**ROUTES, "query": "query_0_Transformer"},
        {**ROUTES, "query": ["query_0_Transformer", "nothing"]},
        {**ROUTES, "query": [["query_0_Transformer"]]},
        {"image": ROUTES["query"], "text": ROUTES["document"]},
    ],
)
def test_other_routes_are_refused(tmp_path, routes):
    write_router(tmp_path, routes)
    rule = "router_config.json: `structure` must have the routes query and document"
    with pytest.raises(ConfigError, match=rule):
        load_backbones(tmp_path)


@pytest.mark.parametrize(
    "kinds",
    [
        ("Transformer", "Normalize", "Pooling"),
        ("Transformer", "Pooling", "Normalize", "Dense"),
        ("Transformer", "Pooling", "LSTM"),
        ("Transformer",),
        ("StaticEmbedding",),
    ],
)
def test_other_modules_are_refused(tmp_path, kinds):
    write_sentence_transformers(tmp_path, kinds)
    rule = (
        "modules.json: the modules must be Transformer, Pooling, any number of Dense and,"
        " optionally, Normalize"
    )
    with pytest.raises(ConfigError, match=rf"{rule}.*Received: {', '.join(kinds)}$"):
        load_backbone(tmp_path)


def test_lengths_of_queries_and_documents(tmp_path):
    """Version 6 of the library cuts each side at its own length, where it has one."""
    write_sentence_transformers(tmp_path)
    options = tmp_path / "sentence_bert_config.json"
    settings = {"max_seq_length": 16, "query_length": 5, "document_length": 9}
    options.write_text(json.dumps({**settings, "processing_kwargs": {}, "query_expansion": None}))
    model = DualEncoder.from_backbone(tmp_path)
    text = model.preprocessor.text_config
    assert (text.query_max_length_tokens, text.document_max_length_tokens) == (5, 9)
    options.write_text(json.dumps({**settings, "document_length": float("inf")}))
    text = DualEncoder.from_backbone(tmp_path).preprocessor.text_config
    assert text.document_max_length_tokens == 16
    options.write_text(json.dumps({**settings, "document_length": None}))
    text = DualEncoder.from_backbone(tmp_path).preprocessor.text_config
    assert (text.query_max_length_tokens, text.document_max_length_tokens) == (5, 16)
    asked = TextConfig(query_max_length_tokens=12)
    text = DualEncoder.from_backbone(tmp_path, text=asked).preprocessor.text_config
    assert text.query_max_length_tokens == 12
    for key, value in (
        ("processing_kwargs", {"text": {"max_length": 8}}),
        ("query_expansion", {"strategy": "fixed", "length": 32}),
    ):
        options.write_text(json.dumps({key: value}))
        with pytest.raises(ConfigError, match=f"`{key}` must be null"):
            DualEncoder.from_backbone(tmp_path)


@pytest.mark.parametrize("name", ["roberta", "distilbert", "xlm-roberta"])
def test_settings_in_files_of_older_names(tmp_path, name):
    write_sentence_transformers(tmp_path)
    options = tmp_path / f"sentence_{name}_config.json"
    options.write_text('{"max_seq_length": 7}')
    assert load_backbone(tmp_path).max_length_tokens == 7
    options.write_text('{"max_seq_length": 7, "do_lower_case": true}')
    assert load_backbone(tmp_path).max_length_tokens == 7  # as BAAI/bge-small-en-v1.5 has it
    (tmp_path / "tokenizer_config.json").write_text('{"do_lower_case": false}')
    with pytest.raises(ConfigError, match=f"{options.name}: `do_lower_case` must be False"):
        load_backbone(tmp_path)
