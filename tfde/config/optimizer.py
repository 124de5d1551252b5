"""Optimizer and learning rate of a stage (stdlib only)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from tfde.errors import require


@dataclass(frozen=True)
class OptimizerConfig:
    """Optimizer and learning rate.

    Args:
        name: `adafactor` (Dong et al., Ni et al.) or `adamw`.
        learning_rate: Highest rate, > 0.
        schedule: After the warm-up, `linear` decay to 0 at the stage's end, or `constant`.
        warmup_steps: Steps of linear growth from 0.
        weight_decay: For `adamw`, which is Adam where it is 0; biases and norms are left out.
        clip_norm: Largest global norm of the gradients; `null` for no clipping.
        epsilon: Of `adamw`, what is added to the root of the second moment; Li et al. have 1e-8.
        layer_decay: The rate of a layer as a share of that of the layer above it, in (0, 1]; the
            token embedder is the lowest. Of `adamw`.
        start_decay: As `weight_decay`, but towards the weights that the stage began with
            (L2-SP), biases and norms included. Of `adamw`.
    """

    name: Literal["adafactor", "adamw"] = "adafactor"
    learning_rate: float = 1e-3
    schedule: Literal["linear", "constant"] = "linear"
    warmup_steps: int = 0
    weight_decay: float = 0.01
    clip_norm: float | None = 1.0
    epsilon: float = 1e-7
    layer_decay: float = 1.0
    start_decay: float = 0.0

    def check(self, where: str) -> None:
        """Raises a `ConfigError` for an impossible value; `where` is the place in the run."""
        for name in ("learning_rate", "epsilon"):
            value = getattr(self, name)
            require(0 < value < math.inf, f"{where}.{name}", "above 0", value)
        for name in ("warmup_steps", "weight_decay", "start_decay"):
            value = getattr(self, name)
            require(0 <= value < math.inf, f"{where}.{name}", "a number from 0", value)
        require(0 < self.layer_decay <= 1, f"{where}.layer_decay", "in (0, 1]", self.layer_decay)
        if self.name != "adamw":
            for name, default in (("layer_decay", 1.0), ("start_decay", 0.0)):
                value = getattr(self, name)
                rule = f"{default} with {self.name}, for it is of adamw"
                require(value == default, f"{where}.{name}", rule, value)
        clip_norm = self.clip_norm
        require(clip_norm is None or clip_norm > 0, f"{where}.clip_norm", "above 0", clip_norm)


def check_warmup(warmup: float, optimizer: OptimizerConfig) -> None:
    """Refuses an impossible share of the steps to warm up in, and an optimizer with its own.

    Raises:
        ConfigError: either.
    """
    require(0 <= warmup < 1, "warmup", "in [0, 1)", warmup)
    optimizer.check("optimizer")
    rule = "0: `warmup` says which share of the steps"
    require(not optimizer.warmup_steps, "optimizer.warmup_steps", rule, optimizer.warmup_steps)


def check_seed(seed: int) -> None:
    """Refuses what NumPy and Keras cannot both begin with.

    Raises:
        ConfigError: it is below 0, or has more than 32 bits.
    """
    require(0 <= seed < 2**32, "seed", "in [0, 2**32)", seed)
