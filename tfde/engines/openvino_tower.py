"""OpenVINO: Intel's engine for CPUs."""

from __future__ import annotations

import os
import sys
import threading
from concurrent.futures import Future, ThreadPoolExecutor, wait
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from tfde.engines.tower_engine import TowerFacts, TowerRunner
from tfde.errors import require

# OpenVINO tells Google Analytics of each import and conversion where this package is found.
sys.modules.setdefault("openvino_telemetry", None)  # type: ignore[arg-type]

import openvino  # noqa: E402

_HINTS_OF_PRECISION = {"float32": "f32", "bfloat16": "bf16"}


class Tower(TowerRunner):
    """As `tower_engine.open_tower` says.

    Each core is a stream of one thread: threads that share a product wait for each other, which
    costs many times the product where other programs want the cores too.

    A thread here and a request of its own are for each stream. They take the batches of all
    callers in the order of their coming, of one caller no more at a time than there are threads:
    who comes with one batch does not wait for all of another's.
    """

    def __init__(self, path: Path, facts: TowerFacts) -> None:
        super().__init__(facts)
        self._cores = len(os.sched_getaffinity(0))
        options = {
            "NUM_STREAMS": self._cores,
            "INFERENCE_NUM_THREADS": self._cores,
            "INFERENCE_PRECISION_HINT": _HINTS_OF_PRECISION[facts.precision],
        }
        core = openvino.Core()
        # Kept: the file may be gone when it is compiled again.
        self._compile = partial(core.compile_model, core.read_model(path), "CPU", options)
        self._compiled = self._compile()
        self._lock = threading.Lock()  # of `_compiled`, which is None after a failure
        self._threads = ThreadPoolExecutor(self._cores, "openvino")
        self._own = threading.local()  # `compiled` and its `request` of each thread

    def run(self, batches: list[tuple[np.ndarray, np.ndarray]]) -> list[np.ndarray]:
        """Runs several batches at a time, as many as there are streams."""
        runs: list[Future[np.ndarray]] = []
        try:
            for number, batch in enumerate(batches):
                if number >= self._cores:
                    runs[number - self._cores].result()
                runs.append(self._threads.submit(self._run_one, *batch))
            return [run.result() for run in runs]
        finally:
            wait(runs)

    def _run_one(self, token_ids: np.ndarray, padding_mask: np.ndarray) -> np.ndarray:
        with self._lock:
            self._compiled = compiled = self._compiled or self._compile()
        own = vars(self._own)
        if own.get("compiled") is not compiled:
            own |= {"compiled": compiled, "request": compiled.create_infer_request()}
        # Copies of arrays go in and out. Shared with OpenVINO they were freed while in use.
        inputs = {"token_ids": token_ids, "padding_mask": padding_mask}
        try:
            embeddings: np.ndarray = own["request"].infer(inputs)["embeddings"]
        except BaseException:
            own.clear()
            with self._lock:  # the stream of a call that failed fails in the next ones too
                if self._compiled is compiled:
                    self._compiled = None
            raise
        return embeddings


def write(graph: Any, path: Path, precision: str) -> None:
    """Writes `.xml` and `.bin`: the graph of `tower_engine.write_tower`, in a precision."""
    known = ", ".join(_HINTS_OF_PRECISION)
    require(precision in _HINTS_OF_PRECISION, "dtype", f"{known} in OpenVINO", precision)
    model = openvino.convert_model(graph)
    for given in model.inputs:
        given.get_tensor().set_names({given.get_any_name().partition(":")[0]})
    model.output().get_tensor().set_names({"embeddings"})
    openvino.save_model(model, str(path), compress_to_fp16=False)
