"""What the towers take from a checkpoint, and what the caller may put in its place."""

import json

import numpy as np
import pytest
import tiny
from bert_directory import CONFIG, H, arrays, write, write_dense, write_sentence_transformers

from tfde.config.backbones import BertConfig
from tfde.config.model import DenseConfig, TextConfig
from tfde.errors import ConfigError, CorruptError
from tfde.towers.dual_encoder import DualEncoder

TEXTS = ["a b", "", "c d e"]


@pytest.fixture
def with_dense(tmp_path):
    """A retriever with a Dense from 8 to 5 numbers."""
    directory = tmp_path / "with_dense"
    write_sentence_transformers(directory, ("Transformer", "Pooling", "Dense"))
    write_dense(directory / "2_Dense", 5, H)
    return directory


@pytest.mark.parametrize("sharing", ["ade", "ade_fte", "ade_spl"])
def test_every_sharing_starts_from_the_dense_of_the_checkpoint(with_dense, sharing):
    plain = DualEncoder.from_backbone(with_dense)
    model = DualEncoder.from_backbone(with_dense, sharing=sharing)
    expected = plain.encode_queries(TEXTS)
    np.testing.assert_allclose(model.encode_queries(TEXTS), expected, atol=1e-6)
    np.testing.assert_allclose(model.encode_documents(TEXTS), expected, atol=1e-6)


def test_another_pooling_needs_a_projection_that_fits(with_dense):
    with pytest.raises(ConfigError, match=r"`pooling` must give vectors of 8 numbers.*mean, max"):
        DualEncoder.from_backbone(with_dense, pooling=("mean", "max"))
    model = DualEncoder.from_backbone(with_dense, pooling=("mean", "max"), embedding_dim=4)
    assert model.config.projection == (DenseConfig(4),)
    model = DualEncoder.from_backbone(with_dense, pooling="first")
    assert model.config.projection == (DenseConfig(5, True, "tanh"),)
    with pytest.raises(ConfigError, match=r"`pooling` must be one or several of first, .*median"):
        DualEncoder.from_backbone(with_dense, pooling="median", embedding_dim=4)


def test_two_checkpoints_are_two_towers(tmp_path, caplog):
    """Each gives its own weights and its own length."""
    for name, factor, length in (("queries", 1.0, 6), ("documents", 2.0, 9)):
        weights = arrays()
        weights["embeddings.word_embeddings.weight"] *= factor
        write_sentence_transformers(tmp_path / name)
        write(tmp_path / name, weights=weights)
        limit = tmp_path / name / "sentence_bert_config.json"
        limit.write_text(json.dumps({"max_seq_length": length}))
    paths = [tmp_path / "queries", tmp_path / "documents"]
    model = DualEncoder.from_backbone(",".join(map(str, paths)))
    text = model.preprocessor.text_config
    assert (text.query_max_length_tokens, text.document_max_length_tokens) == (6, 9)
    long = ["a b c d e f g h i j k l"]
    for path, encode in zip(paths, (model.encode_queries, model.encode_documents), strict=True):
        alone = DualEncoder.from_backbone(path)
        np.testing.assert_allclose(encode(long), alone.encode_queries(long), atol=1e-6)
    given = DualEncoder.from_backbone(
        paths[0], document_backbone=paths[1], text=TextConfig(query_max_length_tokens=4)
    ).preprocessor.text_config
    assert (given.query_max_length_tokens, given.document_max_length_tokens) == (4, 9)
    assert caplog.messages == []  # of the document's, nothing was asked for
    text = TextConfig(query_max_length_tokens=4, document_max_length_tokens=20)
    DualEncoder.from_backbone(paths[0], document_backbone=paths[1], text=text)
    cut = "is cut to 9, the longest text that the checkpoint was made for"
    assert caplog.messages == [f"`document_max_length_tokens` 20 {cut}"]
    with pytest.raises(ConfigError, match=r"`sharing` must be ade: queries and documents have"):
        DualEncoder.from_backbone(paths[0], document_backbone=paths[1], sharing="sde")


def test_a_description_has_no_second_checkpoint(with_dense):
    config = BertConfig(CONFIG["vocab_size"], num_layers=1, hidden_dim=8, num_heads=2)
    with pytest.raises(ConfigError, match=r"`document_backbone` needs a checkpoint as `backbone`"):
        DualEncoder.from_backbone(config, document_backbone=with_dense, tokenizer=tiny.tokenizer())


def test_prompts_outside_pooling_are_kept(with_dense, tmp_path):
    (with_dense / "1_Pooling" / "config.json").write_text(
        '{"pooling_mode": "mean", "include_prompt": false}'
    )
    (with_dense / "config_sentence_transformers.json").write_text('{"prompts": {"query": "a b: "}}')
    model = DualEncoder.from_backbone(with_dense)
    model.save_to_preset(tmp_path / "model")
    again = DualEncoder.from_preset(tmp_path / "model")
    np.testing.assert_array_equal(again.encode_queries(TEXTS), model.encode_queries(TEXTS))
    assert again.query_tower.get_layer("pooling").skipped_tokens > 0


@pytest.mark.parametrize("change", [{"embedding_dim": 5, "projection_bias": False}, {}])
def test_models_of_another_version_are_told(tmp_path, change):
    """As tfde wrote them before projections were lists of layers."""
    tiny.dual_encoder().save_to_preset(tmp_path)
    record = json.loads((tmp_path / "config.json").read_text())
    del record["config"]["projection"], record["config"]["pool_prompts"]
    record["config"] |= change
    (tmp_path / "config.json").write_text(json.dumps(record))
    rule = r"config.json: `config` must have the fields backbone, .*; another version of tfde wrote"
    with pytest.raises(CorruptError, match=rule):
        DualEncoder.load(tmp_path)


def test_the_first_layers_of_a_checkpoint(with_dense):
    layers = DualEncoder.from_backbone(with_dense).config.backbone.num_layers
    model = DualEncoder.from_backbone(with_dense, num_layers=1)
    whole = DualEncoder.from_backbone(with_dense)
    assert model.config.backbone.num_layers == 1 < layers
    first, tokens = (one.towers.query_parts for one in (model, whole))
    ids, mask = model.preprocessor.queries(["a b", "c"])
    embedded = first.token_embedder(ids)
    expected = tokens.encoder(tokens.token_embedder(ids), mask, return_states=True)
    np.testing.assert_allclose(
        first.encoder(embedded, mask, return_states=True)["queries"][0],
        expected["queries"][0],
        atol=1e-6,
    )
    with pytest.raises(ConfigError, match=rf"`num_layers` must be in \[1, {layers}\]"):
        DualEncoder.from_backbone(with_dense, num_layers=layers + 1)
