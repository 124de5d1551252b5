"""The weighted mean of the weights of several dual encoders."""

from __future__ import annotations

import contextlib
import dataclasses
import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import keras
import numpy as np

from tfde.argument_types import typed
from tfde.config.backbones import backbone_to_mapping
from tfde.config.model import TowersConfig
from tfde.errors import MismatchError, require
from tfde.towers.change_sharing import without_adapters
from tfde.towers.dual_encoder import DualEncoder
from tfde.towers.preset import is_for_from_preset


@typed
def average_models(
    models: Sequence[str | Path], weights: Sequence[float] | None = None
) -> DualEncoder:
    """Returns a dual encoder whose weights are the mean of those of several ones.

    Models that were trained from one start lie in one valley of the loss, and their mean is often
    better than each: two trainings of one task (model soups, Wortsman et al. 2022a), or a trained
    model and what it started from, which gives back what training on few data forgot (WiSE-FT,
    Wortsman et al. 2022b).

    Args:
        models: Two or more of what `DualEncoder.load` takes. The first brings lengths, template
            and prompts; a checkpoint after it is shared out to towers as the first is.
        weights: Share of each model, above 0; they are divided by their sum. `None`: all alike.

    Raises:
        ConfigError: too few models, or weights that do not go with them.
        MismatchError: models of other sizes, sharing, pooling or vocabulary.
    """
    require(not isinstance(models, str) and len(models) > 1, "models", "two or more", models)
    shares = [1.0] * len(models) if weights is None else list(weights)
    right = len(shares) == len(models) and all(0 < x < math.inf for x in shares)
    require(right, "weights", f"{len(models)} numbers above 0, one for each model", weights)
    shares = [share / math.fsum(shares) for share in shares]
    mean = without_adapters(DualEncoder.load(models[0]))
    common = mean.config.trained_dims
    sums = {name: shares[0] * _float32(weight) for name, weight in _weights(mean).items()}
    for path, share in zip(models[1:], shares[1:], strict=True):
        if is_for_from_preset(path):
            model = without_adapters(DualEncoder.from_preset(path))
        else:
            model = DualEncoder.from_backbone(path, sharing=mean.config.sharing)
        _check_alike(model, mean, f"{path} and {models[0]}")
        common = tuple(dim for dim in common if dim in model.config.trained_dims)
        for name, weight in _weights(model).items():
            sums[name] += share * _float32(weight)
    for name, weight in _weights(mean).items():
        weight.assign(sums[name])
    mean.config = dataclasses.replace(mean.config, trained_dims=common)
    return mean


def float32_weights(model: DualEncoder) -> dict[str, np.ndarray]:
    """Returns a copy of the weights of both towers, float32, each once by its name."""
    return {name: _float32(weight) for name, weight in _weights(model).items()}


@contextlib.contextmanager
def averaged(model: DualEncoder, other: Mapping[str, np.ndarray], share: float) -> Iterator[None]:
    """Makes a model's weights a mean while a block runs; then they are what they were.

    Args:
        model: The model.
        other: What `float32_weights` gave of one of the same parts.
        share: Of `other` in the mean, between 0 and 1.

    Raises:
        MismatchError: the weights are not those of the same parts.
    """
    weights = _weights(model)
    own = float32_weights(model)
    alike = {name: value.shape for name, value in own.items()}
    if alike != {name: value.shape for name, value in other.items()}:
        raise MismatchError("models of other parts or sizes cannot be averaged.")
    try:
        for name, weight in weights.items():
            weight.assign((1 - share) * own[name] + share * other[name])
        yield
    finally:
        for name, weight in weights.items():
            weight.assign(own[name])


def _weights(model: DualEncoder) -> dict[str, keras.Variable]:
    return model.towers.named_weights()


def _float32(weight: keras.Variable) -> np.ndarray:
    return keras.ops.convert_to_numpy(weight).astype(np.float32)


def _check_alike(model: DualEncoder, first: DualEncoder, paths: str) -> None:
    """Refuses models whose weights do not mean the same; dropout has none."""
    ours, theirs = _described(model.config), _described(first.config)
    for name, value in theirs.items():
        if ours.get(name) != value:
            raise MismatchError(
                f"{paths} cannot be averaged: `{name}` must be alike."
                f" Received: {ours.get(name)} and {value}"
            )
    if model.preprocessor.tokenizer.fingerprint_bytes() != (
        first.preprocessor.tokenizer.fingerprint_bytes()
    ):
        raise MismatchError(f"{paths} cannot be averaged: their tokenizers must be alike.")


def _described(config: TowersConfig) -> dict[str, object]:
    values = {f"backbone.{name}": x for name, x in backbone_to_mapping(config.backbone).items()}
    values |= dataclasses.asdict(config)
    for name in ("backbone", "backbone.dropout", "trained_dims"):
        del values[name]
    return values
