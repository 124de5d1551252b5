"""The loop of `fit`: one device or many replicas, one process or many.

Keras' own knows a strategy of one process only: under `MultiWorkerMirroredStrategy` its symbolic
build and its reduction of the logs fail, and it reads metrics outside of the replicas. One loop for
all means that callbacks see the same wherever a model is trained.
"""

from __future__ import annotations

import itertools
import logging
import re
import statistics
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tfde.errors import ConfigError, require
from tfde.tasks.replicas import mean_over_replicas, take_summed_gradients
from tfde.text.cut_texts import cut_line
from tfde.text.graph_function import graph_function
from tfde.towers.input_failures import told
from tfde.towers.keras_saving import WholeFiles
from tfde.towers.pair_order import Order

_LOG = logging.getLogger(__name__)
# Early enough for whoever would train for a day, late enough to say something.
_FIRST_AT = 100
# Told of a batch in a graph, before the number of its rows.
_UNEVEN = "rows that replicas cannot share:"


def fit_epochs(
    model: WholeFiles,
    batches: Callable[[int, int], Any],
    *,
    epochs: int,
    steps: int | None,
    initial_epoch: int = 0,
    validate: Callable[..., dict[str, float]] | None = None,
    validation_freq: int = 1,
    callbacks: Sequence[keras.callbacks.Callback],
    verbose: str | int,
    order: Order | None = None,
) -> keras.callbacks.History:
    """Trains a compiled model and calls its callbacks as Keras does.

    Args:
        model: With `train_function(iterator) -> logs`.
        batches: Epoch, and how many batches of it are done -> a dataset of those that follow, or
            what `distribute_batches` made of one.
        epochs: The number of the epoch at which it ends.
        steps: Batches an epoch, one iterator through all; `None` takes all batches in each.
        initial_epoch: The number of the first epoch; a callback that puts the weights of a killed
            `fit` back, as `keras.callbacks.BackupAndRestore` does, brings its place too.
        validate: Gives what stands, as `val_...`, in the logs of an epoch; `listeners` are the
            callbacks that hear of it.
        validation_freq: Epochs from one validation to the next.
        callbacks: Keras callbacks.
        verbose: As in Keras.
        order: Of the pairs; where a callback puts a killed `fit` back, it goes on with its order.

    Raises:
        ConfigError: a callback follows a measure that one after it adds; too few batches.
    """
    _check_order(callbacks)
    listeners = keras.callbacks.CallbackList(
        list(callbacks),
        add_history=True,
        add_progbar=verbose != 0,
        verbose=verbose,
        epochs=epochs,
        steps=steps,
        model=model,
    )
    model.stop_training = False
    model.make_train_function()
    model._initial_epoch = None  # Keras' own, which BackupAndRestore sets
    listeners.on_train_begin()
    if model._initial_epoch is None:
        model.position = initial_epoch, 0
        model.order_seed = model.order_seed if order is None else order.seed
    elif order is not None:
        order.go_on(model.order_seed)
    first, done = model.position
    logs: dict[str, Any] = {}
    iterator = iter(batches(first, done))
    for epoch in range(first, epochs):
        if epoch > first:
            done = 0
        if not done:
            model.reset_metrics()
        logs = {}
        listeners.on_epoch_begin(epoch)
        if steps is None and epoch > first:
            iterator = iter(batches(epoch, 0))
        for step in itertools.count(done) if steps is None else range(done, steps):
            listeners.on_train_batch_begin(step)
            if (found := next_step(model.train_function, iterator)) is None:
                rule = f"{steps} batches an epoch, and so many epochs; it ended early"
                require(steps is None, "x", rule, f"{step} batches in epoch {epoch + 1}")
                break
            logs = found
            model.position = epoch, step + 1
            listeners.on_train_batch_end(step, logs)
            if model.stop_training:
                break
        if done and not logs:  # the fit was killed after the last batch of an epoch
            logs = model.get_metrics_result()
        rule = "one or more batches in each epoch (a generator is read once, a list again)"
        require(bool(logs), "x", rule, f"none in {epoch + 1}")
        values = {name: float(value) for name, value in logs.items()}
        if validate is not None and (epoch + 1) % validation_freq == 0:
            values |= {
                f"val_{name}": value for name, value in validate(listeners=listeners).items()
            }
        model.position = epoch + 1, 0
        listeners.on_epoch_end(epoch, values)
        if model.stop_training:
            break
    model.optimizer.finalize_variable_values(model.trainable_weights)
    listeners.on_train_end(logs)
    return model.history


def _check_order(callbacks: Sequence[keras.callbacks.Callback]) -> None:
    """Refuses callbacks that follow a measure which another one adds to the logs after them."""
    for place, callback in enumerate(callbacks):
        for earlier in callbacks[:place]:
            monitor = getattr(earlier, "monitor", None)
            rule = f"a list with {type(callback).__name__}, which measures {monitor}, first"
            late = monitor in getattr(callback, "log_names", ())
            require(not late, "callbacks", rule, f"{type(earlier).__name__} before it")


def next_step(
    function: Callable[[Any], dict[str, tf.Tensor]], iterator: Any
) -> dict[str, tf.Tensor] | None:
    """Returns the logs of a step on the next batch, `None` where there is none left.

    Raises:
        ConfigError: the rows of the batch cannot be shared out evenly among replicas.
        Exception: what a user's generator raised.
    """
    try:
        with told():
            return function(iterator)
    except (StopIteration, tf.errors.OutOfRangeError):
        return None
    except tf.errors.InvalidArgumentError as error:
        rows = re.search(rf"{_UNEVEN}\] \[(\d+)\]", error.message)
        if rows is None:
            raise
        raise ConfigError(
            "each batch of `x` must have a multiple of the replicas, which share its rows out"
            f" evenly; `x.batch(..., drop_remainder=True)` does. Received: {rows[1]} rows"
        ) from None


def step_function(
    model: keras.Model, step: Callable[[Any], dict[str, tf.Tensor]]
) -> Callable[[Any], dict[str, tf.Tensor]]:
    """Returns the function of one step: an iterator of batches -> logs of the whole batch.

    Args:
        model: Compiled; its optimizer is built here, where it is not yet.
        step: What each replica of its strategy does with its rows; its logs are means over them.
    """
    strategy = model.distribute_strategy
    with strategy.scope():  # not in the step, where each replica would
        if not model.optimizer.built:
            model.optimizer.build(model.trainable_weights)
    if model.jit_compile and not model.run_eagerly:
        step = tf.function(step, jit_compile=True, reduce_retracing=True)

    def replica_step(batch: Any) -> dict[str, tf.Tensor]:
        # What needs nothing of the batch waits too: where there is none left, no step is taken.
        with tf.control_dependencies(tf.nest.flatten(batch)):
            return mean_over_replicas(step(batch))

    @tf.autograph.experimental.do_not_convert
    def take(iterator: Any) -> dict[str, tf.Tensor]:
        logs = strategy.run(replica_step, args=(next(iterator),))
        return {name: strategy.experimental_local_results(log)[0] for name, log in logs.items()}

    return take if model.run_eagerly else graph_function(take, reduce_retracing=True)


def uses_xla(jit_compile: Any) -> bool:
    """Returns whether `jit_compile` of `compile` asks for XLA; "auto" does not.

    Raises:
        ConfigError: it is something else.
    """
    known = jit_compile in (True, False, None, "auto")
    require(known, "jit_compile", 'True, False or "auto"', jit_compile)
    return jit_compile != "auto" and bool(jit_compile)


def compile_in_scope(
    model: keras.Model,
    compile_model: Callable[..., None],
    *,
    weighted_metrics: Any = None,
    steps_per_execution: int = 1,
    **options: Any,
) -> None:
    """Compiles a model where its replicas find the optimizer, which takes their summed gradients.

    Args:
        model: What `fit_epochs` trains.
        compile_model: Keras' own `compile` of it.
        weighted_metrics: None.
        steps_per_execution: 1: callbacks see every step.
        options: As Keras' `compile`.

    Raises:
        ConfigError: one of these is something else.
    """
    rule = "None: pairs have no weights; `metrics` takes the same"
    require(not weighted_metrics, "weighted_metrics", rule, weighted_metrics)
    one = steps_per_execution == 1
    require(one, "steps_per_execution", "1: a step takes longer than its call", steps_per_execution)
    replicas = model.distribute_strategy.num_replicas_in_sync
    steps = getattr(options.get("optimizer"), "gradient_accumulation_steps", None)
    rule = f"None with {replicas} replicas, where Keras cannot accumulate"
    require(replicas == 1 or not steps, "gradient_accumulation_steps", rule, steps)
    with model.distribute_strategy.scope():
        compile_model(**options)
    if replicas > 1:
        take_summed_gradients(model.optimizer)


def endless(batches: tf.data.Dataset) -> tf.data.Dataset:
    """Returns the batches as if there were no end of them.

    Else processes would ask each other before each step whether anyone has a batch left.
    """
    return batches.apply(tf.data.experimental.assert_cardinality(tf.data.INFINITE_CARDINALITY))


def distribute_batches(
    batches: tf.data.Dataset,
    prepare: Callable[[dict[str, tf.Tensor]], dict[str, tf.Tensor]],
    strategy: tf.distribute.Strategy,
) -> Any:
    """Returns the batches with each one's rows shared out evenly among the replicas.

    All processes read the same batches in the same order and tokenize their own rows only.

    Args:
        batches: Dicts of tensors of equally many rows, a multiple of the number of replicas.
        prepare: Rows to what a step takes.
        strategy: Whose replicas they are for.
    """

    def of_worker(context: tf.distribute.InputContext) -> tf.data.Dataset:
        replicas = context.num_replicas_in_sync
        parts = batches
        if replicas > 1:
            here = replicas // context.num_input_pipelines
            first = context.input_pipeline_id * here
            parts = batches.flat_map(
                lambda batch: tf.data.Dataset.from_tensor_slices(
                    {
                        name: _split_rows(part, replicas)[first : first + here]
                        for name, part in batch.items()
                    }
                )
            )
        prepare_rows = tf.autograph.experimental.do_not_convert(prepare)
        parts = parts.map(prepare_rows, num_parallel_calls=tf.data.AUTOTUNE)
        return parts.prefetch(tf.data.AUTOTUNE)

    if strategy.num_replicas_in_sync == 1:
        return of_worker(tf.distribute.InputContext())
    return strategy.distribute_datasets_from_function(of_worker)


class SingleBatches:
    """Batches that come one by one, each on an iterator of its own; traced once for all.

    Args:
        like: A batch, as `distribute_batches` takes them: names, ranks and dtypes of all.
        prepare: As there.
        strategy: As there.
    """

    def __init__(
        self,
        like: Mapping[str, Any],
        prepare: Callable[[dict[str, tf.Tensor]], dict[str, tf.Tensor]],
        strategy: tf.distribute.Strategy,
    ) -> None:
        specs = {}
        for name, part in like.items():
            dtype = tf.convert_to_tensor(part).dtype
            specs[name] = tf.TensorSpec([None] * len(np.shape(part)), dtype)
        self._names = list(like)
        self._batch: Mapping[str, Any] = like
        one = tf.data.Dataset.from_generator(
            lambda: iter([{name: self._batch[name] for name in self._names}]),
            output_signature=specs,
        )
        self._batches = distribute_batches(one, prepare, strategy)

    def __call__(self, batch: Mapping[str, Any]) -> Any:
        """Returns an iterator of this batch alone."""
        self._batch = batch
        return iter(self._batches)


def _split_rows(part: tf.Tensor, count: int) -> tf.Tensor:
    """(B, ...) -> (count, B / count, ...)."""
    shape = tf.shape(part)
    check = tf.debugging.Assert(shape[0] % count == 0, [_UNEVEN, shape[0]])
    with tf.control_dependencies([check]):
        part = tf.identity(part)
    return tf.reshape(part, tf.concat([[count, shape[0] // count], shape[1:]], 0))


class Throughput(keras.callbacks.Callback):
    """Adds `pairs_per_s` to the logs of each step and epoch.

    It is the median over the last 20 steps, so that a validation or a checkpoint between two
    steps does not count as training.

    Args:
        batch_size: Pairs a step.
    """

    def __init__(self, batch_size: int) -> None:
        super().__init__()
        self.batch_size = batch_size
        self._begun = 0.0
        self._first: float | None = None  # with tracing: counts where there is no other
        self._last: float | None = None
        self._seconds: deque[float] = deque(maxlen=20)

    def on_train_batch_begin(self, batch: int, logs: dict[str, float] | None = None) -> None:
        """Notes when a step begins."""
        self._begun = time.perf_counter()

    def on_train_batch_end(self, batch: int, logs: dict[str, float] | None = None) -> None:
        """Notes the time and adds the rate."""
        now = time.perf_counter()
        if self._last is None:
            self._first = now - self._begun
        else:
            self._seconds.append(now - self._last)
        self._last = now
        self.on_epoch_end(batch, logs)

    def on_epoch_end(self, epoch: int, logs: dict[str, float] | None = None) -> None:
        """Adds the rate of the last steps."""
        seconds = self._seconds or ([] if self._first is None else [self._first])
        if logs is not None and seconds:
            logs["pairs_per_s"] = self.batch_size / statistics.median(seconds)


class CutReport(keras.callbacks.Callback):
    """Says in the log how many texts were cut, after the first 100 steps and at the end.

    For models with `trained_texts()`.
    """

    def on_train_batch_end(self, batch: int, logs: dict[str, Any] | None = None) -> None:
        """Says it early."""
        if batch + 1 == _FIRST_AT:
            self._say(f"in the first {_FIRST_AT} steps")

    def on_train_end(self, logs: dict[str, Any] | None = None) -> None:
        """Says it of all."""
        self._say("in training")

    def _say(self, when: str) -> None:
        line = cut_line(self.model.trained_texts())
        if line:
            _LOG.info("%s: %s", when, line)
