"""The frozen descriptions of a phrase encoder and of the run that trains one."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, get_args

from tfde.config.backbones import BackboneConfig, PairPooling, check_transformer
from tfde.config.model import check_length
from tfde.config.optimizer import OptimizerConfig, check_seed, check_warmup
from tfde.config.training import Precision
from tfde.errors import require

# How a passage is read: its text is the last segment, so that places in it are known.
TEXT_ALONE, WITH_TITLE = "{text}", "{title} [SEP] {text}"


@dataclass(frozen=True)
class PhraseConfig:
    """A phrase encoder without its weights.

    Args:
        backbone: Kind and sizes of its three encoders: of passages, of a query's start vector and
            of its end vector.
        pooling: What of a query becomes a vector: its `first` token or the `mean` of all.
        max_phrase_tokens: Longest phrase.
    """

    backbone: BackboneConfig
    pooling: PairPooling = "first"
    max_phrase_tokens: int = 20

    def __post_init__(self) -> None:
        check_transformer(self.backbone)
        known = get_args(PairPooling)
        require(self.pooling in known, "pooling", f"one of {', '.join(known)}", self.pooling)
        longest = self.max_phrase_tokens
        holds = isinstance(longest, int) and longest >= 1
        require(holds, "max_phrase_tokens", "at least 1", longest)


@dataclass(frozen=True)
class PhraseModelConfig:
    """What a run trains.

    Args:
        backbone: A checkpoint or a model directory; or a mapping `{kind: t5 | bert, sizes}` for
            random weights.
        tokenizer: For random weights: a SentencePiece `.model`, a `vocab.txt`, or a directory.
        num_layers: Only the first so many layers; `null` for all.
        pooling: Of queries: `first` token (Lee et al.) or `mean`.
        titles: Whether a passage's title stands before its text.
        max_phrase_tokens: Longest phrase.
        query_max_length_tokens: Longest query, special tokens included.
        passage_max_length_tokens: Longest passage, special tokens and title included.
    """

    backbone: str | dict[str, Any]
    tokenizer: str | None = None
    num_layers: int | None = None
    pooling: PairPooling = "first"
    titles: bool = True
    max_phrase_tokens: int = 20
    query_max_length_tokens: int = 32
    passage_max_length_tokens: int = 192

    def check(self, where: str) -> None:
        """Raises a `ConfigError` for an impossible value; `where` is the place in the run."""
        for name in ("query_max_length_tokens", "passage_max_length_tokens"):
            check_length(f"{where}.{name}", getattr(self, name))


@dataclass(frozen=True)
class PhraseRun:
    """Training of a phrase encoder on questions whose answers stand in their passages.

    `${NAME}` in a path stands for an environment variable.

    Args:
        model: What is trained.
        data: A dataset directory with `answers.jsonl`, as `tfde convert --format squad` writes it.
        split: Whose judged questions are trained on.
        epochs: Passes over the passages.
        batch_passages: Passages a batch.
        questions_per_passage: How many questions of each passage a batch has at most, drawn anew
            in each epoch.
        limit: A seeded sample of so many passages; `null` takes all.
        in_passage_weight: Of the softmax over the positions of the question's passage.
        in_batch_weight: Of the softmax over the positions of all passages of the batch.
        filter_weight: Of the filter's loss, whose gradient reaches the filter alone.
        warmup: Share of the steps in which the learning rate grows.
        optimizer: Optimizer and learning rate; its `warmup_steps` are left to `warmup`.
        seed: Of dropout, new weights, and the order of passages.
        precision: Keras' dtype policy; `auto` as in `tfde train`.
        log_every_steps: Steps between lines of `history.jsonl` and TensorBoard.
        checkpoint_every_steps: Steps between checkpoints from which a killed run goes on.
    """

    model: PhraseModelConfig
    data: str
    split: str = "train"
    epochs: int = 1
    batch_passages: int = 16
    questions_per_passage: int = 4
    limit: int | None = None
    in_passage_weight: float = 1.0
    in_batch_weight: float = 1.0
    filter_weight: float = 1.0
    warmup: float = 0.1
    optimizer: OptimizerConfig = field(
        default_factory=lambda: OptimizerConfig("adamw", learning_rate=5e-5)
    )
    seed: int = 0
    precision: Precision = "auto"
    log_every_steps: int = 20
    checkpoint_every_steps: int = 200

    def __post_init__(self) -> None:
        for name in (
            "epochs",
            "batch_passages",
            "questions_per_passage",
            "log_every_steps",
            "checkpoint_every_steps",
        ):
            require(getattr(self, name) >= 1, name, "at least 1", getattr(self, name))
        require(self.limit is None or self.limit >= 1, "limit", "at least 1", self.limit)
        for name in ("in_passage_weight", "in_batch_weight", "filter_weight"):
            require(getattr(self, name) >= 0, name, "at least 0", getattr(self, name))
        learns = self.in_passage_weight + self.in_batch_weight > 0
        require(learns, "in_batch_weight", "above 0, or in_passage_weight", self.in_batch_weight)
        check_warmup(self.warmup, self.optimizer)
        check_seed(self.seed)
        self.model.check("model")
