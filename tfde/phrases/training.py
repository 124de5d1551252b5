"""Training of a phrase encoder: the positions of a question's answer against all others."""

from __future__ import annotations

import dataclasses
import logging
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import keras
import tensorflow as tf

from tfde.config.backbones import backbone_of_run
from tfde.config.model import TextConfig
from tfde.config.phrases import TEXT_ALONE, WITH_TITLE, PhraseModelConfig, PhraseRun
from tfde.data.dataset_directory import DatasetDirectory
from tfde.errors import naming
from tfde.phrases.batches import PhraseData
from tfde.phrases.phrase_encoder import PhraseEncoder
from tfde.tasks.replicas import share_of_mean, sum_gradients
from tfde.text.read_tokenizer import read_tokenizer
from tfde.towers.fit_loop import (
    Throughput,
    compile_in_scope,
    distribute_batches,
    endless,
    fit_epochs,
    step_function,
)
from tfde.towers.keras_saving import WholeFiles
from tfde.training.callbacks import StageCallback
from tfde.training.devices import in_precision
from tfde.training.early_checks import expand_path
from tfde.training.one_stage import train_one_stage
from tfde.training.run_record import (
    answers_checksum,
    checkpoint_checksums,
    checksum,
    open_output,
)

logger = logging.getLogger("tfde")

_NEVER = -1e9


class PhraseTrainer(WholeFiles):
    """Trains a phrase encoder in place; it is no part of what is saved.

    Args:
        model: The phrase encoder.
        run: The weights of the losses.

    Source: Lee et al. 2021, sections 4.1 and 4.2: cross-entropy of the start and of the end over
        the positions of the passage, and in-batch negatives. They take the other passages' gold
        tokens for negatives; that all their tokens are, and that several occurrences share the
        probability, is derived here.
    """

    def __init__(self, model: PhraseEncoder, run: PhraseRun) -> None:
        super().__init__(name="phrase_trainer", dtype=model.dtype_policy)
        self.model = model
        self.weights_of = {
            name: getattr(run, f"{name}_weight") for name in ("in_passage", "in_batch", "filter")
        }
        self._means = {n: keras.metrics.Mean(name=f"{n}_loss") for n in self.weights_of}
        self.built = True

    def compile(self, optimizer: Any, *, run_eagerly: bool = False) -> None:
        """Sets the optimizer."""
        options = {"jit_compile": False, "run_eagerly": run_eagerly}
        compile_in_scope(self, super().compile, optimizer=optimizer, **options)

    def make_train_function(self, force: bool = False) -> None:
        """Makes `train_function`, an iterator of batches -> logs of one step."""
        if force or getattr(self, "train_function", None) is None:
            self.train_function = step_function(self, self.train_step)

    def call(self, inputs: Mapping[str, tf.Tensor], training: bool = False) -> Any:
        """Returns what the phrase encoder does."""
        return self.model(inputs, training=training)

    def save_to_preset(self, directory: str | Path) -> None:
        """Writes the model directory of the phrase encoder."""
        self.model.save_to_preset(directory)

    def prepare_batch(self, batch: Mapping[str, tf.Tensor]) -> dict[str, tf.Tensor]:
        """Tokenizes the questions of a batch (graph ops)."""
        ids, mask = self.model.preprocessor.queries(batch["queries"])
        kept = {name: part for name, part in batch.items() if name != "queries"}
        return {**kept, "query_ids": ids, "query_mask": mask}

    def train_step(self, data: Mapping[str, tf.Tensor]) -> dict[str, Any]:
        """Takes one step; returns the loss so far and its parts."""
        weights = self.trainable_weights
        with tf.GradientTape() as tape:
            parts = self.losses_of(data, training=True)
            loss = tf.add_n([self.weights_of[name] * part for name, part in parts.items()])
            share = share_of_mean(loss)
            scaled = self.optimizer.scale_loss(share)
        self._loss_tracker.update_state(loss)
        for name, part in parts.items():
            self._means[name].update_state(part)
        self.optimizer.apply(sum_gradients(tape.gradient(scaled, weights)), weights)
        return self.get_metrics_result()

    def losses_of(self, data: Mapping[str, tf.Tensor], *, training: bool) -> dict[str, tf.Tensor]:
        """Returns `in_passage`, `in_batch` and `filter`, scalars."""
        passages = {"token_ids": data["token_ids"], "padding_mask": data["padding_mask"]}
        queries = {"token_ids": data["query_ids"], "padding_mask": data["query_mask"]}
        tokens = self.model.passage_encoder(passages, training=training)
        asked = self.model.query_encoder(queries, training=training)
        own = tf.cast(data["own"], tf.float32)
        sums = {"in_passage": 0.0, "in_batch": 0.0, "filter": 0.0}
        for number, side in enumerate(("start", "end")):
            logits = tf.einsum("qh,plh->qpl", asked[side], tokens["vectors"])
            gold = data[f"{side}s"]
            of_owner = tf.gather(logits, data["owners"], batch_dims=1)
            sums["in_passage"] += answer_loss(of_owner, gold, tf.gather(own, data["owners"]))
            owner = tf.one_hot(data["owners"], tf.shape(logits)[1], dtype=gold.dtype)
            in_batch = owner[:, :, None] * gold[:, None]
            flat = (tf.shape(logits)[0], -1)
            everywhere = tf.broadcast_to(own[None], tf.shape(logits))
            sums["in_batch"] += answer_loss(
                *(tf.reshape(part, flat) for part in (logits, in_batch, everywhere))
            )
            labels = tf.cast(data[f"any_{side}s"], tf.float32)
            entropy = tf.nn.sigmoid_cross_entropy_with_logits(labels, tokens["filter"][..., number])
            sums["filter"] += tf.reduce_sum(entropy * own) / tf.maximum(tf.reduce_sum(own), 1.0)
        return {name: total / 2.0 for name, total in sums.items()}


def answer_loss(logits: tf.Tensor, gold: tf.Tensor, counts: tf.Tensor) -> tf.Tensor:
    """Returns the mean of -log of the probability that all right positions have together.

    Args:
        logits: (Q, N) float32.
        gold: (Q, N), 1 = a right position; each row has one.
        counts: (Q, N), 1 = a position that counts.
    """
    total = tf.reduce_logsumexp(tf.where(counts > 0, logits, _NEVER), axis=1)
    right = tf.reduce_logsumexp(tf.where(gold > 0, logits, _NEVER), axis=1)
    return tf.reduce_mean(total - right)


def train_phrases(
    run: PhraseRun, output: str | Path, *, verbose: int | None = None
) -> PhraseEncoder:
    """Trains a phrase encoder by its run, or goes on where an interrupted run stopped.

    `output` holds `run.json`, `history.jsonl`, `tensorboard/`, `checkpoint.safetensors`, `model/`.

    Args:
        run: What to train.
        output: Directory of the run; that of an interrupted run is continued.
        verbose: 1 for Keras' progress bar, 0 for log lines; `None` takes the bar on a terminal.

    Raises:
        ConfigError: something the run names is missing or impossible, or `output` holds another
            run.
        TrainingError: the loss is not finite.
    """
    paths = {
        name: expand_path(getattr(run.model, name), f"model.{name}")
        for name in ("backbone", "tokenizer")
    }
    model_config = dataclasses.replace(run.model, **paths)
    run = dataclasses.replace(run, model=model_config, data=expand_path(run.data, "data"))
    DatasetDirectory(run.data).qrels_file(run.split)  # before a checkpoint is loaded
    output = Path(output)
    verbose = int(sys.stdout.isatty()) if verbose is None else verbose
    with in_precision(run.precision):
        keras.utils.set_random_seed(run.seed)
        with naming("model"):
            model = build_phrase_encoder(run.model, seed=run.seed)
        data = PhraseData(
            run.data,
            run.split,
            model.reader,
            max_phrase_tokens=run.model.max_phrase_tokens,
            pad_id=model.preprocessor.tokenizer.pad_id,
            limit=run.limit,
            seed=run.seed,
        )
        logger.info("%s", data.counts)
        sums: dict[str, Any] = {run.data: checksum(Path(run.data)), **answers_checksum(run.data)}
        sums |= checkpoint_checksums(run.model.backbone, run.model.tokenizer)
        with open_output(output, run, sums):
            _train(PhraseTrainer(model, run), data, run, output, verbose)
    return model


def build_phrase_encoder(config: PhraseModelConfig, *, seed: int | None) -> PhraseEncoder:
    """Builds what a run trains.

    Raises:
        ConfigError: the checkpoint or an option does not fit.
    """
    tokenizer = None if config.tokenizer is None else read_tokenizer(config.tokenizer)
    size = None if tokenizer is None else tokenizer.vocabulary_size
    backbone = backbone_of_run(config.backbone, vocabulary_size=size)
    text = TextConfig(
        config.query_max_length_tokens,
        config.passage_max_length_tokens,
        WITH_TITLE if config.titles else TEXT_ALONE,
    )
    return PhraseEncoder.from_backbone(
        backbone,
        pooling=config.pooling,
        max_phrase_tokens=config.max_phrase_tokens,
        num_layers=config.num_layers,
        tokenizer=tokenizer,
        text=text,
        seed=seed,
    )


def _train(
    trainer: PhraseTrainer, data: PhraseData, run: PhraseRun, output: Path, verbose: int
) -> None:
    steps = run.epochs * data.steps_per_epoch(run.batch_passages)

    def fit(first: int, recorder: StageCallback) -> None:
        fit_epochs(
            trainer,
            lambda _, done: distribute_batches(
                endless(_dataset(data, run, first + done)),
                trainer.prepare_batch,
                trainer.distribute_strategy,
            ),
            epochs=1,
            steps=steps - first,
            callbacks=[Throughput(run.batch_passages), recorder],
            verbose=verbose,
        )

    train_one_stage(
        trainer,
        run,
        output,
        stage="phrases",
        steps=steps,
        extent=f"{len(data)} passages, batches of {run.batch_passages}",
        fit=fit,
        checkpoint_every_steps=run.checkpoint_every_steps,
        show=not verbose,
    )


def _dataset(data: PhraseData, run: PhraseRun, start: int) -> tf.data.Dataset:
    names: Sequence[str] = ("token_ids", "padding_mask", "own", "starts", "ends")
    table = tf.TensorSpec([None, None], tf.int32)
    signature = dict.fromkeys((*names, "any_starts", "any_ends"), table)
    signature |= {
        "queries": tf.TensorSpec([None], tf.string),
        "owners": tf.TensorSpec([None], tf.int32),
    }

    def batches() -> Iterator[dict[str, Any]]:
        step = start
        while True:
            yield data.batch(
                step, passages=run.batch_passages, questions_each=run.questions_per_passage
            )
            step += 1

    return tf.data.Dataset.from_generator(batches, output_signature=signature)
