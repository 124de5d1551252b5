import json
import re

import h5py
import keras
import numpy as np
import pytest
import tensorflow as tf
import tiny

from tfde.config.model import SHARING, TextConfig
from tfde.config.validation import ValidationConfig
from tfde.data.pairs.dataset import pairs
from tfde.errors import ConfigError, CorruptError
from tfde.tasks.retrieval_task import RetrievalTask
from tfde.towers.dual_encoder import DualEncoder
from tfde.towers.weights import read_weights, write_weights
from tfde.training.retrieval_validation import RetrievalValidation
from tfde.types import Document, Query

TEXTS = ["red apple", "", "blue", "cat dog bird fish horse cow " * 5, "green pear"]


@pytest.mark.parametrize(
    "backbone", [tiny.T5, tiny.BERT, tiny.BAG_OF_WORDS], ids=["t5", "bert", "bow"]
)
def test_encoding_keeps_order_whatever_the_batches(backbone):
    model = tiny.dual_encoder(backbone, embedding_dim=5)
    whole = model.encode_queries(TEXTS)
    assert whole.shape == (5, 5)
    assert whole.dtype == np.float32
    np.testing.assert_allclose(np.linalg.norm(whole, axis=1), 1.0, atol=1e-5)
    for size in (1, 2):
        np.testing.assert_allclose(model.encode_queries(TEXTS, batch_size=size), whole, atol=2e-6)
    single = np.concatenate([model.encode_queries([text]) for text in TEXTS])
    np.testing.assert_allclose(single, whole, atol=2e-6)
    assert model.encode_queries([]).shape == (0, 5)


def test_documents_in_all_their_forms():
    model = tiny.dual_encoder()
    forms = [Document("1", "red", "apple"), {"title": "red", "text": "apple"}, "red apple"]
    embeddings = model.encode_documents(forms)
    np.testing.assert_allclose(embeddings, embeddings[[0, 0, 0]], atol=1e-6)
    with pytest.raises(ConfigError, match=r"`documents` must hold .* Received: 3"):
        model.encode_documents([3])
    with pytest.raises(ConfigError, match=r"\(and a `title`\) of strings\. Received: {.title.: 3"):
        model.encode_documents([{"title": 3, "text": "apple"}])
    with pytest.raises(ConfigError, match=r"`texts` must hold strings. Received: None"):
        model.encode_queries([None])
    one = model.encode_queries(Query("q", "red"))
    np.testing.assert_allclose(one, model.encode_queries("red"), atol=1e-6)


def test_texts_without_utf8():
    model = tiny.dual_encoder()
    rule = r"must hold texts that UTF-8 can write. Received: one with '\\ud800' at character 1"
    with pytest.raises(ConfigError, match=f"`texts` {rule}"):
        model.encode_queries(["red", "a\ud800"])
    for document in ("a\ud800", {"text": "a\ud800"}, Document("1", "a\ud800", "")):
        with pytest.raises(ConfigError, match=f"`documents` {rule}"):
            model.encode_documents(["red", document])


@pytest.mark.parametrize("sharing", SHARING)
def test_save_and_reload(tmp_path, sharing):
    model = tiny.dual_encoder(
        tiny.T5, sharing=sharing, embedding_dim=5,
        text=TextConfig(8, 16, "{title} [SEP] {text}", "red ", "blue "),
    )  # fmt: skip
    # Set the towers apart, as training does.
    for weight in model.trainable_weights:
        noise = np.random.default_rng(len(weight.path)).normal(size=weight.shape)
        weight.assign_add(0.05 * noise)
    model.save_to_preset(tmp_path / "model")
    again = DualEncoder.from_preset(tmp_path / "model")
    assert again.config == model.config
    assert again.fingerprint() == model.fingerprint()
    documents = [Document(str(i), "cat", text) for i, text in enumerate(TEXTS)]
    np.testing.assert_array_equal(again.encode_queries(TEXTS), model.encode_queries(TEXTS))
    np.testing.assert_array_equal(
        again.encode_documents(documents), model.encode_documents(documents)
    )
    assert {w.path for w in again.trainable_weights} == {w.path for w in model.trainable_weights}
    metadata = json.loads((tmp_path / "model" / "metadata.json").read_text())
    assert metadata["fingerprint"] == model.fingerprint()


def test_saving_replaces_nothing_but_a_model(tmp_path):
    model = tiny.dual_encoder()
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / "thesis.txt").write_text("precious")
    with pytest.raises(ConfigError, match="is not empty"):
        model.save_to_preset(tmp_path / "home")
    assert (tmp_path / "home" / "thesis.txt").read_text() == "precious"
    model.save_to_preset(tmp_path / "model")
    model.save_to_preset(tmp_path / "model")


def test_fingerprint_changes_with_weights_and_text():
    model = tiny.dual_encoder()
    before = model.fingerprint()
    assert re.fullmatch("[0-9a-f]{16}", before)
    assert tiny.dual_encoder().fingerprint() == before
    assert tiny.dual_encoder(text=TextConfig(8, 17)).fingerprint() != before
    weight = model.trainable_weights[-1]
    weight.assign_add(tf.ones_like(weight) * 1e-6)
    assert model.fingerprint() != before


def test_not_a_model_directory(tmp_path):
    with pytest.raises(CorruptError, match=r"not a tfde model directory"):
        DualEncoder.from_preset(tmp_path)
    tiny.dual_encoder().save_to_preset(tmp_path / "model")
    config = tmp_path / "model" / "config.json"
    described = config.read_text()
    config.write_text(described.replace("DualEncoder", "Matcher"))
    (tmp_path / "model" / "model.weights.h5").write_bytes(b"nothing")
    with pytest.raises(CorruptError, match=r"Received: Matcher; `tfde rerank` and Matcher\.from"):
        DualEncoder.from_preset(tmp_path / "model")
    config.write_text(described)
    with pytest.raises(CorruptError, match=r"model\.weights\.h5: "):
        DualEncoder.from_preset(tmp_path / "model")


def test_weights_of_another_description_are_refused(tmp_path):
    path = tmp_path / "model.weights.h5"
    shared = tiny.dual_encoder(sharing="sde", embedding_dim=4)
    write_weights(path, shared.towers.named_weights())
    with h5py.File(path) as file:
        assert file["projection/shared/kernel"].shape == (6, 4)
    apart = tiny.dual_encoder(sharing="ade_spl", embedding_dim=4)
    with pytest.raises(CorruptError, match=r"weight 'encoder/document/\S+' is missing\."):
        read_weights(path, apart.towers.named_weights())
    with h5py.File(path, "a") as file:
        del file["projection/shared/kernel"]
        file["projection/shared/kernel"] = np.zeros((6, 5))
    with pytest.raises(CorruptError, match=r"must have shape \(6, 4\)\. Received: \(6, 5\)"):
        read_weights(path, shared.towers.named_weights())
    with h5py.File(path, "a") as file:
        file["projection/shared/bias"] = np.zeros(4)
    with pytest.raises(CorruptError, match=r"weight 'projection/shared/bias' is one too many\."):
        read_weights(path, shared.towers.named_weights())


def test_random_weights_need_a_tokenizer_that_fits():
    with pytest.raises(
        ConfigError, match=r"`tokenizer` is needed when `backbone` is a description"
    ):
        DualEncoder.from_backbone(tiny.T5)
    small = tiny.BagOfWordsConfig(vocabulary_size=10)
    with pytest.raises(ConfigError, match=r"more than the backbone's vocabulary_size=10"):
        DualEncoder.from_backbone(small, tokenizer=tiny.tokenizer())


def test_validation_and_throughput_reach_the_logs(tmp_path):
    data = tiny.write_dataset(tmp_path / "data", documents=40)
    model = tiny.dual_encoder(embedding_dim=8)
    model.compile(keras.optimizers.Adam(0.01), task=RetrievalTask(0.1))
    validation = RetrievalValidation(ValidationConfig(str(data), max_queries=4, max_documents=30))
    assert (len(validation.queries), len(validation.documents)) == (4, 30)
    history = model.fit(pairs(data, batch_size=16), epochs=2, callbacks=[validation], verbose=0)
    assert history.history["val_P@1"][-1] == validation(model)["P@1"]
    assert all(0 < value <= 1 for value in history.history["val_RR"])
    assert all(rate > 0 for rate in history.history["pairs_per_s"])


@pytest.mark.parametrize("precision", ["float32", "mixed_bfloat16"])
@pytest.mark.parametrize(
    "backbone", [tiny.T5, tiny.BERT, tiny.BAG_OF_WORDS], ids=["t5", "bert", "bow"]
)
def test_fit_learns(tmp_path, precision, backbone):
    data = tiny.write_dataset(tmp_path / "data", documents=64)
    keras.config.set_dtype_policy(precision)
    try:
        model = tiny.dual_encoder(backbone, sharing="ade_spl", embedding_dim=8, dropout=0.0)
    finally:
        keras.config.set_dtype_policy("float32")
    model.compile(keras.optimizers.Adam(0.01), task=RetrievalTask(0.1, bidirectional=True))
    history = model.fit(pairs(data, batch_size=16), epochs=24, verbose=0)
    loss = history.history["loss"]
    assert loss[0] > np.log(16) / 2
    assert loss[-1] < 0.6 * loss[0]
    assert history.history["in_batch_accuracy"][-1] > 4 / 16  # four times chance


def test_a_dataset_is_taken_up_at_a_step(tmp_path):
    data = pairs(tiny.write_dataset(tmp_path / "data", documents=40), batch_size=8)
    weights = []
    for parts in ([(0, 6)], [(0, 2), (2, 5), (5, 6)]):
        model = tiny.dual_encoder(embedding_dim=8, dropout=0.0)
        model.compile("sgd", task=RetrievalTask(0.1))
        for start, stop in parts:
            batches = data.dataset(steps=4)  # as a user's: it ends, and is read again
            model.fit(batches, steps=stop, initial_step=start, verbose=0)
        weights.append([weight.numpy() for weight in model.weights])
    for whole, taken_up in zip(*weights, strict=True):
        np.testing.assert_array_equal(whole, taken_up)
    with pytest.raises(
        ConfigError, match=r"`initial_step` must be below `steps`, None\. Received: 1"
    ):
        model.fit(data.dataset(steps=4), initial_step=1)


def test_frozen_embedder_stays_as_it_is(tmp_path):
    data = tiny.write_dataset(tmp_path / "data", documents=40)
    model = tiny.dual_encoder(tiny.T5, sharing="ade_fte", embedding_dim=8)
    table = model.query_tower.get_layer("token_embedder").get_weights()[0]
    before = [w.numpy() for w in model.trainable_weights]
    model.compile(keras.optimizers.Adam(0.01), task=RetrievalTask(0.1))
    model.fit(pairs(data, batch_size=16), epochs=1, verbose=0)
    after = model.query_tower.get_layer("token_embedder").get_weights()[0]
    np.testing.assert_array_equal(table, after)
    assert all(np.any(b != w.numpy()) for b, w in zip(before, model.trainable_weights, strict=True))


def test_given_negatives_and_sampling_correction_reach_the_loss(tmp_path):
    path = tmp_path / "pairs.jsonl"
    rows = [
        {"query": "red", "positive": "red apple", "negatives": ["blue apple", "red pear"]},
        {"query": "blue", "positive": "blue sea", "negatives": ["red sea"]},
        {"query": "green", "positive": "green hill", "negatives": []},
        # Three more pairs, outside of the batch: a document is expected 2 * 1/6 times beside one.
        *({"query": f"{word} sea", "positive": f"{word} hill"} for word in ("one", "two", "three")),
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    data = pairs(path, batch_size=3, negatives_per_query=2, shuffle=False)
    model = tiny.dual_encoder(dropout=0.0)
    batch = model.prepare_batch(next(iter(data.dataset(steps=1))))
    assert batch["document_token_ids"].shape[0] == 3 + 3 * 2
    assert batch["candidate_keys"].numpy().tolist().count(0) == 3
    losses = []
    for correction in (False, True):
        model.compile("sgd", task=RetrievalTask(0.1, sampling_correction=correction))
        x = model.prepare_batch(next(iter(data.dataset(steps=1))))
        losses.append(float(model.compute_loss(x=x, y_pred=model(x))))
    queries = model.encode_queries([row["query"] for row in rows[:3]])
    texts = [row["positive"] for row in rows[:3]] + ["blue apple", "red pear", "red sea"]
    logits = queries @ model.encode_documents(texts).T / 0.1
    for loss, correction in zip(losses, (0.0, np.log(2 / 6)), strict=True):
        corrected = logits - np.array([correction] * 3 + [0.0] * 3)
        corrected[range(3), range(3)] += correction  # a query's own is always there
        expected = np.mean(np.log(np.exp(corrected).sum(1)) - np.diag(corrected))
        assert loss == pytest.approx(expected, rel=1e-4)


def test_other_lengths_than_the_models_own():
    long = TextConfig(20, 40)
    words = " ".join(tiny.WORDS)
    for backbone in (tiny.T5, tiny.BAG_OF_WORDS):
        expected = tiny.dual_encoder(backbone, text=long)
        model = tiny.dual_encoder(backbone)
        short = model.encode_documents([words])
        fingerprint = model.fingerprint()
        model.set_max_lengths()
        assert model.fingerprint() == fingerprint
        model.set_max_lengths(query_max_length_tokens=20, document_max_length_tokens=40)
        assert model.fingerprint() == expected.fingerprint() != fingerprint
        np.testing.assert_allclose(
            model.encode_documents([words]), expected.encode_documents([words]), atol=1e-6
        )
        np.testing.assert_allclose(
            model.encode_queries([words]), expected.encode_queries([words]), atol=1e-6
        )
        assert abs(model.encode_documents([words]) - short).max() > 1e-3
    model = tiny.dual_encoder(tiny.BERT)
    model.set_max_lengths(document_max_length_tokens=32)
    for side in ("query", "document"):
        message = rf"`{side}_max_length_tokens` must be at most 32, the positions .* Received: 33"
        with pytest.raises(ConfigError, match=message):
            model.set_max_lengths(**{f"{side}_max_length_tokens": 33})
    with pytest.raises(ConfigError, match=r"`query_max_length_tokens` must be an integer of at le"):
        model.set_max_lengths(query_max_length_tokens=2)
