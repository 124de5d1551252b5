"""The frozen descriptions of everything that is built or run (stdlib only).

A model directory's `config.json` and a recipe's YAML hold exactly these fields.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

from tfde.errors import ConfigError, shorten

Part = Literal["shared", "separate", "frozen"]
# From one vector a token to one vector a text; several are put side by side.
Pooling = Literal["first", "max", "mean", "mean_sqrt_length", "weighted_mean", "last"]
# "gelu" is exact (erf), "gelu_tanh" its approximation; checkpoints were trained with one or other.
Activation = Literal["gelu", "gelu_tanh", "relu", "silu"]
DenseActivation = Literal["identity", "tanh", "relu", "gelu", "sigmoid", "silu"]
HiddenActivation = Literal["tanh", "relu"]
TowerPart = Literal["token_embedder", "encoder", "projection"]
NegativeChoice = Literal["top", "random", "sampled"]
Precision = Literal["auto", "float32", "mixed_bfloat16", "mixed_float16"]
Distribution = Literal["auto", "one_device", "mirrored", "multi_worker", "tpu"]

DEFAULT_BUCKETS = (16, 32, 48, 64, 96, 128, 192, 256, 384, 512)


@dataclass(frozen=True)
class T5Config:
    """A T5 encoder (version 1.1: gated tanh GELU; version 1.0: `activation="relu"`, not gated).

    Source: Raffel et al. 2020; field values as in T5 1.1 small.
    """

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


@dataclass(frozen=True)
class BertConfig:
    """A BERT encoder, or one of its kin.

    DistilBERT has `num_segments=0`; RoBERTa and XLM-RoBERTa have one segment; MPNet has none, and
    a relative position bias (`relative_buckets=32`) in the way of T5.

    Source: Devlin et al. 2019; Song et al. 2020 (MPNet).
    """

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


@dataclass(frozen=True)
class BagOfWordsConfig:
    """Mean of token embeddings, then two tanh layers. Source: Chang et al. 2020, section 4.4."""

    vocabulary_size: int = 30_522
    embedding_dim: int = 512
    hidden_dim: int = 512
    dropout: float = 0.0


BackboneConfig = T5Config | BertConfig | BagOfWordsConfig
BACKBONES: dict[str, type] = {"t5": T5Config, "bert": BertConfig, "bag_of_words": BagOfWordsConfig}


@dataclass(frozen=True)
class Sharing:
    """What the two towers share, part by part.

    `shared`: one set of weights for both towers. `separate`: one each, both starting from the
    same values. `frozen`: one set for both, which training leaves as it is. (Frozen towers
    that started equal stay equal, so a second copy would only cost memory.)
    """

    token_embedder: Part = "shared"
    encoder: Part = "shared"
    projection: Part = "shared"

    @classmethod
    def of(cls, value: str | Sharing | Mapping[str, Any]) -> Sharing:
        """Returns the sharing named by a preset or given part by part.

        Raises:
            ConfigError: an unknown preset, part or kind.
        """
        if isinstance(value, Sharing):
            return value
        if isinstance(value, str):
            if value not in SHARING:
                raise ConfigError(
                    f"`sharing` must be one of {', '.join(SHARING)} or name the parts"
                    f" (token_embedder, encoder, projection). Received: {shorten(value)}"
                )
            return SHARING[value]
        sharing = from_mapping(cls, value, "sharing")
        for name, kind in dataclasses.asdict(sharing).items():
            if kind not in ("shared", "separate", "frozen"):
                raise ConfigError(
                    f"`sharing.{name}` must be shared, separate or frozen. Received: {kind!r}"
                )
        return sharing


# Source: Dong et al. 2022, Figure 1.
SHARING: dict[str, Sharing] = {
    "sde": Sharing("shared", "shared", "shared"),
    "ade": Sharing("separate", "separate", "separate"),
    "ade_ste": Sharing("shared", "separate", "separate"),
    "ade_fte": Sharing("frozen", "separate", "separate"),
    "ade_spl": Sharing("separate", "separate", "shared"),
}


@dataclass(frozen=True)
class TextConfig:
    """How texts become token ids, alike in training, encoding and export.

    Args:
        query_max_length_tokens: Longest query, special tokens included.
        document_max_length_tokens: Longest document, special tokens included.
        document_template: How title and text become one string. `[SEP]` in it stands for the
            tokenizer's own separator token (Chang et al. use `{title} [SEP] {text}`).
        query_prompt: Put before every query.
        document_prompt: Put before every document.
        buckets: A batch is padded to the smallest of these that holds it.
    """

    query_max_length_tokens: int = 64
    document_max_length_tokens: int = 256
    document_template: str = "{title} {text}"
    query_prompt: str = ""
    document_prompt: str = ""
    buckets: tuple[int, ...] = DEFAULT_BUCKETS

    def __post_init__(self) -> None:
        for name in ("query_max_length_tokens", "document_max_length_tokens"):
            value = getattr(self, name)
            if not isinstance(value, int) or value < 3:
                raise ConfigError(f"`{name}` must be an integer of at least 3. Received: {value!r}")
        if "{text}" not in self.document_template:
            raise ConfigError(
                "`document_template` must contain {text} (and may contain {title} and [SEP])."
                f" Received: {shorten(self.document_template)}"
            )
        object.__setattr__(self, "buckets", tuple(sorted(set(self.buckets))))


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
        _require(
            isinstance(value, int) and value >= 6, "max_length_tokens", "an integer >= 6", value
        )
        _require(self.num_segments in (1, 2), "num_segments", "1 or 2", self.num_segments)
        template = self.document_template
        _require("{text}" in template, "document_template", "one with {text}", template)
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
        _require(isinstance(self.dim, int) and self.dim >= 1, "dim", "at least 1", self.dim)
        names = get_args(DenseActivation)
        _require(
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
    """

    backbone: BackboneConfig
    sharing: Sharing = field(default_factory=Sharing)
    pooling: tuple[Pooling, ...] = ("mean",)
    pool_prompts: bool = True
    projection: tuple[DenseConfig, ...] = ()
    normalize: bool = True

    def __post_init__(self) -> None:
        known = get_args(Pooling)
        _require(
            bool(self.pooling) and all(mode in known for mode in self.pooling),
            "pooling",
            f"one or several of {', '.join(known)}",
            self.pooling,
        )


@dataclass(frozen=True)
class CrossEncoderConfig:
    """A cross-encoder without its weights: backbone and the head on the first token.

    Args:
        backbone: Sizes.
        num_labels: How many logits a pair has; 1 is a relevance score.
        hidden_activation: What follows the head's hidden layer: `tanh` (BERT, RoBERTa, MPNet) or
            `relu` (DistilBERT).
        dropout: Rate between hidden layer and classifier.
    """

    backbone: BertConfig
    num_labels: int = 1
    hidden_activation: HiddenActivation = "tanh"
    dropout: float = 0.1

    def __post_init__(self) -> None:
        value = self.num_labels
        _require(isinstance(value, int) and value >= 1, "num_labels", "at least 1", value)
        kinds = get_args(HiddenActivation)
        _require(
            self.hidden_activation in kinds,
            "hidden_activation",
            f"one of {', '.join(kinds)}",
            self.hidden_activation,
        )
        _require(0 <= self.dropout < 1, "dropout", "in [0, 1)", self.dropout)


def backbone_kind(config: BackboneConfig) -> str:
    """Returns the name under which `BACKBONES` lists the type of `config`."""
    return next(kind for kind, cls in BACKBONES.items() if type(config) is cls)


def backbone_from_mapping(value: Mapping[str, Any], where: str = "backbone") -> BackboneConfig:
    """Returns the backbone description in `{"kind": ..., sizes}`.

    Raises:
        ConfigError: the kind or a field is unknown.
    """
    value = dict(value)
    kind = value.pop("kind", None)
    if kind not in BACKBONES:
        raise ConfigError(
            f"`{where}.kind` must be one of {', '.join(BACKBONES)}. Received: {kind!r}"
        )
    return from_mapping(BACKBONES[kind], value, where)


def backbone_to_mapping(config: BackboneConfig) -> dict[str, Any]:
    """Returns `{"kind": ..., sizes}`, what `backbone_from_mapping` reads."""
    return {"kind": backbone_kind(config), **dataclasses.asdict(config)}


def from_mapping(cls: type, value: Mapping[str, Any], where: str) -> Any:
    """Builds a flat frozen dataclass from a mapping and refuses keys it does not have."""
    names = {f.name for f in dataclasses.fields(cls)}
    unknown = sorted(set(value) - names)
    if unknown:
        raise ConfigError(
            f"`{where}` has no field {unknown[0]!r}; it has {', '.join(sorted(names))}."
        )
    return cls(**value)


# ---- recipes -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class ModelConfig:
    """What a recipe trains.

    Args:
        backbone: Where it starts: a tfde model directory, a keras-hub preset, a directory of
            Hugging Face or sentence-transformers, two of these with a comma between for queries
            and documents; or a mapping `{kind: t5 | bert | bag_of_words, sizes}` for random
            weights.
        tokenizer: For random weights: a SentencePiece `.model`, a `vocab.txt`, or a directory
            with either; `null` trains a SentencePiece vocabulary on the first stage's texts.
        sharing: A preset's name or a mapping of parts; `null` takes `sde`, or `ade` where queries
            and documents start from checkpoints of their own. Ignored for a tfde model directory,
            like all options that follow.
        pooling: `mean` over real tokens, the `first` token, ...; `null` takes what the checkpoint
            says, else the mean.
        embedding_dim: Size of a new projection; `null` keeps the checkpoint's, if it has one.
        projection_bias: Whether the projection has a bias.
        normalize: Unit length, that is cosine similarity; `null` takes what the checkpoint says,
            else yes.
        dropout: Replaces the checkpoint's rate; `null` keeps it.
        text: Lengths, template, prompts; `null` takes what the checkpoint says, else the
            defaults.
    """

    backbone: str | dict[str, Any]
    tokenizer: str | None = None
    sharing: str | dict[str, str] | None = None
    pooling: Pooling | None = None
    embedding_dim: int | None = None
    projection_bias: bool = False
    normalize: bool | None = None
    dropout: float | None = None
    text: TextConfig | None = None


@dataclass(frozen=True)
class OptimizerConfig:
    """Optimizer and learning rate.

    Args:
        name: `adafactor` (Dong et al., Ni et al.) or `adamw`.
        learning_rate: Highest rate, > 0.
        schedule: After the warm-up, `linear` decay to 0 at the stage's end, or `constant`.
        warmup_steps: Steps of linear growth from 0.
        weight_decay: For `adamw`, which is Adam where it is 0; biases and norms are left out.
        clip_norm: Largest global norm of the gradients; `null` for no clipping.
    """

    name: Literal["adafactor", "adamw"] = "adafactor"
    learning_rate: float = 1e-3
    schedule: Literal["linear", "constant"] = "linear"
    warmup_steps: int = 0
    weight_decay: float = 0.01
    clip_norm: float | None = 1.0

    def __post_init__(self) -> None:
        _require(self.learning_rate > 0, "learning_rate", "above 0", self.learning_rate)
        _require(self.warmup_steps >= 0, "warmup_steps", "at least 0", self.warmup_steps)
        _require(self.weight_decay >= 0, "weight_decay", "at least 0", self.weight_decay)
        _require(self.clip_norm is None or self.clip_norm > 0, "clip_norm", "> 0", self.clip_norm)


@dataclass(frozen=True)
class ValidationConfig:
    """Retrieval on a dev split while training.

    Args:
        dataset: Dataset directory.
        split: Its split of judged queries; never a test split that is reported.
        every_steps: Steps between validations.
        max_queries: A seeded sample of the queries; `null` takes all.
        max_documents: Their judged documents, filled up to this number with others of the
            corpus; `null` searches the whole corpus.
        measures: The first one decides which model is the best.
    """

    dataset: str
    split: str = "dev"
    every_steps: int = 1000
    max_queries: int | None = 1000
    max_documents: int | None = 20_000
    measures: tuple[str, ...] = ("P@1", "RR")

    def __post_init__(self) -> None:
        _require(self.every_steps >= 1, "every_steps", "at least 1", self.every_steps)
        for name in ("max_queries", "max_documents"):
            value = getattr(self, name)
            _require(value is None or value >= 1, name, "at least 1", value)
        _require(len(self.measures) > 0, "measures", "not empty", self.measures)


@dataclass(frozen=True)
class RefreshConfig:
    """Hard negatives mined anew from the model in training (ANCE).

    The fields that `tfde mine-negatives` has as options mean the same here.

    Args:
        every_steps: Steps between refreshes; the pairs of the steps after one have its negatives.
        at_start: Whether the model with which the stage begins mines too. Otherwise the stage's
            own negatives serve until the first refresh, or the batch alone where it has none.
        count: Negatives that are found for each pair; a batch draws `negatives_per_query` of them.
        min_rank: First rank that may be taken, from 1, positives included.
        max_rank: Last such rank.
        score_margin: How much less than the positive a negative must score; `null` for no margin.
        relative_margin: The same as a share of the positive's score.
        choice: Of what is left, the best (`top`), any (`random`), or drawn by the softmax of the
            scores (`sampled`).
        temperature: Divides the scores for `sampled`.
        batch_size: Texts that are encoded at once.
    """

    every_steps: int
    at_start: bool = False
    count: int = 4
    min_rank: int = 1
    max_rank: int = 100
    score_margin: float | None = None
    relative_margin: float | None = None
    choice: NegativeChoice = "top"
    temperature: float = 1.0
    batch_size: int = 64

    def __post_init__(self) -> None:
        for name in ("every_steps", "batch_size"):
            _require(getattr(self, name) >= 1, name, "at least 1", getattr(self, name))


@dataclass(frozen=True)
class SourceConfig:
    """One of several sources of a stage's pairs.

    Args:
        data: A dataset directory, or a pair file (JSON Lines); give this or `pages`.
        split: The split of a dataset directory.
        dataset: For a pair file that names documents by id: the directory that holds them.
        limit: Only the first so many pairs.
        pages: A file of pages (JSON Lines), from which pairs are drawn anew in each epoch.
        tasks: Task -> weight, of pages: `ict`, `bfs`, `wlp`, `span_crop`, `question`.
        titles: The tasks whose documents have their page's title.
        weight: Share of each batch, relative to the other sources'.
    """

    data: str | None = None
    split: str = "train"
    dataset: str | None = None
    limit: int | None = None
    pages: str | None = None
    tasks: dict[str, float] = field(default_factory=lambda: {"ict": 1.0, "bfs": 1.0, "wlp": 1.0})
    titles: tuple[str, ...] = ("ict",)
    weight: float = 1.0

    def __post_init__(self) -> None:
        if (self.data is None) == (self.pages is None):
            raise ConfigError(
                "a source needs either `data` or `pages`."
                f" Received: data={self.data!r}, pages={self.pages!r}"
            )
        _require(self.limit is None or self.limit >= 1, "limit", "at least 1", self.limit)
        _require(self.weight > 0, "weight", "above 0", self.weight)


@dataclass(frozen=True)
class StageConfig:
    """One stage of training.

    Args:
        data: A dataset directory, or a pair file (JSON Lines); give this or `mixture`.
        split: The split of a dataset directory.
        dataset: For a pair file that names documents by id: the directory that holds them.
        mixture: Several sources, or pages; each batch has rows of all, by their weights.
        objective: `retrieval`, in-batch softmax of queries and documents; or `masked_lm`, which
            trains the backbone to find masked tokens of the same texts.
        steps: Batches to train; give this or `epochs`.
        epochs: Passes over the pairs.
        batch_size: Queries a batch.
        chunk_size: How many texts a tower works on at once, so that memory does not grow with
            the batch; `null` for the whole batch at once.
        negatives_per_query: Given hard negatives of each query in the denominator.
        refresh: Negatives mined anew from the model in training at intervals (ANCE).
        limit: Only the first so many pairs.
        topic_clusters: A file of `tfde cluster-queries`; each batch holds queries of one cluster.
        temperature: Divides the similarity.
        bidirectional: Documents also choose among queries.
        query_max_length_tokens: Longest query in this stage; `null` takes the model's.
        document_max_length_tokens: Longest document in this stage; `null` takes the model's.
        freeze: Parts that do not train in this stage: `token_embedder`, `encoder`, `projection`.
        sampling_correction: Subtract the log of each document's share of the training pairs.
        optimizer: Optimizer and learning rate.
        validation: Retrieval on a dev split at intervals.
        checkpoint_every_steps: Steps between checkpoints from which a killed run goes on.
        log_every_steps: Steps between lines of `history.jsonl` and TensorBoard.
    """

    data: str | None = None
    split: str = "train"
    dataset: str | None = None
    mixture: tuple[SourceConfig, ...] = ()
    objective: Literal["retrieval", "masked_lm"] = "retrieval"
    steps: int | None = None
    epochs: int | None = None
    batch_size: int = 64
    chunk_size: int | None = None
    negatives_per_query: int = 0
    refresh: RefreshConfig | None = None
    limit: int | None = None
    topic_clusters: str | None = None
    temperature: float = 0.05
    bidirectional: bool = False
    query_max_length_tokens: int | None = None
    document_max_length_tokens: int | None = None
    freeze: tuple[TowerPart, ...] = ()
    sampling_correction: bool = False
    optimizer: OptimizerConfig = field(default_factory=OptimizerConfig)
    validation: ValidationConfig | None = None
    checkpoint_every_steps: int = 500
    log_every_steps: int = 50

    def __post_init__(self) -> None:
        if (self.data is None) != bool(self.mixture):
            raise ConfigError(
                "a stage needs either `data` or `mixture`."
                f" Received: data={self.data!r}, {len(self.mixture)} sources of a mixture"
            )
        alone = (("chunk_size", None), ("freeze", ()), ("validation", None), ("refresh", None))
        for name, none in alone:
            value = getattr(self, name)
            retrieves = self.objective == "retrieval"
            _require(retrieves or value == none, name, f"{none} with objective masked_lm", value)
        for name in ("dataset", "limit"):
            value = getattr(self, name)
            _require(not self.mixture or value is None, name, "that of a source", value)
        for name in ("topic_clusters", "refresh"):
            value = getattr(self, name)
            _require(not self.mixture or value is None, name, "null with `mixture`", value)
        if (self.steps is None) == (self.epochs is None):
            raise ConfigError(
                "a stage needs either `steps` or `epochs`."
                f" Received: steps={self.steps}, epochs={self.epochs}"
            )
        for name in ("steps", "epochs", "batch_size", "chunk_size", "limit"):
            value = getattr(self, name)
            _require(value is None or value >= 1, name, "at least 1", value)
        for name in ("query_max_length_tokens", "document_max_length_tokens"):
            value = getattr(self, name)
            _require(value is None or value >= 3, name, "at least 3", value)
        for name in ("checkpoint_every_steps", "log_every_steps"):
            _require(getattr(self, name) >= 1, name, "at least 1", getattr(self, name))
        _require(
            self.negatives_per_query >= 0,
            "negatives_per_query",
            "at least 0",
            self.negatives_per_query,
        )
        if self.refresh is not None:
            wanted, found = self.negatives_per_query, self.refresh.count
            _require(wanted >= 1, "negatives_per_query", "at least 1 with `refresh`", wanted)
            _require(
                found >= wanted, "refresh.count", f"at least `negatives_per_query`, {wanted}", found
            )
        _require(self.temperature > 0, "temperature", "above 0", self.temperature)


@dataclass(frozen=True)
class TrainRun:
    """A training run: a model and its stages, one after the other.

    `${NAME}` in a path stands for an environment variable.

    Args:
        model: What is trained.
        stages: Name -> stage, in order.
        seed: Seed of weights, dropout and the order of pairs.
        precision: Keras' dtype policy. `auto` takes mixed_bfloat16 on TPUs and newer GPUs,
            mixed_float16 on other GPUs, float32 on CPUs.
        jit_compile: Whether XLA compiles the step; `auto` does so on one GPU.
        distribution: `one_device`; `mirrored`, all GPUs of this process; `multi_worker`, the
            processes that `TF_CONFIG` names; `tpu`. `auto` takes what it finds.
        collective_timeout_s: With several processes, after so many seconds without an answer of
            another one the run ends with an error.
        deterministic: Make TensorFlow's kernels deterministic (slower on some devices).
    """

    model: ModelConfig
    stages: dict[str, StageConfig]
    seed: int = 0
    precision: Precision = "auto"
    jit_compile: bool | Literal["auto"] = "auto"
    distribution: Distribution = "auto"
    collective_timeout_s: int = 600
    deterministic: bool = False

    def __post_init__(self) -> None:
        _require(len(self.stages) > 0, "stages", "not empty", self.stages)
        timeout_s = self.collective_timeout_s
        _require(timeout_s >= 1, "collective_timeout_s", "at least 1", timeout_s)


def _require(holds: bool, name: str, rule: str, value: object) -> None:
    if not holds:
        raise ConfigError(f"`{name}` must be {rule}. Received: {value!r}")
