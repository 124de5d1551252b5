"""The frozen descriptions of backbones, and what anyone may ask of one (stdlib only).

Nobody asks which backbone it is: what differs is a field or a property here.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from numbers import Integral
from typing import Any, ClassVar, Literal, Self

from tfde.errors import ConfigError, require

# "gelu" is exact (erf), "gelu_tanh" its approximation; checkpoints were trained with one or other.
Activation = Literal["gelu", "gelu_tanh", "relu", "silu"]
PairPooling = Literal["first", "mean"]


class BackboneConfig:
    """Base of every description: a frozen dataclass whose fields are the backbone's sizes.

    A new backbone says here what it is, in its module how it is built, and both are joined by
    `tfde.backbones.registry.register_backbone`.

    Attributes:
        kind: Its name in recipes and in a model directory's `config.json`.
        vocabulary_size: V, rows of the token table.
        hidden_dim: H, size of a token's vector.
        dropout: Rate in training, in [0, 1).
        num_layers: Transformer layers, of which the first can be taken alone; 0 where the encoder
            is no `TransformerEncoder`, so that nothing can be learned from its attention.
        num_heads: A, attention heads of each.
        intermediate_dim: Inner size of each one's feed-forward network.
        max_sequence_length: Most tokens of a text; `None` for no limit.
        num_segments: How many kinds of text the token embedder tells apart; 0 for none.
        takes_segment_ids: Whether the token embedder has an argument for them.
        is_whole: Whether token embedder and encoder cannot be told apart: two towers share both,
            or neither.
        pair_pooling: What the head of a cross-encoder reads unless told.
        may_be_0: Fields that count something which need not be there.
    """

    kind: ClassVar[str] = ""
    takes_segment_ids: ClassVar[bool] = False
    is_whole: ClassVar[bool] = False
    pair_pooling: ClassVar[PairPooling] = "first"
    may_be_0: ClassVar[tuple[str, ...]] = ()

    vocabulary_size: int
    hidden_dim: int
    dropout: float
    num_layers: int = 0
    num_heads: int = 0
    intermediate_dim: int = 0
    max_sequence_length: int | None = None
    num_segments: int = 0

    def __post_init__(self) -> None:
        check_dropout(self.dropout)
        for size in dataclasses.fields(self):  # type: ignore[arg-type]
            if size.type == "int" or size.type is int:
                value, least = getattr(self, size.name), int(size.name not in self.may_be_0)
                holds = isinstance(value, Integral) and int(value) >= least
                require(holds, size.name, f"a whole number of at least {least}", value)

    @property
    def is_transformer(self) -> bool:
        """Whether tokens see each other, and the encoder tells how."""
        return self.num_layers > 0

    @property
    def token_logit_scale(self) -> float:
        """What the product of a vector and the token table is multiplied by to give a logit."""
        return 1.0

    def summary(self) -> str:
        """Returns kind and main sizes in a few words."""
        layers = f"{self.num_layers} layers of " if self.num_layers else ""
        return f"{self.kind}, {layers}{self.hidden_dim} hidden"

    def replace(self, **changes: Any) -> Self:
        """Returns the description with other values in some fields."""
        return dataclasses.replace(self, **changes)  # type: ignore[type-var]


@dataclass(frozen=True)
class T5Config(BackboneConfig):
    """A T5 encoder (version 1.1: gated tanh GELU; version 1.0: `activation="relu"`, not gated).

    Source: Raffel et al. 2020; field values as in T5 1.1 small.
    """

    kind = "t5"
    pair_pooling = "mean"

    vocabulary_size: int = 32_128
    num_layers: int = 8
    num_heads: int = 6
    hidden_dim: int = 512
    intermediate_dim: int = 1024
    key_value_dim: int = 64
    dropout: float = 0.1
    activation: Activation = "gelu_tanh"
    gated: bool = True
    relative_buckets: int = 32
    relative_max_distance: int = 128
    layer_norm_epsilon: float = 1e-6

    @property
    def token_logit_scale(self) -> float:
        """The table's deviation is 1 (Raffel et al. 2020 scale so where it gives logits)."""
        return self.hidden_dim**-0.5


@dataclass(frozen=True)
class BertConfig(BackboneConfig):
    """A BERT encoder, or one of its kin.

    DistilBERT has `num_segments=0`; RoBERTa and XLM-RoBERTa have one segment; MPNet has none, and
    a relative position bias (`relative_buckets=32`) in the way of T5. With `separator_id`, what
    follows the first token of that id has segment 1 in towers too, as in BERT's pairs of texts.

    Source: Devlin et al. 2019; Song et al. 2020 (MPNet).
    """

    kind = "bert"
    takes_segment_ids = True
    may_be_0 = ("num_segments", "relative_buckets")

    vocabulary_size: int = 30_522
    num_layers: int = 12
    num_heads: int = 12
    hidden_dim: int = 768
    intermediate_dim: int = 3072
    max_sequence_length: int = 512
    num_segments: int = 2
    dropout: float = 0.1
    activation: Activation = "gelu"  # keras-hub's presets: "gelu_tanh"
    layer_norm_epsilon: float = 1e-12
    relative_buckets: int = 0
    relative_max_distance: int = 128
    separator_id: int | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        apart = self.separator_id is None or self.num_segments > 1
        require(apart, "num_segments", "at least 2 with `separator_id`", self.num_segments)
        rule = f"a multiple of `num_heads` ({self.num_heads})"
        require(self.hidden_dim % self.num_heads == 0, "hidden_dim", rule, self.hidden_dim)


@dataclass(frozen=True)
class BagOfWordsConfig(BackboneConfig):
    """Mean of token embeddings, then two tanh layers. Source: Chang et al. 2020, section 4.4."""

    kind = "bag_of_words"

    vocabulary_size: int = 30_522
    embedding_dim: int = 512
    hidden_dim: int = 512
    dropout: float = 0.0


# By kind; `tfde.backbones.registry.register_backbone` adds to it.
BACKBONES: dict[str, type[BackboneConfig]] = {
    config.kind: config for config in (T5Config, BertConfig, BagOfWordsConfig)
}


def check_dropout(rate: float) -> None:
    """Refuses a rate of dropout outside [0, 1)."""
    require(0 <= rate < 1, "dropout", "in [0, 1)", rate)


def check_transformer(config: object) -> None:
    """Refuses what is not the description of a Transformer.

    Raises:
        ConfigError: it is not.
    """
    holds = isinstance(config, BackboneConfig) and config.is_transformer
    rule = "one with Transformer layers, such as a tfde.BertConfig or a tfde.T5Config"
    require(holds, "backbone", rule, config)


def backbone_from_mapping(value: Mapping[str, Any], where: str = "backbone") -> BackboneConfig:
    """Returns the backbone description in `{"kind": ..., sizes}`.

    Raises:
        ConfigError: the kind or a field is unknown.
    """
    value = dict(value)
    kind = value.pop("kind", None)
    rule = f"one of {', '.join(BACKBONES)}, or made known by tfde.register_backbone"
    require(kind in BACKBONES, f"{where}.kind", rule, kind)
    config: BackboneConfig = from_mapping(BACKBONES[kind], value, where)
    return config


def backbone_of_run(
    backbone: str | Mapping[str, Any], *, vocabulary_size: int | None
) -> str | BackboneConfig:
    """Returns a run's `model.backbone`: a checkpoint as it is, sizes as their description.

    Args:
        backbone: As the run has it.
        vocabulary_size: The tokenizer's, where sizes leave it out; `None`: they must name it.

    Raises:
        ConfigError: as `backbone_from_mapping`.
    """
    if isinstance(backbone, str):
        return backbone
    sizes = dict(backbone)
    if vocabulary_size is not None:
        sizes.setdefault("vocabulary_size", vocabulary_size)
    return backbone_from_mapping(sizes, "model.backbone")


def backbone_to_mapping(config: BackboneConfig) -> dict[str, Any]:
    """Returns `{"kind": ..., sizes}`, what `backbone_from_mapping` reads."""
    value = {"kind": config.kind, **dataclasses.asdict(config)}  # type: ignore[call-overload]
    if value.get("separator_id", 0) is None:  # as before there was such a thing
        del value["separator_id"]
    return value


def from_mapping(cls: type, value: Mapping[str, Any], where: str) -> Any:
    """Builds a flat frozen dataclass from a mapping and refuses keys it does not have."""
    names = {f.name for f in dataclasses.fields(cls)}
    unknown = sorted(set(value) - names)
    if unknown:
        raise ConfigError(
            f"`{where}` has no field {unknown[0]!r}; it has {', '.join(sorted(names))}."
        )
    return cls(**value)
