"""OpenVINO: Intel's engine for CPUs."""

from __future__ import annotations

import os
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np

from tfde.engines.tower_engine import TowerRunner
from tfde.errors import require

# OpenVINO tells Google Analytics of each import and conversion where this package is found.
sys.modules.setdefault("openvino_telemetry", None)  # type: ignore[arg-type]

import openvino  # noqa: E402

_HINTS_OF_PRECISION = {"float32": "f32", "bfloat16": "bf16"}
_PRECISION = ["tfde", "precision"]


class Tower(TowerRunner):
    """As `tower_engine.open_tower` says.

    Each core is a stream of one thread: threads that share a product wait for each other, which
    costs many times the product where other programs want the cores too.
    """

    def __init__(self, path: Path, exact: bool) -> None:
        core = openvino.Core()
        model = core.read_model(path)
        precision = "float32" if exact else model.get_rt_info(_PRECISION).astype(str)
        cores = len(os.sched_getaffinity(0))
        options = {
            "NUM_STREAMS": cores,
            "INFERENCE_NUM_THREADS": cores,
            "INFERENCE_PRECISION_HINT": _HINTS_OF_PRECISION[precision],
        }
        self._compiled = core.compile_model(model, "CPU", options)
        self._free: list[Any] = []  # requests that no thread uses
        self._many = openvino.AsyncInferQueue(self._compiled)
        self._many.set_callback(_keep)
        self._lock = threading.Lock()  # of the queue, which is for one caller at a time

    def run(self, batches: list[tuple[np.ndarray, np.ndarray]]) -> list[np.ndarray]:
        """Runs several batches at a time, as many as there are streams."""
        if len(batches) == 1:
            return [self._run_one(*batches[0])]
        found: list[Any] = [None] * len(batches)
        with self._lock:
            for number, batch in enumerate(batches):
                self._many.start_async(_inputs(*batch), (found, number))
            self._many.wait_all()
        return found

    def _run_one(self, token_ids: np.ndarray, padding_mask: np.ndarray) -> np.ndarray:
        try:
            request = self._free.pop()
        except IndexError:
            request = self._compiled.create_infer_request()
        request.infer(_inputs(token_ids, padding_mask), share_inputs=True)
        embeddings: np.ndarray = request.get_output_tensor().data.copy()
        self._free.append(request)
        return embeddings


def _inputs(token_ids: np.ndarray, padding_mask: np.ndarray) -> dict[str, np.ndarray]:
    return {"token_ids": token_ids, "padding_mask": padding_mask}


def _keep(request: Any, place: tuple[list[Any], int]) -> None:
    found, number = place
    found[number] = request.get_output_tensor().data.copy()


def write(graph: Any, path: Path, precision: str) -> None:
    """Writes `.xml` and `.bin`; the arguments are those of `tower_engine.write_tower`."""
    known = ", ".join(_HINTS_OF_PRECISION)
    require(precision in _HINTS_OF_PRECISION, "dtype", f"{known} in OpenVINO", precision)
    model = openvino.convert_model(graph)
    for given in model.inputs:
        given.get_tensor().set_names({given.get_any_name().partition(":")[0]})
    model.output().get_tensor().set_names({"embeddings"})
    model.set_rt_info(precision, _PRECISION)
    openvino.save_model(model, str(path), compress_to_fp16=False)
