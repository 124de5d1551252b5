"""Retrieval on a dev split, measured between the steps of a training, at home and away."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import keras
import numpy as np

from tfde.config.backbones import from_mapping
from tfde.config.validation import GuardConfig, ValidationConfig
from tfde.data.dataset_directory import DatasetDirectory
from tfde.data.query_sample import sample_queries
from tfde.errors import naming, require
from tfde.evaluation.answer_matching import AnswerTexts
from tfde.evaluation.measures import depth, mean_values, needs_answers, per_query
from tfde.retrieval.exact_index import ExactIndex
from tfde.retrieval.retrieve import retrieve
from tfde.towers.dual_encoder import DualEncoder
from tfde.towers.texts import texts_of_document
from tfde.types import CONTEXT, Document, Query

GUARDS_MEAN = "guards' mean"


class RetrievalValidation(keras.callbacks.Callback):
    """Measures retrieval on a dev split: P@1, RR and the like, by exact search.

    Call it with a model; or give it to `fit`, where it measures every `config.every_steps` steps
    and at the end of each epoch, whose logs get `val_P@1` and the like for `EarlyStopping` and
    `ModelCheckpoint` to follow. A guard's measure is named `val_NAME nDCG@10` and the like.

    Args:
        config: Data, split and sizes; or a dataset directory, whose dev split is measured.
        seed: Chooses queries and documents.
        ignore_identical_ids: Leave out a document whose id is that of the query, as of
            `tfde.evaluate`.
        fields: Those of `ValidationConfig` beside a directory, such as `measures=("RR",)`.

    Attributes:
        history: In `fit`: the steps measured at, and their measures.
        log_names: What the logs of an epoch get. What monitors one of them stands after this.
    """

    def __init__(
        self,
        config: ValidationConfig | str | Path,
        *,
        seed: int = 0,
        ignore_identical_ids: bool = False,
        **fields: Any,
    ) -> None:
        super().__init__()
        chosen: ValidationConfig
        if isinstance(config, ValidationConfig):
            require(not fields, "config", "a directory where its fields are given too", config)
            chosen = config
        else:
            path = config.path if isinstance(config, DatasetDirectory) else config
            chosen = from_mapping(ValidationConfig, {"dataset": str(path), **fields}, "config")
        chosen.check("validation")
        self.config = chosen
        self.every_steps = chosen.every_steps
        self.leading_measure = chosen.measures[0]
        self.measures_start = chosen.measure_start or bool(chosen.guards)
        self.guards = {
            f"{name} {guard.measure}": (_validation_of(guard, seed), guard.max_loss)
            for name, guard in chosen.guards.items()
        }
        self.log_names = {f"val_{name}" for name in (*chosen.measures, *self.guards)}
        dataset = DatasetDirectory(chosen.dataset)
        rng = np.random.Generator(np.random.PCG64(seed))
        queries = sample_queries(dataset, chosen.split, chosen.max_queries, rng)
        qrels = dataset.qrels(chosen.split)
        self.qrels = {query.query_id: qrels[query.query_id] for query in queries}
        prompt = chosen.query_prompt
        self.queries: list[Query] = [q._replace(text=prompt + q.text) for q in queries]
        self.answers: AnswerTexts | None = None
        if needs_answers(chosen.measures):
            self.answers = AnswerTexts.of(dataset, self.qrels, lambda: self.documents)
        judged = {doc_id for judgements in self.qrels.values() for doc_id in judgements}
        doc_ids = [document.doc_id for document in dataset.documents()]
        others = [doc_id for doc_id in doc_ids if doc_id not in judged]
        room = len(others)
        if chosen.max_documents is not None:
            room = min(room, max(chosen.max_documents - len(judged), 0))
        kept = judged | {others[i] for i in rng.permutation(len(others))[:room]}
        self.documents = [d for d in dataset.documents() if d.doc_id in kept]
        self.extent = f"{len(queries)} queries, {len(self.documents)} documents"
        self._ignore_identical_ids = ignore_identical_ids
        self._step = 0
        self.history: list[tuple[int, dict[str, float]]] = []

    def on_train_begin(self, logs: dict[str, float] | None = None) -> None:
        """Forgets what an earlier `fit` measured; looks whether the model can read the documents.

        Raises:
            ConfigError: the model's template has `{context}`, and a document has none.
        """
        check_documents(self.model, self.documents)
        for name, (guard, _) in self.guards.items():
            with naming(f"guards.{name}"):
                check_documents(self.model, guard.documents)
        self._step, self.history = 0, []

    def on_train_batch_end(self, batch: int, logs: dict[str, float] | None = None) -> None:
        """Measures if it is time."""
        self._step += 1
        if self._step % self.every_steps == 0:
            self._measure(logs)

    def on_epoch_end(self, epoch: int, logs: dict[str, float] | None = None) -> None:
        """Adds the measures to the logs."""
        self._measure(logs)

    def _measure(self, logs: dict[str, float] | None) -> None:
        if not self.history or self.history[-1][0] != self._step:
            self.history.append((self._step, self(self.model)))
        if logs is not None:
            logs.update({f"val_{name}": value for name, value in self.history[-1][1].items()})

    def __call__(self, model: Any) -> dict[str, float]:
        """Returns measure -> value for the model as it is now."""
        embeddings = model.encode_documents(self.documents)
        doc_ids = [document.doc_id for document in self.documents]
        index = ExactIndex.build(embeddings, doc_ids)
        identical = self._ignore_identical_ids
        k = min(max(100, depth(self.config.measures)) + identical, len(doc_ids))
        run = retrieve(model, index, self.queries, k=k)
        rows = per_query(
            run,
            self.qrels,
            self.config.measures,
            answers=self.answers,
            ignore_identical_ids=identical,
        )
        measures = mean_values(rows)
        for name, (validation, _) in self.guards.items():
            (measures[name],) = validation(model).values()
        if self.guards:
            measures[GUARDS_MEAN] = float(np.mean([measures[name] for name in self.guards]))
        return measures

    def harm(self, measures: dict[str, float], start: dict[str, float]) -> str:
        """Returns on which guard a model falls how far below the start; empty: nowhere too far."""
        found = [
            f"{name} {measures[name] - start[name]:+.4f}, at most -{max_loss:g}"
            for name, (_, max_loss) in self.guards.items()
            if start[name] - measures[name] > max_loss
        ]
        return "; ".join(found)


def check_documents(model: DualEncoder, documents: Iterable[Document]) -> None:
    """Looks whether documents have the context that a model's template may name.

    Raises:
        ConfigError: one has none.
    """
    if CONTEXT in model.document_fields:
        for document in documents:
            texts_of_document(document, model.document_fields)


def _validation_of(guard: GuardConfig, seed: int) -> RetrievalValidation:
    config = ValidationConfig(
        dataset=guard.dataset,
        split=guard.split,
        max_queries=guard.max_queries,
        max_documents=guard.max_documents,
        measures=guard.measures,
        query_prompt=guard.query_prompt,
    )
    # A query that is a document too, as in BEIR's ArguAna, does not count as its own answer.
    return RetrievalValidation(config, seed=seed, ignore_identical_ids=True)
