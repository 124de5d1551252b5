"""The frozen description of a run that trains on pairs with labels (stdlib only)."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

from tfde.errors import ConfigError, require
from tfde.recipe import OptimizerConfig, Precision

Kind = Literal[
    "cross_encoder",
    "siamese",
    "deformer",
    "dipair",
    "poly_encoder",
    "virt_encoder",
    "late_interaction",
    "multi_vector",
    "dual_encoder",
]


@dataclass(frozen=True)
class MatchModelConfig:
    """What is trained.

    Args:
        kind: `cross_encoder`, or where a matcher's two texts meet: `siamese`, `deformer`,
            `dipair`, `poly_encoder`, `virt_encoder`, `late_interaction`, `multi_vector`; or
            `dual_encoder`, for retrieval.
        backbone: A checkpoint, or a mapping `{kind: t5 | bert, sizes}` for random weights.
        tokenizer: For random weights: a SentencePiece `.model`, a `vocab.txt`, or a directory.
        num_layers: Only the first so many layers; `null` for all.
        pooling: cross_encoder: `first` token or `mean`; `null` takes the first token (T5: mean).
        dropout: Replaces the checkpoint's rate; `null` keeps it.
        first_max_length_tokens: Longest first text, special tokens included.
        second_max_length_tokens: Longest second text; a cross-encoder reads both together, up to
            the sum of the two.
        document_template: How title and text of a second text become one.
        options: Fields of the kind, such as `{apart_layers: 9}` (see `tfde.MatcherConfig`), or
            of a dual encoder: `sharing`, `embedding_dim`.
    """

    kind: Kind
    backbone: str | dict[str, Any]
    tokenizer: str | None = None
    num_layers: int | None = None
    pooling: Literal["first", "mean"] | None = None
    dropout: float | None = None
    first_max_length_tokens: int = 64
    second_max_length_tokens: int = 64
    document_template: str = "{title} {text}"
    options: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class MatchDataConfig:
    """Pairs with labels.

    Args:
        data: A folder of `SPLIT.tsv` (`tfde convert --format sentence-pairs`), or a pair file with
            negatives (`tfde mine-negatives`), whose positives are labelled 1 and negatives 0.
        split: Of the folder.
        dataset: For a pair file that names documents by id: the directory that holds them.
        negatives: How many of a pair file's negatives each query has.
        limit: A sample of so many pairs, seeded; `null` takes all.
        held_out: This share is left out of training; where `part` is `held_out`, it alone is taken:
            with the same data and share the two parts have nothing in common.
        part: `training` or `held_out`.
    """

    data: str
    split: str = "train"
    dataset: str | None = None
    negatives: int = 1
    limit: int | None = None
    held_out: float = 0.0
    part: Literal["training", "held_out"] = "training"

    def check(self, where: str) -> None:
        """Raises a `ConfigError` for an impossible value; `where` is the place in the run."""
        require(self.negatives >= 1, f"{where}.negatives", "at least 1", self.negatives)
        limit = self.limit
        require(limit is None or limit >= 1, f"{where}.limit", "at least 1", limit)
        require(0 <= self.held_out < 1, f"{where}.held_out", "in [0, 1)", self.held_out)
        taken = self.part == "training" or self.held_out > 0
        require(taken, f"{where}.held_out", "above 0 for the part held out", self.held_out)


@dataclass(frozen=True)
class TeachingConfig:
    """Fine-tuned cross-encoders, and what is learned from them.

    Args:
        models: Their model directories; the attention of the first one is what VIRT teaches, the
            logits are the mean of all. For a dual encoder they must give one score.
        virt_weight: Of the distance between attention maps (alpha); 0 for none.
        virt_layers: A student's layer -> the teacher's, by name; empty: the last from the last,
            the others evenly from below.
        logit_weight: Of the loss of the teachers' logits; 0 for none.
        logit_loss: `kl`, `mse`, or for `ranking` also `margin_mse`.
        temperature: Of `kl`.
        label_weight: Of the labels' own loss.
    """

    models: tuple[str, ...]
    virt_weight: float = 0.0
    virt_layers: dict[str, str] = field(default_factory=dict)
    logit_weight: float = 0.0
    logit_loss: Literal["kl", "mse", "margin_mse"] = "kl"
    temperature: float = 1.0
    label_weight: float = 1.0


@dataclass(frozen=True)
class MatchRun:
    """Training of a cross-encoder or a matcher.

    `${NAME}` in a path stands for an environment variable.

    Args:
        model: What is trained.
        data: What it is trained on.
        validation: What chooses the best epoch; `null`: the last one is kept.
        test: What the kept model is measured on at the end; `null` for nothing.
        objective: `classification` (as many logits as labels), `binary` (one logit), `regression`
            (labels are values), `ranking` (softmax over a query's positive and negatives).
        labels: The labels in the order of the logits, which a teacher of logits must share; empty:
            those of the training pairs, sorted. For `binary` the second is the one that is meant.
        teaching: What is learned from other models; `null` for nothing.
        epochs: Passes over the pairs.
        batch_size: Pairs a batch; for `ranking`, whose groups are not torn, a multiple of one plus
            `data.negatives`.
        warmup: Share of the steps in which the learning rate grows.
        score_scale: For `ranking` alone, one over the temperature of the scores.
        optimizer: Optimizer and learning rate; its `warmup_steps` are left to `warmup`.
        seed: Of new weights, dropout, and the order of pairs.
        precision: Keras' dtype policy; `auto` as in `tfde train`.
        log_every_steps: Steps between lines of `history.jsonl` and TensorBoard.
    """

    model: MatchModelConfig
    data: MatchDataConfig
    validation: MatchDataConfig | None = None
    test: MatchDataConfig | None = None
    objective: Literal["classification", "binary", "regression", "ranking"] = "classification"
    labels: tuple[str, ...] = ()
    teaching: TeachingConfig | None = None
    epochs: int = 3
    batch_size: int = 28
    warmup: float = 0.1
    score_scale: float = 1.0
    optimizer: OptimizerConfig = field(
        default_factory=lambda: OptimizerConfig("adamw", learning_rate=5e-5)
    )
    seed: int = 0
    precision: Precision = "auto"
    log_every_steps: int = 20

    def __post_init__(self) -> None:
        for name in ("epochs", "batch_size", "log_every_steps"):
            require(getattr(self, name) >= 1, name, "at least 1", getattr(self, name))
        require(0 <= self.warmup < 1, "warmup", "in [0, 1)", self.warmup)
        require(self.score_scale > 0, "score_scale", "above 0", self.score_scale)
        self.optimizer.check("optimizer")
        if self.optimizer.warmup_steps:
            raise ConfigError(
                "`optimizer.warmup_steps` must be 0: `warmup` says which share of the steps."
                f" Received: {self.optimizer.warmup_steps}"
            )
        for name in ("data", "validation", "test"):
            part = getattr(self, name)
            if part is not None:
                part.check(name)
