"""What a recipe describes, as objects: the model, a stage's cutting of texts, its loss."""

from __future__ import annotations

import dataclasses
import logging
from pathlib import Path

import tensorflow as tf

from tfde.config.backbones import backbone_of_run
from tfde.config.training import ModelConfig, StageConfig, TrainRun
from tfde.errors import ConfigError, require
from tfde.matching.matcher import Matcher
from tfde.tasks.adapters import SumTask
from tfde.tasks.anchor import AnchorTask
from tfde.tasks.guided import GuidedTask
from tfde.tasks.margins import MarginTask
from tfde.tasks.matryoshka import MatryoshkaTask
from tfde.tasks.retrieval_task import RetrievalTask
from tfde.tasks.task import Task
from tfde.text.preprocessor import TextPreprocessor
from tfde.text.read_tokenizer import read_tokenizer
from tfde.text.sentence_piece.train import train_sentencepiece
from tfde.text.tokenizer import Tokenizer
from tfde.towers.dual_encoder import DualEncoder
from tfde.towers.preset import is_preset
from tfde.training.devices import choose_precision, list_devices
from tfde.training.distribution import is_chief, wait_for_all
from tfde.training.run_record import VOCABULARY_FILE
from tfde.training.stage_data import StageData

logger = logging.getLogger("tfde")

_TRAINED_VOCABULARY = 8000


def build_model(run: TrainRun, data: StageData, output: Path) -> DualEncoder:
    """Returns the model that a run starts from.

    Args:
        run: The run.
        data: Reads the texts of a vocabulary that is to be trained.
        output: Directory of the run, where such a vocabulary stands.
    """
    config = run.model
    if isinstance(config.backbone, str) and is_preset(config.backbone):
        # Not in the dtype it was saved in: bfloat16 weights would round small updates away.
        defaults = ModelConfig(config.backbone)
        for field in dataclasses.fields(config):
            value = getattr(config, field.name)
            if value != getattr(defaults, field.name):
                logger.warning("model.%s is ignored: %s has its own", field.name, config.backbone)
        dtype = choose_precision(run.precision, list_devices())
        return DualEncoder.from_preset(config.backbone, dtype=dtype)
    drawn = not isinstance(config.backbone, str)  # random weights
    tokenizer = _tokenizer(run, data, output) if drawn else None
    size = None if tokenizer is None else tokenizer.vocabulary_size
    backbone = backbone_of_run(config.backbone, vocabulary_size=size)
    return DualEncoder.from_backbone(
        backbone,
        num_layers=config.num_layers,
        second_segment=config.second_segment,
        sharing=config.sharing,
        tokenizer=tokenizer,
        text=config.text,
        pooling=config.pooling,
        embedding_dim=config.embedding_dim,
        projection_bias=config.projection_bias,
        encode_before_projection=config.encode_before_projection,
        normalize=config.normalize,
        dropout=config.dropout,
        seed=run.seed,
    )


def _tokenizer(run: TrainRun, data: StageData, output: Path) -> Tokenizer:
    """The tokenizer of random weights: the given one, or one trained on the first stage."""
    if run.model.tokenizer is not None:
        return read_tokenizer(run.model.tokenizer)
    path = output / VOCABULARY_FILE
    strategy = tf.distribute.get_strategy()
    if is_chief(strategy) and not path.exists():
        pairs = data.batches(next(iter(run.stages.values())))
        size = int(run.model.backbone.get("vocabulary_size", _TRAINED_VOCABULARY))  # type: ignore[union-attr]
        logger.info("training a vocabulary of %d tokens", size)
        train_sentencepiece(pairs.texts(), path, vocabulary_size=size)
    wait_for_all(strategy)
    return read_tokenizer(path)


def stage_preprocessor(model: DualEncoder, stage: StageConfig) -> TextPreprocessor | None:
    """Returns what cuts texts where the stage says; `None` where it says nothing.

    Raises:
        ConfigError: a length is above the model's, for which it may have no positions.
    """
    text = model.preprocessor.text_config
    lengths = {
        name: length
        for name in ("query_max_length_tokens", "document_max_length_tokens")
        if (length := getattr(stage, name)) is not None
    }
    for name, length in lengths.items():
        if length > getattr(text, name):
            raise ConfigError(
                f"`{name}` of a stage must be at most the model's, {getattr(text, name)}."
                f" Received: {length}"
            )
    if not lengths:
        return None
    return TextPreprocessor(model.preprocessor.tokenizer, dataclasses.replace(text, **lengths))


def build_task(stage: StageConfig, model: DualEncoder, *, start: str) -> Task:
    """Returns the task that a stage describes.

    Args:
        stage: The stage.
        model: What is trained.
        start: The checkpoint that the run starts from: as it comes, it is the guide and anchor
            where none is named.
    """
    options = {
        "bidirectional": stage.bidirectional,
        "sampling_correction": stage.sampling_correction,
    }
    task: Task
    if stage.margins is not None:
        margins = stage.margins
        task = MarginTask(
            None if margins.model is None else Matcher.from_preset(margins.model),
            stage.temperature,
            pair_weight=margins.pair_weight,
            batch_weight=margins.batch_weight,
        )
    elif stage.guide is None:
        task = RetrievalTask(stage.temperature, **options)
    else:
        guide = stage.guide
        task = GuidedTask(
            DualEncoder.load(guide.model or start),
            stage.temperature,
            score_margin=guide.score_margin,
            relative_margin=guide.relative_margin,
            **options,
        )
    if stage.matryoshka is not None:
        dims, weights = stage.matryoshka.dims, stage.matryoshka.weights
        task = MatryoshkaTask(task, dims, weights, normalize=model.config.normalize)
    if stage.anchor is not None:
        anchor = stage.anchor
        anchored = AnchorTask(
            DualEncoder.load(anchor.model or start),
            embedding_weight=anchor.embedding_weight,
            score_weight=anchor.score_weight,
            temperature=anchor.temperature,
        )
        task = SumTask([task, anchored])
    return task


def check_task(stage: StageConfig, *, embedding_dim: int, new_dim: bool) -> None:
    """Finds what a task cannot train.

    Args:
        stage: The stage.
        embedding_dim: The length of an embedding.
        new_dim: Whether a new projection gives it, and not what the run starts from.

    Raises:
        ConfigError: the last of the dims that serve alone is not the length of the embedding;
            embeddings are to stay near those of a start that has others.
    """
    if stage.anchor is not None and stage.anchor.model is None:
        weight = stage.anchor.embedding_weight
        rule = "0 where `embedding_dim` gives a new projection, which the start does not have"
        require(not (weight and new_dim), "anchor.embedding_weight", rule, weight)
    if stage.matryoshka is not None:
        last = stage.matryoshka.dims[-1]
        rule = f"{embedding_dim}, the length of an embedding, at the end"
        require(last == embedding_dim, "matryoshka.dims", rule, last)
