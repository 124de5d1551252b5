"""Requests of several clients in one run, by the batcher that TensorFlow Serving uses too.

TensorFlow has it as an op, `BatchFunction`, with a queue, threads and a limit of waiting batches
of its own.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf
from grpc import StatusCode

from tfde.environment import usable_cores
from tfde.protos.batching_parameters_pb2 import BatchingParameters
from tfde.serving.server import session_run
from tfde.serving.server.calls import current_call
from tfde.serving.server.status import StatusError, invalid_argument

# Source: defaults of TensorFlow Serving's SharedBatchScheduler.
_MAX_BATCH_SIZE = 1000
_BATCH_TIMEOUT_MICROS = 0
_MAX_ENQUEUED_BATCHES = 10
# Of an answer whose rows were run in parts; what a string costs as an object beside its bytes.
_MOST_BYTES = 256 * 2**20
_STRING_BYTES = 64

Arrays = Sequence[np.ndarray]


def check_batching_parameters(parameters: BatchingParameters) -> None:
    """Refuses parameters that contradict each other.

    Raises:
        StatusError: INVALID_ARGUMENT, what is wrong.
    """
    sizes = list(parameters.allowed_batch_sizes)
    for smaller, larger in pairwise(sizes):
        if smaller >= larger:
            raise invalid_argument(
                "allowed_batch_sizes entries must be monotonically increasing; found ",
                f"{smaller} before {larger}",
            )
    largest, most = max_batch_size(parameters), max_execution_batch_size(parameters)
    if sizes and sizes[-1] != most:
        name = "max_batch_size" if most == largest else "max_execution_batch_size"
        raise invalid_argument(
            f"Last entry in allowed_batch_sizes must match {name}; last entry was "
            f"{sizes[-1]}; expected {most}"
        )
    for name in ("max_batch_size", "max_enqueued_batches", "num_batch_threads"):
        if parameters.HasField(name) and getattr(parameters, name).value < 1:
            value = getattr(parameters, name).value
            raise invalid_argument(f"{name} must be positive; was {value}")
    if not 0 < most <= largest:
        raise invalid_argument(
            f"max_execution_batch_size must be positive, and at most max_batch_size, {largest}; was"
            f" {most}"
        )
    if parameters.batch_timeout_micros.value < 0:
        raise invalid_argument(
            f"batch_timeout_micros must be >= 0; was {parameters.batch_timeout_micros.value}"
        )


def max_batch_size(parameters: BatchingParameters) -> int:
    """Returns how many rows a batch may have."""
    given = parameters.HasField("max_batch_size")
    return parameters.max_batch_size.value if given else _MAX_BATCH_SIZE


def max_execution_batch_size(parameters: BatchingParameters) -> int:
    """Returns how many rows of a batch run at once."""
    splits = parameters.enable_large_batch_splitting.value
    given = splits and parameters.HasField("max_execution_batch_size")
    return parameters.max_execution_batch_size.value if given else max_batch_size(parameters)


class Batcher:
    """Joins the requests to one signature.

    TensorFlow's op decides who runs together and when: its function gets the numbers of the
    requests, not their tensors, and calls back. So the model runs in its own session, as without
    batching, and no part of its graph is copied into the function.

    Args:
        run: Inputs to outputs of the signature; each output has a row for each row of inputs.
        names: What error messages call the inputs, in their order.
        parameters: Sizes and times.
        lenient: Whether requests are taken that TensorFlow Serving refuses to batch: those with
            inputs without rows run with others where these are equal, and those of more rows than
            a batch may have in parts, one after the other.
        queued: Told the seconds that a request has waited, when its run begins.
    """

    def __init__(
        self,
        run: Callable[[Arrays], Arrays],
        names: Sequence[str],
        parameters: BatchingParameters,
        *,
        lenient: bool = False,
        queued: Callable[[float], None],
    ) -> None:
        self._model = run
        self._queued = queued
        self._names = names
        self._pad = parameters.pad_variable_length_inputs
        self._lenient = lenient
        self._max_rows = max_batch_size(parameters)
        self._most = max_execution_batch_size(parameters)
        self._requests: dict[int, _Request] = {}
        self._numbers = itertools.count()
        options = {
            "num_batch_threads": usable_cores(),
            "batch_timeout_micros": _BATCH_TIMEOUT_MICROS,
            "max_enqueued_batches": _MAX_ENQUEUED_BATCHES,
        }
        for name in options:
            if parameters.HasField(name):
                options[name] = getattr(parameters, name).value

        @tf.nondifferentiable_batch_function(
            max_batch_size=self._max_rows,
            allowed_batch_sizes=list(parameters.allowed_batch_sizes) or None,
            enable_large_batch_splitting=parameters.enable_large_batch_splitting.value,
            autograph=False,
            **options,
        )
        def together(rows: tf.Tensor) -> tf.Tensor:
            return tf.ensure_shape(tf.numpy_function(self._run_batch, [rows], tf.int64), [None, 2])

        graph = tf.Graph()
        with graph.as_default():
            self._rows = tf.compat.v1.placeholder(tf.int64, [None, 2])
            self._done = together(self._rows)
        # The batch runs in the op's threads: nothing else here takes time, or a device.
        config = tf.compat.v1.ConfigProto(inter_op_parallelism_threads=-1, device_count={"GPU": 0})
        self._session = tf.compat.v1.Session(graph=graph, config=config)
        session_run.prepare(self._session)

    def rows(self, inputs: Arrays) -> int:
        """Returns how many rows a request brings to batches; 0 for one that runs by itself.

        Raises:
            StatusError: INVALID_ARGUMENT, the inputs cannot be batched.
        """
        # Source: words of TensorFlow Serving's batching_session.cc.
        if not self._lenient and any(array.ndim == 0 for array in inputs):
            raise invalid_argument("Batching Run() input tensors must have at least one dimension")
        rows = {len(array) for array in inputs if array.ndim}
        if len(rows) > 1:
            raise invalid_argument(
                "Batching Run() input tensors must have equal 0th-dimension size"
            )
        return rows.pop() if rows else 0

    def run(self, inputs: Arrays, rows: int, *, timeout_s: float | None) -> Arrays:
        """Runs a request with others, in parts if it is too large; blocks until all is there.

        Args:
            inputs: The request's arrays.
            rows: How many rows they have, at least 1.
            timeout_s: Seconds after which its run does not begin, or its answer comes too late.

        Raises:
            StatusError: what the run of its batch raises; DEADLINE_EXCEEDED.
            tf.errors.OpError: UNAVAILABLE when the queue is full, INVALID_ARGUMENT for more rows
                than a batch may have.
        """
        if self._lenient and rows > self._max_rows:
            return in_parts(
                lambda part, count, left: self._run(part, count, left),
                inputs,
                self._max_rows,
                timeout_s=timeout_s,
            )
        if rows > self._max_rows:  # before they are numbered: rows without numbers cost nothing
            # Source: words of TensorFlow's shared_batch_scheduler.h.
            rule = f"Task size {rows} is larger than maximum input batch size {self._max_rows}"
            raise invalid_argument(rule)
        return self._run(inputs, rows, timeout_s)

    def _run(self, inputs: Arrays, rows: int, timeout_s: float | None) -> Arrays:
        request = _Request(inputs, timeout_s)
        number = next(self._numbers)
        self._requests[number] = request
        places = np.stack([np.full(rows, number), np.arange(rows)], axis=1)
        try:
            # Without the op's own limit, which would cancel the whole batch: it runs as a part of
            # one of its requests' steps.
            session_run.run(self._session, [self._done], {self._rows: places}, timeout_s=None)
        finally:
            del self._requests[number]
        return request.outputs()

    def close(self) -> None:
        """Ends the op's threads, and lets the model go: TensorFlow keeps what its op calls back."""
        self._session.close()
        del self._model

    def _run_batch(self, rows: np.ndarray) -> np.ndarray:
        """Answers the requests of a batch; what goes wrong becomes their error."""
        groups: dict[tuple[Any, ...], list[_Part]] = {}
        # An allowed size is filled up with further rows of the first request.
        starts = [0, *(np.flatnonzero((np.diff(rows, axis=0) != [0, 1]).any(axis=1)) + 1)]
        for start, stop in pairwise([*starts, len(rows)]):
            request = self._requests.get(int(rows[start, 0]))
            if request is not None and request.is_wanted():
                first = int(rows[start, 1])
                part = _Part(request, first, first + int(stop - start))
                if request.waits:
                    self._queued(time.perf_counter() - request.came)
                    request.waits = False
                groups.setdefault(request.scalars(), []).append(part)
        for parts in groups.values():
            for together in _cut(parts, self._most):
                self._answer(together)
        return rows

    def _answer(self, parts: list[_Part]) -> None:
        """Runs parts together; what one request is refused for costs the others nothing."""
        try:
            self._run_parts(parts)
        except StatusError as error:
            apart: dict[int, list[_Part]] = {}
            for part in parts:
                apart.setdefault(id(part.request), []).append(part)
            if error.code == StatusCode.INVALID_ARGUMENT and len(apart) > 1:
                for own in apart.values():
                    self._answer(own)
            else:
                _fail(parts, error)
        except Exception as error:  # nobody else would tell it to those who wait
            _fail(parts, StatusError(StatusCode.INTERNAL, f"{type(error).__name__}: {error}"))

    def _run_parts(self, parts: list[_Part]) -> None:
        outputs = self._model(
            [self._joined(parts, position) for position in range(len(self._names))]
        )
        rows = sum(part.stop - part.start for part in parts)
        for array in outputs:
            _check_output(array, rows)
        row = 0
        for part in parts:
            stop = row + part.stop - part.start
            part.request.pieces.setdefault(part.start, [array[row:stop] for array in outputs])
            row = stop

    def _joined(self, parts: list[_Part], position: int) -> np.ndarray:
        """Returns one input of all parts, one below the other."""
        first = parts[0].request.inputs[position]
        if first.ndim == 0:
            return first
        arrays = [part.request.inputs[position][part.start : part.stop] for part in parts]
        if len(arrays) == 1:
            return arrays[0]
        if any(array.shape[1:] != arrays[0].shape[1:] for array in arrays):
            arrays = self._padded(arrays, self._names[position])
        return np.concatenate(arrays)

    def _padded(self, arrays: list[np.ndarray], name: str) -> list[np.ndarray]:
        # Source: words and rules of TensorFlow Serving's batching_session.cc, batching_util.cc.
        if not self._pad:
            raise StatusError(
                StatusCode.FAILED_PRECONDITION,
                f"Tensors with name '{name}' from different tasks have different shapes and padding"
                " is turned off. Set pad_variable_length_inputs to true, or ensure that all tensors"
                " with the same name have equal dimensions starting with the first dim.",
            )
        if len({array.ndim for array in arrays}) > 1 or any(array.size == 0 for array in arrays):
            raise invalid_argument(f"Tensors with name '{name}' cannot be padded to one shape")
        longest = np.max([array.shape for array in arrays], axis=0)
        padded = []
        for array in arrays:
            whole = np.full([len(array), *longest[1:]], array.flat[0], array.dtype)
            whole[tuple(slice(size) for size in array.shape)] = array
            padded.append(whole)
        return padded


class _Request:
    """Inputs, and what came of each part of their rows."""

    def __init__(self, inputs: Arrays, timeout_s: float | None) -> None:
        self.inputs = inputs
        self.call = current_call()
        self.came = time.perf_counter()
        self._ends = None if timeout_s is None else self.came + timeout_s
        self.waits = True
        self.pieces: dict[int, Arrays] = {}
        self.error: StatusError | None = None

    def is_wanted(self) -> bool:
        """Whether to run it, if that has not begun: its client may have gone."""
        if self.waits and self.call.gone:
            self.error = StatusError(StatusCode.CANCELLED, "the client has left")
        elif self.waits and self._is_over():
            # Source: words of TensorFlow Serving's batching_session.cc.
            rule = "Run() timeout exceeded while waiting in batching queue"
            self.error = StatusError(StatusCode.DEADLINE_EXCEEDED, rule)
        return self.error is None

    def _is_over(self) -> bool:
        return self._ends is not None and time.perf_counter() > self._ends

    def scalars(self) -> tuple[Any, ...]:
        return tuple(array.item() for array in self.inputs if array.ndim == 0)

    def outputs(self) -> Arrays:
        if self.error is not None:
            raise self.error
        if self._is_over():
            raise StatusError(StatusCode.DEADLINE_EXCEEDED, "the request's time is over")
        pieces = [self.pieces[start] for start in sorted(self.pieces)]
        if len(pieces) == 1:
            return pieces[0]
        return [np.concatenate(arrays) for arrays in zip(*pieces, strict=True)]


class _Part(NamedTuple):
    """Rows of a request that run in one batch."""

    request: _Request
    start: int
    stop: int


def _cut(parts: list[_Part], most: int) -> Iterator[list[_Part]]:
    """Yields parts that have so many rows together at most; the rest of one comes with the next."""
    together: list[_Part] = []
    room = most
    for part in parts:
        start = part.start
        while part.stop - start >= room:
            yield [*together, _Part(part.request, start, start + room)]
            start, together, room = start + room, [], most
        if start < part.stop:
            together.append(_Part(part.request, start, part.stop))
            room -= part.stop - start
    if together:
        yield together


def in_parts(
    run: Callable[[Arrays, int, float | None], Arrays],
    inputs: Arrays,
    largest: int,
    *,
    timeout_s: float | None,
) -> Arrays:
    """Runs the rows of a request in parts, one after the other, while its client waits.

    Args:
        run: Inputs, their rows and the seconds left, to outputs with a row for each.
        inputs: Arrays of as many rows each; one without rows goes to each part.
        largest: Rows of a part, at most.
        timeout_s: Seconds for all parts.

    Raises:
        StatusError: what a run raises; CANCELLED, the client has gone between two;
            RESOURCE_EXHAUSTED, the answer grows above 256 MiB.
    """
    rows = next(len(array) for array in inputs if array.ndim)
    deadline = None if timeout_s is None else time.monotonic() + timeout_s
    found: list[Arrays] = []
    size = 0
    for start in range(0, rows, largest):
        current_call().check()
        count = min(largest, rows - start)
        part = [array[start : start + count] if array.ndim else array for array in inputs]
        left = None if deadline is None else deadline - time.monotonic()
        found.append(run(part, count, left))
        size += sum(map(_size, found[-1]))
        if size > _MOST_BYTES:
            raise StatusError(
                StatusCode.RESOURCE_EXHAUSTED,
                f"An answer must have at most {_MOST_BYTES} bytes. Received: a request for more,"
                f" {start + count} of its {rows} rows done; ask for fewer rows at a time.",
            )
    for outputs in found[:-1]:
        for array in outputs:
            _check_output(array, largest)
    return [np.concatenate(arrays) for arrays in zip(*found, strict=True)]


def _size(array: np.ndarray) -> int:
    """Returns the bytes of an array, where a string counts as those that it costs at least."""
    return array.size * (_STRING_BYTES if array.dtype.hasobject else array.itemsize)


def _fail(parts: Iterable[_Part], error: StatusError) -> None:
    for part in parts:
        part.request.error = error


def _check_output(array: np.ndarray, rows: int) -> None:
    # Source: words of TensorFlow Serving's batching_session.cc.
    if array.ndim == 0:
        raise StatusError(StatusCode.FAILED_PRECONDITION, "Batched output tensor has 0 dimensions")
    if len(array) != rows:
        raise StatusError(
            StatusCode.FAILED_PRECONDITION,
            "Batched output tensor's 0th dimension does not equal the sum of the 0th dimension"
            " sizes of the input tensors",
        )
