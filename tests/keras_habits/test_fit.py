"""`fit` and `evaluate`, with the arguments and the data that a Keras user would give."""

import keras
import numpy as np
import pytest
import tensorflow as tf
import tiny

import tfde
from tfde.errors import ConfigError
from tfde.towers.pair_input import training_batches
from tfde.towers.pair_order import Order

WORDS = tiny.VOCABULARY[-24:]
PAIRS = [(word, f"{word} {word}") for word in WORDS]


def model_of(**options):
    keras.utils.set_random_seed(1)
    model = tiny.dual_encoder()
    model.compile(keras.optimizers.Adam(0.01), **options)
    return model


def test_lists_frames_and_datasets_of_strings_are_alike():
    import pandas

    queries, documents = zip(*PAIRS, strict=True)
    frame = pandas.DataFrame({"query": queries, "positive": documents})
    strings = tf.data.Dataset.from_tensor_slices((list(queries), list(documents)))
    named = strings.map(lambda query, document: {"query": query, "document": document})
    model = model_of()
    losses = {}
    for name, x in {
        "list": PAIRS,
        "pairs": [tfde.Pair(tfde.Query(q, q), tfde.Document(d, "", d)) for q, d in PAIRS],
        "frame": frame,
        "strings": strings,
        "named": named,
        "batches": named.batch(24),
    }.items():
        size = None if name == "batches" else 24
        losses[name] = model.evaluate(x, batch_size=size)[0]
    for name, found in losses.items():  # one batch holds all pairs, in whatever order
        assert found == pytest.approx(losses["list"], rel=1e-4), name
    before = losses["list"]
    model.fit(strings, batch_size=8, epochs=2, verbose=0)
    assert model.evaluate(PAIRS, batch_size=24)[0] < before


def test_equal_documents_in_a_dataset_of_strings_are_no_negatives():
    strings = tf.data.Dataset.from_tensor_slices((["a", "b"], ["moon", "moon"]))
    (loss, accuracy) = model_of().evaluate(strings, batch_size=2)
    assert loss == pytest.approx(0, abs=1e-6)
    assert accuracy == 1.0


def test_virtual_epochs_give_a_curve_and_go_on_where_they_stopped():
    pairs = tfde.pairs(PAIRS, batch_size=6)
    whole = model_of()
    history = whole.fit(pairs, epochs=6, steps_per_epoch=3, verbose=0)
    assert len(history.history["loss"]) == 6
    parts = model_of()
    parts.fit(pairs, epochs=4, steps_per_epoch=3, verbose=0)
    later = parts.fit(pairs, epochs=6, initial_epoch=4, steps_per_epoch=3, verbose=0)
    assert later.epoch == [4, 5]
    np.testing.assert_allclose(later.history["loss"], history.history["loss"][4:], rtol=1e-4)
    np.testing.assert_allclose(parts.encode_queries(WORDS), whole.encode_queries(WORDS), atol=1e-5)


def test_keras_callbacks_follow_validation_data(tmp_path):
    model = model_of()
    stop = keras.callbacks.EarlyStopping("val_loss", patience=1, min_delta=10.0)
    slower = keras.callbacks.ReduceLROnPlateau("val_loss", patience=0, min_delta=10.0, factor=0.5)
    history = model.fit(
        PAIRS[:16],
        batch_size=8,
        epochs=9,
        validation_data=PAIRS[16:],
        callbacks=[stop, slower],
        verbose=0,
    )
    # No epoch is better by 10 than the first: it stops after the second.
    assert len(history.history["val_loss"]) == 2
    assert float(model.optimizer.learning_rate) < 0.01
    expected = model.evaluate(PAIRS[16:], batch_size=8, return_dict=True)
    assert history.history["val_loss"][-1] == pytest.approx(expected["loss"], rel=1e-5)
    assert set(history.history) >= {"val_loss", "val_in_batch_accuracy", "loss"}
    rarely = model_of().fit(
        PAIRS, batch_size=8, epochs=4, validation_data=PAIRS, validation_freq=2, verbose=0
    )
    assert len(rarely.history["val_loss"]) == 2


def test_evaluate_is_the_loss_of_the_task():
    task = tfde.RetrievalTask(temperature=0.1)
    model = model_of(task=task)
    loss, accuracy = model.evaluate(tfde.pairs(PAIRS, batch_size=24))
    scores = model.encode_queries(WORDS) @ model.encode_documents([d for _, d in PAIRS]).T / 0.1
    logits = scores - np.log(np.exp(scores).sum(1, keepdims=True))
    assert loss == pytest.approx(-np.mean(np.diag(logits)), rel=1e-4)
    assert accuracy == pytest.approx(np.mean(scores.argmax(1) == np.arange(24)))
    model.compile("adam", task=tfde.RetrievalTask(temperature=1.0))  # measures anew
    assert model.evaluate(PAIRS, batch_size=24)[0] != pytest.approx(loss, rel=1e-3)


def test_all_pairs_are_measured_each_as_much_as_the_others():
    pairs = [(f"{a} {b}", f"{b} {a}") for a in WORDS[:7] for b in WORDS[7:12]]  # 35: 32 and 3
    strings = tf.data.Dataset.from_tensor_slices(tuple(map(list, zip(*pairs, strict=True))))
    model = model_of(chunk_size=8)
    loss, accuracy = model.evaluate(pairs)
    assert model.evaluate(strings) == pytest.approx([loss, accuracy], rel=1e-5)
    first, last = model.evaluate(pairs[:32]), model.evaluate(pairs[32:])
    assert [loss, accuracy] == pytest.approx(
        [(32 * one + 3 * other) / 35 for one, other in zip(first, last, strict=True)], rel=1e-5
    )
    shuffled = tfde.pairs(pairs, batch_size=32)
    assert model.evaluate(shuffled) == pytest.approx([loss, accuracy], rel=1e-5)
    queries = model.encode_queries([query for query, _ in pairs])
    predicted = model.predict(shuffled, verbose=0)["query_embeddings"]
    np.testing.assert_allclose(predicted, queries, atol=1e-6)
    history = model.fit(strings.take(20), validation_data=shuffled, verbose=0)
    expected = model.evaluate(pairs, return_dict=True)
    assert history.history["val_loss"][-1] == pytest.approx(expected["loss"], rel=1e-5)


def test_what_cannot_be_is_told():
    model = tiny.dual_encoder()
    with pytest.raises(ConfigError, match="call `compile` before `fit` and `evaluate`"):
        model.fit(PAIRS)
    model = model_of()
    with pytest.raises(ConfigError, match=r"`x` must be a dataset of \(query, document, neg"):
        model.fit(tf.data.Dataset.range(3))
    with pytest.raises(ConfigError, match="`initial_epoch` must be below `epochs`, 1"):
        model.fit(PAIRS, initial_epoch=1)
    with pytest.raises(ConfigError, match="`steps` and `initial_step` count from the beginning"):
        model.fit(PAIRS, steps=3, steps_per_epoch=3)
    with pytest.raises(ConfigError, match="`steps` must be at least 1"):
        model.evaluate(PAIRS, steps=0)
    with pytest.raises(ConfigError, match="`batch_size` must be at least 1"):
        model.fit(PAIRS, batch_size=0)
    with pytest.raises(ConfigError, match="`initial_step` must be below the 1 steps to train"):
        model.fit(PAIRS, initial_step=-5)
    with pytest.raises(ConfigError, match=r"`validation_data` must be pairs, such as tfde\.pairs"):
        model.fit(PAIRS, validation_data="data/my")
    endless = tf.data.Dataset.from_tensor_slices((["a"], ["b"])).repeat()
    with pytest.raises(ConfigError, match="`validation_data` must be a dataset that ends"):
        model.fit(PAIRS, validation_data=endless)
    with pytest.raises(ConfigError, match=r"`batch_size` must be None: `x` has its own"):
        model.fit(tfde.pairs(PAIRS, batch_size=4), batch_size=8)
    for use in (model.fit, model.evaluate):
        with pytest.raises(ConfigError, match=r"there must be at least one pair\. Received: none"):
            use([])


def test_evaluate_takes_the_arguments_of_keras(capsys):
    model = model_of()
    loss, accuracy = model.evaluate(PAIRS, verbose=0, callbacks=None, sample_weight=None)
    assert capsys.readouterr().out == ""
    queries, documents = map(list, zip(*PAIRS, strict=True))
    assert model.evaluate(queries, documents, verbose=1) == pytest.approx([loss, accuracy])
    line = f"loss: {loss:.4f} - in_batch_accuracy: {accuracy:.4f}\n"
    assert capsys.readouterr().out == line
    with pytest.raises(ConfigError, match="`sample_weight` must be None"):
        model.evaluate(PAIRS, sample_weight=np.ones(24))


class Heard(keras.callbacks.Callback):
    def __init__(self):
        super().__init__()
        self.calls = []

    def on_test_begin(self, logs=None):
        self.calls.append("begin")

    def on_test_batch_begin(self, batch, logs=None):
        self.calls.append(f"batch {batch}")

    def on_test_batch_end(self, batch, logs=None):
        self.calls.append(f"loss {'loss' in logs}")

    def on_test_end(self, logs=None):
        self.calls.append(sorted(logs))


def test_callbacks_hear_of_validation_and_evaluate_as_in_keras():
    model, heard = model_of(), Heard()
    each = ["begin", "batch 0", "loss True", "batch 1", "loss True", "batch 2"]
    end = [["in_batch_accuracy", "loss"]]
    model.evaluate(PAIRS, batch_size=12, callbacks=heard)
    assert heard.calls == each + end
    heard.calls.clear()
    model.fit(PAIRS, validation_data=PAIRS, batch_size=12, epochs=2, callbacks=[heard], verbose=0)
    assert heard.calls == (each + end) * 2


def test_averaged_weights_are_those_that_validation_sees():
    """`SwapEMAWeights` puts them in place where validation begins, and away where it ends."""
    losses = []
    for callbacks in ([], [keras.callbacks.SwapEMAWeights()]):
        model = model_of()
        model.compile(keras.optimizers.SGD(1.0, use_ema=True, ema_momentum=0.9))
        options = {"validation_data": PAIRS, "callbacks": callbacks, "verbose": 0}
        history = model.fit(PAIRS, batch_size=8, epochs=2, **options)
        losses.append(history.history)
    plain, swapped = losses
    assert swapped["loss"] == pytest.approx(plain["loss"])  # training goes on with its own
    assert abs(swapped["val_loss"][0] - plain["val_loss"][0]) > 1e-3


def test_retrieval_is_measured_every_so_many_steps_and_each_epoch(tmp_path):
    data = tiny.write_dataset(tmp_path / "data", documents=20)
    config = tfde.ValidationConfig(dataset=str(data), every_steps=2, measures=("RR",))
    validation = tfde.RetrievalValidation(config)
    model = model_of()
    history = model.fit(
        PAIRS, batch_size=8, epochs=2, steps_per_epoch=3, callbacks=[validation], verbose=0
    )
    assert [step for step, _ in validation.history] == [2, 3, 4, 6]
    assert history.history["val_RR"] == [validation.history[1][1]["RR"], validation(model)["RR"]]
    again = tfde.RetrievalValidation(data, measures=["RR"], every_steps=2)
    assert again(model) == validation(model)
    with pytest.raises(ConfigError, match="`config` has no field 'measure'; it has dataset, every"):
        tfde.RetrievalValidation(data, measure="RR")
    with pytest.raises(ConfigError, match=r"measures` must be a list of names\. Received: 'RR'"):
        tfde.RetrievalValidation(data, measures="RR")
    with pytest.raises(ConfigError, match="`config` must be a directory where its fields are"):
        tfde.RetrievalValidation(config, measures=["RR"])


def test_batches_of_one_pair_are_told(caplog):
    model = tiny.dual_encoder()
    model.compile("adamw")
    pairs = [("red", "red apple"), ("blue", "blue plum")]
    model.fit(pairs, batch_size=1, verbose=0)
    assert "nothing was learned, the loss was 0 in every step: there was no negative" in caplog.text
    caplog.clear()
    model.fit(pairs, batch_size=2, verbose=0)
    assert "nothing was learned" not in caplog.text


def test_a_question_that_stands_in_a_batch_twice_has_no_answer_of_its_own_as_negative():
    """In a dataset of strings as in a list, whose questions are known."""
    pairs = [("red apple", "one two"), ("red apple", "three four"), ("blue", "five six")]
    model = tiny.dual_encoder()
    model.compile("adam")
    strings = tf.data.Dataset.from_tensor_slices(tuple(map(list, zip(*pairs, strict=True))))
    expected = model.evaluate(pairs)
    assert model.evaluate(strings.batch(3)) == pytest.approx(expected, rel=1e-6)
    apart = [("red", "one two"), ("apple", "three four"), ("blue", "five six")]
    assert model.evaluate(apart)[0] != pytest.approx(expected[0], rel=1e-3)


@pytest.mark.parametrize(("times", "width"), [(1, 1), (2, 2), (3, 4), (5, 8)])
def test_the_documents_of_a_repeated_question_are_its_positives(times, width):
    """Powers of two: XLA compiles a step anew for each width."""
    queries = ["other", *["red apple"] * times]
    documents = [f"text {number}" for number in range(times + 1)]
    strings = tf.data.Dataset.from_tensor_slices((queries, documents)).batch(times + 1)
    (batch,) = training_batches(
        strings, batch_size=None, replicas=1, order=Order(0)
    ).as_numpy_iterator()
    assert batch["positive_keys"].shape == (times + 1, width)
    own, *same = [set(row) - {0} for row in batch["positive_keys"]]
    keys = batch["document_key"].tolist()
    assert own == {keys[0]}
    assert same == [set(keys[1:])] * times


@pytest.mark.parametrize(
    ("options", "rule"),
    [
        ({"steps": 3, "epochs": 7}, "`epochs` must be 1 with `steps`, 3, which takes its place"),
        ({"batch_size": 8.0}, "`batch_size` must be an integer. Received: 8.0"),
        ({"batch_size": 0}, "`batch_size` must be at least 1. Received: 0"),
        ({"epochs": None}, "`epochs` must be an integer. Received: None"),
        ({"epochs": "2"}, "`epochs` must be an integer. Received: '2'"),
        ({"steps_per_epoch": 2.5}, "`steps_per_epoch` must be an integer. Received: 2.5"),
    ],
)
def test_numbers_that_cannot_be_are_told(options, rule):
    model = tiny.dual_encoder()
    model.compile("adam")
    pairs = [("red", "apple"), ("blue", "sky")]
    with pytest.raises(ConfigError, match=rule):
        model.fit(pairs, **options)
    if "batch_size" in options:
        with pytest.raises(ConfigError, match=rule):
            model.evaluate(pairs, **options)


def test_a_batch_may_be_larger_than_all_pairs():
    model = tiny.dual_encoder()
    model.compile("adam")
    pairs = [("red", "apple"), ("blue", "sky")]
    assert model.evaluate(pairs, batch_size=64) == model.evaluate(pairs, batch_size=2)
    assert len(model.fit(pairs, batch_size=64, verbose=0).history["loss"]) == 1


def test_what_asks_for_xla():
    model = model_of()
    for given, compiled in ((True, True), (1, True), (0, False), ("auto", False), (None, False)):
        model.compile("adam", jit_compile=given)
        assert model.jit_compile is compiled
    with pytest.raises(ConfigError, match='`jit_compile` must be True, False or "auto"'):
        model.compile("adam", jit_compile="yes")


@pytest.mark.parametrize("jit_compile", [False, True])
def test_a_dataset_takes_as_many_steps_as_its_batches(jit_compile):
    """The step that finds no batch left is none: weight decay and the schedule need no batch."""
    rows = tf.data.Dataset.from_tensor_slices(([q for q, _ in PAIRS], [d for _, d in PAIRS]))
    weights = {}
    for name, x in {"list": PAIRS, "dataset": rows}.items():
        keras.utils.set_random_seed(1)
        model = tiny.dual_encoder()
        optimizer = tfde.adamw(0.01, decay_steps=20, weight_decay=0.5)
        model.compile(optimizer, jit_compile=jit_compile)
        model.fit(x, batch_size=8, epochs=4, shuffle=False, verbose=0)
        assert int(model.optimizer.iterations.numpy()) == 4 * len(PAIRS) // 8, name
        weights[name] = model.get_weights()
    for one, other in zip(weights["list"], weights["dataset"], strict=True):
        np.testing.assert_allclose(one, other, atol=1e-6)


def test_a_loss_that_would_not_be_called_is_told():
    class Own(tfde.DualEncoder):
        def compute_loss(self, *args, **kwargs):
            return tf.constant(1000.0)

    model = tiny.dual_encoder()
    model.__class__ = Own
    with pytest.raises(ConfigError, match=r"`Own.compute_loss` would not be called: give `loss`"):
        model.compile("adam")


def test_one_callback_stands_for_a_list():
    stop = keras.callbacks.EarlyStopping("loss", patience=0, min_delta=1e9)
    assert len(model_of().fit(PAIRS, epochs=5, callbacks=stop, verbose=0).epoch) == 2


def test_weighted_batches_of_a_pydataset_are_told():
    class Weighted(keras.utils.PyDataset):
        num_batches = 1

        def __getitem__(self, index):
            return np.array(["a"]), np.array(["b"]), np.ones(1)

    with pytest.raises(ConfigError, match="`x` must be columns of texts: pairs have no weights"):
        model_of().fit(Weighted(), verbose=0)


def test_a_rate_that_ends_before_the_training_is_told(caplog):
    """The schedule's steps are those of one `fit`; three epochs of it learn in the first alone."""
    pairs = [(word, f"{word} {word}") for word in tiny.WORDS[:8]]
    model = tiny.dual_encoder()
    model.compile(tfde.adamw(1e-3, decay_steps=2))
    model.fit(pairs, batch_size=4, epochs=1, verbose=0)
    assert "learning rate" not in caplog.text
    model.fit(pairs, batch_size=4, epochs=2, verbose=0)
    assert "the learning rate is 0 before the training ends" in caplog.text
    assert "decay_steps should be 6, its last step. Received: 2" in caplog.text
    caplog.clear()
    for rate in (1e-3, keras.optimizers.schedules.CosineDecay(1e-3, 2, alpha=0.1)):
        model.compile(keras.optimizers.Adam(rate))
        model.fit(pairs, batch_size=4, epochs=3, verbose=0)
    assert "learning rate" not in caplog.text
