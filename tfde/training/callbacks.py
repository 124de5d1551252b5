"""What happens between the steps of a stage: throughput, history, validation, checkpoints."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tfde.config import ValidationConfig
from tfde.data.dataset_directory import DatasetDirectory
from tfde.evaluation.measures import evaluate
from tfde.retrieval.exact_index import ExactIndex
from tfde.retrieval.retrieve import retrieve
from tfde.types import Query

logger = logging.getLogger("tfde")


class Throughput(keras.callbacks.Callback):
    """Adds `pairs_per_s` to the logs: pairs trained per second since the last step shown.

    Args:
        batch_size: Pairs a step.
    """

    def __init__(self, batch_size: int) -> None:
        super().__init__()
        self.batch_size = batch_size
        self._times: list[float] = []

    def on_train_batch_end(self, batch: int, logs: dict[str, float] | None = None) -> None:
        """Notes the time and adds the rate of the last 20 steps."""
        self._times = [*self._times[-20:], time.perf_counter()]
        passed = self._times[-1] - self._times[0]
        if logs is not None and passed > 0:
            logs["pairs_per_s"] = self.batch_size * (len(self._times) - 1) / passed

    def pause(self) -> None:
        """Forgets the times, so that a validation does not count as training."""
        self._times = []


class RetrievalValidation:
    """Measures retrieval on a dev split: P@1, RR and the like, by exact search.

    Args:
        config: Data, split and sizes.
        seed: Chooses queries and documents.
    """

    def __init__(self, config: ValidationConfig, *, seed: int = 0) -> None:
        self.config = config
        dataset = DatasetDirectory(config.dataset)
        rng = np.random.Generator(np.random.PCG64(seed))
        queries = list(dataset.queries(config.split))
        if config.max_queries is not None and len(queries) > config.max_queries:
            chosen = sorted(rng.choice(len(queries), config.max_queries, replace=False))
            queries = [queries[i] for i in chosen]
        qrels = dataset.qrels(config.split)
        self.qrels = {query.query_id: qrels[query.query_id] for query in queries}
        self.queries: list[Query] = queries
        judged = {doc_id for judgements in self.qrels.values() for doc_id in judgements}
        doc_ids = [document.doc_id for document in dataset.documents()]
        others = [doc_id for doc_id in doc_ids if doc_id not in judged]
        room = len(others)
        if config.max_documents is not None:
            room = min(room, max(config.max_documents - len(judged), 0))
        kept = judged | {others[i] for i in rng.permutation(len(others))[:room]}
        self.documents = [d for d in dataset.documents() if d.doc_id in kept]

    def __call__(self, model: Any) -> dict[str, float]:
        """Returns measure -> value for the model as it is now."""
        embeddings = model.encode_documents(self.documents)
        doc_ids = [document.doc_id for document in self.documents]
        index = ExactIndex.build(embeddings, doc_ids, fingerprint=model.fingerprint())
        run = retrieve(model, index, self.queries, k=min(100, len(doc_ids)))
        return evaluate(run, self.qrels, self.config.measures)


class StageCallback(keras.callbacks.Callback):
    """Writes the history, validates, keeps the best model and saves checkpoints, by step.

    Args:
        directory: Of the run: `history.jsonl`, `tensorboard/`.
        stage: Name of the stage.
        first_step: The step at which this `fit` begins.
        last_step: The step at which the stage ends.
        log_every_steps: Steps between history lines.
        checkpoint_every_steps: Steps between calls of `save`.
        save: Called with the step to save a checkpoint.
        validate_every_steps: Steps between validations; `None` for none.
        validate: Called with the step; returns measures.
        throughput: Paused during validation and saving.
    """

    def __init__(
        self,
        directory: Path,
        *,
        stage: str,
        first_step: int,
        last_step: int,
        log_every_steps: int,
        checkpoint_every_steps: int,
        save: Callable[[int], None],
        validate_every_steps: int | None,
        validate: Callable[[int], dict[str, float]],
        throughput: Throughput,
    ) -> None:
        super().__init__()
        self.history = directory / "history.jsonl"
        self.stage = stage
        self.step = first_step
        self.last_step = last_step
        self.log_every_steps = log_every_steps
        self.checkpoint_every_steps = checkpoint_every_steps
        self.save = save
        self.validate_every_steps = validate_every_steps
        self.validate = validate
        self.throughput = throughput
        self._board = tf.summary.create_file_writer(str(directory / "tensorboard" / stage))
        forget_history(self.history, stage=stage, after=first_step)

    def on_train_batch_end(self, batch: int, logs: dict[str, float] | None = None) -> None:
        """Does what is due at this step."""
        self.step += 1
        last = self.step == self.last_step
        if self.step % self.log_every_steps == 0 or last:
            values = {name: float(value) for name, value in (logs or {}).items()}
            rate = self.model.optimizer.learning_rate
            self._write({**values, "learning_rate": float(keras.ops.convert_to_numpy(rate))})
            self.model.reset_metrics()  # each line speaks of its own steps only
        if self.validate_every_steps and (self.step % self.validate_every_steps == 0 or last):
            self._write(self.validate(self.step))
            self.throughput.pause()
        if self.step % self.checkpoint_every_steps == 0 or last:
            self.save(self.step)
            self.throughput.pause()

    def on_train_end(self, logs: dict[str, float] | None = None) -> None:
        """Closes the TensorBoard file."""
        self._board.close()

    def _write(self, values: dict[str, float]) -> None:
        with self.history.open("a", encoding="utf-8") as file:
            file.write(json.dumps({"stage": self.stage, "step": self.step, **values}) + "\n")
        with self._board.as_default(step=self.step):
            for name, value in values.items():
                tf.summary.scalar(name, value)


def forget_history(path: Path, *, stage: str, after: int) -> None:
    """Drops the lines of a stage's steps that will be trained again."""
    if not path.exists():
        return
    kept = []
    for line in path.read_text("utf-8").splitlines():
        try:
            record = json.loads(line)
        except ValueError:  # the line being written when the run was killed
            continue
        if record["stage"] != stage or record["step"] <= after:
            kept.append(line + "\n")
    path.write_text("".join(kept), "utf-8")
