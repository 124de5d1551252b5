"""ONNX Runtime, and files that other runtimes of ONNX read."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime

from tfde.engines.tower_engine import TowerFacts, TowerRunner
from tfde.errors import require

_OPSET = 18


class Tower(TowerRunner):
    """As `tower_engine.open_tower` says; in float32."""

    def __init__(self, path: Path, facts: TowerFacts) -> None:
        super().__init__(facts)
        self._session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])

    def run(self, batches: list[tuple[np.ndarray, np.ndarray]]) -> list[np.ndarray]:
        """Runs one batch after the other."""
        return [
            self._session.run(["embeddings"], {"token_ids": ids, "padding_mask": mask})[0]
            for ids, mask in batches
        ]


def write(graph: Any, path: Path, precision: str) -> None:
    """Writes `.onnx`: the graph of `tower_engine.write_tower`, in a precision."""
    import tf2onnx

    require(precision == "float32", "dtype", "float32 in ONNX Runtime", precision)
    names = ("token_ids:0", "padding_mask:0", "embeddings:0")
    model, _ = tf2onnx.convert.from_graph_def(
        graph.as_graph_def(),
        input_names=list(names[:2]),
        output_names=[names[2]],
        opset=_OPSET,
        tensors_to_rename={name: name.removesuffix(":0") for name in names},
    )
    path.write_bytes(model.SerializeToString())
