"""What a recipe may add to the loss of a stage (stdlib only)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from tfde.errors import ConfigError, naming, require


@dataclass(frozen=True)
class GuideConfig:
    """Candidates that another model takes for answers are left out (`tfde.GuidedTask`).

    Args:
        model: A model directory or a checkpoint; `null` takes the one that the run starts from.
        score_margin: How much less than the positive a candidate must score, by its cosine.
        relative_margin: The same as a share of the positive's score.
    """

    model: str | None = None
    score_margin: float = 0.0
    relative_margin: float = 0.0

    def check(self, where: str) -> None:
        """Raises a `ConfigError` for an impossible value; `where` is the place in the run."""
        margin, share = self.score_margin, self.relative_margin
        finite = 0 <= margin < math.inf
        require(finite, f"{where}.score_margin", "a number from 0", margin)
        require(0 <= share < 1, f"{where}.relative_margin", "in [0, 1)", share)


@dataclass(frozen=True)
class AnchorConfig:
    """Embeddings and scores stay near those of another model (`tfde.AnchorTask`).

    Args:
        model: A model directory or a checkpoint; `null` takes the one that the run starts from, as
            it comes: whole, whatever `num_layers`, `pooling` and `text` make of it here.
        embedding_weight: Of the distance between embeddings, beside the loss of the pairs.
        score_weight: Of the divergence between scores, beside the loss of the pairs.
        temperature: Divides the scores.
    """

    model: str | None = None
    embedding_weight: float = 1.0
    score_weight: float = 0.0
    temperature: float = 0.05

    def check(self, where: str) -> None:
        """Raises a `ConfigError` for an impossible value; `where` is the place in the run."""
        with naming(where):
            check_anchor_weights(self.embedding_weight, self.score_weight, self.temperature)


def check_anchor_weights(embedding_weight: float, score_weight: float, temperature: float) -> None:
    """Refuses numbers of an anchor that make no loss.

    Raises:
        ConfigError: a weight below 0, both 0, or a temperature that is not above 0.
    """
    for name, weight in (("embedding_weight", embedding_weight), ("score_weight", score_weight)):
        require(0 <= weight < math.inf, name, "a number from 0", weight)
    above = embedding_weight + score_weight > 0
    require(above, "embedding_weight", "above 0, or score_weight is", embedding_weight)
    require(0 < temperature < math.inf, "temperature", "above 0", temperature)


@dataclass(frozen=True)
class MarginsConfig:
    """Scores as far apart as teachers have them, in place of a softmax (`tfde.MarginTask`).

    Args:
        model: The teacher, a matcher's directory (`late_interaction`, `multi_vector`) that scores
            each batch; `null`: given negatives alone count.
        pair_weight: Of the margins of given negatives, by the pair file's `cross_scores`.
        batch_weight: Of the margins of the batch, by `model`.
        bins: A pair's negatives are drawn evenly from so many parts of their margins' range;
            0 draws any.
    """

    model: str | None = None
    pair_weight: float = 1.0
    batch_weight: float = 0.75
    bins: int = 10

    def check(self, where: str) -> None:
        """Raises a `ConfigError` for an impossible value; `where` is the place in the run."""
        for name in ("pair_weight", "batch_weight", "bins"):
            value = getattr(self, name)
            require(value >= 0, f"{where}.{name}", "at least 0", value)
        taught = self.model is not None or self.pair_weight > 0
        require(taught, f"{where}.pair_weight", "above 0 without a `model`", self.pair_weight)


@dataclass(frozen=True)
class MatryoshkaConfig:
    """The first numbers of embeddings learn to serve alone (`tfde.MatryoshkaTask`).

    Args:
        dims: How many first numbers, ascending; the last is the length of the embedding.
        weights: Of the loss of each; `null`: 1 each.
    """

    dims: tuple[int, ...]
    weights: tuple[float, ...] | None = None

    def check(self, where: str) -> None:
        """Raises a `ConfigError` for an impossible value; `where` is the place in the run."""
        with naming(where):
            check_dims(self.dims, self.weights)


def check_dims(dims: Sequence[int], weights: Sequence[float] | None) -> None:
    """Refuses dims and weights that make no sum of losses.

    Raises:
        ConfigError: no dims, or not ascending ones from 1; weights that do not go with them.
    """
    ascend = len(dims) > 0 and all(a < b for a, b in zip((0, *dims), dims, strict=False))
    require(ascend, "dims", "ascending numbers from 1", dims)
    if weights is None:
        return
    sound = all(0 <= weight < math.inf for weight in weights) and sum(weights) > 0
    if len(weights) != len(dims) or not sound:
        raise ConfigError(
            f"`weights` must be {len(dims)} numbers from 0, one for each of `dims`, and not all 0."
            f" Received: {weights}"
        )
