"""A training run from its description: build, train stage after stage, go on after a kill."""

from __future__ import annotations

import dataclasses
import hashlib
import itertools
import json
import logging
import os
import platform
import re
import time
from importlib.metadata import version
from pathlib import Path
from typing import Any

import keras
import tensorflow as tf

from tfde.config import StageConfig, TrainRun, backbone_from_mapping
from tfde.data.atomic import atomic_file
from tfde.data.dataset_directory import DatasetDirectory
from tfde.data.pairs import PairDataset, pairs
from tfde.errors import ConfigError
from tfde.tasks.retrieval_task import RetrievalTask
from tfde.text.sentence_piece_tokenizer import SentencePieceTokenizer
from tfde.text.tokenizer import Tokenizer, load_tokenizer
from tfde.text.train_sentencepiece import train_sentencepiece
from tfde.text.word_piece_tokenizer import WordPieceTokenizer
from tfde.towers.dual_encoder import DualEncoder, is_preset
from tfde.training.callbacks import RetrievalValidation, StageCallback, Throughput
from tfde.training.checkpoint import read_progress, restore_checkpoint, save_checkpoint
from tfde.training.optimizers import build_optimizer

logger = logging.getLogger("tfde")

RUN_FILE = "run.json"
CHECKPOINT_FILE = "checkpoint.safetensors"
_PACKAGES = (
    "tfde",
    "tensorflow",
    "tensorflow-text",
    "keras",
    "keras-hub",
    "tensorflow-recommenders",
)
_TRAINED_VOCABULARY = 8000


def train(run: TrainRun, output: str | Path, *, verbose: str | int = "auto") -> DualEncoder:
    """Trains a model by its run, or goes on where an interrupted run stopped.

    `output` holds `run.json` (the resolved run, versions, data checksums), `history.jsonl`,
    `tensorboard/`, `checkpoint.safetensors`, `model/` (the last weights) and, with validation,
    `best_model/`.

    Args:
        run: What to train.
        output: Directory of the run; that of an interrupted run is continued.
        verbose: Keras' progress bar.

    Returns:
        The trained model.

    Raises:
        ConfigError: something the run names is missing or impossible (found before any work), or
            `output` holds another run.
    """
    run = expand_run(run)
    check_run(run)
    output = Path(output)
    record = {
        "run": dataclasses.asdict(run),
        "data": _data_checksums(run),
    }
    _open_output(output, record)
    if run.deterministic:
        tf.config.experimental.enable_op_determinism()
    keras.utils.set_random_seed(run.seed)
    previous = keras.config.dtype_policy()
    keras.config.set_dtype_policy(run.precision)
    try:
        return _train_stages(run, output, verbose)
    finally:
        keras.config.set_dtype_policy(previous)


def expand_run(run: TrainRun) -> TrainRun:
    """Returns the run with `${NAME}` in its paths replaced by environment variables.

    Raises:
        ConfigError: a variable is not set.
    """
    model = dataclasses.replace(
        run.model,
        backbone=_expand(run.model.backbone, "model.backbone"),
        tokenizer=_expand(run.model.tokenizer, "model.tokenizer"),
    )
    stages = {}
    for name, stage in run.stages.items():
        where = f"stages.{name}"
        validation = stage.validation
        if validation is not None:
            validation = dataclasses.replace(
                validation, dataset=_expand(validation.dataset, f"{where}.validation.dataset")
            )
        stages[name] = dataclasses.replace(
            stage,
            data=_expand(stage.data, f"{where}.data"),
            dataset=_expand(stage.dataset, f"{where}.dataset"),
            validation=validation,
        )
    return dataclasses.replace(run, model=model, stages=stages)


def check_run(run: TrainRun) -> None:
    """Finds what would fail later, before any work.

    Raises:
        ConfigError: a file or split is missing, a description is impossible.
    """
    if isinstance(run.model.backbone, dict):
        backbone_from_mapping(run.model.backbone, "model.backbone")
    for name, stage in run.stages.items():
        path = Path(stage.data)
        if not path.exists():
            raise ConfigError(f"stages.{name}.data: {path} does not exist.")
        if path.is_dir():
            DatasetDirectory(path).qrels_file(stage.split)
        if stage.dataset is not None:
            DatasetDirectory(stage.dataset)
        if stage.validation is not None:
            DatasetDirectory(stage.validation.dataset).qrels_file(stage.validation.split)
        tokenizer = run.model.tokenizer
        if tokenizer is not None and not Path(tokenizer).exists():
            raise ConfigError(f"model.tokenizer: {tokenizer} does not exist.")
        if not re.fullmatch(r"[A-Za-z0-9_.-]+", name):
            raise ConfigError(
                f"stages: a name holds letters, digits, '_', '.' and '-'. Received: {name!r}"
            )


def _train_stages(run: TrainRun, output: Path, verbose: str | int) -> DualEncoder:
    model = _build_model(run, output)
    checkpoint = output / CHECKPOINT_FILE
    progress: dict[str, Any] = read_progress(checkpoint) if checkpoint.exists() else {}
    names = list(run.stages)
    begin = names.index(progress["stage"]) if progress else 0
    for name in names[begin:]:
        stage = run.stages[name]
        _train_stage(model, name, stage, run, output, progress, verbose)
        progress = {"best": progress.get("best")}
    model.save_to_preset(output / "model")
    logger.info("model written to %s", output / "model")
    return model


def _train_stage(
    model: DualEncoder,
    name: str,
    stage: StageConfig,
    run: TrainRun,
    output: Path,
    progress: dict[str, Any],
    verbose: str | int,
) -> None:
    """Trains one stage; `progress` is that of the checkpoint, if it stands in this stage."""
    batches = _pairs(stage, run.seed)
    total = stage.steps if stage.steps is not None else stage.epochs * batches.steps_per_epoch
    model.compile(
        build_optimizer(stage.optimizer, steps=total),
        task=RetrievalTask(
            stage.temperature,
            bidirectional=stage.bidirectional,
            sampling_correction=stage.sampling_correction,
        ),
    )
    model.optimizer.build(model.trainable_variables)
    start = 0
    if progress.get("stage") == name:
        restore_checkpoint(output / CHECKPOINT_FILE, model)
        start = progress["step"]
        logger.info("stage %s: going on at step %d of %d", name, start, total)
    else:
        progress.update(stage=name, step=0)
    if start >= total:
        return
    logger.info("stage %s: %d pairs, %d steps of %d", name, len(batches), total, stage.batch_size)
    validation = stage.validation and RetrievalValidation(stage.validation, seed=run.seed)

    def validate(step: int) -> dict[str, float]:
        began = time.perf_counter()
        measures = validation(model)
        first = measures[stage.validation.measures[0]]
        best = progress.get("best")
        better = best is None or best["stage"] != name or first > best["value"]
        if better:
            progress["best"] = {"stage": name, "step": step, "value": first}
            model.save_to_preset(output / "best_model")
        shown = "  ".join(f"{key} {value:.4f}" for key, value in measures.items())
        logger.info(
            "step %d: %s (%d queries, %d documents, %.0f s)%s", step, shown,
            len(validation.queries), len(validation.documents), time.perf_counter() - began,
            " best so far" if better else "",
        )  # fmt: skip
        return measures

    def save(step: int) -> None:
        progress["step"] = step
        save_checkpoint(output / CHECKPOINT_FILE, model, progress)

    throughput = Throughput(stage.batch_size)
    steps = StageCallback(
        output,
        stage=name,
        first_step=start,
        last_step=total,
        log_every_steps=stage.log_every_steps,
        checkpoint_every_steps=stage.checkpoint_every_steps,
        save=save,
        validate_every_steps=stage.validation.every_steps if stage.validation else None,
        validate=validate,
        throughput=throughput,
    )
    callbacks = [throughput, steps, keras.callbacks.TerminateOnNaN()]
    model.fit(batches, steps=total, initial_step=start, callbacks=callbacks, verbose=verbose)


def _pairs(stage: StageConfig, seed: int) -> PairDataset:
    return pairs(
        stage.data,
        split=stage.split,
        dataset=stage.dataset,
        batch_size=stage.batch_size,
        negatives_per_query=stage.negatives_per_query,
        limit=stage.limit,
        seed=seed,
    )


def _build_model(run: TrainRun, output: Path) -> DualEncoder:
    config = run.model
    if isinstance(config.backbone, str) and is_preset(config.backbone):
        return DualEncoder.from_preset(config.backbone)
    backbone: Any = config.backbone
    tokenizer = None
    if isinstance(backbone, dict):
        backbone = dict(backbone)
        tokenizer = _tokenizer(run, output)
        backbone.setdefault("vocabulary_size", tokenizer.vocabulary_size)
        backbone = backbone_from_mapping(backbone, "model.backbone")
    return DualEncoder.from_backbone(
        backbone,
        sharing=config.sharing,
        tokenizer=tokenizer,
        text=config.text,
        pooling=config.pooling,
        embedding_dim=config.embedding_dim,
        projection_bias=config.projection_bias,
        normalize=config.normalize,
        dropout=config.dropout,
        seed=run.seed,
    )


def _tokenizer(run: TrainRun, output: Path) -> Tokenizer:
    """The tokenizer of random weights: the given one, or one trained on the first stage."""
    if run.model.tokenizer is not None:
        return _read_tokenizer(Path(run.model.tokenizer))
    path = output / "vocabulary.model"
    if not path.exists():
        table = _pairs(next(iter(run.stages.values())), run.seed).table
        size = int(run.model.backbone.get("vocabulary_size", _TRAINED_VOCABULARY))  # type: ignore[union-attr]
        logger.info("training a vocabulary of %d tokens", size)
        texts = itertools.chain(
            (query.text for query in table.queries),
            (f"{document.title} {document.text}" for document in table.documents),
        )
        train_sentencepiece(texts, path, vocabulary_size=size)
    return SentencePieceTokenizer.from_file(path)


def _read_tokenizer(path: Path) -> Tokenizer:
    """Reads a `vocab.txt`, a SentencePiece model, or a directory that tfde wrote."""
    if path.is_dir():
        return load_tokenizer(path)
    if path.suffix == ".txt":
        return WordPieceTokenizer.from_vocabulary_file(path)
    return SentencePieceTokenizer.from_file(path)


def _open_output(output: Path, record: dict[str, Any]) -> None:
    """Writes `run.json`, or checks that the one there describes the same run."""
    path = output / RUN_FILE
    record = json.loads(json.dumps(record))
    if path.exists():
        older = json.loads(path.read_text("utf-8"))
        odd = _first_difference({key: older.get(key) for key in record}, record)
        if odd:
            raise ConfigError(
                f"{output} holds another run ({odd}); choose another output, or remove it."
            )
        return
    if output.exists() and any(output.iterdir()):
        raise ConfigError(f"{output} is not empty and holds no run; choose another output.")
    output.mkdir(parents=True, exist_ok=True)
    record["versions"] = {name: version(name) for name in _PACKAGES}
    record["machine"] = {
        "python": platform.python_version(),
        "processor": platform.machine(),
        "cpus": os.cpu_count(),
        "devices": [device.name for device in tf.config.list_physical_devices()],
    }
    with atomic_file(path) as temporary:
        temporary.write_text(json.dumps(record, indent=2, ensure_ascii=False) + "\n", "utf-8")


def _first_difference(old: Any, new: Any, where: str = "") -> str:
    if isinstance(old, dict) and isinstance(new, dict):
        for key in [*new, *(key for key in old if key not in new)]:
            odd = _first_difference(old.get(key), new.get(key), f"{where}.{key}".lstrip("."))
            if odd:
                return odd
        return ""
    return "" if old == new else f"{where} was {old!r}, is {new!r}"


def _data_checksums(run: TrainRun) -> dict[str, Any]:
    """Path -> checksums of everything the run reads."""
    paths: dict[str, Any] = {}
    for stage in run.stages.values():
        given = (stage.data, stage.dataset, stage.validation and stage.validation.dataset)
        for path in given:
            if path is None or path in paths:
                continue
            if Path(path).is_dir():
                paths[path] = DatasetDirectory(path).checksums()
            else:
                with open(path, "rb") as file:
                    paths[path] = hashlib.file_digest(file, "sha256").hexdigest()
    return paths


def _expand(value: Any, where: str) -> Any:
    if not isinstance(value, str):
        return value
    expanded = os.path.expanduser(os.path.expandvars(value))
    missing = re.search(r"\$\{?(\w+)", expanded)
    if missing:
        raise ConfigError(
            f"{where}: the environment variable {missing.group(1)} is not set. Received: {value!r}"
        )
    return expanded
