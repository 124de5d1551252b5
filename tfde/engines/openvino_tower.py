"""OpenVINO: Intel's engine for CPUs."""

from __future__ import annotations

import contextlib
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from tfde.engines.tower_engine import TowerFacts, TowerRunner
from tfde.environment import usable_cores
from tfde.errors import require

# OpenVINO tells Google Analytics of each import and conversion where this package is found.
sys.modules.setdefault("openvino_telemetry", None)  # type: ignore[arg-type]

import openvino  # noqa: E402

# One for the process, as long as that lives. Its plugin gives the thread that first compiles a
# stack for signals, and frees that with itself. Freed in another order than made, the plugins of
# several left the thread a stack that was gone: the next Ctrl-C was a segmentation fault.
_CORE = openvino.Core()
_HINTS_OF_PRECISION = {"float32": "f32", "bfloat16": "bf16"}


class Tower(TowerRunner):
    """As `tower_engine.open_tower` says.

    A batch that comes while nothing else runs has all cores, whose threads share each product. Of
    several batches each has one core: threads that share a product wait for each other, which costs
    many times the product where others want the cores too. They are taken in the order of their
    coming, of one caller no more at a time than there are cores: who comes with one batch does not
    wait for all of another's.
    """

    def __init__(self, path: Path, facts: TowerFacts) -> None:
        super().__init__(facts)
        self._cores = usable_cores()
        # Kept: the file may be gone when it is compiled again.
        compile_model = partial(_CORE.compile_model, _CORE.read_model(path), "CPU")
        hints = {
            "INFERENCE_NUM_THREADS": self._cores,
            "INFERENCE_PRECISION_HINT": _HINTS_OF_PRECISION[facts.precision],
        }
        self._one_core_each = _Requests(
            partial(compile_model, hints | {"NUM_STREAMS": self._cores})
        )
        self._one_core_each.compile()  # now: the file may be damaged
        self._all_cores = self._one_core_each
        if self._cores > 1:
            self._all_cores = _Requests(partial(compile_model, hints | {"NUM_STREAMS": 1}))
        self._threads = ThreadPoolExecutor(self._cores, "openvino")
        self._lock = threading.Lock()
        self._callers = 0

    def run(self, batches: list[tuple[np.ndarray, np.ndarray]]) -> list[np.ndarray]:
        """Runs several batches at a time, as many as there are cores."""
        with self._lock:
            alone = len(batches) == 1 and not self._callers
            self._callers += 1
        runs: list[Future[np.ndarray]] = []
        try:
            if alone:
                return [self._all_cores.infer(*batches[0])]
            for number, batch in enumerate(batches):
                if number >= self._cores:
                    runs[number - self._cores].result()
                runs.append(self._threads.submit(self._one_core_each.infer, *batch))
            return [run.result() for run in runs]
        finally:
            wait(runs)
            with self._lock:
                self._callers -= 1


class _Requests:
    """A compiled model, and its requests, which wait for their next call.

    Args:
        compile_model: Gives it.
    """

    def __init__(self, compile_model: Callable[[], Any]) -> None:
        self._compile_model = compile_model
        self._lock = threading.Lock()
        self._compiled: Any = None
        self._idle: list[Any] = []

    def compile(self) -> None:
        """Compiles it, where that is not done yet; else the first call does."""
        if self._compiled is None:
            self._compiled, self._idle = self._compile_model(), []

    def infer(self, token_ids: np.ndarray, padding_mask: np.ndarray) -> np.ndarray:
        """Returns the embeddings of a batch."""
        with self._lock:
            self.compile()
            compiled = self._compiled
            request = self._idle.pop() if self._idle else compiled.create_infer_request()
        # Copies of arrays go in and out. Shared with OpenVINO they were freed while in use.
        inputs = {"token_ids": token_ids, "padding_mask": padding_mask}
        try:
            embeddings: np.ndarray = request.infer(inputs)["embeddings"]
        except BaseException:
            with self._lock:  # the stream of a call that failed fails in the next ones too
                if self._compiled is compiled:
                    self._compiled = None
            raise
        with self._lock:
            if self._compiled is compiled:
                self._idle.append(request)
        return embeddings


def write(graph: Any, path: Path, precision: str) -> None:
    """Writes `.xml` and `.bin`: the graph of `tower_engine.write_tower`, in a precision."""
    known = ", ".join(_HINTS_OF_PRECISION)
    require(precision in _HINTS_OF_PRECISION, "dtype", f"{known} in OpenVINO", precision)
    with _without_environment():
        model = openvino.convert_model(graph)
    # Names of layers go, so that two encoders with one tower have the same file.
    for number, op in enumerate(model.get_ordered_ops()):
        if op.get_type_name() != "Parameter":
            op.set_friendly_name(f"op_{number}")
            for made in op.outputs():
                made.get_tensor().set_names(set())
    for given in model.inputs:
        given.get_tensor().set_names({given.get_any_name().partition(":")[0]})
    model.output().get_tensor().set_names({"embeddings"})
    openvino.save_model(model, str(path), compress_to_fp16=False)


@contextlib.contextmanager
def _without_environment() -> Iterator[None]:
    """Lets the converter not look at TensorFlow's version, of which it needs nothing for a graph.

    It imports and deletes a name by `exec`, which ends in a NameError since Python 3.13 (PEP 667).
    """
    from openvino.frontend.tensorflow import utils

    looks = utils.get_environment_setup
    utils.get_environment_setup = lambda framework: {}
    try:
        yield
    finally:
        utils.get_environment_setup = looks
