"""SavedModels of others, in the forms of TensorFlow Hub, and bundles encode like models."""

import json
import re

import keras
import numpy as np
import pytest
import tensorflow as tf
from tiny import dual_encoder, write_dataset

import tfde
from tfde.cli.main import main
from tfde.errors import ConfigError
from tfde.export.saved_encoder import SavedEncoder

STRINGS = tf.TensorSpec([None], tf.string)
QUERIES = ["red apple", "a green tree near the sea", "blue"]


class Words(tf.Module):
    """The mean of a random vector a word: what a model of others may be."""

    def __init__(self, give=lambda vectors: vectors, *, seed=0):
        super().__init__()
        table = np.random.default_rng(seed).normal(size=(50, 6))
        self.table = tf.Variable(table, dtype=tf.float32)
        self.give = give

    def embed(self, texts):
        words = tf.strings.to_hash_bucket_fast(tf.strings.split(texts), 50)
        sums = tf.reduce_sum(tf.gather(self.table, words), axis=1)
        return sums / tf.cast(words.row_lengths(), tf.float32)[:, tf.newaxis]

    def in_numpy(self, texts):
        words = [tf.strings.to_hash_bucket_fast(text.split(), 50).numpy() for text in texts]
        return np.array([self.table.numpy()[row].mean(axis=0) for row in words])


class CallableWords(Words):
    @tf.function(input_signature=[STRINGS], autograph=False)
    def __call__(self, texts):
        return self.give(self.embed(texts))


def save_signatures(module, directory, **functions):
    signatures = {
        name: tf.function(function, input_signature=[STRINGS] * inputs, autograph=False)
        for name, (function, inputs) in functions.items()
    }
    tf.saved_model.save(module, str(directory), signatures)


@pytest.mark.parametrize(
    "give",
    [
        lambda vectors: vectors,
        lambda vectors: [vectors],
        lambda vectors: {"default": vectors, "sequence_output": vectors[:, tf.newaxis]},
        lambda vectors: {"logits": 2.0 * vectors, "default": vectors},
        lambda vectors: {"anything": vectors, "length": tf.shape(vectors)[0]},
    ],
)
def test_a_callable_model(tmp_path, give):
    module = CallableWords(give)
    tf.saved_model.save(module, str(tmp_path))
    encoder = SavedEncoder(tmp_path)
    assert encoder.embedding_dim == 6
    queries = encoder.encode_queries(QUERIES, batch_size=2)
    np.testing.assert_allclose(queries, module.in_numpy(QUERIES), atol=1e-6)
    documents = [tfde.Document("d", "Red", "apple"), {"text": "a tree"}, "blue"]
    expected = module.in_numpy(["Red apple", "a tree", "blue"])
    np.testing.assert_allclose(encoder.encode_documents(documents), expected, atol=1e-6)
    assert encoder.encode_queries([]).shape == (0, 6)
    np.testing.assert_allclose(encoder.encode_queries(QUERIES[0]), queries[0], atol=1e-6)


def test_a_model_with_one_signature(tmp_path):
    module = Words()
    save_signatures(module, tmp_path, serving_default=(lambda inputs: module.embed(inputs), 1))
    found = SavedEncoder(tmp_path).encode_queries(QUERIES)
    np.testing.assert_allclose(found, module.in_numpy(QUERIES), atol=1e-6)


@pytest.mark.parametrize("shape", [(), (1,)])
def test_what_keras_exports(tmp_path, shape):
    """Two signatures of one function; texts perhaps in a column."""
    split = keras.layers.TextVectorization(vocabulary=["red", "apple", "tree"])
    texts = keras.Input(shape, dtype="string")
    vectors = keras.layers.Embedding(5, 6)(split(texts))
    keras.Model(texts, keras.layers.GlobalAveragePooling1D()(vectors)).export(tmp_path, verbose=0)
    encoder = SavedEncoder(tmp_path)
    found = encoder.encode_queries(["red apple", "apple red", "tree tree"])
    assert found.shape == (3, 6)
    np.testing.assert_allclose(found[0], found[1], atol=1e-6)
    assert np.abs(found[0] - found[2]).max() > 1e-3


def test_questions_and_responses(tmp_path):
    module = Words()
    save_signatures(
        module,
        tmp_path,
        question_encoder=(lambda input: {"outputs": module.embed(input)}, 1),
        response_encoder=(
            lambda input, context: {"outputs": module.embed(input) - 3.0 * module.embed(context)},
            2,
        ),
    )
    encoder = SavedEncoder(tmp_path)
    queries = encoder.encode_queries(QUERIES)
    np.testing.assert_allclose(queries, module.in_numpy(QUERIES), atol=1e-6)
    documents = encoder.encode_documents([{"title": "Red", "text": "apple"}, "blue sea"])
    expected = module.in_numpy(["apple", "blue sea"]) - 3.0 * module.in_numpy(["Red", "blue sea"])
    np.testing.assert_allclose(documents, expected, atol=1e-5)


def test_the_fingerprint_is_of_the_weights(tmp_path):
    for name, seed in (("a", 0), ("b", 1)):
        tf.saved_model.save(CallableWords(seed=seed), str(tmp_path / name))
    first, other = (SavedEncoder(tmp_path / name).fingerprint() for name in "ab")
    assert first != other
    assert SavedEncoder(tmp_path / "a").fingerprint() == first
    assert len(first) == 16


def test_what_is_no_encoder_of_texts(tmp_path):
    with pytest.raises(ConfigError, match=r"must be a bundle .* or a SavedModel \(with saved_m"):
        SavedEncoder(tmp_path)
    module = Words()
    save_signatures(module, tmp_path / "two", a=(module.embed, 1), b=(module.embed, 1))
    with pytest.raises(ConfigError, match=r"one signature, .* Received: signatures a, b$"):
        SavedEncoder(tmp_path / "two").encode_queries(["x"])
    save_signatures(module, tmp_path / "pair", a=(lambda x, y: module.embed(x), 2))
    rule = r"signature 'a' must have one input, strings\. Received: x string, y string$"
    with pytest.raises(ConfigError, match=rule):
        SavedEncoder(tmp_path / "pair").encode_queries(["x"])
    tf.saved_model.save(CallableWords(lambda v: {"a": v, "b": 2.0 * v}), str(tmp_path / "vectors"))
    with pytest.raises(ConfigError, match=r"one vector a text, \(B, D\) floats\. Received: a \("):
        SavedEncoder(tmp_path / "vectors").encode_queries(["x"])
    tf.saved_model.save(CallableWords(), str(tmp_path / "good"))
    with pytest.raises(ConfigError, match=r"`max_length_tokens` must be left out: .*Received: 8"):
        SavedEncoder(tmp_path / "good").encode_documents(["x"], max_length_tokens=8)


def test_words_of_encode_elsewhere(tmp_path):
    raw, unit = CallableWords(), CallableWords(lambda v: tf.math.l2_normalize(v, axis=-1))
    for name, module in (("raw", raw), ("unit", unit)):
        tf.saved_model.save(module, str(tmp_path / name))
    unit = SavedEncoder(tmp_path / "unit")
    found = unit.encode_documents(QUERIES, normalize_embeddings=True, show_progress_bar=False)
    np.testing.assert_array_equal(found, unit.encode_documents(QUERIES))
    with pytest.raises(
        ConfigError, match=r"`encode_queries` has no `normalize_embeddings`; instead"
    ):
        SavedEncoder(tmp_path / "raw").encode_queries(QUERIES, normalize_embeddings=True)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("saved")
    write_dataset(folder / "data", documents=40)
    tf.saved_model.save(CallableWords(), str(folder / "hub"))
    return folder


def recall_of(capsys, folder, model):
    arguments = ["evaluate", "--model", f"m={folder / model}", "--dataset", str(folder / "data")]
    assert main([*arguments, "--split", "dev", "--measures", "R@5"]) == 0
    (recall,) = re.findall(r"\| m +\| (0\.\d+) ", capsys.readouterr().out)
    return recall


def test_evaluated_encoded_exported_and_searched(folder, tmp_path, capsys):
    recall = recall_of(capsys, folder, "hub")
    embeddings, index, bundle = (str(tmp_path / name) for name in ("e", "i", "b"))
    hub, data = ["--model", str(folder / "hub")], ["--dataset", str(folder / "data")]
    assert main(["encode", *hub, *data, "--output", embeddings]) == 0
    arguments = ["build-index", "--embeddings", embeddings, "--engine", "exact", "--output", index]
    assert main(arguments) == 0
    export = ["export", *hub, *data, "--index", index, "--golden", "3", "--output", bundle]
    assert main([*export, "--precision", "int8"]) == 1
    assert "`precision` must be" in capsys.readouterr().err
    assert main([*export, "--query_max_length_tokens", "8"]) == 1
    assert "must be left out for a SavedModel" in capsys.readouterr().err
    assert main(export) == 0
    assert main(["verify", bundle]) == 0
    # The bundle's encoders are those of the SavedModel, and a model for evaluation themselves.
    capsys.readouterr()
    assert recall_of(capsys, folder, tmp_path / "b") == recall
    loaded = tf.saved_model.load(f"{bundle}/models/retriever/1").signatures["serving_default"]
    (query,) = json.loads((tmp_path / "b" / "manifest.json").read_text())["golden_queries"][:1]
    answer = loaded(text=tf.constant([query["text"]]), k=tf.constant(10))
    assert [i.decode() for i in answer["doc_ids"].numpy()[0]] == query["retriever"]["doc_ids"]


def test_what_a_model_exports_is_read(tmp_path):
    model = dual_encoder(sharing="ade")
    model.export(tmp_path / "exported", verbose=False)
    encoder = SavedEncoder(tmp_path / "exported")
    texts = ["red apple", "blue"]
    queries = model.encode_queries(texts)
    np.testing.assert_allclose(encoder.encode_queries(texts), queries, atol=1e-6)
    documents = [{"title": "Red", "text": "apple"}, "blue sea"]
    expected = model.encode_documents(documents)
    np.testing.assert_allclose(encoder.encode_documents(documents), expected, atol=1e-6)


def test_a_bundle_is_evaluated_as_its_model(folder, tmp_path, capsys):
    model = dual_encoder()
    model.save_to_preset(folder / "model")
    tfde.export_bundle(model, None, tmp_path / "bundle")
    recall = recall_of(capsys, folder, "model")
    assert recall_of(capsys, folder, tmp_path / "bundle") == recall
    with pytest.raises(ConfigError, match=r"is a bundle; `tfde export` takes the model"):
        tfde.export_bundle(SavedEncoder(tmp_path / "bundle"), None, tmp_path / "again")
