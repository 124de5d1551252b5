"""One loaded SavedModel and the running of its signatures.

The SavedModel is loaded into a session, as TensorFlow Serving does: signatures are found by the
tensor names in the SignatureDef, only outputs asked for are computed, and a run may have a limit.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf
from grpc import StatusCode
from tensorflow.core.protobuf import meta_graph_pb2
from tensorflow.python.saved_model.loader_impl import SavedModelLoader

from tfde.environment import load_text_ops
from tfde.protos.batching_parameters_pb2 import BatchingParameters
from tfde.serving.server import session_run
from tfde.serving.server.batching import Arrays, Batcher, check_batching_parameters
from tfde.serving.server.calls import current_call
from tfde.serving.server.shared_batches import SharedBatches, cores_to_share
from tfde.serving.server.short_graphs import short_signatures
from tfde.serving.server.signature_inputs import (
    check_dtype,
    check_names,
    encoded,
    fit,
    naming_shapes,
    outputs_of,
)
from tfde.serving.server.status import CODES, StatusError, invalid_argument

DEFAULT_SIGNATURE = "serving_default"

load_text_ops()  # which TensorFlow Serving links in


class SignatureRunner:
    """Loads a SavedModel and runs its signatures; safe to call from many threads.

    Args:
        path: Directory of the SavedModel (a version's directory).
        tags: Tags of the meta graph to load.
        prefer_tflite: Whether a `model.tflite` in the directory takes the SavedModel's place.
        engine: What runs the tower, of which a file for it lies in the directory; `auto`: what
            was fastest; "" for TensorFlow.
        session_config: Threads, devices and memory; `None` takes TensorFlow's defaults.
        batching: How concurrent runs of a signature are joined; `None` runs each by itself.
        lenient_batching: Whether requests are batched that TensorFlow Serving refuses to batch,
            or, where they filter outputs, runs by themselves.
        queued: Told the seconds that each request has waited for its batch.

    Raises:
        StatusError: the batching parameters contradict each other.
        CorruptError: the engine cannot read its file.
        OSError, RuntimeError, ValueError, tf.errors.OpError: there is no SavedModel that loads.
    """

    def __init__(
        self,
        path: str | Path,
        *,
        tags: Sequence[str] = ("serve",),
        prefer_tflite: bool = False,
        engine: str = "",
        session_config: Any = None,
        batching: BatchingParameters | None = None,
        lenient_batching: bool = False,
        queued: Callable[[float], None] = lambda seconds: None,
    ) -> None:
        if batching is not None:
            check_batching_parameters(batching)
        self._lenient = lenient_batching
        self._tensors: dict[str, tf.Tensor] = {}
        self.progress = Progress()
        read = _Read(str(path), list(tags), prefer_tflite, engine)
        self._tower = read.tower  # it lives as long as the graph
        config = session_config
        if self._tower is not None:
            from tfde.serving.server.engine_graph import without_passes

            config = without_passes(session_config)
        self._session = tf.compat.v1.Session(graph=tf.Graph(), config=config)
        try:
            with _quiet_tensorflow(), self._session.graph.as_default():
                loaded = read.add_to(self._session)
            self.signature_defs = loaded.signature_defs
            # A user who chose threads gets them.
            chosen = session_config is not None and session_config.inter_op_parallelism_threads
            self._short = set() if chosen else loaded.short
            session_run.prepare(self._session)
            self._batchers: dict[str, Batcher] = {}
            if batching is not None:
                cores = cores_to_share(batching, session_config) if lenient_batching else 1
                make = partial(
                    Batcher, parameters=batching, lenient=lenient_batching, queued=queued
                )
                self._add_batching(make, cores, loaded.short)
        except BaseException:
            self._session.close()
            raise

    def inputs(self, signature_name: str) -> Mapping[str, meta_graph_pb2.TensorInfo]:
        """Returns what the signature takes, by name.

        Raises:
            StatusError: FAILED_PRECONDITION, the model has no such signature.
        """
        return self._signature(signature_name).inputs

    def output_dtype(self, signature_name: str, alias: str) -> tf.DType:
        """Returns the type of one output of the signature."""
        return tf.dtypes.as_dtype(self._signature(signature_name).outputs[alias].dtype)

    def run(
        self,
        signature_name: str,
        inputs: Mapping[str, np.ndarray],
        *,
        output_filter: Sequence[str] = (),
        timeout_s: float | None = None,
    ) -> dict[str, np.ndarray]:
        """Runs one signature.

        Args:
            signature_name: The signature; "" is `serving_default`.
            inputs: Arrays by input name.
            output_filter: The outputs to compute; none named means all.
            timeout_s: Seconds after which the run is given up.

        Returns:
            Arrays by output name.

        Raises:
            StatusError: FAILED_PRECONDITION for an unknown signature, INVALID_ARGUMENT for
                wrong inputs or a wrong filter, else what the model's ops raise.
        """
        current_call().check()
        signature = self._signature(signature_name)
        check_names(signature, inputs)
        given = {**self._defaults(signature), **inputs}
        inputs = {alias: encoded(alias, given[alias]) for alias in signature.inputs}
        feeds = self._feeds(signature, inputs)
        aliases = outputs_of(signature, output_filter)
        batcher = self._batchers.get(signature_name or DEFAULT_SIGNATURE)
        in_order = [inputs[alias] for alias in sorted(signature.inputs)]
        if output_filter and not self._lenient:
            batcher = None  # as in TensorFlow Serving: a batch computes all outputs for all
        # A batch would fail for all over one unfit shape.
        rows = batcher.rows(in_order) if batcher is not None and fit(feeds) else 0
        if batcher is not None and rows:
            with _status_errors():
                arrays = batcher.run(in_order, rows, timeout_s=timeout_s)
            found = dict(zip(sorted(signature.outputs), arrays, strict=True))
            return {alias: found[alias] for alias in aliases}
        fetches = [self._tensor(signature.outputs[alias].name) for alias in aliases]
        short = (signature_name or DEFAULT_SIGNATURE) in self._short
        with naming_shapes(signature, inputs):
            arrays = self._run(fetches, feeds, timeout_s, short=short)
        return dict(zip(aliases, arrays, strict=True))

    def run_together(
        self,
        signature_names: Sequence[str],
        inputs: Mapping[str, np.ndarray],
        *,
        timeout_s: float | None = None,
    ) -> list[dict[str, np.ndarray]]:
        """Runs several signatures on the same inputs at once.

        Args:
            signature_names: The signatures.
            inputs: Arrays by input name, for all of them.
            timeout_s: Seconds after which the run is given up.

        Returns:
            For each signature its arrays by output name.

        Raises:
            StatusError: as `run`.
        """
        signatures = [self._signature(name) for name in signature_names]
        feeds = {}
        for signature in signatures:
            feeds.update(self._feeds(signature, inputs))
        aliases = [list(signature.outputs) for signature in signatures]
        fetches = [
            self._tensor(signature.outputs[alias].name)
            for signature, names in zip(signatures, aliases, strict=True)
            for alias in names
        ]
        arrays = iter(self._run(fetches, feeds, timeout_s))
        return [{alias: next(arrays) for alias in names} for names in aliases]

    def _run(
        self,
        fetches: Sequence[tf.Tensor],
        feeds: Mapping[tf.Tensor, np.ndarray],
        timeout_s: float | None,
        *,
        short: bool = False,
    ) -> list[np.ndarray]:
        with _status_errors(), self.progress.run():
            return session_run.run(
                self._session, fetches, feeds, timeout_s=timeout_s, in_this_thread=short
            )

    def _feeds(
        self, signature: meta_graph_pb2.SignatureDef, inputs: Mapping[str, np.ndarray]
    ) -> dict[tf.Tensor, np.ndarray]:
        feeds = {}
        by_name = sorted((signature.inputs[alias].name, array) for alias, array in inputs.items())
        for position, (name, array) in enumerate(by_name):
            tensor = self._tensor(name)
            check_dtype(position, array, tensor.dtype)
            feeds[tensor] = array
        return feeds

    def _defaults(self, signature: meta_graph_pb2.SignatureDef) -> dict[str, np.ndarray]:
        """Returns the inputs that a request may leave out."""
        return {alias: tf.make_ndarray(proto) for alias, proto in signature.defaults.items()}

    def _tensor(self, name: str) -> tf.Tensor:
        if name not in self._tensors:
            element = self._session.graph.as_graph_element(name)
            if not isinstance(element, tf.Tensor):  # of `__saved_model_init_op`
                raise invalid_argument(f"Tensor {name} is no tensor but an operation.")
            self._tensors[name] = element
        return self._tensors[name]

    def close(self) -> None:
        """Gives back the memory."""
        while self._batchers:
            self._batchers.popitem()[1].close()
        self._session.close()

    def _add_batching(self, make: Callable[..., Batcher], cores: int, short: set[str]) -> None:
        for name, signature in self.signature_defs.items():
            tensors = [*signature.inputs.values(), *signature.outputs.values()]
            # One of several tensors (sparse) runs by itself, if at all.
            whole = all(tensor.WhichOneof("encoding") == "name" for tensor in tensors)
            if signature.inputs and signature.outputs and whole:
                names = [signature.inputs[alias].name for alias in sorted(signature.inputs)]
                outputs = [signature.outputs[alias].name for alias in sorted(signature.outputs)]
                given, made = [[self._tensor(name) for name in part] for part in (names, outputs)]
                run = partial(self._run_arrays, given, made, name in self._short)
                alone = name in short or any(x.shape.rank and x.shape[0] for x in given)
                model = run if alone or cores == 1 else SharedBatches(run, cores)
                self._batchers[name] = make(model, names)

    def _run_arrays(
        self, inputs: Sequence[tf.Tensor], outputs: Sequence[tf.Tensor], short: bool, arrays: Arrays
    ) -> Arrays:
        return self._run(outputs, dict(zip(inputs, arrays, strict=True)), None, short=short)

    def _signature(self, name: str) -> meta_graph_pb2.SignatureDef:
        name = name or DEFAULT_SIGNATURE
        if name not in self.signature_defs:
            raise StatusError(
                StatusCode.FAILED_PRECONDITION, f'Serving signature key "{name}" not found.'
            )
        return self.signature_defs[name]


class _Loaded(NamedTuple):
    """Signatures, and which of them are short."""

    signature_defs: dict[str, meta_graph_pb2.SignatureDef]
    short: set[str]


class _Read:
    """A model that has been read, and is in no session yet.

    Attributes:
        tower: What an engine runs of it; `None` where TensorFlow runs it all.
    """

    def __init__(self, path: str, tags: list[str], prefer_tflite: bool, engine: str) -> None:
        self.tower = None
        self._tags = tags
        self._tflite = f"{path}/model.tflite"
        self._loader = None
        if prefer_tflite and tf.io.gfile.exists(self._tflite):
            return
        self._loader = SavedModelLoader(path)
        meta_graph = self._loader.get_meta_graph_def_from_tags(tags)
        if engine:
            from tfde.serving.server.engine_graph import put_in_engine

            self.tower = put_in_engine(meta_graph, path, engine)

    def add_to(self, session: tf.compat.v1.Session) -> _Loaded:
        """Adds it to a session and its graph."""
        if self._loader is None:
            from tfde.serving.server.tflite_graph import add_tflite_model

            return _Loaded(add_tflite_model(self._tflite), set())
        # What its `load` does, which reads the file once more.
        saver, _ = self._loader.load_graph(session.graph, self._tags)
        self._loader.restore_variables(session, saver)
        self._loader.run_init_ops(session, self._tags)
        meta_graph = self._loader.get_meta_graph_def_from_tags(self._tags)
        # A copy: a part of a message keeps the memory of all of it, weights included.
        about = meta_graph_pb2.MetaGraphDef(signature_def=meta_graph.signature_def)
        return _Loaded(dict(about.signature_def), short_signatures(meta_graph))


@contextmanager
def _quiet_tensorflow() -> Iterator[None]:
    # What TensorFlow 1 had announces at each call that it is deprecated.
    logger = tf.get_logger()
    thread = threading.get_ident()  # others may load at the same time

    def is_told(record: logging.LogRecord) -> bool:
        return record.thread != thread or record.levelno >= logging.ERROR

    logger.addFilter(is_told)
    try:
        yield
    finally:
        logger.removeFilter(is_told)


@contextmanager
def _status_errors() -> Iterator[None]:
    """Turns what TensorFlow raises into errors with a status."""
    try:
        yield
    except tf.errors.OpError as error:
        # A function of Python's in a graph adds its traceback, which is nobody's outside.
        message = error.message.partition("\nTraceback (most recent call last):")[0]
        raise StatusError(CODES[error.error_code], message) from error


class Progress:
    """Sees runs begin and end, from many threads."""

    def __init__(self) -> None:
        self._begun: dict[object, float] = {}
        self._ended = 0.0

    @contextmanager
    def run(self) -> Iterator[None]:
        """Counts its block as one run."""
        key = object()
        self._begun[key] = time.monotonic()
        try:
            yield
        finally:
            del self._begun[key]
            self._ended = time.monotonic()

    def runs(self) -> bool:
        """Whether one is under way."""
        return bool(self._begun)

    def stalled_s(self) -> float:
        """Returns for how many seconds runs have been under way without one that ended."""
        oldest = min(list(self._begun.values()), default=None)
        return 0.0 if oldest is None else time.monotonic() - max(oldest, self._ended)
