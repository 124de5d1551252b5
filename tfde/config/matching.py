"""The frozen descriptions of a matcher and of a run that trains on pairs with labels."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

from tfde.config.backbones import BackboneConfig, PairPooling, check_dropout, check_transformer
from tfde.config.model import check_labels, check_length
from tfde.config.optimizer import OptimizerConfig, check_seed, check_warmup
from tfde.config.training import Precision
from tfde.errors import ConfigError, require

MatcherKind = Literal[
    "siamese",
    "deformer",
    "dipair",
    "poly_encoder",
    "virt_encoder",
    "late_interaction",
    "multi_vector",
]
Kind = Literal["cross_encoder", MatcherKind, "dual_encoder"]
Objective = Literal["classification", "binary", "regression", "ranking"]
LogitLoss = Literal["kl", "mse", "margin_mse"]
Fusion = Literal["concat", "difference", "joint"]
# Which fields beside those of all kinds a kind has.
FIELDS: dict[str, tuple[str, ...]] = {
    "siamese": ("fusion",),
    "deformer": ("fusion", "apart_layers"),
    "dipair": ("fusion", "apart_layers", "first_tokens", "second_tokens", "top_layers"),
    "poly_encoder": ("fusion", "num_codes"),
    "virt_encoder": ("fusion",),
    "late_interaction": ("embedding_dim", "skip_punctuation"),
    "multi_vector": ("embedding_dim", "second_tokens"),
}
_DEFAULTS: dict[str, Any] = {
    "fusion": "difference",
    "first_tokens": 8,
    "second_tokens": 16,
    "num_codes": 360,
    "embedding_dim": 128,
    "skip_punctuation": True,
}
# What a kind's vectors became before there was the field: so files without it are read.
FUSION_BEFORE = dict.fromkeys(("siamese", "poly_encoder", "virt_encoder"), "difference") | (
    dict.fromkeys(("deformer", "dipair"), "joint")
)
# One score, not a label for each logit.
SCORE_ALONE = ("late_interaction", "multi_vector")


@dataclass(frozen=True)
class MatchModelConfig:
    """What is trained.

    Args:
        kind: `cross_encoder`, or where a matcher's two texts meet: `siamese`, `deformer`,
            `dipair`, `poly_encoder`, `virt_encoder`, `late_interaction`, `multi_vector`; or
            `dual_encoder`, for retrieval.
        backbone: A checkpoint; a model directory whose encoder is taken, such as the teacher's; or
            a mapping `{kind: t5 | bert, sizes}` for random weights.
        tokenizer: For random weights: a SentencePiece `.model`, a `vocab.txt`, or a directory.
        num_layers: Only the first so many layers; `null` for all.
        pooling: cross_encoder: `first` token or `mean`; `null` takes the first token (T5: mean).
        dropout: Replaces the checkpoint's rate; `null` keeps it.
        first_max_length_tokens: Longest first text, special tokens included.
        second_max_length_tokens: Longest second text; a cross-encoder reads both together, up to
            the sum of the two.
        document_template: How title and text of a second text become one.
        first_mark: A token that every first text has after the start token (ColBERT's
            `[unused0]`).
        second_mark: The same for second texts (`[unused1]`).
        first_fill: A matcher's token in place of first texts' padding, which counts (`[MASK]`).
        options: Fields of the kind, such as `{apart_layers: 9}` (see `tfde.MatcherConfig`), or
            of a dual encoder: `sharing`, `embedding_dim`.
    """

    kind: Kind
    backbone: str | dict[str, Any]
    tokenizer: str | None = None
    num_layers: int | None = None
    pooling: PairPooling | None = None
    dropout: float | None = None
    first_max_length_tokens: int = 64
    second_max_length_tokens: int = 64
    document_template: str = "{title} {text}"
    first_mark: str = ""
    second_mark: str = ""
    first_fill: str = ""
    options: dict[str, Any] = field(default_factory=dict)

    def check(self, where: str) -> None:
        """Raises a `ConfigError` for an impossible value; `where` is the place in the run."""
        for name in ("first_max_length_tokens", "second_max_length_tokens"):
            check_length(f"{where}.{name}", getattr(self, name))


@dataclass(frozen=True)
class MatchDataConfig:
    """Pairs with labels.

    Args:
        data: A folder of `SPLIT.tsv` (`tfde convert --format sentence-pairs`), or a pair file with
            negatives (`tfde mine-negatives`), whose positives are labelled 1 and negatives 0.
        split: Of the folder; a pair file has none.
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


@dataclass(frozen=True, kw_only=True)
class TeachingWeights:
    """What is learned from fine-tuned cross-encoders, and how much it weighs.

    Args:
        virt_weight: Of the distance between attention maps (alpha); 0 for none.
        virt_layers: A student's layer -> the teacher's, by name; empty: those that see the texts
            apart. Of all the student's layers the last learns from the last, the others evenly
            from below: layer l from layer l, where both models have as many.
        hidden_weight: Of the squared distance between tokens' hidden states; 0 for none.
        hidden_layers: The same for hidden states; empty: the layers that read both texts, or all
            where there are none.
        logit_weight: Of the loss of the teachers' logits; 0 for none.
        logit_loss: `kl`, `mse`, or for `ranking` also `margin_mse`.
        temperature: Of `kl`.
        label_weight: Of the labels' own loss.
    """

    virt_weight: float = 0.0
    virt_layers: dict[str, str] = field(default_factory=dict)
    hidden_weight: float = 0.0
    hidden_layers: dict[str, str] = field(default_factory=dict)
    logit_weight: float = 0.0
    logit_loss: LogitLoss = "kl"
    temperature: float = 1.0
    label_weight: float = 1.0


@dataclass(frozen=True)
class TeachingConfig(TeachingWeights):
    """Fine-tuned cross-encoders, and what is learned from them.

    Args:
        models: Their model directories; attention and hidden states are those of the first one,
            the logits are the mean of all. For a dual encoder they must give one score.
    """

    models: tuple[str, ...]


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
        score_scale: For `ranking` alone, what scores are multiplied by before their softmax
            and before they are compared with a teacher's: one over the temperature of a cosine.
        optimizer: Optimizer and learning rate; its `warmup_steps` are left to `warmup`.
        seed: Of new weights, dropout, and the order of pairs.
        precision: Keras' dtype policy; `auto` as in `tfde train`.
        log_every_steps: Steps between lines of `history.jsonl` and TensorBoard.
    """

    model: MatchModelConfig
    data: MatchDataConfig
    validation: MatchDataConfig | None = None
    test: MatchDataConfig | None = None
    objective: Objective = "classification"
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
        scale = self.score_scale
        require(0 < scale < math.inf, "score_scale", "above 0", scale)
        check_warmup(self.warmup, self.optimizer)
        check_seed(self.seed)
        self.model.check("model")
        for name in ("data", "validation", "test"):
            part = getattr(self, name)
            if part is not None:
                part.check(name)


@dataclass(frozen=True)
class MatcherConfig:
    """A matcher without its weights: backbone, and where its two texts meet.

    Args:
        backbone: Kind and sizes of the encoder, which both texts share.
        kind: `siamese` (pooled vectors), `deformer` (the upper layers read both texts), `dipair`
            (they read the first tokens of each), `poly_encoder` (codes that attend
            over the first text), `virt_encoder` (attention between the last hidden states),
            `late_interaction` (each token of the first text finds its best of the second),
            `multi_vector` (so many vectors of the second text, one of the first).
        num_labels: Logits of a pair; 1 is a score.
        labels: What the logits are called, in their order (see `check_labels`).
        dropout: Rate before the classifier.
        apart_layers: deformer, dipair: how many lower layers see each text apart; by default all
            but one.
        first_tokens: dipair: outputs taken of the first text.
        second_tokens: dipair, multi_vector: outputs taken of the second.
        top_layers: dipair: depth of a new Transformer that reads both, above all layers of the
            backbone, in place of `apart_layers`.
        num_codes: poly_encoder: context codes.
        embedding_dim: late_interaction, multi_vector: size of a stored vector.
        skip_punctuation: late_interaction: no vectors for the second text's punctuation.
        fusion: What the classifier reads of a pair's vectors u and v: `difference`, [u; v;
            |u - v|]; `concat`, [u; v] (Li et al.'s); deformer, dipair: also `joint`, one mean over
            both texts.

    Fields that a kind does not have must be `None`; those it has are filled in where they are.
    """

    backbone: BackboneConfig
    kind: MatcherKind
    num_labels: int = 1
    labels: tuple[str, ...] = ()
    dropout: float = 0.1
    apart_layers: int | None = None
    first_tokens: int | None = None
    second_tokens: int | None = None
    top_layers: int | None = None
    num_codes: int | None = None
    embedding_dim: int | None = None
    skip_punctuation: bool | None = None
    fusion: Fusion | None = None

    def __post_init__(self) -> None:
        check_transformer(self.backbone)
        kinds = tuple(FIELDS)
        require(self.kind in kinds, "kind", f"one of {', '.join(kinds)}", self.kind)
        require(self.num_labels >= 1, "num_labels", "at least 1", self.num_labels)
        check_labels(self.labels, num_labels=self.num_labels)
        alone = self.kind not in SCORE_ALONE or self.num_labels == 1
        require(alone, "num_labels", f"1 with {self.kind}, which gives a score", self.num_labels)
        check_dropout(self.dropout)
        own = FIELDS[self.kind]
        for own_field in dataclasses.fields(self)[5:]:
            value = getattr(self, own_field.name)
            if own_field.name not in own:
                if value is not None:
                    raise ConfigError(
                        f"`{own_field.name}` belongs to another kind of matcher; {self.kind} has"
                        f" {', '.join(own) or 'no fields of its own'}. Received: {value}"
                    )
                continue
            if value is None:
                value = self._default(own_field.name)
                object.__setattr__(self, own_field.name, value)
            if value is not None:
                self._check(own_field.name, value)
        if self.apart_layers is not None and self.top_layers is not None:
            raise ConfigError(
                "`top_layers` stand above all layers of the backbone, `apart_layers` leave some of"
                f" them for both texts: give one. Received: {self.top_layers} and"
                f" {self.apart_layers}"
            )

    def _default(self, name: str) -> Any:
        if name == "apart_layers":
            return None if self.top_layers is not None else self.backbone.num_layers - 1
        return _DEFAULTS.get(name)

    def _check(self, name: str, value: Any) -> None:
        if name == "skip_punctuation":
            require(isinstance(value, bool), name, "true or false", value)
        elif name == "fusion":
            known = (
                get_args(Fusion) if "apart_layers" in FIELDS[self.kind] else get_args(Fusion)[:2]
            )
            require(value in known, name, f"one of {', '.join(known)} with {self.kind}", value)
        else:
            require(type(value) is int, name, "an integer", value)
            if name == "apart_layers":
                rule = f"in [1, {self.backbone.num_layers - 1}], of the backbone's layers"
                require(1 <= value < self.backbone.num_layers, name, rule, value)
            else:
                require(value >= 1, name, "at least 1", value)
