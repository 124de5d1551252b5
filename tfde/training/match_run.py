"""Training of a cross-encoder or a matcher from its description; goes on after a kill."""

from __future__ import annotations

import dataclasses
import logging
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import keras
import numpy as np

from tfde.config.backbones import backbone_of_run
from tfde.config.matching import FIELDS, MatchModelConfig, MatchRun
from tfde.config.model import PairTextConfig, TextConfig
from tfde.data.pairs.labelled import (
    LabelledBatches,
    LabelledPairs,
)
from tfde.errors import ConfigError, naming, require
from tfde.evaluation.matching_measures import MEASURES, matching_measures
from tfde.matching.cross_encoder import CrossEncoder
from tfde.matching.dual_encoder_as_pair_model import DualEncoderScorer
from tfde.matching.load import load_pair_scorer
from tfde.matching.match_trainer import MatchTrainer
from tfde.matching.matcher import Matcher
from tfde.matching.pair_model import PairScorer
from tfde.matching.teaching import Teaching
from tfde.storage.files import write_json
from tfde.text.read_tokenizer import read_tokenizer
from tfde.towers.dual_encoder import DualEncoder
from tfde.training.callbacks import BEST_MODEL, StageCallback, Validation
from tfde.training.devices import in_precision
from tfde.training.early_checks import check_match_run, expand_match_run
from tfde.training.match_data import input_checksums, read_parts
from tfde.training.one_stage import train_one_stage
from tfde.training.run_record import open_output
from tfde.training.training_card import write_training_cards
from tfde.types import Document

logger = logging.getLogger("tfde")

MEASURES_FILE = "measures.json"


class MatchValidation(Validation):
    """Measures a model on pairs with labels.

    Args:
        pairs: The pairs.
        objective: What their labels are.
        every_steps: Steps between validations.
    """

    def __init__(self, pairs: LabelledPairs, objective: Any, *, every_steps: int) -> None:
        self.pairs, self.objective, self.every_steps = pairs, objective, every_steps
        self.leading_measure = MEASURES[objective][0]
        self.extent = f"{len(pairs)} pairs"

    def __call__(self, model: Any) -> dict[str, float]:
        """Returns measure -> value of a `PairScorer`, or of the student of a `MatchTrainer`."""
        scorer: PairScorer = getattr(model, "student", model)
        return matching_measures(
            self.objective,
            score_pairs(scorer, self.pairs),
            self.pairs.labels,
            group_size=self.pairs.group_size,
        )


def score_pairs(model: PairScorer, pairs: LabelledPairs) -> np.ndarray:
    """Returns the logits of pairs, (P, N) or (P,) float32."""
    texts = zip(pairs.titles, pairs.texts, strict=True)
    documents = [Document("", title, text) for title, text in texts]
    return model.score(list(zip(pairs.first, documents, strict=True)), batch_size=64)


def train_matcher(run: MatchRun, output: str | Path, *, verbose: int | None = None) -> PairScorer:
    """Trains a model by its run, or goes on where an interrupted run stopped.

    `output` holds `run.json`, `history.jsonl`, `tensorboard/`, `checkpoint.safetensors`, `model/`
    (the last weights), with validation `best_model/`, and with test pairs `measures.json`.

    Args:
        run: What to train.
        output: Directory of the run; that of an interrupted run is continued.
        verbose: 1 for Keras' progress bar, 0 for log lines; `None` takes the bar on a terminal.

    Returns:
        The model that is best on the validation pairs, else the last one.

    Raises:
        ConfigError: something the run names is missing or impossible, or `output` holds another
            run; labels are all equal, or those of the test pairs are not among the training's.
        TrainingError: the loss is not finite.
    """
    run = expand_match_run(run)
    check_match_run(run)
    output = Path(output)
    if verbose is None:
        verbose = int(sys.stdout.isatty())
    parts = read_parts(run)
    names = parts["data"].names
    with in_precision(run.precision):
        keras.utils.set_random_seed(run.seed)
        trainer = _build_trainer(run, parts["data"])  # what does not fit leaves no output behind
        with open_output(output, run, input_checksums(run)):
            model = _train(trainer, run, parts, output, verbose)
            measured = None
            if "test" in parts:
                measured = MatchValidation(parts["test"], run.objective, every_steps=1)(model)
                size = {"pairs": len(parts["test"])}
                write_json(output / MEASURES_FILE, {**measured, **size, "labels": list(names)})
            leading = MEASURES[run.objective][0] if "validation" in parts else None
            write_training_cards(
                output, command="tfde train-matcher", leading=leading, tested=measured
            )
    return model


def _build_trainer(run: MatchRun, pairs: LabelledPairs) -> MatchTrainer:
    if pairs.names:
        counts = zip(*np.unique(pairs.labels, return_counts=True), strict=True)
        shown = ", ".join(f"{pairs.names[int(label)]} {count}" for label, count in counts)
        logger.info("labels of the training pairs: %s", shown)
    labels = pairs.names if run.objective in ("classification", "binary") else ()
    num_labels = _num_labels(run, pairs)
    with naming("model"):
        student = build_model(run.model, num_labels=num_labels, labels=labels, seed=run.seed)
    return MatchTrainer(
        student,
        objective=run.objective,
        group_size=pairs.group_size,
        score_scale=run.score_scale,
        teaching=_teaching(run),
    )


def _train(
    trainer: MatchTrainer,
    run: MatchRun,
    parts: dict[str, LabelledPairs],
    output: Path,
    verbose: int,
) -> PairScorer:
    pairs = parts["data"]
    batches = LabelledBatches(pairs, batch_size=run.batch_size, seed=run.seed)
    every = batches.steps_per_epoch
    steps = run.epochs * every
    validation = None
    if "validation" in parts:
        validation = MatchValidation(parts["validation"], run.objective, every_steps=every)

    def fit(first: int, recorder: StageCallback) -> None:
        options: dict[str, Any] = {"callbacks": [recorder], "verbose": verbose}
        trainer.fit(batches, steps=steps, initial_step=first, **options)

    train_one_stage(
        trainer,
        run,
        output,
        stage="match",
        steps=steps,
        extent=f"{len(pairs)} pairs, batches of {batches.batch_size}",
        fit=fit,
        checkpoint_every_steps=every,
        validation=validation,
        show=not verbose,
    )
    best = output / BEST_MODEL
    return load_pair_scorer(best) if best.exists() else trainer.student


def build_model(
    config: MatchModelConfig, *, num_labels: int, labels: Sequence[str], seed: int | None
) -> PairScorer:
    """Builds what a run trains.

    Args:
        config: Kind, checkpoint and lengths.
        num_labels: Logits of a pair.
        labels: What they are called, in their order; of one logit, both that it tells apart.
        seed: Of new weights.

    Raises:
        ConfigError: an option is unknown or does not fit.
    """
    tokenizer = None if config.tokenizer is None else read_tokenizer(config.tokenizer)
    size = None if tokenizer is None else tokenizer.vocabulary_size
    backbone = backbone_of_run(config.backbone, vocabulary_size=size)
    shared: dict[str, Any] = {
        "num_labels": num_labels,
        "labels": labels,
        "num_layers": config.num_layers,
        "tokenizer": tokenizer,
        "dropout": config.dropout,
        "seed": seed,
    }
    first, second = config.first_max_length_tokens, config.second_max_length_tokens
    template = config.document_template
    marks = (config.first_mark, config.second_mark, config.first_fill)
    if config.kind == "cross_encoder":
        rule = "empty with a cross_encoder, which reads both texts together"
        require(not any(marks), "first_mark, second_mark, first_fill", rule, marks)
        if config.options:
            raise ConfigError(f"`options` are for matchers. Received: {', '.join(config.options)}")
        pair_text = PairTextConfig(first + second, document_template=template)
        return CrossEncoder.from_backbone(
            backbone, pooling=config.pooling, text=pair_text, **shared
        )
    if config.pooling is not None:
        raise ConfigError(
            f"`pooling` is for a cross-encoder. Received: {config.pooling} with {config.kind}"
        )
    text = TextConfig(
        first,
        second,
        document_template=template,
        query_prompt="",
        document_prompt="",
        query_mark=config.first_mark,
        document_mark=config.second_mark,
        query_fill=config.first_fill,
    )
    if config.kind == "dual_encoder":
        if num_labels != 1 or labels:
            raise ConfigError(
                "a dual encoder gives one score without names: the objective must be ranking or"
                " regression."
            )
        del shared["num_labels"], shared["labels"]
        odd = sorted(config.options.keys() - {"sharing", "embedding_dim"})
        if odd:
            raise ConfigError(
                f"`options` of a dual encoder are sharing, embedding_dim. Received: {odd[0]}"
            )
        return DualEncoderScorer(
            DualEncoder.from_backbone(backbone, text=text, **shared, **config.options)
        )
    own = FIELDS[config.kind]
    for name in config.options.keys() - set(own):
        rule = f"of {config.kind} are {', '.join(own) or 'none'}"
        raise ConfigError(f"`options` {rule}. Received: {name}")
    return Matcher.from_backbone(backbone, kind=config.kind, text=text, **shared, **config.options)


def _num_labels(run: MatchRun, pairs: LabelledPairs) -> int:
    if run.objective == "binary" and len(pairs.names) != 2:
        raise ConfigError(f"objective binary needs two labels. Received: {', '.join(pairs.names)}")
    return len(pairs.names) if run.objective == "classification" else 1


def _teaching(run: MatchRun) -> Teaching | None:
    if run.teaching is None:
        return None
    options = dataclasses.asdict(run.teaching)
    models = options.pop("models")
    require(len(models) > 0, "teaching.models", "not empty", models)
    with naming("teaching.models"):
        teachers = tuple(CrossEncoder.load(path) for path in models)
    return Teaching(teachers, **options)
