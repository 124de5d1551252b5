"""`model.export`: a SavedModel of strings, which TensorFlow alone reads."""

import json
import subprocess
import sys

import numpy as np
import pytest
import tensorflow as tf
import tiny

import tfde
from tfde.errors import ConfigError

TEXTS = ["red apple", "blue plum cat", "zzz", ""]
SERVE = """
import json, sys
import tensorflow as tf, tensorflow_text
model = tf.saved_model.load(sys.argv[1])
texts = json.loads(sys.argv[2])
titles = tf.constant(["two"] * len(texts))
document = model.signatures["document_encoder"]
found = {
    "serve": model.serve(tf.constant(texts)),
    "query": model.signatures["query_encoder"](text=tf.constant(texts)),
    "default": model.signatures["serving_default"](text=tf.constant(texts)),
    "document": document(title=titles, text=tf.constant(texts)),
    "cut": model.signatures["document_encoder_dimensions_2"](title=titles, text=tf.constant(texts)),
}
assert not {name for name in sys.modules if name.startswith("tfde")}
print(json.dumps({name: x["embeddings"].numpy().tolist() for name, x in found.items()}))
"""


def test_tensorflow_alone_serves_what_the_model_says(tmp_path):
    model = tiny.dual_encoder(sharing="ade_spl", embedding_dim=4)
    model.compile("adam", task=tfde.MatryoshkaTask(tfde.RetrievalTask(), [2, 4]))
    model.fit([("red", "apple"), ("blue", "plum")], verbose=0)
    model.export(tmp_path / "saved")
    model.export(tmp_path / "saved", verbose=True)  # an earlier one is replaced
    command = [sys.executable, "-c", SERVE, str(tmp_path / "saved"), json.dumps(TEXTS)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    found = json.loads(done.stdout.splitlines()[-1])
    documents = model.encode_documents([{"title": "two", "text": text} for text in TEXTS])
    cut = documents[:, :2] / np.linalg.norm(documents[:, :2], axis=1, keepdims=True)
    expected = {"document": documents, "cut": cut}
    for name, values in found.items():
        wanted = expected.get(name, model.encode_queries(TEXTS))
        np.testing.assert_allclose(values, wanted, atol=1e-6, err_msg=name)


def test_signatures_are_those_of_a_bundles_models(tmp_path):
    model = tiny.dual_encoder()
    model.export(tmp_path / "saved")
    index = tfde.ExactIndex.build(
        model.encode_documents(TEXTS[:2]), ["1", "2"], fingerprint=model.fingerprint()
    )
    tfde.export_bundle(model, index, tmp_path / "bundle")
    ours = tf.saved_model.load(tmp_path / "saved").signatures
    for name in ("query_encoder", "document_encoder"):
        (version,) = (tmp_path / "bundle" / "models" / name).glob("[0-9]*")
        theirs = tf.saved_model.load(version).signatures
        for key, function in theirs.items():
            same = ours[name if key == "serving_default" else f"{name}_{key}"]
            assert same.structured_input_signature == function.structured_input_signature
            assert same.structured_outputs.keys() == function.structured_outputs.keys()


def test_weights_that_towers_share_are_exported_once(tmp_path):
    sizes = tfde.BagOfWordsConfig(vocabulary_size=5000, embedding_dim=64, hidden_dim=8)
    for sharing in ("sde", "ade"):
        tiny.dual_encoder(sizes, sharing=sharing).export(tmp_path / sharing)
    table = 5000 * 64 * 4
    sde, ade = (
        sum(file.stat().st_size for file in (tmp_path / name / "variables").iterdir())
        for name in ("sde", "ade")
    )
    assert table < sde < 1.1 * table
    assert 2 * table < ade < 2.1 * table


def test_models_of_pairs(tmp_path):
    model = tfde.CrossEncoder.from_backbone(
        tiny.BERT, tokenizer=tiny.tokenizer(), num_labels=2, seed=1
    )
    model.export(tmp_path / "saved")
    serve = tf.saved_model.load(tmp_path / "saved").signatures["serving_default"]
    columns = {"first": ["red", "x"], "title": ["", "t"], "text": ["cat dog", "apple"]}
    logits = serve(**{name: tf.constant(texts) for name, texts in columns.items()})["logits"]
    expected = model.score([("red", "cat dog"), ("x", tfde.Document("d", "t", "apple"))])
    np.testing.assert_allclose(logits, expected, atol=1e-6)


def test_what_cannot_be_exported_is_told(tmp_path):
    model = tiny.dual_encoder()
    for name in ("onnx", "litert", "openvino", "torch"):
        with pytest.raises(ConfigError, match=rf"`format` must be tf_saved_model.*{name}"):
            model.export(tmp_path / "saved", format=name)
    with pytest.raises(ConfigError, match="`input_signature` must be None"):
        model.export(tmp_path / "saved", input_signature=[tf.TensorSpec([None], tf.string)])
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("all of it")
    with pytest.raises(ConfigError, match="exists and is not empty"):
        model.export(tmp_path / "mine")
    model.query_tower.export(tmp_path / "tower", verbose=False)  # Keras' own, of token ids
    ids, mask = model.preprocessor.queries(TEXTS)
    tower = tf.saved_model.load(tmp_path / "tower")
    found = tower.serve({"token_ids": ids, "padding_mask": mask})
    np.testing.assert_allclose(found, model.encode_queries(TEXTS), atol=1e-6)
