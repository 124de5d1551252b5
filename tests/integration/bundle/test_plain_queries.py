"""Plain queries of a server with another engine: tokenized without a graph, with equal vectors."""

import json
import shutil
import string

import numpy as np
import pytest

from tfde.config.backbones import BertConfig
from tfde.config.model import TextConfig
from tfde.engines.tower_engine import note_times
from tfde.errors import CorruptError
from tfde.serving.server.signature_runner import SignatureRunner
from tfde.text.native_queries import write_native_queries
from tfde.text.word_piece.tokenizer import WordPieceTokenizer
from tfde.towers.dual_encoder import DualEncoder
from tfde.towers.saved_models import QueryEncoder, save_encoder

SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
PIECES = [*string.ascii_lowercase, *(f"##{x}" for x in string.ascii_lowercase), "?", "red", "green"]


@pytest.fixture(scope="module")
def version(tmp_path_factory):
    """A query encoder as a server finds it, with a file for OpenVINO."""
    tokenizer = WordPieceTokenizer([*SPECIAL, *PIECES], special_tokens=SPECIAL)
    backbone = BertConfig(
        vocabulary_size=tokenizer.vocabulary_size, num_layers=1, num_heads=2, hidden_dim=8,
        intermediate_dim=12, max_sequence_length=16,
    )  # fmt: skip
    model = DualEncoder.from_backbone(
        backbone,
        tokenizer=tokenizer,
        text=TextConfig(query_prompt="q: ", query_max_length_tokens=12, buckets=(4, 8)),
        embedding_dim=6,
        seed=3,
    )
    directory = tmp_path_factory.mktemp("version") / "1"
    encoder = QueryEncoder(model.query_tower, model.preprocessor)
    save_encoder(encoder, directory, trained_dims=(3,))
    encoder.write_engine("openvino", directory)
    path = directory / "openvino/native_queries.json"
    assert not path.exists()  # no export writes it yet: it makes the start slower
    write_native_queries(model.preprocessor, path)
    return directory


@pytest.fixture(scope="module")
def runners(version):
    return SignatureRunner(version), SignatureRunner(version, engine="openvino")


def encode(runner, texts, signature=""):
    return runner.run(signature, {"text": np.array(texts, object)})["embeddings"]


@pytest.fixture
def copy(version, tmp_path):
    return shutil.copytree(version, tmp_path / "1")


@pytest.mark.parametrize("signature", ["", "dimensions_3"])
@pytest.mark.parametrize(
    "texts",
    [
        *(["green red?"], ["gr\u00fcn"], ["green", "gr\u00fcn"], ["a"] * 8, ["a"] * 9, ["a\tb"]),
        *([""], [], [b"green \xff"], ["[SEP]"], ["red " * 99], ["a", "green " * 8]),
    ],
    ids=ascii,
)
def test_vectors_are_those_of_the_graph(runners, texts, signature):
    expected, found = (encode(runner, texts, signature) for runner in runners)
    assert found.shape == expected.shape == (len(texts), 3 if signature else 6)
    np.testing.assert_allclose(found, expected, atol=1e-5)


def test_plain_queries_are_made_as_the_file_says_and_others_by_the_graph(runners, copy):
    graph, engine = runners
    path = copy / "openvino/native_queries.json"
    content = json.loads(path.read_text())
    content["frame"]["prompt"] += "red "
    path.write_text(json.dumps(content))
    changed = SignatureRunner(copy, engine="openvino")
    expected = encode(graph, ["red green"])
    for runner, text in ((engine, "red green"), (changed, "green")):
        np.testing.assert_allclose(encode(runner, [text]), expected, atol=1e-5)
    assert np.abs(expected - encode(graph, ["green"])).max() > 0.01
    others = ["green", "gr\u00fcn"]  # go together
    np.testing.assert_allclose(encode(changed, others), encode(graph, others), atol=1e-5)


def test_without_the_file_all_are_made_by_the_graph(runners, copy):
    (copy / "openvino/native_queries.json").unlink()
    found = encode(SignatureRunner(copy, engine="openvino"), ["green"])
    np.testing.assert_allclose(found, encode(runners[0], ["green"]), atol=1e-5)


@pytest.mark.parametrize("content", ["", "{}", "[1]", '{"frame": {}, "tokenizer": "{}"}', None])
def test_a_damaged_file_is_named(copy, content):
    path = copy / "openvino/native_queries.json"
    if content is None:
        content = json.loads(path.read_text())
        content = json.dumps(content | {"tokenizer": content["tokenizer"][:-9]})
    path.write_text(content)
    with pytest.raises(CorruptError, match=r"native_queries\.json: does not say"):
        SignatureRunner(copy, engine="openvino")


def test_a_damaged_file_leaves_all_to_tensorflow_where_the_engine_is_not_named(copy, caplog):
    (copy / "openvino/native_queries.json").write_text("")
    note_times("openvino", copy, ms=1.0, tensorflow_ms=2.0)
    assert encode(SignatureRunner(copy, engine="auto"), ["green"]).shape == (1, 6)
    assert "TensorFlow runs the tower instead" in caplog.text
