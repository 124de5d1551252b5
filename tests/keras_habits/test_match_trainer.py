"""A student with teachers takes pairs, epochs and validation as any Keras model does."""

import numpy as np
import pytest
import tensorflow as tf
import tiny

import tfde
from tfde.errors import ConfigError

FIRST = [" ".join(words) for words in zip(tiny.WORDS[:12], tiny.WORDS[1:13], strict=True)]
SECOND = FIRST[3:] + FIRST[:3]
LABELS = [number % 2 for number in range(12)]
ROWS = [(a, b, ("no", "yes")[label]) for a, b, label in zip(FIRST, SECOND, LABELS, strict=True)]


def build(**options):
    shared = {"tokenizer": tiny.tokenizer(), "num_labels": 2, "labels": ("no", "yes")}
    teacher = tfde.CrossEncoder.from_backbone(tiny.BERT, seed=2, **shared)
    student = tfde.Matcher.from_backbone(
        tiny.BERT, kind="virt_encoder", seed=1, dropout=0.0, **shared
    )
    trainer = tfde.MatchTrainer(student, teaching=tfde.Teaching(teacher, virt_weight=1.0))
    trainer.compile("adam", **options)
    return trainer


def strings():
    return tf.data.Dataset.from_tensor_slices(((FIRST, SECOND), LABELS))


@pytest.mark.parametrize("form", ["rows", "columns", "dataset", "batches"])
def test_the_same_pairs_in_any_form_are_the_same_training(form):
    given = {
        "rows": ((ROWS,), {"batch_size": 5, "shuffle": False}),
        "columns": (((FIRST, SECOND), LABELS), {"batch_size": 5, "shuffle": False}),
        "dataset": ((strings(),), {"batch_size": 5}),
        "batches": ((strings().batch(5),), {}),
    }
    expected = build().fit(ROWS, batch_size=5, shuffle=False, epochs=2, verbose=0).history["loss"]
    args, options = given[form]
    history = build().fit(*args, epochs=2, verbose=0, **options).history
    assert history["loss"] == pytest.approx(expected, rel=1e-3)
    assert len(history["virt_loss"]) == 2


def test_metrics_are_of_labels_and_logits():
    trainer = build(metrics=["accuracy"])
    history = trainer.fit(ROWS, epochs=2, validation_data=ROWS[:7], verbose=0).history
    logits = trainer.student.score([(a, b) for a, b, _ in ROWS])
    right = logits.argmax(1) == LABELS
    assert history["val_accuracy"][-1] == pytest.approx(right[:7].mean())
    assert trainer.evaluate(ROWS, return_dict=True)["accuracy"] == pytest.approx(right.mean())
    assert {"loss", "label_loss", "virt_loss", "accuracy"} <= set(history)


def test_accuracy_of_groups_is_how_often_the_right_one_is_best():
    student = tfde.Matcher.from_backbone(
        tiny.BERT, kind="siamese", seed=1, tokenizer=tiny.tokenizer(), num_labels=1
    )
    trainer = tfde.MatchTrainer(student, objective="ranking", group_size=3)
    trainer.compile("adam", metrics=["accuracy"])
    groups = [(FIRST[i], *(SECOND[(i + j) % 12] for j in range(3))) for i in range(12)]
    scores = np.stack([student.score([(q, text) for text in texts]) for q, *texts in groups])
    found = trainer.evaluate(groups, batch_size=6, return_dict=True)
    assert found["accuracy"] == pytest.approx((scores.argmax(1) == 0).mean())
    assert 0 < found["accuracy"] < 1


def test_numbers_have_no_accuracy():
    student = tfde.Matcher.from_backbone(
        tiny.BERT, kind="siamese", seed=1, tokenizer=tiny.tokenizer(), num_labels=1
    )
    trainer = tfde.MatchTrainer(student, objective="regression")
    with pytest.raises(ConfigError, match="`metrics` must be of numbers with regression"):
        trainer.compile("adam", metrics=["accuracy"])
    trainer.compile("adam", metrics=["mae"])
    rows = list(zip(FIRST, SECOND, map(float, LABELS), strict=True))
    errors = np.abs(student.score([(a, b) for a, b, _ in rows]) - LABELS)
    measured = trainer.evaluate(rows, return_dict=True)
    assert min(abs(measured[k] - errors.mean()) for k in measured if k != "loss") < 1e-4


def test_validation_evaluate_and_single_batches():
    trainer = build()
    history = trainer.fit(ROWS, epochs=2, validation_data=ROWS[:7], verbose=0).history
    assert {"val_loss", "val_virt_loss", "val_label_loss"} <= set(history)
    measured = trainer.evaluate(ROWS[:7], batch_size=3, return_dict=True)
    assert measured["loss"] == pytest.approx(history["val_loss"][-1], rel=1e-5)
    parts = measured["label_loss"] + measured["virt_loss"]
    assert measured["loss"] == pytest.approx(parts, rel=1e-5)
    assert trainer.test_on_batch(ROWS[:7]) == pytest.approx(
        [measured[name] for name in measured], rel=1e-5
    )
    before = [weight.numpy() for weight in trainer.student.trainable_weights]
    trainer.train_on_batch(ROWS)
    after = [weight.numpy() for weight in trainer.student.trainable_weights]
    assert any(not np.array_equal(a, b) for a, b in zip(before, after, strict=True))


def test_groups_of_which_one_is_right():
    student = tfde.Matcher.from_backbone(
        tiny.BERT, kind="virt_encoder", tokenizer=tiny.tokenizer(), num_labels=1, seed=1
    )
    trainer = tfde.MatchTrainer(student, objective="ranking", group_size=3)
    trainer.compile("adam")
    rows = [(a, b, "red blue", "one") for a, b in zip(FIRST, SECOND, strict=True)]
    history = trainer.fit(rows, epochs=2, validation_data=rows[:5], verbose=0).history
    assert len(history["val_loss"]) == 2
    scores = student.score([(a, text) for a, *texts in rows[:5] for text in texts])
    logits = np.reshape(scores, (5, 3)).astype(np.float64)
    expected = np.mean(np.log(np.exp(logits).sum(axis=1)) - logits[:, 0])
    assert trainer.evaluate(rows[:5], batch_size=6) == pytest.approx(expected, rel=1e-4)
    assert history["val_loss"][-1] == pytest.approx(expected, rel=1e-4)
    rule = "`batch_size` must be a multiple of 3 pairs of a group. Received: 8"
    with pytest.raises(ConfigError, match=rule):
        trainer.fit(rows, batch_size=8)
    with pytest.raises(ConfigError, match="`negatives` must be at most what a pair has, 1"):
        trainer.fit([row[:3] for row in rows])
    with pytest.raises(ConfigError, match="`x` must be rows in memory, for groups of pairs"):
        trainer.fit(strings())
    with pytest.raises(ConfigError, match="`y` must be None with ranking"):
        trainer.fit(rows, LABELS)


def test_another_answer_of_a_question_is_no_wrong_one():
    student = tfde.Matcher.from_backbone(
        tiny.BERT, kind="siamese", tokenizer=tiny.tokenizer(), num_labels=1, seed=1
    )
    trainer = tfde.MatchTrainer(student, objective="ranking", group_size=2)
    a, b, c, d, e = FIRST[:5]
    pairs = trainer.pairs_of([(a, b, c, d), (a, c, b, e)], None)
    assert list(pairs.texts) == [b, d, c, e]


def test_what_cannot_be_is_told():
    trainer = build()
    with pytest.raises(ConfigError, match="MatchTrainer has no `predict`"):
        trainer.predict(ROWS)
    with pytest.raises(ConfigError, match="`epochs` must be an integer"):
        trainer.fit(ROWS, epochs=1.5)
    fresh = tfde.MatchTrainer(trainer.student)
    with pytest.raises(ConfigError, match="the trainer has no optimizer: call `compile`"):
        fresh.fit(ROWS)
