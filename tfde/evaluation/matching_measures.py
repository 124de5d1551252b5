"""Measures of pairs with labels: accuracy, macro F1, AUC, correlations."""

from __future__ import annotations

from typing import get_args

import numpy as np
from scipy import stats

from tfde.config.matching import Objective
from tfde.errors import ConfigError, require

# The first one decides which model is the best.
MEASURES: dict[str, tuple[str, ...]] = {
    "classification": ("accuracy", "macro_F1"),
    "binary": ("AUC", "accuracy"),
    "regression": ("spearman", "pearson"),
    "ranking": ("AUC", "P@1"),
}


def matching_measures(
    objective: Objective, logits: np.ndarray, labels: np.ndarray, *, group_size: int = 1
) -> dict[str, float]:
    """Returns the measures of an objective, the leading one first.

    Args:
        objective: `classification`: accuracy and macro F1, for two labels also F1 of the second
            (GLUE's measure of QQP and MRPC) and AUC; `binary`: AUC, and accuracy and F1 at
            probability 0.5; `regression`: Spearman's and Pearson's correlation;
            `ranking`: AUC over all pairs, and the share of groups whose right one scores highest;
            where several do, it counts as one of them drawn by chance. Scores that are all equal
            correlate with nothing: 0.
        logits: (P, N), or (P,) for one logit, finite.
        labels: (P,) the number of each pair's label, or its value.
        group_size: Pairs of a group, of which the first one is right.

    Raises:
        ConfigError: an unknown objective; not as many labels as logits, or logits that are not
            finite; labels are all equal, where a measure needs different ones.
    """
    known = get_args(Objective)
    require(objective in known, "objective", f"one of {', '.join(known)}", objective)
    logits, labels = np.asarray(logits, np.float64), np.asarray(labels)
    if logits.ndim == 1:
        logits = logits[:, np.newaxis]
    rule = f"({len(labels)}, N), a row a label" + (
        "" if objective == "classification" else f", with N = 1 for {objective}"
    )
    fits = logits.ndim == 2 and len(logits) == len(labels)
    fits = fits and (objective == "classification" or logits.shape[1] == 1)
    require(fits, "logits", f"of shape {rule}", logits.shape)
    finite = np.isfinite(logits).all(axis=1)
    require(bool(finite.all()), "logits", "finite", logits[~finite][:1])
    kinds = labels if objective == "regression" else labels > 0
    if objective != "classification" and len(set(kinds.tolist())) < 2:
        raise ConfigError(f"`labels` must differ for {objective}. Received: {labels[:1]} alone")
    if objective == "classification":
        found = logits.argmax(axis=1)
        measures = {
            "accuracy": float((found == labels).mean()),
            "macro_F1": macro_f1(found, labels),
        }
        if logits.shape[1] == 2:
            measures["F1"] = f1(found, labels)
        if logits.shape[1] == 2 and len(set(labels.tolist())) == 2:
            measures["AUC"] = area_under_curve(logits[:, 1] - logits[:, 0], labels)
        return measures
    scores = logits[:, 0]
    if objective == "regression":
        if np.ptp(scores) == 0:  # scipy says NaN, which no later model would be better than
            return {"spearman": 0.0, "pearson": 0.0}
        return {
            "spearman": float(stats.spearmanr(scores, labels).statistic),
            "pearson": float(stats.pearsonr(scores, labels).statistic),
        }
    area = area_under_curve(scores, labels)
    if objective == "binary":
        found, right = scores > 0, labels > 0
        return {"AUC": area, "accuracy": float((found == right).mean()), "F1": f1(found, right)}
    groups = scores.reshape(-1, group_size)
    highest = groups == groups.max(axis=1, keepdims=True)
    return {"AUC": area, "P@1": float((highest[:, 0] / highest.sum(axis=1)).mean())}


def macro_f1(found: np.ndarray, labels: np.ndarray) -> float:
    """Returns the mean of the labels' F1; a label that nobody has and nobody is given has none.

    Args:
        found: (P,) numbers of labels.
        labels: (P,) the right ones.
    """
    known = sorted({*found.tolist(), *labels.tolist()})
    return float(np.mean([f1(found == label, labels == label) for label in known]))


def f1(found: np.ndarray, labels: np.ndarray) -> float:
    """Returns F1 of what is 1, or true; 0 where nothing is.

    Args:
        found: (P,) 0 or 1.
        labels: (P,) the right ones.
    """
    found, labels = np.asarray(found, bool), np.asarray(labels, bool)
    total = int(found.sum() + labels.sum())
    return 2.0 * int((found & labels).sum()) / total if total else 0.0


def area_under_curve(scores: np.ndarray, labels: np.ndarray) -> float:
    """Returns the share of (1, 0) pairs of labels in which 1 scores higher; a tie counts half.

    Args:
        scores: (P,).
        labels: (P,) 0 or 1, both of them.

    Source: Mann and Whitney 1947.
    """
    positive = np.asarray(labels) > 0
    ranks = stats.rankdata(scores)
    count, others = int(positive.sum()), int((~positive).sum())
    return float((ranks[positive].sum() - count * (count + 1) / 2) / (count * others))
