"""The frozen description of low-rank adapters (stdlib only)."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from tfde.errors import ConfigError, require

ALL = "all"


@dataclass(frozen=True)
class LoraConfig:
    """Low-rank adapters: what a matrix W computes becomes x W + (alpha / rank) x A B.

    W stays as it is, A (inputs, rank) and B (rank, outputs) train; B begins with zeros.

    Args:
        rank: Columns of A and rows of B.
        alpha: Divided by the rank it scales the adapters; `null` takes the rank, as Keras does.
        target: Which matrices of the encoder have them: `all`, names (`query`, `key`, `value`,
            `attention_output`, `intermediate`, `gate`, `output`; of a Keras model the names of its
            layers), or regular expressions for whole paths such as `transformer_layer_0/query`.

    Source: Hu et al. 2021, section 4.1 (equation 3).
    """

    rank: int = 8
    alpha: float | None = None
    target: str | tuple[str, ...] = ("query", "value")

    def __post_init__(self) -> None:
        if not isinstance(self.target, str):
            object.__setattr__(self, "target", tuple(self.target))
        self.check()

    def check(self, where: str = "") -> None:
        """Raises a `ConfigError` for an impossible value; `where` is the place in the run."""
        where = where and f"{where}."
        holds = isinstance(self.rank, int) and not isinstance(self.rank, bool) and self.rank >= 1
        require(holds, f"{where}rank", "a whole number of at least 1", self.rank)
        require(self.alpha is None or self.alpha > 0, f"{where}alpha", "above 0", self.alpha)
        names = self.targets
        holds = bool(names) and all(isinstance(name, str) and name for name in names)
        require(holds, f"{where}target", "`all`, or one or more names", self.target)

    @property
    def targets(self) -> tuple[str, ...]:
        """What `target` names, one or several."""
        return (self.target,) if isinstance(self.target, str) else self.target

    @property
    def scale(self) -> float:
        """alpha / rank."""
        return (self.rank if self.alpha is None else self.alpha) / self.rank

    def choose(self, paths: Sequence[str]) -> list[str]:
        """Returns those of the matrices at `paths` that have adapters.

        Raises:
            ConfigError: a name or expression is that of none; an expression cannot be read.
        """
        if self.target == ALL:
            return list(paths)
        chosen = set()
        for target in self.targets:
            try:
                pattern = re.compile(target)
            except re.error as error:
                raise ConfigError(
                    f"`target` must be a name or a regular expression ({error})."
                    f" Received: {target!r}"
                ) from error
            found = {path for path in paths if _is_named(path, target) or pattern.fullmatch(path)}
            if not found:
                names = ", ".join(dict.fromkeys(path.rpartition("/")[2] for path in paths))
                raise ConfigError(
                    f"`target` must be {ALL!r} or name matrices of the encoder, which has"
                    f" {names or 'none'}. Received: {target!r}"
                )
            chosen |= found
        return [path for path in paths if path in chosen]


def _is_named(path: str, name: str) -> bool:
    """Keras-hub calls the same layer `query` in one model and `query_dense` in another."""
    return path.rpartition("/")[2] in (name, f"{name}_dense")
