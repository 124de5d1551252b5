"""Given negatives, in whatever form a Keras user has them, and frames of every library."""

import keras
import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
import tensorflow as tf
import tiny

import tfde
from tfde.errors import ConfigError

WORDS = tiny.VOCABULARY[-12:]
DOCUMENTS = [f"{word} {word}" for word in WORDS]
FIRST = [f"{word} {WORDS[0]}" for word in WORDS]
SECOND = [f"{WORDS[1]} {word}" if place % 2 else "" for place, word in enumerate(WORDS)]
ROWS = [tuple(filter(None, row)) for row in zip(WORDS, DOCUMENTS, FIRST, SECOND, strict=True)]
BOTH = [list(pair) for pair in zip(FIRST, SECOND, strict=True)]
COLUMNS = {"query": WORDS, "document": DOCUMENTS, "negative_1": FIRST, "negative_2": SECOND}
STRINGS = {name: tf.constant(column) for name, column in COLUMNS.items()}
DATASET = tf.data.Dataset.from_tensor_slices(STRINGS)


@pytest.fixture(scope="module")
def model():
    keras.utils.set_random_seed(1)
    model = tiny.dual_encoder()
    model.compile(keras.optimizers.Adam(0.01))
    return model


@pytest.fixture(scope="module")
def whole(model):
    """Loss and accuracy of all rows as one batch; of the pairs alone the loss is another."""
    found = model.evaluate(ROWS, batch_size=12)
    assert found[0] > 1.1 * model.evaluate([row[:2] for row in ROWS], batch_size=12)[0]
    return found


def of_anchor(row):
    names = {"query": "anchor", "document": "Positive", "negative_1": "negative"}
    return {names.get(name, name): text for name, text in row.items()}


def ragged(row):
    filled = tf.strings.length(STRINGS["negative_2"]) > 0
    negatives = tf.ragged.boolean_mask(tf.constant(BOTH), tf.stack([filled | True, filled], 1))
    return {"query": row["query"], "document": row["document"], "negatives": negatives}


def of_any_number():
    for query, document, *negatives in ROWS:
        yield {"query": query, "document": document, "negatives": negatives}


SPEC = {
    "query": tf.TensorSpec([], tf.string),
    "document": tf.TensorSpec([], tf.string),
    "negatives": tf.TensorSpec([None], tf.string),
}
FORMS = {
    "rows of a dataset": lambda: DATASET.map(lambda row: tuple(row[name] for name in COLUMNS)),
    "batches of a dataset": lambda: DATASET.batch(12).map(lambda row: tuple(row.values())),
    "dicts of a dataset": lambda: DATASET,
    "sentence-transformers' names": lambda: DATASET.map(of_anchor).batch(12),
    "a column of negatives": lambda: tf.data.Dataset.from_tensors(
        {"query": WORDS, "document": DOCUMENTS, "negatives": BOTH}
    ),
    "negatives first": lambda: tf.data.Dataset.from_tensor_slices(
        {"negatives": BOTH, "question": WORDS, "answer": DOCUMENTS}
    ),
    "ragged": lambda: DATASET.batch(12).map(ragged),
    "of any number": lambda: tf.data.Dataset.from_generator(of_any_number, output_signature=SPEC),
    "batches of a generator": lambda: iter([(WORDS, DOCUMENTS, FIRST, SECOND)]),
    "dicts of a generator": lambda: iter(
        [{"anchor": WORDS, "positive": np.array(DOCUMENTS), "negatives": np.array(BOTH)}]
    ),
    "columns": lambda: (WORDS, DOCUMENTS, FIRST, SECOND),
    "named columns": lambda: {"anchor": WORDS, "positive": DOCUMENTS, "negatives": BOTH},
    "pandas": lambda: pd.DataFrame(COLUMNS),
    "pyarrow": lambda: pa.table(COLUMNS),
}


@pytest.mark.parametrize("form", FORMS)
def test_given_negatives_count_in_every_form(model, whole, form):
    single = (
        "rows of a",
        "negatives first",
        "dicts of a dataset",
        "of any",
        "columns",
        "named",
        "pandas",
        "pyarrow",
    )
    size = 12 if form.startswith(single) else None
    assert model.evaluate(FORMS[form](), batch_size=size) == pytest.approx(whole, rel=1e-5)


def test_fit_on_a_dataset_with_negatives(model):
    keras.utils.set_random_seed(1)
    other = tiny.dual_encoder()
    other.compile(keras.optimizers.Adam(0.01))
    found = other.fit(DATASET, batch_size=6, epochs=2, verbose=0).history["loss"]
    keras.utils.set_random_seed(1)
    same = tiny.dual_encoder()
    same.compile(keras.optimizers.Adam(0.01))
    expected = same.fit(ROWS, batch_size=6, epochs=2, shuffle=False, verbose=0).history["loss"]
    # A table knows answers of other batches too, of which there are none here.
    assert found == pytest.approx(expected, rel=1e-4)


def test_margins_that_nobody_gave_are_not_learned(model):
    keras.utils.set_random_seed(1)
    learner = tiny.dual_encoder()
    learner.compile(keras.optimizers.SGD(1.0), task=tfde.MarginTask())
    before = [weight.numpy() for weight in learner.weights]
    for x in (ROWS, DATASET.batch(12), (WORDS, DOCUMENTS, FIRST, SECOND)):
        assert learner.fit(x, verbose=0).history["loss"] == [0.0]
    for weight, old in zip(learner.weights, before, strict=True):
        np.testing.assert_array_equal(weight.numpy(), old)


def test_counts_that_nobody_knows_correct_nothing(model):
    learner = tiny.dual_encoder()
    learner.compile(keras.optimizers.SGD(0.0), task=tfde.RetrievalTask(sampling_correction=True))
    assert np.isfinite(learner.evaluate(ROWS, batch_size=12)[0])
    for x in (DATASET.batch(12), iter([(WORDS, DOCUMENTS)])):
        with pytest.raises(ConfigError, match="how often each document stands in the pairs: give"):
            learner.fit(x, verbose=0)


def test_columns_of_tfde_pairs():
    columns = list(zip(*zip(WORDS, DOCUMENTS, FIRST, strict=True), strict=True))
    expected = [*zip(WORDS[:2], DOCUMENTS[:2], FIRST[:2], strict=True)]
    forms = (tuple(map(list, columns)), tuple(map(np.array, columns)), np.array(columns).T)
    for form in forms:
        batch = tfde.pairs(form, batch_size=2, negatives_per_query=1, shuffle=False).batch(0)
        texts = batch["query"], batch["document_text"], batch["negative_text"][:, 0]
        assert [*zip(*(map(bytes.decode, part) for part in texts), strict=True)] == expected


def test_ragged_columns(model, whole):
    rows = tf.ragged.constant([[text for text in row if text] for row in BOTH])
    for x in ((WORDS, DOCUMENTS, rows), {"query": WORDS, "document": DOCUMENTS, "negatives": rows}):
        assert model.evaluate(x, batch_size=12) == pytest.approx(whole, rel=1e-5)
    blank = [(*row[:3], "  ") for row in zip(WORDS, DOCUMENTS, FIRST, strict=True)]
    named = [dict(zip(COLUMNS, row, strict=True)) for row in blank]
    first = model.evaluate([row[:3] for row in blank], batch_size=12)
    assert model.evaluate(named, batch_size=12) == pytest.approx(first, rel=1e-5)


@pytest.mark.parametrize(
    "frame",
    [
        pd.DataFrame([["a", "b", "c"]], columns=["query", "document", "query"]),
        pa.Table.from_arrays([pa.array(["a"])] * 3, names=["query", "document", "document"]),
    ],
)
def test_a_frame_s_columns_have_names_of_their_own(frame):
    with pytest.raises(ConfigError, match="`columns` must be of different names"):
        tfde.pairs(frame, batch_size=1)


@pytest.mark.parametrize(
    ("x", "rule"),
    [
        (DATASET.map(lambda row: {**row, "label": row["query"]}), "no other columns. .*'label'"),
        (DATASET.map(lambda row: {**row, "positive": row["document"]}), "`x` must be of strings"),
        (DATASET.map(lambda row: {**row, "context": row["query"]}), "without `context` where neg"),
        (DATASET.map(lambda row: (row["query"], row["document"], 1.0)), "dataset of .* strings"),
        (DATASET.map(lambda row: {"query": row["query"]}), "`x` must be of strings"),
        (iter([{"query": WORDS, "label": WORDS}]), "`x` must be of strings"),
    ],
)
def test_columns_that_are_nothing_known_are_told(model, x, rule):
    with pytest.raises(ConfigError, match=rule):
        model.fit(x, verbose=0)


def frames():
    yield pd.DataFrame, pd.Series
    yield pa.table, pa.array


def agree(model, whole, frame, series):
    """Texts, documents and pairs in a library's frames are those of lists."""
    documents = {"title": ["", "b"], "text": ["a", "c"]}
    rows = [{"title": "", "text": "a"}, {"title": "b", "text": "c"}]
    expected = model.encode_documents(rows)
    np.testing.assert_array_equal(model.encode_documents(frame(documents)), expected)
    np.testing.assert_array_equal(model.encode_queries(series(WORDS)), model.encode_queries(WORDS))
    null = [text or None for text in SECOND]
    table = frame({**COLUMNS, "negative_2": null, "negative_3": [None] * 12})
    assert model.evaluate(table, batch_size=12) == pytest.approx(whole, rel=1e-5)


@pytest.mark.parametrize(("frame", "series"), frames())
def test_frames_of_every_library(model, whole, frame, series):
    agree(model, whole, frame, series)


@pytest.mark.peers
def test_frames_of_polars(model, whole):
    import polars

    agree(model, whole, polars.DataFrame, polars.Series)


@pytest.mark.peers
def test_columns_of_hugging_face_s_datasets(model, whole):
    import datasets

    table = datasets.Dataset.from_dict(COLUMNS)
    columns = [table[name] for name in COLUMNS]
    for x in (table, table[:], tuple(columns), dict(zip(COLUMNS, columns, strict=True))):
        assert model.evaluate(x, batch_size=12) == pytest.approx(whole, rel=1e-5)
    pairs = model.evaluate(columns[0], columns[1], batch_size=12)
    assert pairs == pytest.approx(model.evaluate(WORDS, DOCUMENTS, batch_size=12), rel=1e-5)
    np.testing.assert_array_equal(model.encode_queries(columns[0]), model.encode_queries(WORDS))
