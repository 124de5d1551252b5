"""Losses of others as tasks: TFRS' retrieval task, Keras losses, functions, and sums of several."""

from __future__ import annotations

import inspect
import math
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Self

import keras
import tensorflow as tf

from tfde.environment import import_recommenders
from tfde.errors import ConfigError, require
from tfde.tasks.retrieval_task import PADDING_KEY, RetrievalTask, candidate_mask
from tfde.tasks.score_task import BATCH_ROWS, ScoreTask, batch_rows
from tfde.tasks.task import Rows, Task


def as_task(loss: Any, weights: Any = None) -> Task:
    """Returns what `compile` was given as a task.

    Args:
        loss: `None` for `RetrievalTask()`; a `Task`; `tfrs.tasks.Retrieval`; what `ScoreTask`
            takes; a function of `(query_embeddings, document_embeddings, batch)`, see
            `FunctionTask`; or several of these, in a list or by name.
        weights: Of several, a number each, in their order or by name; `None`: 1 each.

    Raises:
        ConfigError: it is none of these; an option of it cannot be honoured; weights that do not
            go with it.
    """
    if isinstance(loss, Mapping | list | tuple):
        return SumTask(loss, weights)
    if weights is not None:
        return SumTask([loss], [weights] if isinstance(weights, int | float) else weights)
    if loss is None:
        return RetrievalTask()
    if isinstance(loss, type) and (hasattr(loss, "prepare") or _of_recommenders(loss)):
        rule = f"a task, not its class: write `{loss.__name__}(...)`"
        require(False, "task", rule, loss)
    _check_weights(loss)
    if hasattr(loss, "prepare") and hasattr(loss, "describe"):
        task: Task = loss
        return task
    if _of_recommenders(type(loss)):
        return RecommendersTask(loss)
    if callable(loss) and not hasattr(loss, "call") and _required_arguments(loss) == 3:
        return FunctionTask(loss)
    return ScoreTask(loss)


def _of_recommenders(cls: type) -> bool:
    return any(part.__module__.startswith("tensorflow_recommenders.") for part in cls.__mro__)


def _check_weights(loss: Any) -> None:
    """Refuses a task, a Keras loss or a function with a variable of its own that would be trained.

    Raises:
        ConfigError: it has one: `fit` trains the weights of the towers alone.
    """
    parts: list[Any] = []
    if inspect.isfunction(loss):
        seen = inspect.getclosurevars(loss)
        parts = [*seen.nonlocals.values(), *seen.globals.values()]
    elif isinstance(loss, keras.losses.Loss) or hasattr(loss, "prepare"):
        parts = list(getattr(loss, "__dict__", {}).values())
    rule = "without weights of its own, which `fit` does not train: give them to a layer of a tower"
    for part in parts:
        own = isinstance(part, keras.Variable | tf.Variable) and part.trainable
        require(not own, "task", rule, part)


class RecommendersTask(Task):
    """`tfrs.tasks.Retrieval` as it is, of any options that decide over its loss.

    It gets the documents' keys for candidate ids; padding is masked, and nothing else: without
    `remove_accidental_hits` another copy of a positive is a negative, as in TFRS.

    The value is that of the task over the whole batch: the sum over its queries where the task's
    loss is a sum, which is TFRS' default, so that learning rates found there serve here.

    Args:
        task: The task.

    Raises:
        ConfigError: it is another task of TFRS'; it has metrics, or a loss of unknown reduction.
    """

    def __init__(self, task: Any) -> None:
        tfrs, _ = import_recommenders()
        retrieval = isinstance(task, tfrs.tasks.Retrieval)
        require(retrieval, "task", "tfrs.tasks.Retrieval, of TFRS' tasks", task)
        given = {
            "metrics": (
                task.factorized_metrics,
                "callbacks=[tfde.RetrievalValidation(...)] in `fit`",
            ),
            "batch_metrics": (task._batch_metrics, "`metrics` of `compile`, Keras 3's"),
            "loss_metrics": (task._loss_metrics, "`loss` in the logs"),
        }
        for name, (metrics, instead) in given.items():
            require(not metrics, f"{name} of tfrs.tasks.Retrieval", f"none: use {instead}", metrics)
        reduction = getattr(task._loss, "reduction", None)
        rule = "a Keras loss, which tells its reduction (a function: `compile(loss=...)`)"
        require(reduction is not None, "loss of tfrs.tasks.Retrieval", rule, task._loss)
        self.task = task
        self._sums = str(reduction) == "sum"
        # Keras 3 traces train steps with AutoGraph off, the Keras 2 task needs it on.
        self._loss = tf.function(self._call_task, reduce_retracing=True)

    def _call_task(self, queries: Any, candidates: Any, keys: Any, mask: Any) -> tf.Tensor:
        # `call`, not `__call__`: a Keras 2 layer would cast its first argument to float32.
        return self.task.call(
            queries,
            candidates,
            candidate_ids=keys,
            score_mask=mask,
            compute_metrics=False,
            compute_batch_metrics=False,
        )

    def prepare(self, batch: Mapping[str, tf.Tensor], *, replicas: int) -> dict[str, tf.Tensor]:
        """Returns of how many queries the whole batch is."""
        return batch_rows(batch, replicas)

    def describe(
        self, prepared: Mapping[str, tf.Tensor], *, chunk_size: int | None
    ) -> tuple[Rows, Rows]:
        """Returns the same beside each query."""
        return {BATCH_ROWS: prepared[BATCH_ROWS]}, {}

    def __call__(
        self, queries: Rows, candidates: Rows, *, other_queries: Rows | None = None
    ) -> tf.Tensor:
        """Returns the mean loss of the queries, or what they have of the batch's sum, a scalar."""
        embeddings, keys = queries["embeddings"], candidates["keys"]
        rows = tf.shape(embeddings)[0]
        mask = tf.broadcast_to(keys != PADDING_KEY, [rows, tf.size(keys)])
        value = self._loss(embeddings, candidates["embeddings"], keys, mask)
        if not self._sums:
            return tf.reduce_mean(value)
        return value * tf.cast(queries[BATCH_ROWS][0] / tf.cast(rows, tf.float32), value.dtype)


@keras.saving.register_keras_serializable(package="tfde")
class FunctionTask(Task):
    """A function of the embeddings of a whole batch, of all replicas.

    Args:
        function: Of `query_embeddings` (B, D), `document_embeddings` (C, D) and `batch`; row i < B
            of the documents is the positive of query i. `batch` has `positive_keys` (B, P) and
            `candidate_keys` (C,) int64, as `Task` says, and `allowed` (B, C) bool: false for
            padding and for other known positives of a query. It returns a scalar, or the losses of
            the queries, (B,), whose mean is taken.
    """

    whole_batch = True

    def __init__(self, function: Callable[[Any, Any, dict[str, tf.Tensor]], Any]) -> None:
        self.function = function

    def get_config(self) -> dict[str, Any]:
        """Returns the function, which Keras must know."""
        return {"function": keras.saving.serialize_keras_object(self.function)}

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> Self:
        """Returns the task of this function."""
        return cls(keras.saving.deserialize_keras_object(config["function"]))

    def __call__(
        self, queries: Rows, candidates: Rows, *, other_queries: Rows | None = None
    ) -> tf.Tensor:
        """Returns what the function does, a scalar."""
        batch = {
            "positive_keys": queries["positive_keys"],
            "candidate_keys": candidates["keys"],
            "allowed": candidate_mask(candidates["keys"], queries["positive_keys"]),
        }
        value = self.function(queries["embeddings"], candidates["embeddings"], batch)
        value = tf.convert_to_tensor(value)
        rule = "a scalar, or a number for each query, (B,)"
        require(value.shape.rank in (0, 1), "loss", f"a function that returns {rule}", value)
        return tf.reduce_mean(value)


@keras.saving.register_keras_serializable(package="tfde")
class SumTask(Task):
    """The weighted sum of several tasks.

    Args:
        tasks: What `as_task` takes, in a list or by name.
        weights: A number each, in their order or by name; `None`: 1 each.

    Raises:
        ConfigError: there is none; as many weights are not given; as `as_task`.
    """

    def __init__(self, tasks: Any, weights: Any = None) -> None:
        require(bool(tasks), "loss", "one or more", tasks)
        names = list(tasks) if isinstance(tasks, Mapping) else list(range(len(tasks)))
        weights = [1.0] * len(names) if weights is None else weights
        if isinstance(weights, Sequence):
            weights = dict(zip(names, weights, strict=False)) if len(weights) == len(names) else {}
        rule = f"a number for each of {len(names)}, in their order or by name"
        fits = isinstance(weights, Mapping) and set(weights) == set(names)
        require(fits, "loss_weights", rule, weights)
        self.tasks = [as_task(tasks[name]) for name in names]
        self.weights = [float(weights[name]) for name in names]
        fits = all(0 <= weight < math.inf for weight in self.weights)
        require(fits, "loss_weights", "finite numbers from 0 on", self.weights)
        self.needs_other_queries = any(task.needs_other_queries for task in self.tasks)
        self.whole_batch = any(task.whole_batch for task in self.tasks)
        dims = {dim for task in self.tasks for dim in task.trained_dims}
        self.trained_dims = tuple(sorted(dims))

    def get_config(self) -> dict[str, Any]:
        """Returns the tasks and their weights; a saved model is compiled with them again."""
        tasks = [keras.saving.serialize_keras_object(task) for task in self.tasks]
        return {"tasks": tasks, "weights": self.weights}

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> Self:
        """Returns the sum of these tasks."""
        return cls(
            [keras.saving.deserialize_keras_object(task) for task in config["tasks"]],
            config["weights"],
        )

    def prepare(self, batch: Mapping[str, tf.Tensor], *, replicas: int) -> dict[str, tf.Tensor]:
        """Returns what each prepares, apart."""
        return {
            f"{number}/{name}": part
            for number, task in enumerate(self.tasks)
            for name, part in task.prepare(batch, replicas=replicas).items()
        }

    def describe(
        self, prepared: Mapping[str, tf.Tensor], *, chunk_size: int | None
    ) -> tuple[Rows, Rows]:
        """Returns what each knows, apart."""
        sides: tuple[dict[str, tf.Tensor], dict[str, tf.Tensor]] = ({}, {})
        for number, task in enumerate(self.tasks):
            own = task.describe(_own(prepared, number), chunk_size=chunk_size)
            for side, rows in zip(sides, own, strict=True):
                side.update({f"{number}/{name}": part for name, part in rows.items()})
        return sides

    def __call__(
        self, queries: Rows, candidates: Rows, *, other_queries: Rows | None = None
    ) -> tf.Tensor:
        """Returns the weighted sum, a scalar."""
        losses = []
        for number, (task, weight) in enumerate(zip(self.tasks, self.weights, strict=True)):
            others = None
            if task.needs_other_queries and other_queries is not None:
                others = _own(other_queries, number)
            own = (_own(queries, number), _own(candidates, number))
            losses.append(weight * task(*own, other_queries=others))
        return tf.add_n(losses)


_OF_A_TASK = re.compile(r"\d+/")


def _own(parts: Mapping[str, tf.Tensor], number: int) -> dict[str, tf.Tensor]:
    """Returns what all see, and under their own names what the task of this number put there."""
    prefix = f"{number}/"
    return {
        name.removeprefix(prefix): part
        for name, part in parts.items()
        if name.startswith(prefix) or not _OF_A_TASK.match(name)
    }


def _required_arguments(function: Callable[..., Any]) -> int:
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        raise ConfigError(
            "`loss` must be a function whose arguments can be told: (relevance, scores), or"
            f" (query_embeddings, document_embeddings, batch). Received: {function!r}"
        ) from None
    positional = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return sum(
        parameter.kind in positional and parameter.default is inspect.Parameter.empty
        for parameter in parameters
    )
