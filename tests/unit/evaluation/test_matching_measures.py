"""Measures of labelled pairs, against what they are by definition."""

import numpy as np
import pytest

from tfde.errors import ConfigError
from tfde.evaluation.matching_measures import area_under_curve, macro_f1, matching_measures


def test_accuracy_and_macro_f1():
    logits = np.array([[2.0, 1, 0], [0, 2, 1], [0, 2, 1], [1, 0, 2]])
    labels = np.array([0, 1, 2, 2])
    measures = matching_measures("classification", logits, labels)
    assert list(measures) == ["accuracy", "macro_F1"]
    assert measures["accuracy"] == 0.75
    assert measures["macro_F1"] == pytest.approx((1 + 2 / 3 + 2 / 3) / 3)
    # A label that nobody has counts where somebody was given it.
    assert macro_f1(np.array([0, 1]), np.array([0, 0])) == pytest.approx((2 / 3 + 0) / 2)


def test_f1_is_that_of_the_second_label():
    """GLUE's measure of QQP and MRPC, as scikit-learn computes it."""
    from sklearn import metrics as sklearn

    rng = np.random.default_rng(0)
    logits, labels = rng.normal(size=(60, 2)), rng.integers(0, 2, 60)
    expected = sklearn.f1_score(labels, logits.argmax(axis=1))
    found = matching_measures("classification", logits, labels)
    assert found["F1"] == pytest.approx(expected)
    assert found["macro_F1"] == pytest.approx(
        sklearn.f1_score(labels, logits.argmax(axis=1), average="macro")
    )
    one = matching_measures("binary", logits[:, 1] - logits[:, 0], labels.astype(float))
    assert one["F1"] == pytest.approx(expected)
    never = matching_measures("classification", np.tile([1.0, 0.0], (4, 1)), np.array([0, 0, 1, 1]))
    assert never["F1"] == 0.0


def test_area_under_the_curve_counts_pairs():
    rng = np.random.default_rng(0)
    scores, labels = rng.integers(0, 6, 40).astype(float), rng.integers(0, 2, 40)
    wins = [(a > b) + 0.5 * (a == b) for a in scores[labels == 1] for b in scores[labels == 0]]
    assert area_under_curve(scores, labels) == pytest.approx(np.mean(wins))


def test_each_objective_leads_with_its_measure():
    scores, labels = np.array([0.3, -1.0, 2.0, -0.5]), np.array([1.0, 0.0, 1.0, 1.0])
    binary = matching_measures("binary", scores, labels)
    assert binary == {"AUC": 1.0, "accuracy": 0.75, "F1": pytest.approx(0.8)}
    ranked = matching_measures("ranking", scores[[0, 1, 3, 2]], np.array([1.0, 0, 1, 0]),
                               group_size=2)  # fmt: skip
    assert ranked["P@1"] == 0.5
    values = matching_measures("regression", scores, np.array([1.0, 0.5, 3.0, 0.8]))
    assert values["spearman"] == pytest.approx(1.0)
    assert 0 < values["pearson"] < 1
    two = matching_measures("classification", np.array([[1.0, 0], [0, 1.0]]), np.array([0, 1]))
    assert two["AUC"] == 1.0


def test_a_model_that_gives_all_the_same_score_is_as_good_as_chance():
    """Its measures are numbers, so that any better model counts as one."""
    labels = np.array([1.0, 0.0, 0.0, 0.0])
    same = np.zeros(4)
    assert matching_measures("regression", same, labels) == {"spearman": 0.0, "pearson": 0.0}
    assert matching_measures("ranking", same, labels, group_size=4) == {"AUC": 0.5, "P@1": 0.25}
    two = np.array([1.0, 1.0, 0.0, 0.0])  # the right one and another share the first place
    assert matching_measures("ranking", two, labels, group_size=4)["P@1"] == 0.5


def test_labels_must_differ():
    with pytest.raises(ConfigError, match=r"`labels` must differ for binary\. Received: \[1\.\]"):
        matching_measures("binary", np.zeros(3), np.ones(3))
    with pytest.raises(ConfigError, match="`labels` must differ for binary"):
        matching_measures("binary", np.zeros(2), np.array([1, 2]))
    with pytest.raises(ConfigError, match="`objective` must be one of"):
        matching_measures("guess", np.zeros(3), np.ones(3))


@pytest.mark.parametrize(
    ("objective", "shape", "rule"),
    [
        ("classification", (4, 3), r"\(3, N\), a row a label"),
        ("binary", (6,), r"\(3, N\), a row a label, with N = 1 for binary"),
        ("binary", (3, 2), r"\(3, N\), a row a label, with N = 1 for binary"),
        ("regression", (3, 1, 1), r"\(3, N\), a row a label, with N = 1 for regression"),
    ],
)
def test_logits_must_be_those_of_the_labels(objective, shape, rule):
    with pytest.raises(ConfigError, match=rf"^`logits` must be of shape {rule}\. Received: \("):
        matching_measures(objective, np.zeros(shape), np.array([0.0, 1.0, 1.0]))
