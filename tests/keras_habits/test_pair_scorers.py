"""A cross-encoder and a matcher, trained and measured as a Keras model of text pairs is."""

import keras
import numpy as np
import pytest
import tensorflow as tf
import tiny

import tfde
from tfde.config.model import PairTextConfig
from tfde.errors import ConfigError, DataError
from tfde.matching.labelled_input import LabelRules

RNG = np.random.default_rng(0)
FIRST = [" ".join(RNG.choice(tiny.WORDS, 3)) for _ in range(36)]
SECOND = [f"{text.split()[0]} {RNG.choice(tiny.WORDS)}" for text in FIRST[::2]]
SECOND = [text for pair in zip(SECOND, FIRST[5:] + FIRST[:5], strict=False) for text in pair]
LABELS = [int(bool(set(a.split()) & set(b.split()))) for a, b in zip(FIRST, SECOND, strict=True)]
TEXTS = list(zip(FIRST, SECOND, strict=True))
ROWS = list(zip(FIRST, SECOND, LABELS, strict=True))


@pytest.fixture(scope="module")
def cross_encoder():
    model = tfde.CrossEncoder.from_backbone(
        tiny.BERT,
        tokenizer=tiny.tokenizer(),
        num_labels=2,
        labels=("no", "yes"),
        seed=2,
        text=PairTextConfig(20),
    )
    model.compile(keras.optimizers.Adam(0.01), metrics=["accuracy"])
    return model


@pytest.fixture(scope="module")
def matcher():
    text = tfde.TextConfig(query_max_length_tokens=8, document_max_length_tokens=10)
    return tfde.Matcher.from_backbone(
        tiny.BERT, kind="siamese", tokenizer=tiny.tokenizer(), text=text, num_labels=1, seed=1
    )


def test_what_layers_add_to_the_loss_is_trained():
    def of(strength):
        model = tfde.CrossEncoder.from_backbone(
            tiny.BERT, tokenizer=tiny.tokenizer(), num_labels=2, labels=("no", "yes"), seed=2
        )
        for weight in model.trainable_weights:
            weight.regularizer = keras.regularizers.L2(strength)
        model.compile(keras.optimizers.SGD(1e-3))
        loss = model.evaluate(ROWS, batch_size=36)
        added = float(sum(model.losses))
        model.fit(ROWS, batch_size=36, verbose=0)
        size = sum(float(np.sum(weight.numpy() ** 2)) for weight in model.trainable_weights)
        return loss, added, size

    plain, shrunk = of(0.0), of(10.0)
    assert shrunk[0] - plain[0] == pytest.approx(shrunk[1], rel=1e-3)
    assert shrunk[1] > 10
    assert shrunk[2] < 0.97 * plain[2]


@pytest.mark.parametrize(("labels", "wrong"), [(("1", "2", "3"), 0), (("0", "2"), 1)])
def test_a_number_is_no_place_among_names_that_are_numbers(labels, wrong):
    rules = LabelRules(labels, len(labels), False)
    assert rules.of_pairs([("a", "b", 2)], None).labels.tolist() == [1.0]
    with pytest.raises(DataError, match="a label must be"):
        rules.of_pairs([("a", "b", wrong)], None)


def test_the_same_pairs_in_any_form(cross_encoder):
    import pandas
    import pyarrow

    logits = cross_encoder.score(TEXTS)
    log_sums = np.log(np.exp(logits).sum(1))
    loss = float(np.mean(log_sums - logits[np.arange(36), LABELS]))
    accuracy = float(np.mean(logits.argmax(1) == LABELS))
    names = [("no", "yes")[label] for label in LABELS]
    strings = tf.data.Dataset.from_tensor_slices(((FIRST, SECOND), LABELS))
    forms = {
        "rows": (ROWS,),
        "nested": (list(zip(TEXTS, LABELS, strict=True)),),
        "x and y": (TEXTS, LABELS),
        "columns": ((FIRST, SECOND), LABELS),
        "a list of columns": ([FIRST, np.array(SECOND)], LABELS),
        "named columns": ({"second": tf.constant(SECOND), "first": np.array(FIRST)}, LABELS),
        "an array": (np.array(TEXTS), tf.constant(LABELS)),
        "a frame and y": (pandas.DataFrame({"sentence2": SECOND, "sentence1": FIRST}), LABELS),
        "names": (TEXTS, names),
        "documents": ([(a, tfde.Document("", "", b), y) for a, b, y in ROWS],),
        "frame": (pandas.DataFrame({"sentence1": FIRST, "sentence2": SECOND, "label": names}),),
        "arrow": (pyarrow.table({"first": FIRST, "second": SECOND, "label": names}),),
        "arrow and y": (pyarrow.table({"first": FIRST, "second": SECOND}), LABELS),
        "tf.data": (strings,),
        "batches": (
            strings.map(lambda x, y: {"first": x[0], "second": x[1], "label": y}).batch(9),
        ),
    }
    for name, x in forms.items():
        assert cross_encoder.evaluate(*x) == pytest.approx([loss, accuracy], rel=1e-4), name
    found = cross_encoder.evaluate(ROWS, batch_size=7, return_dict=True)
    assert found == pytest.approx({"loss": loss, "accuracy": accuracy}, rel=1e-4)


def test_a_cross_encoder_learns(cross_encoder):
    stop = keras.callbacks.EarlyStopping("val_loss", patience=0, min_delta=10.0)
    history = cross_encoder.fit(
        ROWS, batch_size=12, epochs=9, validation_data=(TEXTS, LABELS), callbacks=[stop], verbose=0
    ).history
    assert len(history["val_loss"]) == 2  # the second is not better by 10
    assert set(history) >= {"loss", "accuracy", "val_loss", "val_accuracy"}
    before = cross_encoder.evaluate(ROWS)[0]
    strings = tf.data.Dataset.from_tensor_slices((FIRST, SECOND, LABELS))
    cross_encoder.fit(strings, batch_size=12, epochs=12, verbose=0)
    assert cross_encoder.evaluate(ROWS)[0] < before
    cross_encoder.reset_metrics()
    loss, _ = cross_encoder.train_on_batch(ROWS)
    cross_encoder.reset_metrics()
    assert cross_encoder.test_on_batch(TEXTS, LABELS)[0] < loss * 1.5


def test_an_epoch_has_all_pairs_in_their_order_if_asked(matcher):
    rows = []

    def loss(labels, logits):
        rows.append(labels.numpy())
        return tf.abs(labels - logits)

    matcher.compile("sgd", loss=loss, run_eagerly=True)
    rows.clear()
    matcher.fit(ROWS, batch_size=16, shuffle=False, verbose=0)
    assert [len(labels) for labels in rows] == [16, 16, 4]
    assert np.concatenate(rows)[:, 0].tolist() == LABELS
    rows.clear()
    matcher.fit(ROWS, batch_size=16, verbose=0)
    assert np.concatenate(rows)[:, 0].tolist() != LABELS


def test_losses_and_metrics_of_keras(matcher):
    logits, labels = matcher.score(TEXTS)[:, None], np.array(LABELS, np.float32)[:, None]
    measures = [keras.metrics.AUC(from_logits=True, name="auc"), "accuracy", "mse"]
    for loss in (
        None,
        "binary_crossentropy",
        keras.losses.BinaryCrossentropy(from_logits=True, label_smoothing=0.1),
        keras.losses.MeanSquaredError(reduction="sum"),
        lambda y_true, y_pred: tf.abs(y_true - y_pred),
    ):
        matcher.compile("adam", loss=loss, metrics=measures)
        found = matcher.evaluate(ROWS, batch_size=36, return_dict=True)
        theirs = loss
        if loss is None or isinstance(loss, str):
            theirs = keras.losses.BinaryCrossentropy(from_logits=True)
        assert found["loss"] == pytest.approx(float(np.mean(theirs(labels, logits))), rel=1e-4)
        auc = keras.metrics.AUC(from_logits=True)
        auc.update_state(labels, logits)
        assert found["auc"] == pytest.approx(float(auc.result()))
        assert found["accuracy"] == pytest.approx(np.mean((logits > 0) == labels))
    matcher.compile("adam")
    assert isinstance(matcher.evaluate(ROWS), float)  # of the loss alone, as Keras


def test_what_cannot_be_is_told(cross_encoder, matcher):
    fresh = tfde.CrossEncoder.from_backbone(
        tiny.BERT, tokenizer=tiny.tokenizer(), num_labels=2, text=PairTextConfig(20)
    )
    three = tfde.CrossEncoder.from_backbone(
        tiny.BERT, tokenizer=tiny.tokenizer(), num_labels=3, text=PairTextConfig(20)
    )
    measures = [keras.metrics.SparseTopKCategoricalAccuracy(2), "accuracy"]
    three.compile("adam", loss="sparse_categorical_crossentropy", metrics=measures)
    assert [float(metric.result()) for metric in three.metrics] == [0, 0, 0]
    cases = [
        (lambda: fresh.fit(ROWS), ConfigError, "call `compile` before"),
        (lambda: fresh.evaluate(ROWS), ConfigError, "call `compile` before"),
        (lambda: cross_encoder.fit(TEXTS), DataError, "pairs:1: a row must be .first, second, la"),
        (lambda: cross_encoder.fit(TEXTS, [0]), ConfigError, "`y` must be a label for each of 36"),
        (lambda: cross_encoder.fit([]), ConfigError, "`x` must be pairs, at least one"),
        (
            lambda: cross_encoder.fit([("a", "b", 2)]),
            DataError,
            "pairs:1: a label must be a number",
        ),
        (lambda: cross_encoder.fit([("a", "b", "maybe")]), DataError, "or one of no, yes.*'maybe'"),
        (lambda: cross_encoder.fit([("a", 3, 1)]), DataError, "pairs:1: the second of a"),
        (
            lambda: cross_encoder.fit("a"),
            ConfigError,
            "`x` must be a list of .first, second, label",
        ),
        (
            lambda: cross_encoder.fit(tf.data.Dataset.range(3)),
            ConfigError,
            "`x` must be a dataset of .first",
        ),
        (
            lambda: matcher.compile("adam", loss=keras.losses.BinaryCrossentropy()),
            ConfigError,
            "set `from_logits=True`",
        ),
        (
            lambda: three.compile("adam", metrics=["mae"]),
            ConfigError,
            "`metrics` must be of labels .B",
        ),
        (
            lambda: three.compile("adam", loss="mse"),
            ConfigError,
            "`loss` must be of labels .B,. int",
        ),
        (lambda: three.compile("adam", loss=lambda y, p: y[:2]), ConfigError, "a number for each"),
        (lambda: matcher.compile("adam", loss_weights=[1.0]), ConfigError, "there is one loss"),
        (lambda: cross_encoder.fit((FIRST, SECOND[:3]), LABELS), ConfigError, "of one length"),
        (lambda: cross_encoder.fit({"a": FIRST, "b": SECOND}, LABELS), ConfigError, "GLUE's names"),
        (
            lambda: cross_encoder.fit(ROWS, sample_weight=[1]),
            ConfigError,
            "`sample_weight` must be",
        ),
        (lambda: cross_encoder.fit(ROWS, validation_split=0.1), ConfigError, "must be 0: give the"),
        (lambda: cross_encoder.predict(TEXTS, callbacks=[1]), ConfigError, "`callbacks` must be N"),
        (lambda: matcher.train_on_batch(ROWS, class_weight={}), ConfigError, "`class_weight` must"),
    ]
    for call, kind, rule in cases:
        with pytest.raises(kind, match=rule):
            call()


def test_labels_that_one_logit_cannot_learn_are_refused(matcher):
    matcher.compile("adam")
    rows = [(*texts, 3.0 * label) for texts, label in zip(TEXTS, LABELS, strict=True)]
    row = 1 + list(LABELS).index(1)
    with pytest.raises(
        DataError, match=rf":{row}: a label must be in \[0, 1\] for one logit; .*3\.0"
    ):
        matcher.fit(rows, verbose=0)
    matcher.compile("adam", loss="mse")
    matcher.fit(rows, verbose=0)


def test_numbers_are_labels_whatever_they_come_as():
    labels = ("3", "7")
    model = tfde.CrossEncoder.from_backbone(
        tiny.BERT, tokenizer=tiny.tokenizer(), num_labels=2, labels=labels, seed=2
    )
    model.compile("adam")
    numbers = [(3, 7)[label] for label in LABELS]
    strings = tf.data.Dataset.from_tensor_slices(((FIRST, SECOND), numbers)).batch(9)
    expected = model.evaluate(TEXTS, [str(number) for number in numbers])
    for given in (numbers, np.array(numbers, np.float32), np.array(numbers)):
        assert model.evaluate(TEXTS, given) == pytest.approx(expected, rel=1e-5)
    assert model.evaluate(strings) == pytest.approx(expected, rel=1e-5)
    with pytest.raises(ConfigError, match="`y` must be None"):
        model.evaluate(strings, numbers)
    with pytest.raises(DataError, match="a label must be"):
        model.evaluate(TEXTS[:2], [3, 5])
    wrong = tf.data.Dataset.from_tensor_slices((TEXTS[:2], [3, 5])).batch(2)
    wrong = wrong.map(lambda texts, label: ((texts[:, 0], texts[:, 1]), label))
    with pytest.raises(tf.errors.InvalidArgumentError, match="a label must be one of 3, 7"):
        model.evaluate(wrong)


@pytest.mark.parametrize("loss", [None, "binary_crossentropy"])
def test_labels_of_a_sigmoid_are_probabilities(matcher, loss):
    matcher.compile("adam", loss=loss)
    with pytest.raises(DataError, match=r"a label must be in \[0, 1\]"):
        matcher.evaluate([("a", "b", 5), ("a", "c", 0)])
    wrong = tf.data.Dataset.from_tensor_slices(((["a", "b"], ["c", "d"]), [5, 0])).batch(2)
    with pytest.raises(tf.errors.InvalidArgumentError, match="must be a number from 0 to 1"):
        matcher.evaluate(wrong)


def test_metrics_read_logits(matcher):
    from sklearn.metrics import log_loss, precision_score, roc_auc_score

    names = ["AUC", "binary_crossentropy", "precision", "binary_accuracy"]
    matcher.compile("adam", metrics=names)
    logits = matcher.score(TEXTS)
    found = matcher.evaluate(TEXTS, LABELS, return_dict=True)
    expected = {
        "AUC": roc_auc_score(LABELS, logits),
        "binary_crossentropy": log_loss(LABELS, 1 / (1 + np.exp(-np.float64(logits)))),
        "precision": precision_score(LABELS, logits > 0, zero_division=0),
        "binary_accuracy": np.mean((logits > 0) == LABELS),
    }
    for name in names:
        assert found[name] == pytest.approx(expected[name], abs=0.02), name
    of_probabilities = [
        keras.metrics.AUC(),
        keras.metrics.BinaryAccuracy(),
        keras.metrics.Precision(),
        keras.metrics.BinaryCrossentropy(),
        keras.metrics.RecallAtPrecision(0.5),
        "f1_score",
    ]
    for metric in of_probabilities:
        with pytest.raises(ConfigError, match="`metrics` must be of"):
            matcher.compile("adam", metrics=[metric])


def test_several_labels_have_metrics_of_their_numbers(cross_encoder):
    for metric in ("categorical_accuracy", keras.metrics.SparseCategoricalCrossentropy()):
        with pytest.raises(ConfigError, match="`metrics` must be of"):
            cross_encoder.compile("adam", metrics=[metric])
    cross_encoder.compile("adam", metrics=["sparse_categorical_crossentropy"])
    loss, metric = cross_encoder.evaluate(TEXTS, LABELS)
    assert metric == pytest.approx(loss, rel=1e-4)


def test_half_a_surrogate_pair_is_told(matcher, cross_encoder):
    """JSON may hold one, and UTF-8 cannot: TensorFlow says neither which text nor where."""
    matcher.compile("adam")
    bad = "red \ud800"
    stored = matcher.store(["apple"])
    calls = [
        lambda: cross_encoder.score([("red", bad)]),
        lambda: cross_encoder.rank(bad, ["red"], label="yes"),
        lambda: matcher.score([(bad, "red")]),
        lambda: matcher.store([bad]),
        lambda: matcher.encode_first([bad]),
        lambda: matcher.score_stored([(bad, "0")], stored),
    ]
    for call in calls:
        with pytest.raises(ConfigError, match=r"UTF-8 can write. Received: one with .*character 4"):
            call()
    with pytest.raises(DataError, match=r"pairs:2: texts must be .*character 4"):
        matcher.fit([*TEXTS[:1], ("red", bad)], [1, 0], verbose=0)
    assert matcher.score([(b"red", b"apple")]) == matcher.score([("red", "apple")])
