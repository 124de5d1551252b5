"""The frozen description of a training run (stdlib only); a recipe's YAML holds these fields."""

from __future__ import annotations

import difflib
import math
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from tfde.config.lora import LoraConfig
from tfde.config.losses import AnchorConfig, GuideConfig, MarginsConfig, MatryoshkaConfig
from tfde.config.model import Pooling, TextConfig
from tfde.config.negatives import RefreshConfig
from tfde.config.optimizer import OptimizerConfig, check_seed
from tfde.config.validation import ValidationConfig
from tfde.errors import ConfigError, require

TowerPart = Literal["token_embedder", "encoder", "projection"]
Precision = Literal["auto", "float32", "mixed_bfloat16", "mixed_float16"]
Distribution = Literal["auto", "one_device", "mirrored", "multi_worker", "tpu"]
_OTHER_MODELS = ("guide", "anchor", "margins")


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
        num_layers: Only the first so many layers of a checkpoint; `null` for all.
        second_segment: Whether what follows the first `[SEP]` of a template has BERT's segment 1.
        sharing: A name or a mapping of parts; `null` takes `sde`, or `ade` where queries
            and documents start from checkpoints of their own. Ignored for a tfde model directory,
            like all options that follow.
        pooling: `mean` over real tokens, the `first` token, ...; `null` takes what the checkpoint
            says, else the mean.
        embedding_dim: Size of a new projection; `null` keeps the checkpoint's, if it has one.
        projection_bias: Whether the projection has a bias.
        encode_before_projection: Whether the projection is part of training alone, and embeddings
            are the pooled vectors before it.
        normalize: Unit length, that is cosine similarity; `null` takes what the checkpoint says,
            else yes.
        dropout: Replaces the checkpoint's rate; `null` keeps it.
        text: Lengths, template, prompts; `null` takes what the checkpoint says, else the
            defaults.
    """

    backbone: str | dict[str, Any]
    tokenizer: str | None = None
    num_layers: int | None = None
    second_segment: bool = False
    sharing: str | dict[str, str] | None = None
    pooling: Pooling | None = None
    embedding_dim: int | None = None
    projection_bias: bool = False
    encode_before_projection: bool = False
    normalize: bool | None = None
    dropout: float | None = None
    text: TextConfig | None = None


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
        query_prompt: Put before every query of this source, so that one model learns several
            kinds of questions apart; users write it before theirs.
    """

    data: str | None = None
    split: str = "train"
    dataset: str | None = None
    limit: int | None = None
    pages: str | None = None
    tasks: dict[str, float] = field(default_factory=lambda: {"ict": 1.0, "bfs": 1.0, "wlp": 1.0})
    titles: tuple[str, ...] = ("ict",)
    weight: float = 1.0
    query_prompt: str = ""

    def check(self, where: str) -> None:
        """Raises a `ConfigError` for an impossible value; `where` is the place in the run."""
        if (self.data is None) == (self.pages is None):
            raise ConfigError(
                f"`{where}` needs either `data` or `pages`, and not both."
                f" Received: data={self.data!r}, pages={self.pages!r}"
            )
        of_pages, of_data = ("tasks", "titles"), ("split", "dataset", "limit")
        other, names = ("data", of_data) if self.data is None else ("pages", of_pages)
        for name in names:
            value, default = getattr(self, name), getattr(SourceConfig(), name)
            require(value == default, f"{where}.{name}", f"left out, for it is of `{other}`", value)
        limit, weight = self.limit, self.weight
        require(limit is None or limit >= 1, f"{where}.limit", "at least 1", limit)
        require(0 < weight < math.inf, f"{where}.weight", "above 0", weight)


@dataclass(frozen=True)
class StageConfig:
    """One stage of training.

    Args:
        data: A dataset directory, or a pair file (JSON Lines); give this or `mixture`.
        split: The split of a dataset directory.
        dataset: For a pair file that names documents by id: the directory that holds them.
        mixture: Several sources, or pages; each batch has rows of all, by their weights.
        homogeneous: Each batch of a mixture is of one source, whose turn comes by its weight; else
            of all.
        source_temperature: The weight of each source of a mixture is multiplied by its number of
            pairs to the power of 1 / this: 1 takes pairs as they come, a large one all sources
            alike. `null`: weights alone count.
        objective: `retrieval`, in-batch softmax of queries and documents; or `masked_lm`, which
            trains the backbone to find masked tokens of the same texts (then `temperature`,
            `bidirectional` and `sampling_correction` do not count).
        steps: Batches to train; give this or `epochs`.
        epochs: Passes over the pairs.
        batch_size: Queries a batch.
        chunk_size: How many texts a tower works on at once, so that memory does not grow with
            the batch; `null` for the whole batch at once.
        negatives_per_query: Given hard negatives of each query in the denominator.
        refresh: Negatives mined anew from the model in training at intervals (ANCE).
        limit: Only the first so many pairs.
        topic_clusters: A file of `tfde cluster-queries`; each batch holds queries of one cluster.
        topic_size: Each batch holds queries of one topic of about so many, which the model as it
            is before the first step finds by itself; `null`: of any.
        temperature: Divides the similarity.
        bidirectional: Documents also choose among queries.
        query_max_length_tokens: Longest query in this stage; `null` takes the model's.
        document_max_length_tokens: Longest document in this stage; `null` takes the model's.
        freeze: Parts that do not train in this stage: `token_embedder`, `encoder`, `projection`.
        freeze_layers: How many of the encoder's lowest layers do not train in this stage; the steps
            are quicker where the token embedder does not either.
        sharing: What the towers share from this stage on, as the model's `sharing`; parts that
            become separate start alike. `null` changes nothing.
        embedding_dim: Size of a new projection that takes the place of the model's in this stage,
            random, and each tower's own where it is separate. `null` changes nothing.
        sampling_correction: Subtract the log of each document's share of the training pairs.
        guide: Leave out candidates that another model takes for answers; `null` for none.
        anchor: Keep embeddings near those of another model, such as the start; `null`: no.
        margins: Scores as far apart as teachers have them, in place of the softmax (TAS-B).
        matryoshka: First numbers of embeddings that learn to serve alone; `null`: the whole only.
        lora: Low-rank adapters train in this stage, in place of token embedder and encoder, and
            stay in the model. `null`: all weights train, into which those of an earlier stage
            are folded first.
        optimizer: Optimizer and learning rate.
        validation: Retrieval on a dev split at intervals.
        start_shares: After the last step, means of the trained weights and those that the run
            started from are validated too, with so large shares of the start: the best of all is
            kept (WiSE-FT).
        min_gain_kept: Of these means, the one nearest to the start is kept that has so much of what
            the best of all won over the start, such as 0.9; `null`: the best of all.
        ema_momentum: After the last step the exponential mean of the weights over all steps is
            validated too: each step's share is 1 - `ema_momentum` of what is left; `null`: no.
        checkpoint_every_steps: Steps between checkpoints from which a killed run goes on.
        log_every_steps: Steps between lines of `history.jsonl` and TensorBoard.
    """

    data: str | None = None
    split: str = "train"
    dataset: str | None = None
    mixture: tuple[SourceConfig, ...] = ()
    homogeneous: bool = False
    source_temperature: float | None = None
    objective: Literal["retrieval", "masked_lm"] = "retrieval"
    steps: int | None = None
    epochs: int | None = None
    batch_size: int = 64
    chunk_size: int | None = None
    negatives_per_query: int = 0
    refresh: RefreshConfig | None = None
    limit: int | None = None
    topic_clusters: str | None = None
    topic_size: int | None = None
    temperature: float = 0.05
    bidirectional: bool = False
    query_max_length_tokens: int | None = None
    document_max_length_tokens: int | None = None
    freeze: tuple[TowerPart, ...] = ()
    freeze_layers: int = 0
    sharing: str | dict[str, str] | None = None
    embedding_dim: int | None = None
    sampling_correction: bool = False
    guide: GuideConfig | None = None
    anchor: AnchorConfig | None = None
    margins: MarginsConfig | None = None
    matryoshka: MatryoshkaConfig | None = None
    lora: LoraConfig | None = None
    optimizer: OptimizerConfig = field(default_factory=OptimizerConfig)
    validation: ValidationConfig | None = None
    start_shares: tuple[float, ...] = ()
    min_gain_kept: float | None = None
    ema_momentum: float | None = None
    checkpoint_every_steps: int = 500
    log_every_steps: int = 50

    @property
    def sources(self) -> tuple[SourceConfig, ...]:
        """Where the pairs come from; `data` is a single source."""
        return self.mixture or (SourceConfig(self.data, self.split, self.dataset, self.limit),)

    @property
    def other_models(self) -> dict[str, GuideConfig | AnchorConfig | MarginsConfig]:
        """The parts that name a model beside the one in training, by their fields."""
        found = {name: getattr(self, name) for name in _OTHER_MODELS}
        return {name: part for name, part in found.items() if part is not None}

    def check(self, where: str) -> None:
        """Raises a `ConfigError` for an impossible value; `where` is the place in the run."""

        def must(holds: bool, name: str, rule: str, value: object) -> None:
            require(holds, f"{where}.{name}", rule, value)

        if (self.data is None) != bool(self.mixture):
            raise ConfigError(
                f"`{where}` needs either `data` or `mixture`, and not both."
                f" Received: data={self.data!r}, {len(self.mixture)} sources of a mixture"
            )
        if (self.steps is None) == (self.epochs is None):
            raise ConfigError(
                f"`{where}` needs either `steps` or `epochs`, and not both."
                f" Received: steps={self.steps}, epochs={self.epochs}"
            )
        of_retrieval = (
            "chunk_size", "freeze", "freeze_layers", "validation", "refresh", "matryoshka", "lora",
            "topic_size",
        )  # fmt: skip
        for name in (*of_retrieval, *_OTHER_MODELS):
            value, default = getattr(self, name), getattr(StageConfig, name)
            holds = self.objective == "retrieval" or value == default
            must(holds, name, f"{default} with objective masked_lm", value)
        for name in ("dataset", "limit"):
            value = getattr(self, name)
            must(not self.mixture or value is None, name, "that of a source", value)
        for name, default in (("homogeneous", False), ("source_temperature", None)):
            value = getattr(self, name)
            must(
                bool(self.mixture) or value == default, name, f"{default} without `mixture`", value
            )
        power = self.source_temperature
        must(power is None or power >= 1, "source_temperature", "at least 1", power)
        sized = power is None or all(source.pages is None for source in self.mixture)
        must(sized, "source_temperature", "null with pages, whose pairs are not counted", power)
        for name in ("topic_clusters", "topic_size", "refresh"):
            value = getattr(self, name)
            must(not self.mixture or value is None, name, "null with `mixture`", value)
        for name in ("topic_clusters", "topic_size"):
            corrects = getattr(self, name) is not None and self.sampling_correction
            rule = f"false with `{name}`, whose batches are no sample of all pairs"
            must(not corrects, "sampling_correction", rule, True)
        topic, given = self.topic_size, self.topic_clusters
        must(topic is None or given is None, "topic_size", "null with `topic_clusters`", topic)
        rule = f"at least `batch_size`, {self.batch_size}"
        must(topic is None or topic >= self.batch_size, "topic_size", rule, topic)
        rule = "null with `epochs`: how many batches an epoch has depends on the topics found"
        must(topic is None or self.epochs is None, "topic_size", rule, topic)
        for name in (
            "steps",
            "epochs",
            "batch_size",
            "chunk_size",
            "limit",
            "embedding_dim",
            "checkpoint_every_steps",
            "log_every_steps",
        ):
            value = getattr(self, name)
            must(value is None or value >= 1, name, "at least 1", value)
        for name in ("query_max_length_tokens", "document_max_length_tokens"):
            value = getattr(self, name)
            must(value is None or value >= 3, name, "at least 3", value)
        wanted = self.negatives_per_query
        must(wanted >= 0, "negatives_per_query", "at least 0", wanted)
        must(self.freeze_layers >= 0, "freeze_layers", "at least 0", self.freeze_layers)
        must(0 < self.temperature < math.inf, "temperature", "above 0", self.temperature)
        for place, source in enumerate(self.mixture):
            source.check(f"{where}.mixture[{place}]")
        mean = self.ema_momentum
        must(mean is None or 0 < mean < 1, "ema_momentum", "between 0 and 1", mean)
        must(mean is None or bool(self.validation), "ema_momentum", "null without validation", mean)
        shares = self.start_shares
        must(all(0 < x < 1 for x in shares), "start_shares", "numbers between 0 and 1", shares)
        for name, value in (("validation", self.validation), ("lora", not self.lora)):
            rule = f"empty without `{name}`" if name == "validation" else "empty with `lora`"
            must(not shares or bool(value), "start_shares", rule, shares)
        gain, checked = self.min_gain_kept, self.validation
        must(gain is None or 0 < gain < 1, "min_gain_kept", "between 0 and 1", gain)
        must(gain is None or bool(shares), "min_gain_kept", "null without `start_shares`", gain)
        known = checked is not None and bool(checked.measure_start or checked.guards)
        rule = "null without `validation.measure_start`, which gains are measured from"
        must(gain is None or known, "min_gain_kept", rule, gain)
        adapted = self.lora is not None
        rule = "without token_embedder and encoder, which `lora` freezes but for adapters"
        must(not adapted or set(self.freeze) <= {"projection"}, "freeze", rule, self.freeze)
        must(
            not adapted or not self.freeze_layers,
            "freeze_layers",
            "0 with `lora`",
            self.freeze_layers,
        )
        parts = ("optimizer", "validation", "refresh", "matryoshka", "lora", *_OTHER_MODELS)
        for name in parts:
            part = getattr(self, name)
            if part is not None:
                part.check(f"{where}.{name}")
        if self.margins is not None:
            for name in (
                "refresh", "guide", "bidirectional", "sampling_correction", "mixture"
            ):  # fmt: skip
                value, default = getattr(self, name), getattr(StageConfig, name)
                must(value == default, name, f"{default} with `margins`", value)
            needs = self.margins.pair_weight > 0
            must(wanted >= needs, "negatives_per_query", "at least 1 with `margins`", wanted)
        if self.refresh is not None:
            must(wanted >= 1, "negatives_per_query", "at least 1 with `refresh`", wanted)
            found = self.refresh.count
            rule = f"at least `negatives_per_query`, {wanted}"
            must(found >= wanted, "refresh.count", rule, found)
            steps, every = self.steps, self.refresh.every_steps
            comes = self.refresh.at_start or steps is None or every < steps
            rule = f"below `steps`, {steps}, or there is no refresh, unless `at_start`"
            must(comes, "refresh.every_steps", rule, every)


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
        deterministic: Make TensorFlow's kernels deterministic (slower on some devices), for the
            rest of the process.
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
        require(len(self.stages) > 0, "stages", "not empty", self.stages)
        check_seed(self.seed)
        timeout_s = self.collective_timeout_s
        require(timeout_s >= 1, "collective_timeout_s", "at least 1", timeout_s)
        for name, stage in self.stages.items():
            if len(self.stages) > 1 and stage.data is None and not stage.mixture:
                others = [other for other in self.stages if other != name]
                near = difflib.get_close_matches(name, others, n=1)
                named = " or ".join(f"`stages.{other}`" for other in near or others)
                raise ConfigError(
                    f"`stages.{name}` has neither `data` nor `mixture`; did you mean {named}?"
                )
            stage.check(f"stages.{name}")

        if isinstance(self.model.backbone, dict):
            name, first = next(iter(self.stages.items()))
            rule = "null in a first stage from random weights, which know no topics"
            require(first.topic_size is None, f"stages.{name}.topic_size", rule, first.topic_size)
        remade = ""
        for name, stage in self.stages.items():
            remade = name if stage.sharing or stage.embedding_dim else remade
            rule = f"empty from stages.{remade} on, whose towers are not those of the start"
            shares = stage.start_shares
            require(not (shares and remade), f"stages.{name}.start_shares", rule, shares)

    def competing_stages(self, last: str) -> list[str]:
        """Returns the validated stages up to `last` that were measured alike, one after the other.

        Alike is all but `every_steps`. Of their models the best is kept; a stage with another
        validation begins anew.
        """
        names: list[str] = []
        alike = None
        for name, stage in self.stages.items():
            if stage.validation is not None:
                validation = replace(stage.validation, every_steps=1)
                names = [*names, name] if validation == alike else [name]
                alike = validation
            if name == last:
                break
        return names
