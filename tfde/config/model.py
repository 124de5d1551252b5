"""The frozen descriptions of everything that is built (stdlib only).

A model directory's `config.json` holds exactly these fields.
"""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Literal, get_args

from tfde.config.backbones import (
    BackboneConfig,
    PairPooling,
    check_dropout,
    check_transformer,
    from_mapping,
)
from tfde.config.lora import LoraConfig
from tfde.errors import require

Part = Literal["shared", "separate", "frozen"]
# From one vector a token to one vector a text; several are put side by side.
Pooling = Literal["first", "max", "mean", "mean_sqrt_length", "weighted_mean", "last"]
DenseActivation = Literal["identity", "tanh", "relu", "gelu", "sigmoid", "silu"]
HiddenActivation = Literal["tanh", "relu"]

DEFAULT_BUCKETS = (16, 32, 48, 64, 96, 128, 192, 256, 384, 512)


DOCUMENT_FIELDS = ("title", "text", "context")


def _check_template(template: str, fields: tuple[str, ...]) -> None:
    places = re.findall(r"\{(\w*)\}", template)
    holds = "text" in places and set(places) <= set(fields)
    others = " and ".join(f"{{{name}}}" for name in fields if name != "text")
    rule = f"one with {{text}}, perhaps {others}, and no other {{...}}"
    require(holds, "document_template", rule, template)


@dataclass(frozen=True)
class Sharing:
    """What the two towers share, part by part.

    `shared`: one set of weights for both towers. `separate`: one each; both start from the values
    of the backbone, while new projections are drawn one by one, as in Dong et al. 2022. `frozen`:
    one set for both, which training leaves as it is. (Frozen towers that started equal stay
    equal, so a second copy would only cost memory.)
    """

    token_embedder: Part = "shared"
    encoder: Part = "shared"
    projection: Part = "shared"

    @classmethod
    def of(cls, value: str | Sharing | Mapping[str, Any]) -> Sharing:
        """Returns the sharing of a name, or given part by part.

        Raises:
            ConfigError: an unknown name, part or kind.
        """
        if isinstance(value, Sharing):
            return value
        if isinstance(value, str):
            parts = "(token_embedder, encoder, projection)"
            rule = f"one of {', '.join(SHARING)} or name the parts {parts}"
            require(value in SHARING, "sharing", rule, value)
            return SHARING[value]
        sharing = from_mapping(cls, value, "sharing")
        for name, kind in dataclasses.asdict(sharing).items():
            holds = kind in get_args(Part)
            require(holds, f"sharing.{name}", "shared, separate or frozen", kind)
        return sharing

    @property
    def name(self) -> str:
        """The preset's name; parts of another mix one by one."""
        for name, preset in SHARING.items():
            if preset == self:
                return name
        return ", ".join(f"{part} {kind}" for part, kind in dataclasses.asdict(self).items())


# Source: Dong et al. 2022, Figure 1.
SHARING: dict[str, Sharing] = {
    "sde": Sharing("shared", "shared", "shared"),
    "ade": Sharing("separate", "separate", "separate"),
    "ade_ste": Sharing("shared", "separate", "separate"),
    "ade_fte": Sharing("frozen", "separate", "separate"),
    "ade_spl": Sharing("separate", "separate", "shared"),
}


_TEXT_DEFAULTS: dict[str, Any] = {
    "query_max_length_tokens": 64,
    "document_max_length_tokens": 256,
    "document_template": "{title} {text}",
    "query_prompt": "",
    "document_prompt": "",
}


@dataclass(frozen=True)
class TextConfig:
    """How texts become token ids, alike in training, encoding and export.

    What is not given is as the checkpoint says; where it says nothing, as stands in brackets.

    Args:
        query_max_length_tokens: Longest query, special tokens included (64).
        document_max_length_tokens: Longest document, special tokens included (256).
        document_template: How title and text become one string (`{title} {text}`). `[SEP]` in it
            stands for the tokenizer's own separator token (Chang et al. use
            `{title} [SEP] {text}`). `{context}` in it is the passage that a sentence is from: then
            each document must have one.
        query_prompt: Put before every query (none).
        document_prompt: Put before every document (none).
        buckets: A batch is padded to the smallest of these that holds it.
        query_mark: A token of the vocabulary that every query has after the start token, such as
            ColBERT's `[unused0]`.
        document_mark: The same for documents, such as `[unused1]`.
        query_fill: A token that fills every query up to the longest in place of padding, and
            counts as one of the query's: ColBERT's `[MASK]`. Other tokens do not attend to it.
            For matchers alone.
    """

    query_max_length_tokens: int | None = None
    document_max_length_tokens: int | None = None
    document_template: str | None = None
    query_prompt: str | None = None
    document_prompt: str | None = None
    buckets: tuple[int, ...] = DEFAULT_BUCKETS
    query_mark: str = ""
    document_mark: str = ""
    query_fill: str = ""

    def __post_init__(self) -> None:
        for name in ("query_max_length_tokens", "document_max_length_tokens"):
            value = getattr(self, name)
            if value is not None:
                check_length(name, value)
        if self.document_template is not None:
            _check_template(self.document_template, DOCUMENT_FIELDS)
        object.__setattr__(self, "buckets", tuple(sorted(set(self.buckets))))

    @property
    def document_fields(self) -> tuple[str, ...]:
        """What is read of a document: title and text, and the context where the template has it."""
        template = self.document_template or ""
        return DOCUMENT_FIELDS if "{context}" in template else DOCUMENT_FIELDS[:2]

    def filled(self, says: Mapping[str, Any] = MappingProxyType({})) -> TextConfig:
        """Returns the same with nothing left open.

        Args:
            says: What a checkpoint says, by field.
        """
        fields = {**_TEXT_DEFAULTS, **says}
        missing = {name: x for name, x in fields.items() if getattr(self, name) is None}
        return dataclasses.replace(self, **missing)


@dataclass(frozen=True)
class ParentConfig:
    """How documents take a share of what they are parts of into their embeddings.

    A query's score is then that of the document plus `weight` times that of its parent.

    Args:
        weight: How much of the parent's embedding is added to the document's; above 0.
        separator: What stands between the parent's and the part's own name in a document's id,
            at its last place: the parent of `page.7` is `page`.
        max_length_tokens: Longest parent, special tokens included.
    """

    weight: float = 0.5
    separator: str = "."
    max_length_tokens: int = 256

    def __post_init__(self) -> None:
        require(0 < self.weight < math.inf, "weight", "above 0", self.weight)
        require(bool(self.separator), "separator", "one or more characters", self.separator)
        length = self.max_length_tokens
        require(length >= 3, "max_length_tokens", "an integer of at least 3", length)

    @classmethod
    def from_manifest(cls, manifest: Mapping[str, Any]) -> ParentConfig | None:
        """Returns what embeddings or an index were made with; `None`: documents stand alone."""
        parents = manifest.get("parents")
        return None if parents is None else cls(**parents)


@dataclass(frozen=True)
class PairTextConfig:
    """How a pair of texts becomes one sequence of token ids for a cross-encoder.

    Args:
        max_length_tokens: Longest sequence, special tokens included.
        num_segments: 2 where the second text has segment id 1 (BERT), 1 where all have 0.
        document_template: How title and text become one string, where the second is a document.
        buckets: A batch is padded to the smallest of these that holds it.
    """

    max_length_tokens: int = 512
    num_segments: int = 2
    document_template: str = "{title} {text}"
    buckets: tuple[int, ...] = DEFAULT_BUCKETS

    def __post_init__(self) -> None:
        value = self.max_length_tokens
        # A token of each text and the four special ones of RoBERTa.
        require(
            isinstance(value, int) and value >= 6, "max_length_tokens", "an integer >= 6", value
        )
        require(self.num_segments in (1, 2), "num_segments", "1 or 2", self.num_segments)
        _check_template(self.document_template, DOCUMENT_FIELDS[:2])
        object.__setattr__(self, "buckets", tuple(sorted(set(self.buckets))))


@dataclass(frozen=True)
class DenseConfig:
    """One linear layer of the projection.

    Args:
        dim: Size of its output.
        use_bias: Whether a bias is added.
        activation: What follows.
    """

    dim: int
    use_bias: bool = False
    activation: DenseActivation = "identity"

    def __post_init__(self) -> None:
        require(isinstance(self.dim, int) and self.dim >= 1, "dim", "at least 1", self.dim)
        names = get_args(DenseActivation)
        require(
            self.activation in names, "activation", f"one of {', '.join(names)}", self.activation
        )


@dataclass(frozen=True)
class TowersConfig:
    """A dual encoder without its weights: backbone, sharing and what follows the backbone.

    Args:
        backbone: Kind and sizes.
        sharing: What the towers share.
        pooling: How token vectors become one; several poolings are put side by side.
        pool_prompts: Whether the tokens of a prompt, and the start token before it, count in
            pooling.
        projection: Linear layers from the pooled vector to the embedding; none: the embedding
            has the backbone's hidden size.
        normalize: Unit length, that is cosine similarity.
        trained_dims: The first so many numbers of an embedding that were trained to serve alone
            (`tfde.MatryoshkaTask`); none: it serves as a whole.
        lora: Low-rank adapters beside matrices of the encoder; `None` for none.
        pooling_layer: A Keras layer in place of `pooling`, as Keras writes it down; empty: none.
        projection_layer: One in place of `projection`.
        encode_before_projection: Whether the projection is part of training alone: then embeddings
            are the pooled vectors before it.
    """

    backbone: BackboneConfig
    sharing: Sharing = field(default_factory=Sharing)
    pooling: tuple[Pooling, ...] = ("mean",)
    pool_prompts: bool = True
    projection: tuple[DenseConfig, ...] = ()
    normalize: bool = True
    trained_dims: tuple[int, ...] = ()
    lora: LoraConfig | None = None
    pooling_layer: str = ""
    projection_layer: str = ""
    encode_before_projection: bool = False

    def __post_init__(self) -> None:
        known = get_args(Pooling)
        before = self.encode_before_projection
        require(
            not before or self.is_projected,
            "encode_before_projection",
            "false where there is no projection; `embedding_dim` makes one",
            before,
        )
        require(
            bool(self.pooling) and all(mode in known for mode in self.pooling),
            "pooling",
            f"one or several of {', '.join(known)}",
            self.pooling,
        )

    @property
    def is_projected(self) -> bool:
        """Whether a projection follows the pooling."""
        return bool(self.projection or self.projection_layer)


@dataclass(frozen=True)
class CrossEncoderConfig:
    """A cross-encoder without its weights: backbone and head.

    Args:
        backbone: Kind and sizes.
        pooling: What the head reads: the `first` token ([CLS]) or the `mean` of all.
        num_labels: How many logits a pair has; 1 is a relevance score.
        labels: What the logits are called, in their order (see `check_labels`).
        hidden_activation: What follows the head's hidden layer: `tanh` (BERT, RoBERTa, MPNet) or
            `relu` (DistilBERT).
        dropout: Rate between hidden layer and classifier.
    """

    backbone: BackboneConfig
    pooling: PairPooling = "first"
    num_labels: int = 1
    labels: tuple[str, ...] = ()
    hidden_activation: HiddenActivation = "tanh"
    dropout: float = 0.1

    def __post_init__(self) -> None:
        check_transformer(self.backbone)
        value = self.num_labels
        require(isinstance(value, int) and value >= 1, "num_labels", "at least 1", value)
        check_labels(self.labels, num_labels=value)
        kinds = get_args(HiddenActivation)
        require(
            self.hidden_activation in kinds,
            "hidden_activation",
            f"one of {', '.join(kinds)}",
            self.hidden_activation,
        )
        known = get_args(PairPooling)
        require(self.pooling in known, "pooling", f"one of {', '.join(known)}", self.pooling)
        check_dropout(self.dropout)


def check_length(name: str, value: Any) -> None:
    """Refuses a longest text that holds no token between the special ones.

    Raises:
        ConfigError: it is below 3, or no integer.
    """
    require(isinstance(value, int) and value >= 3, name, "an integer of at least 3", value)


def check_labels(labels: tuple[str, ...], *, num_labels: int) -> None:
    """Refuses names of labels that do not fit a model's logits.

    Args:
        labels: None at all, a name for each logit, or for one logit two names, of which it gives
            the log odds of the second.
        num_labels: Logits of a pair.

    Raises:
        ConfigError: another number of names; one stands twice.
    """
    fits = len(labels) in (0, num_labels if num_labels > 1 else 2)
    rule = f"{num_labels if num_labels > 1 else 'two'} names, none twice, or none at all"
    require(fits and len(set(labels)) == len(labels), "labels", rule, labels)
