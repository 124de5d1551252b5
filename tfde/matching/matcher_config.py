"""The frozen description of a matcher (stdlib only)."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any, Literal, get_args

from tfde.config import BertConfig, T5Config, check_labels
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
# Which fields beside those of all kinds a kind has.
FIELDS: dict[str, tuple[str, ...]] = {
    "siamese": (),
    "deformer": ("apart_layers",),
    "dipair": ("first_tokens", "second_tokens", "top_layers"),
    "poly_encoder": ("num_codes",),
    "virt_encoder": (),
    "late_interaction": ("embedding_dim", "skip_punctuation"),
    "multi_vector": ("embedding_dim", "second_tokens"),
}
_DEFAULTS: dict[str, Any] = {
    "first_tokens": 8,
    "second_tokens": 16,
    "top_layers": 2,
    "num_codes": 360,
    "embedding_dim": 128,
    "skip_punctuation": True,
}
# One score, not a label for each logit.
SCORE_ALONE = ("late_interaction", "multi_vector")


@dataclass(frozen=True)
class MatcherConfig:
    """A matcher without its weights: backbone, and where its two texts meet.

    Args:
        backbone: Kind and sizes of the encoder, which both texts share.
        kind: `siamese` (pooled vectors), `deformer` (the upper layers read both texts), `dipair`
            (a light Transformer over the first tokens of each), `poly_encoder` (codes that attend
            over the first text), `virt_encoder` (attention between the last hidden states),
            `late_interaction` (each token of the first text finds its best of the second),
            `multi_vector` (so many vectors of the second text, one of the first).
        num_labels: Logits of a pair; 1 is a score.
        labels: What the logits are called, in their order (see `check_labels`).
        dropout: Rate before the classifier.
        apart_layers: deformer: how many lower layers see each text apart; by default all but one.
        first_tokens: dipair: outputs taken of the first text.
        second_tokens: dipair, multi_vector: outputs taken of the second.
        top_layers: dipair: depth of the light Transformer.
        num_codes: poly_encoder: context codes.
        embedding_dim: late_interaction, multi_vector: size of a stored vector.
        skip_punctuation: late_interaction: no vectors for the second text's punctuation.

    Fields that a kind does not have must be `None`; those it has are filled in where they are.
    """

    backbone: BertConfig | T5Config
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

    def __post_init__(self) -> None:
        rule = "a tfde.BertConfig or tfde.T5Config"
        require(isinstance(self.backbone, BertConfig | T5Config), "backbone", rule, self.backbone)
        kinds = get_args(MatcherKind)
        require(self.kind in kinds, "kind", f"one of {', '.join(kinds)}", self.kind)
        require(self.num_labels >= 1, "num_labels", "at least 1", self.num_labels)
        check_labels(self.labels, num_labels=self.num_labels)
        alone = self.kind not in SCORE_ALONE or self.num_labels == 1
        require(alone, "num_labels", f"1 with {self.kind}, which gives a score", self.num_labels)
        require(0 <= self.dropout < 1, "dropout", "in [0, 1)", self.dropout)
        own = FIELDS[self.kind]
        for field in dataclasses.fields(self)[5:]:
            value = getattr(self, field.name)
            if field.name not in own:
                if value is not None:
                    raise ConfigError(
                        f"`{field.name}` belongs to another kind of matcher; {self.kind} has"
                        f" {', '.join(own) or 'no fields of its own'}. Received: {value}"
                    )
                continue
            if value is None:
                last = self.backbone.num_layers - 1
                value = last if field.name == "apart_layers" else _DEFAULTS[field.name]
                object.__setattr__(self, field.name, value)
            if field.name != "skip_punctuation":
                require(type(value) is int, field.name, "an integer", value)
            if field.name == "apart_layers":
                rule = f"in [1, {self.backbone.num_layers - 1}], of the backbone's layers"
                require(1 <= value < self.backbone.num_layers, field.name, rule, value)
            elif field.name == "skip_punctuation":
                require(isinstance(value, bool), field.name, "true or false", value)
            else:
                require(value >= 1, field.name, "at least 1", value)
