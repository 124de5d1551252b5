"""Which candidates of a query may stand as its negatives, and which of these are taken."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from typing import Literal, get_args

from tfde.errors import ConfigError, naming, require

NegativeChoice = Literal["top", "random", "sampled"]

# From this resemblance on (tfde/data/near_duplicates.py), texts are near duplicates.
NEARLY_EQUAL = 0.7


@dataclass(frozen=True)
class NegativeRules:
    """What decides over negatives wherever they are mined, a pure description.

    Args:
        count: Negatives of each pair.
        min_rank: Candidates ranked better are left out; ranks count from 1, positives included.
        max_rank: How many candidates are asked for.
        nearly_equal: Candidates that resemble a positive so much are left out; 1 leaves out equal
            sets of words.
        ignore_identical_ids: Whether a candidate whose id is the query's is left out. One whose
            text is the query's always is.
        score_margin: A candidate must score so much less than the pair's positive; `None` asks
            for no margin.
        relative_margin: The same as a share of the positive's score: 0.05 keeps what scores at
            most 95 % of it.
        choice: `top` takes the best ranked that are left, `random` any, `sampled` draws by the
            softmax of the scores, without replacement.
        temperature: Divides the scores for `sampled`.

    Source:
        Rank window: Xiong et al. 2021 (ANCE); relative margin: Moreira et al. 2024 (NV-Retriever).
    """

    count: int = 4
    min_rank: int = 1
    max_rank: int = 100
    nearly_equal: float = NEARLY_EQUAL
    ignore_identical_ids: bool = False
    score_margin: float | None = None
    relative_margin: float | None = None
    choice: NegativeChoice = "top"
    temperature: float = 1.0

    def check_rules(self) -> None:
        """Raises a `ConfigError` for an impossible value."""
        for name in ("count", "min_rank"):
            require(getattr(self, name) >= 1, name, "at least 1", getattr(self, name))
        require(
            self.max_rank >= self.min_rank,
            "max_rank",
            f"at least `min_rank`, {self.min_rank}",
            self.max_rank,
        )
        require(0 < self.nearly_equal <= 1, "nearly_equal", "in (0, 1]", self.nearly_equal)
        margin, share = self.score_margin, self.relative_margin
        require(margin is None or margin >= 0, "score_margin", "at least 0", margin)
        require(share is None or 0 <= share < 1, "relative_margin", "in [0, 1)", share)
        kinds = get_args(NegativeChoice)
        require(self.choice in kinds, "choice", f"one of {', '.join(kinds)}", self.choice)
        require(0 < self.temperature < math.inf, "temperature", "above 0", self.temperature)


@dataclass(frozen=True, kw_only=True)
class RefreshConfig(NegativeRules):
    """Hard negatives mined anew from the model in training (ANCE).

    A batch draws `negatives_per_query` of the `count` that each pair has.

    Args:
        every_steps: Steps between refreshes; the pairs of the steps after one have its negatives.
        at_start: Whether the model with which the stage begins mines too. Otherwise the stage's
            own negatives serve until the first refresh, or the batch alone where it has none.
        batch_size: Texts that are encoded at once.
    """

    every_steps: int
    at_start: bool = False
    batch_size: int = 64

    def check(self, where: str) -> None:
        """Raises a `ConfigError` for an impossible value; `where` is the place in the run."""
        with naming(where):
            self.check_rules()
        for name in ("every_steps", "batch_size"):
            value = getattr(self, name)
            require(value >= 1, f"{where}.{name}", "at least 1", value)

    def rules(self, *, seed: int) -> MiningRules:
        """Returns the rules of one refresh."""
        shared = {each.name: getattr(self, each.name) for each in fields(NegativeRules)}
        return MiningRules(**shared, seed=seed)


@dataclass(frozen=True)
class MiningRules(NegativeRules):
    """The rules of mining, a pure description.

    Args:
        max_cross_score: A candidate to which the cross-encoder gives more is left out.
        cross_margin: A candidate must score so much less than the pair's positive by the
            cross-encoder.
        pseudo_positives: How many of a query's best ranked candidates become positives at most,
            each in a pair of its own, because the cross-encoder takes them for relevant.
        min_pseudo_score: The lowest score of the cross-encoder for that; a candidate that reaches
            it is no negative either.
        cross_label: For a cross-encoder with labels the one that says "relevant": its score is the
            logarithm of this label's probability, or of one logit the side of this label. `null`
            takes `1`, if there is one.
        seed: Of the choice; each pair has a generator of its own.

    Raises:
        ConfigError: an impossible value.

    Source: cross-encoder, for negatives and for pseudo-positives: Qu et al. 2021 (RocketQA).
    """

    max_cross_score: float | None = None
    cross_margin: float | None = None
    pseudo_positives: int = 0
    min_pseudo_score: float | None = None
    cross_label: str | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        self.check_rules()
        margin, lowest, highest = self.cross_margin, self.min_pseudo_score, self.max_cross_score
        require(margin is None or margin >= 0, "cross_margin", "at least 0", margin)
        require(self.pseudo_positives >= 0, "pseudo_positives", "at least 0", self.pseudo_positives)
        if (self.pseudo_positives > 0) != (lowest is not None):
            raise ConfigError(
                "`pseudo_positives` goes with `min_pseudo_score`; give both or neither."
                f" Received: {self.pseudo_positives} and {lowest}"
            )
        if lowest is not None and highest is not None:
            rule = f"above `max_cross_score`, {highest}"
            require(lowest > highest, "min_pseudo_score", rule, lowest)
        labelled = self.cross_label is None or self.needs_cross_encoder
        require(
            labelled, "cross_label", "null without a rule of the cross-encoder", self.cross_label
        )
        require(self.seed >= 0, "seed", "at least 0", self.seed)

    @property
    def needs_scores(self) -> bool:
        """Whether the candidates' scores decide about anything."""
        margins = (self.score_margin, self.relative_margin)
        return any(margin is not None for margin in margins) or self.choice == "sampled"

    @property
    def needs_cross_encoder(self) -> bool:
        """Whether a rule asks a cross-encoder."""
        limits = (self.max_cross_score, self.cross_margin, self.min_pseudo_score)
        return any(limit is not None for limit in limits)

    def highest_score(self, positive: float | None) -> float:
        """Returns the highest score that a negative may have beside its positive.

        Args:
            positive: The positive's score; `None` if the ranking does not hold it, so that no
                candidate is known to score less.
        """
        limits = [float("inf")]
        if self.score_margin is not None:
            limits.append(_UNKNOWN if positive is None else positive - self.score_margin)
        if self.relative_margin is not None:
            limits.append(
                _UNKNOWN if positive is None else positive - self.relative_margin * abs(positive)
            )
        return min(limits)

    def may_be_negative(self, cross_score: float, positive: float) -> bool:
        """Returns whether the cross-encoder lets a candidate be a negative beside a positive.

        Args:
            cross_score: What it gives the candidate.
            positive: What it gives the positive.
        """
        return not (
            (self.max_cross_score is not None and cross_score > self.max_cross_score)
            or (self.cross_margin is not None and cross_score > positive - self.cross_margin)
            or self.is_pseudo_positive(cross_score)
        )

    def is_pseudo_positive(self, cross_score: float) -> bool:
        """Returns whether the cross-encoder takes a candidate for relevant."""
        return self.min_pseudo_score is not None and cross_score >= self.min_pseudo_score


_UNKNOWN = float("-inf")


@dataclass(frozen=True)
class GenerationRules:
    """The rules of query generation, a pure description.

    A SavedModel cuts and draws in its own way; for it only `queries_per_document`,
    `document_prompt` and `seed` count.

    Args:
        queries_per_document: Queries of each document.
        query_max_length_tokens: Longest query, special tokens included.
        document_max_length_tokens: What is read of a document, special tokens included.
        document_prompt: Put before every document, for a model of several tasks.
        top_k: Each token is drawn from the so many most probable; 1 takes the most probable.
        temperature: Divides the logits before the softmax.
        seed: Of the draws; each document has a generator of its own.

    Raises:
        ConfigError: an impossible value.

    Source: top-k sampling with k = 10: Nogueira and Lin 2019 (docT5query).
    """

    queries_per_document: int = 5
    query_max_length_tokens: int = 32
    document_max_length_tokens: int = 256
    document_prompt: str = ""
    top_k: int = 10
    temperature: float = 1.0
    seed: int = 0

    def __post_init__(self) -> None:
        for name, smallest in (
            ("queries_per_document", 1),
            ("query_max_length_tokens", 3),
            ("document_max_length_tokens", 3),
            ("top_k", 1),
            ("seed", 0),
        ):
            value = getattr(self, name)
            require(value >= smallest, name, f"at least {smallest}", value)
        require(0 < self.temperature < math.inf, "temperature", "above 0", self.temperature)
