"""The whole state of a training run in one file that is either there or not."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import keras
import numpy as np
from safetensors import SafetensorError, safe_open

from tfde.checkpoints.safetensors_arrays import write_safetensors
from tfde.errors import CorruptError
from tfde.storage.atomic import atomic_file


@dataclasses.dataclass
class Progress:
    """Where a run stands.

    Args:
        stage: Name of the stage.
        step: Steps of it that are done.
        best: Best value of the first validation measure so far, of the stages measured alike.
        kept_share: How much of the start the weights are that were kept as the best.
        start: What the validation measured of the model before the first step of these stages.
    """

    stage: str
    step: int = 0
    best: float | None = None
    kept_share: float = 0.0
    start: dict[str, float] | None = None


def save_checkpoint(path: str | Path, model: keras.Model, progress: Progress) -> None:
    """Writes weights, dropout's random state, the optimizer's state and `progress`.

    Args:
        path: File to write; an older one stays until the new one is whole.
        model: Compiled and built.
        progress: Where the run stands.
    """
    arrays = {
        name: np.array(keras.ops.convert_to_numpy(variable), order="C")
        for name, variable in _variables(model).items()
    }
    with atomic_file(path) as temporary:
        write_safetensors(temporary, arrays, {"progress": json.dumps(dataclasses.asdict(progress))})


def read_progress(path: str | Path) -> Progress:
    """Returns the `progress` of a checkpoint.

    Raises:
        CorruptError: the file is not a checkpoint.
    """
    try:
        with safe_open(path, framework="np") as file:
            return Progress(**json.loads(file.metadata()["progress"]))
    except (SafetensorError, TypeError, KeyError, ValueError) as error:
        raise CorruptError(f"{path}: not a checkpoint: {error}") from error


def restore_checkpoint(path: str | Path, model: keras.Model) -> None:
    """Puts a checkpoint back into a model built and compiled as the one that was saved.

    Raises:
        CorruptError: the file is not a checkpoint of such a model.
    """
    read_progress(path)
    variables = _variables(model)
    with safe_open(path, framework="np") as file:
        stored = set(file.keys())
        if stored != set(variables):
            odd = sorted(stored ^ set(variables))[0]
            raise CorruptError(f"{path}: made by another model or optimizer: {odd!r} differs.")
        for name, variable in variables.items():
            array = file.get_tensor(name)
            if tuple(array.shape) != tuple(variable.shape):
                raise CorruptError(
                    f"{path}: {name!r} must have shape {tuple(variable.shape)}."
                    f" Received: {tuple(array.shape)}"
                )
            variable.assign(array)


def _variables(model: keras.Model) -> dict[str, Any]:
    """Every variable that decides what the next step does, under a stable name."""
    passing = {id(variable) for variable in model.metrics_variables}
    kept = [variable for variable in model.variables if id(variable) not in passing]
    if not model.optimizer.built:
        model.optimizer.build(model.trainable_variables)
    groups = {"model": kept, "optimizer": model.optimizer.variables}
    # By place: Keras makes up names anew for every object of a process.
    return {
        f"{group}/{place:04d}": variable
        for group, variables in groups.items()
        for place, variable in enumerate(variables)
    }
