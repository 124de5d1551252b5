"""From a model's logits to how relevant a document is."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import numpy as np
from scipy.special import log_softmax

from tfde.errors import require
from tfde.types import Document


class PairModel(Protocol):
    """What scores pairs: `CrossEncoder`, `Matcher`."""

    num_labels: int

    @property
    def labels(self) -> tuple[str, ...]:
        """Names of the logits; of one logit, both that it tells apart; may be empty."""
        ...

    def score(
        self, pairs: Sequence[tuple[str, Document]], *, batch_size: int, show_progress: bool
    ) -> np.ndarray:
        """Returns (P,) or (P, N) logits."""
        ...


def relevant_label(model: PairModel, label: str | None, *, name: str = "label") -> str | None:
    """Returns the label by whose probability a model's pairs are ranked; `None`: by its score.

    Args:
        model: Its labels have names, or are known by their numbers from 0.
        label: The one asked for; `None` takes `1` where there is a label of this name.
        name: What messages call it.

    Raises:
        ConfigError: there is no such label; none was asked for where none is called `1`.
    """
    names = _label_names(model)
    if label is None and (not names or "1" in names):
        return "1" if names else None
    known = f"one of {', '.join(names)}, the one that says relevant"
    require(label in names, name, known if names else "left out: the model gives a score", label)
    return label


def _label_names(model: PairModel) -> tuple[str, ...]:
    if model.labels or model.num_labels == 1:
        return model.labels
    return tuple(map(str, range(model.num_labels)))


def relevance_of(model: PairModel, label: str | None) -> Callable[..., np.ndarray]:
    """Returns what gives a score to each of some pairs: `(pairs, batch_size, show_progress)`.

    Args:
        model: Gives one score a pair, or logits of labels.
        label: As of `relevant_label`: the score is the logarithm of its probability.

    Raises:
        ConfigError: as `relevant_label`.
    """
    label = relevant_label(model, label)
    place = -1 if label is None else _label_names(model).index(label)

    def score(pairs: Any, batch_size: int, show_progress: bool = False) -> np.ndarray:
        logits = model.score(pairs, batch_size=batch_size, show_progress=show_progress)
        if model.num_labels == 1:
            return -logits if place == 0 else logits
        return log_softmax(logits.astype(np.float64), axis=1)[:, place]

    return score
