"""`compile` with the losses and metrics of TFRS, Keras and keras-rs, as their users write it."""

import functools
import importlib.util
import re
from pathlib import Path

import keras
import numpy as np
import pytest
import tensorflow as tf
import tiny

import tfde
from tfde.environment import import_recommenders
from tfde.errors import ConfigError
from tfde.tasks.adapters import SumTask, as_task
from tfde.tasks.batch_metrics import InBatchAccuracy, as_metrics, update_metrics

tfrs, tf_keras = import_recommenders()

WORDS = tiny.VOCABULARY[-24:]
PAIRS = [(word, f"{word} {word}") for word in WORDS]
RNG = np.random.default_rng(4)
Q, D = (RNG.normal(size=shape).astype("float32") for shape in ((6, 5), (9, 5)))
# Document 3 is a copy of document 1, the last is padding, query 4 has another positive, 7.
KEYS = np.array([1, 2, 3, 2, 5, 6, 7, 8, 0])
POSITIVES = np.array([[1, 0], [2, 0], [3, 0], [2, 0], [5, 8], [6, 0]])
THERE = (KEYS != 0) & ~((KEYS[None] == POSITIVES[:, :1]) | (KEYS[None] == POSITIVES[:, 1:]))
THERE |= np.eye(6, 9, dtype=bool)
RELEVANCE = np.eye(6, 9, dtype="float32")


def model_of(*arguments, **options):
    keras.utils.set_random_seed(1)
    model = tiny.dual_encoder()
    model.compile(keras.optimizers.Adam(0.01), *arguments, **options)
    return model


def loss_of(task, positives=POSITIVES, keys=KEYS):
    """The value of a task, and its gradient by both sides."""
    queries = {"embeddings": tf.constant(Q), "positive_keys": tf.constant(positives)}
    candidates = {"embeddings": tf.constant(D), "keys": tf.constant(keys)}
    strings = {"query": tf.constant(["q"] * 6)}
    of_queries, of_candidates = task.describe(task.prepare(strings, replicas=1), chunk_size=None)
    return with_gradients(
        lambda q, d: task(
            {**queries, **of_queries, "embeddings": q},
            {**candidates, **of_candidates, "embeddings": d},
        )
    )


def with_gradients(function):
    sides = [tf.constant(Q), tf.constant(D)]
    with tf.GradientTape() as tape:
        tape.watch(sides)
        value = function(*sides)
    return [value, *(tf.convert_to_tensor(part) for part in tape.gradient(value, sides))]


def same(found, expected, rtol=2e-5):
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(one, other, rtol=rtol, atol=1e-6)


# ---- TFRS ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"temperature": 0.2},
        {"temperature": 0.2, "remove_accidental_hits": True},
        {"temperature": 0.5, "num_hard_negatives": 2, "remove_accidental_hits": True},
        {"loss": tf_keras.losses.CategoricalCrossentropy(from_logits=True)},
        {"loss": tf_keras.losses.CategoricalHinge(reduction="sum")},
        {"loss": keras.losses.CategoricalCrossentropy(from_logits=True, reduction="sum")},
    ],
)
def test_a_task_of_tfrs_has_its_own_value_and_gradient(options):
    task = tfrs.tasks.Retrieval(**options)
    ids = tf.constant(KEYS)
    mask = tf.constant(np.broadcast_to(KEYS != 0, (6, 9)))
    theirs = with_gradients(
        lambda q, d: task(q, d, candidate_ids=ids, score_mask=mask, compute_metrics=False)
    )
    same(loss_of(as_task(task)), theirs)


@pytest.mark.parametrize("more", [0, 3])
def test_our_task_takes_embeddings_alone_as_theirs_does(more):
    rng = np.random.default_rng(1)
    queries = rng.normal(size=(4, 5)).astype("float32")
    candidates = rng.normal(size=(4 + more, 5)).astype("float32")
    ours = tfde.RetrievalTask(temperature=0.2)
    theirs = tfrs.tasks.Retrieval(temperature=0.2)(
        tf.constant(queries), tf.constant(candidates), compute_metrics=False
    )
    for make in (tf.constant, np.array):
        assert float(ours(make(queries), make(candidates))) * 4 == pytest.approx(float(theirs))


def test_compile_takes_a_task_of_tfrs():
    """The loss in the logs is what TFRS says of the embeddings: the sum over the batch."""
    task = tfrs.tasks.Retrieval(temperature=0.1, remove_accidental_hits=True)
    losses = {}
    for chunk_size in (None, 5):
        model = model_of(task=task, chunk_size=chunk_size)
        queries, documents = (
            model.encode_queries(WORDS),
            model.encode_documents([document for _, document in PAIRS]),
        )
        losses[chunk_size] = model.evaluate(PAIRS, batch_size=24)[0]
        ids = tf.range(24)
        expected = float(task(queries, documents, candidate_ids=ids, compute_metrics=False))
        assert losses[chunk_size] == pytest.approx(expected, rel=1e-4)
    history = model.fit(PAIRS, batch_size=24, epochs=3, verbose=0).history["loss"]
    assert history[0] == pytest.approx(losses[None], rel=1e-4)
    assert history[-1] < history[0]


def test_what_a_task_of_tfrs_may_not_have_is_named():
    corpus = tf.data.Dataset.from_tensor_slices(D).batch(4)
    found = {
        "metrics of tfrs.*RetrievalValidation": {"metrics": tfrs.metrics.FactorizedTopK(corpus)},
        "batch_metrics of tfrs.*`metrics` of `compile`": {
            "batch_metrics": [tf_keras.metrics.TopKCategoricalAccuracy(5)]
        },
        "loss_metrics of tfrs.*`loss` in the logs": {"loss_metrics": [tf_keras.metrics.Mean()]},
        r"loss of tfrs.*compile\(loss": {"loss": lambda y_true, y_pred, sample_weight: 0.0},
    }
    for rule, options in found.items():
        with pytest.raises(ConfigError, match=rule):
            model_of(task=tfrs.tasks.Retrieval(**options))
    with pytest.raises(ConfigError, match=r"`task` must be tfrs\.tasks\.Retrieval"):
        model_of(task=tfrs.tasks.Ranking())


# ---- losses of Keras and keras-rs ----------------------------------------------------------------


def without_masked(loss):
    """What a loss says of each row, from which what is no candidate is taken out."""

    def function(q, d):
        rows = []
        for i, there in enumerate(THERE):
            scores = tf.matmul(q[i : i + 1], tf.boolean_mask(d, there), transpose_b=True)
            rows.append(tf.reduce_mean(loss(tf.constant(RELEVANCE[i : i + 1, there]), scores)))
        return tf.reduce_mean(rows)

    return function


SOFTMAX = keras.losses.CategoricalCrossentropy(from_logits=True)


@pytest.mark.parametrize(
    ("loss", "rows"),
    [
        (SOFTMAX, SOFTMAX),
        ("categorical_crossentropy", SOFTMAX),
        ("CategoricalCrossentropy", SOFTMAX),
        (keras.losses.categorical_crossentropy, SOFTMAX),
        (keras.losses.CategoricalFocalCrossentropy(from_logits=True),) * 2,
        (keras.losses.BinaryCrossentropy(from_logits=True),) * 2,
        (keras.losses.CategoricalHinge(),) * 2,
        (keras.losses.MeanSquaredError(),) * 2,
        ("mse", keras.losses.MeanSquaredError()),
        (keras.losses.Huber(0.3),) * 2,
        (lambda relevance, scores: tf.reduce_sum(tf.abs(relevance - scores), 1),) * 2,
    ],
)
def test_masked_is_taken_out(loss, rows):
    same(loss_of(as_task(loss)), with_gradients(without_masked(rows)))


@pytest.mark.peers
def test_losses_of_keras_rs():
    import keras_rs

    names = ("PairwiseHinge", "PairwiseLogistic", "PairwiseSoftZeroOne", "PairwiseMeanSquared")
    for name in names:
        loss = getattr(keras_rs.losses, f"{name}{'Error' if 'Mean' in name else 'Loss'}")()
        same(loss_of(as_task(loss)), with_gradients(without_masked(loss)))
    # Of a list, which has an order of its own: where nothing is masked, it is the same.
    loss = keras_rs.losses.ListMLELoss()
    keys, positives = np.arange(1, 10), np.arange(1, 7)[:, None]
    theirs = with_gradients(lambda q, d: loss(tf.constant(RELEVANCE), tf.matmul(q, d, False, True)))
    same(loss_of(as_task(loss), positives, keys), theirs)


def test_a_sum_is_a_sum():
    loss = keras.losses.CategoricalCrossentropy(from_logits=True, reduction="sum")
    mean = loss_of(as_task(SOFTMAX))
    same(loss_of(as_task(loss)), [6 * part for part in mean])
    scored = loss_of(tfde.ScoreTask(SOFTMAX, temperature=0.1))
    ours = loss_of(tfde.RetrievalTask(temperature=0.1))
    same(scored, ours)
    model = model_of(loss=loss, chunk_size=5)
    whole = model_of(loss=loss)
    assert model.evaluate(PAIRS) == pytest.approx(whole.evaluate(PAIRS), rel=1e-5)


def hinge(query_embeddings, document_embeddings, batch):
    """What a user would write: every other candidate 0.2 below the positive."""
    scores = tf.matmul(query_embeddings, document_embeddings, transpose_b=True)
    gaps = tf.nn.relu(0.2 + scores - tf.linalg.diag_part(scores)[:, None])
    return tf.reduce_sum(tf.where(batch["allowed"], gaps, 0.0), axis=1) - 0.2


def test_a_function_of_embeddings():
    q = Q[:, None] * D[None]
    scores = q.sum(-1)
    gaps = np.maximum(0.2 + scores - scores[np.arange(6), np.arange(6)][:, None], 0) * THERE
    assert float(loss_of(as_task(hinge))[0]) == pytest.approx(gaps.sum() / 6 - 0.2, rel=1e-5)
    histories = [
        model_of(loss=hinge, chunk_size=size).fit(PAIRS, batch_size=8, epochs=2, verbose=0).history
        for size in (None, 3)
    ]
    assert histories[0]["loss"] == pytest.approx(histories[1]["loss"], rel=1e-4)
    assert histories[0]["loss"][1] < histories[0]["loss"][0]


def test_several_losses_have_weights():
    parts = [tfde.RetrievalTask(temperature=0.1, bidirectional=True), hinge, "mse"]
    weights = [1.0, 0.5, 2.0]
    expected = [
        sum(w * part for w, part in zip(weights, column, strict=True))
        for column in zip(*(loss_of(as_task(part)) for part in parts), strict=True)
    ]
    same(loss_of(as_task(parts, weights)), expected)
    named = dict(zip("abc", parts, strict=True))
    same(loss_of(as_task(named, {"a": 1.0, "b": 0.5, "c": 2.0})), expected)
    apart = [model_of(loss=part).evaluate(PAIRS, batch_size=24)[0] for part in parts]
    for size in (None, 5):
        model = model_of(loss=parts, loss_weights=weights, chunk_size=size)
        together = model.evaluate(PAIRS, batch_size=24)[0]
        assert together == pytest.approx(apart[0] + apart[1] / 2 + apart[2] * 2, rel=1e-5)
    assert np.isfinite(model.fit(PAIRS, batch_size=8, verbose=0).history["loss"][0])
    doubled = model_of(loss="mse", loss_weights=2.0).evaluate(PAIRS, batch_size=24)[0]
    assert doubled == pytest.approx(2 * apart[2], rel=1e-5)


def test_losses_that_cannot_be_are_told():
    two = "`loss` must be a Keras loss, its name, or a function"
    cases = [
        ({"loss": keras.losses.CategoricalCrossentropy()}, "set `from_logits=True`"),
        ({"loss": "categorical"}, two),
        ({"loss": 3}, two),
        ({"loss": "mse", "task": tfde.RetrievalTask()}, "`loss` must be None where there is"),
        ({"loss": []}, "`loss` must be one or more"),
        ({"loss": ["mse", "mae"], "loss_weights": [1.0]}, "`loss_weights` must be a number for"),
        ({"loss": "sparse_categorical_crossentropy"}, r"take relevance and scores, both \(B, C\)"),
        (
            {"loss": keras.losses.CategoricalCrossentropy(from_logits=True, label_smoothing=0.1)},
            r"`loss` must have a way to leave candidates out .* write it as a function of \(query_",
        ),
        ({"weighted_metrics": ["accuracy"]}, "`weighted_metrics` must be None: pairs have no"),
        ({"steps_per_execution": 4}, "`steps_per_execution` must be 1"),
        ({"metrics": ["nothing"]}, "`metrics` must hold Keras metrics"),
        ({"metrics": {"a": "accuracy"}}, "`metrics` must be Keras metrics, .* in a list"),
        ({"metrics": ["accuracy", "accuracy"]}, "`metrics` must be of different names"),
    ]
    for options, rule in cases:
        with pytest.raises(ConfigError, match=rule):
            model_of(**options)
    model = model_of(loss=lambda q, d, batch: tf.matmul(q, d, transpose_b=True))
    with pytest.raises(ConfigError, match="a scalar, or a number for each query"):
        model.evaluate(PAIRS)


# ---- metrics -------------------------------------------------------------------------------------


def test_chunks_of_towers_that_keep_means_are_refused():
    layers = [keras.layers.Dense(4), keras.layers.BatchNormalization()]
    model = tiny.dual_encoder(tiny.BERT, projection=keras.Sequential(layers))
    model.compile("sgd")
    before = [variable.numpy() for variable in model.variables]
    with pytest.raises(ConfigError, match=r"`chunk_size` must be None where .*moving_mean$"):
        model.compile("sgd", chunk_size=2)
    for variable, old in zip(model.variables, before, strict=True):
        np.testing.assert_array_equal(variable.numpy(), old)
    model.towers.query_parts.projection.trainable = False  # its means stay as they are
    model.compile("sgd", chunk_size=2)
    with_lora = tiny.dual_encoder(tiny.BERT)
    with_lora.enable_lora(2)
    with_lora.compile("sgd", chunk_size=2)


def measures(*, of_keras_rs=False):
    if not of_keras_rs:
        return [keras.metrics.TopKCategoricalAccuracy(3, name="top_3"), "accuracy", own_measure]
    import keras_rs

    return [
        keras_rs.metrics.MeanReciprocalRank(name="rr"),
        keras_rs.metrics.NDCG(k=5, name="ndcg"),
        keras_rs.metrics.RecallAtK(k=3, name="recall"),
    ]


def own_measure(relevance, scores):
    """The rank of the positive, from 1."""
    own = tf.reduce_sum(relevance * scores, 1, keepdims=True)
    return 1.0 + tf.reduce_sum(tf.cast(scores > own, tf.float32), 1)


@pytest.mark.parametrize("of_keras_rs", [False, pytest.param(True, marks=pytest.mark.peers)])
def test_metrics_are_those_of_the_scores_without_what_is_no_candidate(of_keras_rs):
    scores = np.where(THERE, Q @ D.T, -np.inf)
    own = scores[np.arange(6), np.arange(6)][:, None]
    ranks = 1 + (scores > own).sum(1)  # by hand
    expected = {
        "in_batch_accuracy": ranks == 1,
        "accuracy": ranks == 1,
        "top_3": ranks <= 3,
        "own_measure": ranks,
        "rr": 1 / ranks,
        "recall": ranks <= 3,
        "ndcg": np.where(ranks <= 5, 1 / np.log2(1 + ranks), 0),
    }
    queries = {"embeddings": tf.constant(Q), "positive_keys": tf.constant(POSITIVES)}
    candidates = {"embeddings": tf.constant(D), "keys": tf.constant(KEYS)}
    for rows in (None, 4):
        given = measures(of_keras_rs=of_keras_rs)
        made = [InBatchAccuracy(), *as_metrics(given, tf.distribute.get_strategy())]
        update = functools.partial(update_metrics, made, queries, candidates, rows=rows)
        tf.function(update)()
        for metric in made:
            value = float(metric.result())
            assert value == pytest.approx(np.mean(expected[metric.name]), rel=1e-5), metric.name


def test_metrics_stand_in_the_logs():
    results = []
    for options in ({}, {"chunk_size": 5}, {"run_eagerly": True}, {"jit_compile": True}):
        model = model_of(metrics=measures(), **options)
        found = model.evaluate(PAIRS, batch_size=8, return_dict=True)
        results.append(found)
        assert list(found)[:5] == ["loss", "in_batch_accuracy", "top_3", "accuracy", "own_measure"]
        assert found["accuracy"] == pytest.approx(found["in_batch_accuracy"])
        if options.get("jit_compile"):
            continue
        history = model.fit(PAIRS, batch_size=8, validation_data=PAIRS, verbose=0).history
        assert set(history) >= {*found, *(f"val_{name}" for name in found)}
    for found in results[1:]:
        assert found == pytest.approx(results[0], rel=1e-5)
    model.compile("adam")  # those of an earlier `compile` are gone
    assert list(model.evaluate(PAIRS, return_dict=True)) == ["loss", "in_batch_accuracy"]


# ---- the how-to ----------------------------------------------------------------------------------


def test_the_how_to_runs_as_it_stands():
    text = (Path(__file__).parents[2] / "docs/training.md").read_text(encoding="utf-8")
    section = re.search(r"\n## A loss of one's own\n(.*?)\n## ", text, re.DOTALL)[1]
    blocks = re.findall(r"```python\n(.*?)```", section, re.DOTALL)
    assert len(blocks[0].splitlines()) <= 10
    known = {"tf": tf, "keras": keras, "tfde": tfde, "tfrs": tfrs, "model": tiny.dual_encoder()}
    for block in blocks:
        exec(block, known)
    assert set(known["history"]) >= {"loss", "top_5"}
    assert known["model"].evaluate([("a", "a b"), ("b", "b a")])
    shown = re.findall(r"`((?:task|loss|metrics)=[^`]+)`", section)
    if importlib.util.find_spec("keras_rs"):
        known["keras_rs"] = importlib.import_module("keras_rs")
    else:
        shown = [line for line in shown if "keras_rs" not in line]
    assert len(shown) >= 5
    for line in shown:
        exec(f"model.compile('adam', {line})", known)


@pytest.mark.parametrize(
    "metric", ["mse", "categorical_crossentropy", "sparse_categorical_accuracy"]
)
def test_metrics_that_count_what_is_no_candidate_are_told(metric):
    model = tiny.dual_encoder()
    with pytest.raises(ConfigError, match=r"`metrics` must be of rankings, \(B, C\)"):
        model.compile("adam", metrics=[metric])
    first = keras.metrics.Precision(top_k=5)
    model.compile("adam", metrics=["accuracy", keras.metrics.TopKCategoricalAccuracy(2), first])


@pytest.mark.parametrize(
    ("task", "name"),
    [(tfde.RetrievalTask, "RetrievalTask"), (tfrs.tasks.Retrieval, "Retrieval")],
)
def test_the_class_of_a_task_is_no_task(task, name):
    with pytest.raises(ConfigError, match=rf"not its class: write `{name}\(\.\.\.\)`"):
        tiny.dual_encoder().compile("adam", task=task)


def loss_with(temperature):
    return lambda queries, documents, batch: tf.reduce_sum(queries * documents) / temperature


class Learned(tfde.RetrievalTask):
    def __init__(self, variable):
        super().__init__()
        self.variable = variable


class LearnedLoss(keras.losses.Loss):
    def __init__(self, variable):
        super().__init__()
        self.variable = variable

    def call(self, y_true, y_pred):
        return keras.losses.categorical_crossentropy(y_true, y_pred / self.variable, True)


@pytest.mark.parametrize("kind", [loss_with, Learned, LearnedLoss])
@pytest.mark.parametrize("variable", [keras.Variable, tf.Variable])
def test_a_loss_whose_weights_nobody_would_train_is_told(kind, variable):
    rule = "`task` must be without weights of its own, which `fit` does not train: give them to a"
    for loss in (kind(variable(1.0)), [tfde.RetrievalTask(), kind(variable(1.0))]):
        with pytest.raises(ConfigError, match=rule):
            model_of(task=loss)
    model_of(task=kind(variable(1.0, trainable=False)))


def test_the_accuracy_of_a_perfect_batch_is_one():
    found = InBatchAccuracy()
    ties = np.tile(np.array([[1.0, 1.0, 0.0]], np.float32), (3, 1))
    for scores, expected in ((np.eye(3, dtype=np.float32), 1.0), (ties, 1 / 3)):
        found.reset_state()
        tf.function(found.update_state)(tf.eye(3), tf.constant(scores))
        assert float(found.result()) == pytest.approx(expected, abs=0 if expected == 1 else 1e-6)


def test_sums_of_sums_are_the_sum_of_all():
    one, other = (tfde.AnchorTask(tiny.dual_encoder(seed=seed)) for seed in (7, 8))
    retrieval = tfde.RetrievalTask(0.1)
    apart = [model_of(task=task).evaluate(PAIRS, batch_size=24) for task in (retrieval, one, other)]
    parts = sum(np.ravel(loss)[0] for loss in apart)
    nested = model_of(task=SumTask([SumTask([retrieval, one]), other]))
    assert np.ravel(nested.evaluate(PAIRS, batch_size=24))[0] == pytest.approx(parts, rel=1e-5)


@keras.saving.register_keras_serializable("tests")
class AddsOne(keras.layers.Layer):
    def call(self, x):
        self.add_loss(keras.ops.ones(()))
        return x


def own_backbone(*, regularizer=None, adds=False):
    ids, mask = (
        keras.Input((None,), dtype="int32", name=name) for name in ("token_ids", "padding_mask")
    )
    x = keras.layers.Embedding(120, 8)(ids)
    x = keras.layers.Dense(8, kernel_regularizer=regularizer)(x)
    return keras.Model([ids, mask], AddsOne()(x) if adds else x)


def trained_once(steps=1, chunk_size=None, eager=False, **options):
    """A model of one layer after steps of SGD: its loss before, after, and the layer's kernels."""
    keras.utils.set_random_seed(3)
    tokenizer = tiny.tokenizer()
    model = tfde.DualEncoder.from_backbone(own_backbone(**options), tokenizer=tokenizer, seed=1)
    model.compile(keras.optimizers.SGD(0.01), chunk_size=chunk_size, run_eagerly=eager)
    [kernel] = [
        weight for weight in model.weights if "dense" in weight.path and "kernel" in weight.path
    ]
    before = kernel.numpy()
    loss = model.evaluate(PAIRS, batch_size=8, verbose=0)[0]
    history = model.fit(PAIRS, batch_size=8, steps=steps, shuffle=False, verbose=0)
    return loss, history.history["loss"][0], before, kernel.numpy()


@pytest.mark.parametrize("eager", [False, True])
def test_regularizers_are_part_of_the_loss(eager):
    plain = trained_once()
    loss, trained, before, after = trained_once(regularizer=keras.regularizers.L2(0.5), eager=eager)
    penalty = 0.5 * np.sum(np.square(before))
    assert loss == pytest.approx(plain[0] + penalty, rel=1e-5)
    assert trained == pytest.approx(plain[1] + penalty, rel=1e-5)
    np.testing.assert_allclose(after, plain[3] - 0.01 * before, atol=1e-6)  # 2 * 0.5 * rate


def test_what_layers_add_is_part_of_the_loss():
    plain, added = trained_once(), trained_once(adds=True)
    # Once for the queries, once for the documents.
    assert added[0] == pytest.approx(plain[0] + 2, rel=1e-5)
    assert added[1] == pytest.approx(plain[1] + 2, rel=1e-5)


@pytest.mark.parametrize("option", ["regularizer", "adds"])
def test_layers_that_add_to_the_loss_are_not_cut_in_chunks(option):
    value = keras.regularizers.L1(0.1) if option == "regularizer" else True
    with pytest.raises(ConfigError, match="`chunk_size` must be None where layers add to the loss"):
        trained_once(chunk_size=4, **{option: value})
