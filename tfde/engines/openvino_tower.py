"""OpenVINO: Intel's engine for CPUs."""

from __future__ import annotations

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

_HINTS = {"query": "LATENCY", "document": "THROUGHPUT"}
_HINTS_OF_PRECISION = {"float32": "f32", "bfloat16": "bf16"}
_PRECISION = ["tfde", "precision"]


class Tower(TowerRunner):
    """As `tower_engine.open_tower` says."""

    def __init__(self, path: Path, use: str, exact: bool) -> None:
        core = openvino.Core()
        model = core.read_model(path)
        precision = "float32" if exact else model.get_rt_info(_PRECISION).astype(str)
        options = {
            "PERFORMANCE_HINT": _HINTS[use],
            "INFERENCE_PRECISION_HINT": _HINTS_OF_PRECISION[precision],
        }
        compiled = core.compile_model(model, "CPU", options)
        self._one = compiled.create_infer_request()
        self._many = openvino.AsyncInferQueue(compiled)
        self._many.set_callback(_keep)
        self._lock = threading.Lock()  # both are for one caller at a time

    def run(self, batches: list[tuple[np.ndarray, np.ndarray]]) -> list[np.ndarray]:
        """Runs several batches at a time, as many as there are streams."""
        with self._lock:
            if len(batches) == 1:
                self._one.infer(_inputs(*batches[0]), share_inputs=True)
                return [self._one.get_output_tensor().data.copy()]
            found: list[Any] = [None] * len(batches)
            for number, batch in enumerate(batches):
                self._many.start_async(_inputs(*batch), (found, number))
            self._many.wait_all()
            return found


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
