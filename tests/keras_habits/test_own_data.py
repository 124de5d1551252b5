"""Pairs in whatever form a Keras user has them: `fit`, `evaluate`, `train_on_batch`."""

import itertools
import re
from pathlib import Path

import keras
import numpy as np
import pandas as pd
import pytest
import tensorflow as tf
import tiny

import tfde
from tfde.errors import ConfigError, DataError
from tfde.training.masked_language_model import MaskedLanguageModel

WORDS = tiny.VOCABULARY[-24:]
DOCUMENTS = [f"{word} {word}" for word in WORDS]
PAIRS = list(zip(WORDS, DOCUMENTS, strict=True))


def model_of(**options):
    keras.utils.set_random_seed(1)
    model = tiny.dual_encoder()
    model.compile(keras.optimizers.Adam(0.01), **options)
    return model


@pytest.fixture(scope="module")
def model():
    return model_of()


@pytest.fixture(scope="module")
def whole(model):
    """Loss and accuracy of all pairs as one batch."""
    return model.evaluate(PAIRS, batch_size=24)


class Batches(keras.utils.PyDataset):
    """What a Keras user writes to read data of his own."""

    def __init__(self, form, size=24):
        super().__init__()
        self.form, self.size, self.epochs = form, size, 0

    def __len__(self):
        return 24 // self.size

    def __getitem__(self, index):
        rows = slice(index * self.size, (index + 1) * self.size)
        return self.form(WORDS[rows], DOCUMENTS[rows])

    def on_epoch_end(self):
        self.epochs += 1


def in_pair(queries, documents):
    return queries, documents


def in_dict(queries, documents):
    return {"query": np.array(queries), "document": np.array(documents, object)}


def titled(queries, documents):
    return {"query": queries, "title": [""] * len(queries), "document": tf.constant(documents)}


def test_columns_of_texts(model, whole):
    import pandas

    frame = pandas.DataFrame({"query": WORDS, "document": DOCUMENTS})
    forms = {
        "lists": (WORDS, DOCUMENTS),
        "arrays": (np.array(WORDS), np.array(DOCUMENTS)),
        "tensors": (tf.constant(WORDS), tf.constant(DOCUMENTS)),
        "series": (frame["query"], frame["document"]),
        "dict": {"query": WORDS, "document": DOCUMENTS},
    }
    for name, x in forms.items():
        assert model.evaluate(x, batch_size=24) == pytest.approx(whole, rel=1e-5), name
    assert model.evaluate(WORDS, DOCUMENTS, batch_size=24) == pytest.approx(whole, rel=1e-5)


@pytest.mark.parametrize("form", [in_pair, in_dict, titled])
def test_a_py_dataset(form, model, whole):
    assert model.evaluate(Batches(form)) == pytest.approx(whole, rel=1e-5)
    generator = (Batches(form)[index] for index in range(1))
    assert model.evaluate(generator) == pytest.approx(whole, rel=1e-5)


def test_fit_on_a_py_dataset_is_fit_on_its_pairs():
    batches = Batches(in_pair, size=8)
    validation = Batches(in_dict)
    one, other = model_of(), model_of()
    options = {"epochs": 3, "validation_data": validation, "verbose": 0}
    history = one.fit(batches, shuffle=False, **options).history
    assert (batches.epochs, validation.epochs) == (3, 3)
    same = tf.data.Dataset.from_tensor_slices((WORDS, DOCUMENTS)).batch(8)
    expected = other.fit(same, epochs=3, validation_data=(WORDS, DOCUMENTS), verbose=0).history
    assert history["loss"] == pytest.approx(expected["loss"], rel=1e-4)
    assert len(history["val_loss"]) == 3


def test_batches_of_a_py_dataset_are_shuffled_as_in_keras():
    class Watched(Batches):
        def __getitem__(self, index):
            seen.append(index)
            return super().__getitem__(index)

        def on_epoch_begin(self):
            seen.append("begins")

    def orders(**options):
        seen.clear()
        model_of().fit(Watched(in_pair, size=4), epochs=3, verbose=0, **options)
        place = seen.index("begins")  # before it the first batch is looked at
        return [seen[place + 7 * epoch : place + 7 * (epoch + 1)] for epoch in range(3)]

    seen = []
    kept = orders(shuffle=False)
    assert kept == [["begins", *range(6)]] * 3
    shuffled = orders()
    assert all(order[0] == "begins" and sorted(order[1:]) == [*range(6)] for order in shuffled)
    assert len(set(map(tuple, shuffled))) > 1
    assert shuffled == orders()


def test_a_generator_s_own_errors_come_as_they_are():
    def broken():
        yield WORDS[:8], DOCUMENTS[:8]
        raise KeyError("my own")

    model = model_of()
    with pytest.raises(KeyError, match="my own"):
        model.fit(broken(), verbose=0)
    for second in (WORDS[:8], [None] * 8), ([1] * 8, DOCUMENTS[:8]):
        with pytest.raises(ConfigError, match="`x` must be of texts in the column"):
            model.fit(iter([(WORDS[:8], DOCUMENTS[:8]), second]), verbose=0)
        with pytest.raises(ConfigError, match="`x` must be of texts in the column"):
            model.evaluate(iter([second]))


def test_pairs_in_their_order_and_the_batches_of_a_validation():
    model, other = model_of(), model_of()
    tensors = tf.constant(WORDS), tf.constant(DOCUMENTS)
    found = model.fit(
        *tensors,
        batch_size=8,
        shuffle=False,
        validation_data=PAIRS,
        validation_batch_size=24,
        verbose=0,
    ).history
    expected = other.fit(tfde.pairs(PAIRS, batch_size=8, shuffle=False), verbose=0).history
    assert found["loss"] == pytest.approx(expected["loss"], rel=1e-5)
    assert found["val_loss"][0] == pytest.approx(other.evaluate(PAIRS, batch_size=24)[0], rel=1e-4)


def test_generators_of_batches_and_of_pairs():
    endless = (Batches(in_pair, size=8)[step % 3] for step in itertools.count())
    model = model_of()
    history = model.fit(endless, epochs=2, steps_per_epoch=4, verbose=0).history
    assert len(history["loss"]) == 2
    assert model.fit((pair for pair in PAIRS), batch_size=8, epochs=2, verbose=0).epoch == [0, 1]
    short = (Batches(in_pair, size=8)[step] for step in range(3))
    rule = "`x` must be 4 batches an epoch, and so many epochs; it ended early.*: '3 batches in"
    with pytest.raises(ConfigError, match=rule):
        model.fit(short, steps_per_epoch=4, verbose=0)
    short = (Batches(in_pair, size=8)[step] for step in range(3))
    with pytest.raises(ConfigError, match="`x` must be one or more batches in each epoch"):
        model.fit(short, epochs=2, verbose=0)
    with pytest.raises(ConfigError, match="`validation_data` must be what can be read again"):
        model.fit(PAIRS, validation_data=(batch for batch in [(WORDS, DOCUMENTS)]), verbose=0)
    with pytest.raises(ConfigError, match=r"`x` must be single pairs, or batches: \(queries, doc"):
        model.fit(iter([[("red", "green")] * 4] * 2))


def test_an_array_of_rows_is_pairs(model, whole):
    rows = np.array(PAIRS)
    assert model.evaluate(rows, batch_size=24) == pytest.approx(whole)


@pytest.mark.parametrize(
    ("x", "rule"),
    [
        ((WORDS, DOCUMENTS, np.ones(24)), "must be columns of texts: pairs have no weights"),
        (in_pair, "must be pairs; a function that makes them must be called. .*'in_pair'"),
    ],
)
def test_what_is_no_pairs_is_told_by_its_kind(model, x, rule):
    for use in (model.fit, model.evaluate):
        with pytest.raises(ConfigError, match=f"`x` {rule}"):
            use(x)
    with pytest.raises(ConfigError, match=f"`validation_data` {rule}"):
        model.fit(PAIRS, validation_data=x, verbose=0)


def test_given_negatives_that_are_left_out_are_told(caplog):
    rows = [(*pair, "other", "third") for pair in PAIRS]
    batch = next(iter(tfde.pairs(rows, batch_size=4)))
    assert batch["negative_text"].shape == (4, 0)
    assert "up to 2 given negatives, which are left out; negatives_per_query=2" in caplog.text
    caplog.clear()
    tfde.pairs(rows, batch_size=4, negatives_per_query=1)
    tfde.pairs(PAIRS, batch_size=4)
    assert "left out" not in caplog.text


def test_pairs_iterate_and_have_a_length(model):
    pairs = tfde.pairs([*PAIRS, ("red", "green")], batch_size=10, shuffle=False)
    batches = list(pairs)
    assert len(batches) == len(pairs) == 3
    assert pairs.num_pairs == 25
    assert [len(batch["query"]) for batch in batches] == [10, 10, 5]
    assert batches[0]["query"][0].decode() == WORDS[0]
    assert batches[0]["document_text"][0].decode() == DOCUMENTS[0]
    assert batches[0]["positive_keys"][0][0] == batches[0]["document_key"][0]
    model.reset_metrics()
    found = model.test_on_batch(batches[0])
    assert found == pytest.approx(model.evaluate(PAIRS[:10], batch_size=10), rel=1e-5)


def test_one_batch_at_a_time():
    """As in Keras: the values so far, a list or a dict, until `reset_metrics`."""
    model, other = model_of(), model_of()
    expected = other.fit(
        tfde.pairs(PAIRS, batch_size=8, shuffle=False), epochs=2, verbose=0
    ).history["loss"]
    forms = [lambda rows: PAIRS[rows], lambda rows: (WORDS[rows], DOCUMENTS[rows])]
    for epoch in range(2):
        model.reset_metrics()
        for start in (0, 8, 16):
            values = model.train_on_batch(forms[start % 16 // 8](slice(start, start + 8)))
        assert values[0] == pytest.approx(expected[epoch], rel=1e-4)
    model.reset_metrics()
    found = model.test_on_batch(in_dict(WORDS, DOCUMENTS), return_dict=True)
    assert found == pytest.approx(other.evaluate(PAIRS, batch_size=24, return_dict=True), rel=1e-4)
    assert all(isinstance(value, float) for value in found.values())
    model.reset_metrics()
    pairs = [tfde.Pair(tfde.Query(q, q), tfde.Document(d, "", d)) for q, d in PAIRS]
    assert model.test_on_batch(pairs) == pytest.approx(list(found.values()), rel=1e-5)
    named = model.train_on_batch(WORDS, DOCUMENTS, return_dict=True)
    assert set(named) == {"loss", "in_batch_accuracy"}


def test_one_batch_has_the_lengths_and_the_accuracy_of_now():
    long = [(f"{word} {word} {word} {word}", text) for word, text in PAIRS[:6]]
    model, other = model_of(), model_of()
    before = model.test_on_batch(long)
    for one in (model, other):
        one.set_max_lengths(query_max_length_tokens=3, document_max_length_tokens=3)
    model.reset_metrics()
    found = model.test_on_batch(long)
    assert found == pytest.approx(other.test_on_batch(long), rel=1e-5)
    assert found != pytest.approx(before, rel=1e-3)
    model.compile("sgd")  # nothing is measured yet
    assert [float(metric.result()) for metric in model.metrics] == [0.0, 0.0]


def test_every_model_fits_measures_and_takes_one_batch():
    model = MaskedLanguageModel(tiny.dual_encoder(tiny.BERT), seed=3)
    with pytest.raises(ConfigError, match="call `compile` before"):
        model.evaluate(PAIRS)
    with pytest.raises(ConfigError, match="`metrics` must be None: masked tokens have a loss"):
        model.compile("adam", metrics=["accuracy"])
    model.compile(keras.optimizers.Adam(0.01))
    before = [weight.numpy() for weight in model.weights]
    found = model.evaluate(PAIRS, return_dict=True)
    for weight, old in zip(model.weights, before, strict=True):
        np.testing.assert_array_equal(weight.numpy(), old)
    assert set(found) == {"loss", "masked_token_accuracy"}
    # Before it has learnt anything every one of 120 tokens is about as likely.
    assert found["loss"] == pytest.approx(np.log(120), rel=0.2)
    history = model.fit(PAIRS, batch_size=12, epochs=2, validation_data=PAIRS, verbose=0).history
    assert set(history) >= {"loss", "val_loss", "val_masked_token_accuracy"}
    assert np.isfinite(model.train_on_batch(PAIRS)[0])
    assert np.isfinite(model.test_on_batch(PAIRS)[0])


def test_what_is_no_batch_is_told(model):
    with pytest.raises(ConfigError, match="`x` must be a column of texts"):
        model.fit("what", "docs")
    with pytest.raises(ConfigError, match="`x` must be a column of texts"):
        model.fit(pd.DataFrame({"query": WORDS}), pd.Series(DOCUMENTS))
    with pytest.raises(DataError, match="pairs:1: field 'query' must be a string"):
        model.fit(([b"\xff", b"a"], [b"c", b"d"]))
    for lists in ([WORDS, DOCUMENTS], [WORDS, DOCUMENTS, WORDS]):
        for take in (model.fit, tfde.pairs):
            with pytest.raises(ConfigError, match=r"tuple of columns, .* list of rows"):
                take(lists, batch_size=2)
    with pytest.raises(DataError, match="no column holds the query: it must be called anchor"):
        model.fit({"q": WORDS, "d": DOCUMENTS})
    cases = [
        (lambda: model.train_on_batch(PAIRS, sample_weight=[1.0]), "`sample_weight` must be None"),
        (lambda: model.train_on_batch((WORDS, DOCUMENTS[:3])), "`x` must be of columns of one len"),
        (lambda: model.fit(PAIRS, sample_weight=[1.0]), "`sample_weight` must be None: pairs have"),
        (
            lambda: model.fit(PAIRS, class_weight={0: 1.0}),
            "`class_weight` must be None: pairs have",
        ),
        (lambda: model.fit(PAIRS, validation_split=0.1), "`validation_split` must be 0: give the"),
        (lambda: model.fit(PAIRS, validation_batch_size=0), "`validation_batch_size` must be at l"),
        (lambda: model.fit(PAIRS, shuffle="batch"), "`shuffle` must be True or False"),
        (lambda: model.predict(WORDS, callbacks=[1]), "`callbacks` must be None: `predict` calls"),
        (lambda: model.train_on_batch(3), "must be a dataset directory, a pair file, a list of"),
        (lambda: tiny.dual_encoder().train_on_batch(PAIRS), "call `compile` before"),
        (lambda: tiny.dual_encoder().test_on_batch(PAIRS), "call `compile` before"),
    ]
    for call, rule in cases:
        with pytest.raises(ConfigError, match=rule):
            call()


def test_the_page_that_shows_a_batch(model, capsys):
    text = (Path(__file__).parents[2] / "docs/training.md").read_text(encoding="utf-8")
    block = re.search(r"```python\n(pairs = .*?)```", text, re.DOTALL)[1]
    exec(block, {"tfde": tfde, "model": model})
    printed = capsys.readouterr().out.splitlines()
    assert printed[0] == "1 2"
    shown = re.search(r"# (\[b.*)", block)[1]
    assert printed[1] == shown
    keys = re.findall(r"`(\w+)`", "".join(re.findall(r"\n\| (`[^|]*)\| \(B", text)))
    batch = next(iter(tfde.pairs(PAIRS, batch_size=2)))
    assert sorted(keys) == sorted(batch)


def test_two_lists_in_a_list_are_not_guessed_at(model):
    """Keras' list of inputs, or two rows of a query with its documents?"""
    queries, documents = ["a", "b", "c"], ["one", "two", "three"]
    model.compile("adam")
    for use in (model.fit, model.evaluate, model.train_on_batch):
        with pytest.raises(ConfigError, match=r"`x` must be a tuple of columns, .* of 2 lists of"):
            use([queries, documents])
    assert model.evaluate((queries, documents)) == model.evaluate(queries, documents)


def test_texts_in_bytes_and_names_of_columns_by_kind(model):
    pairs = tfde.pairs([(b"red", "apple"), ("blue", b"sky")], batch_size=2, shuffle=False)
    assert list(pairs.batch(0)["query"]) == [b"red", b"blue"]
    frame = pd.DataFrame({"frage": ["red", "blue"], "antwort": ["apple", "sky"]})
    columns = {"query": "frage", "document": "antwort"}
    pairs = tfde.pairs(frame, columns=columns, batch_size=2, shuffle=False)
    assert list(pairs.batch(0)["document_text"]) == [b"apple", b"sky"]
    with pytest.raises(DataError, match="must be a string"):
        tfde.pairs([(b"\xff", "apple")], batch_size=1)


def test_a_loop_of_fits_sees_all_pairs():
    seen = set()

    model = model_of()
    prepare = model.prepare_batch

    def watch(batch, **options):
        tf.numpy_function(lambda texts: seen.update(texts.tolist()), [batch["query"]], [])
        return prepare(batch, **options)

    model.prepare_batch = watch
    for _ in range(8):
        model.fit(PAIRS[:10], batch_size=6, epochs=1, verbose=0)
    assert seen == {word.encode() for word in WORDS[:10]}


def test_columns_are_pairs_of_tfde_pairs_too():
    batch = tfde.pairs((WORDS, np.array(DOCUMENTS)), batch_size=3, shuffle=False).batch(0)
    assert batch["query"].tolist() == [word.encode() for word in WORDS[:3]]
    assert batch["document_text"].tolist()[:3] == [text.encode() for text in DOCUMENTS[:3]]
    with pytest.raises(ConfigError, match="of columns of one length"):
        tfde.pairs((WORDS, DOCUMENTS[:3]), batch_size=3)
    with pytest.raises(DataError, match=r"a tfde\.Pair must hold a tfde\.Query"):
        tfde.pairs([tfde.Pair("a", "b", ())], batch_size=1)


def test_measuring_masked_tokens_changes_nothing():
    def trained(**options):
        keras.utils.set_random_seed(1)
        model = MaskedLanguageModel(tiny.dual_encoder(tiny.BERT), seed=3)
        model.compile(keras.optimizers.Adam(0.01))
        measured = [model.evaluate(PAIRS, batch_size=12) for _ in range(2)]
        model.fit(PAIRS, batch_size=12, epochs=2, shuffle=False, verbose=0, **options)
        return measured, [weight.numpy() for weight in model.trainable_weights]

    measured, weights = trained()
    assert measured[0] == measured[1]
    for one, other in zip(weights, trained(validation_data=PAIRS)[1], strict=True):
        np.testing.assert_array_equal(one, other)
