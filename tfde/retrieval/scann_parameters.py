"""How a ScaNN index is built: by number of vectors, or as the user says."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Literal

from tfde.errors import ConfigError, require

EXACT_BELOW = 20_000
HASH_UP_TO = 100_000
LEAST_SAMPLE = 100_000  # is enough for codes
_SAMPLE_PER_LEAF = 250
_CODES = 16  # values of a 4-bit code: ScaNN learns them from at least as many vectors


@dataclass(frozen=True)
class ScannParameters:
    """What ScaNN's builder is told; `None` is decided by the number of vectors.

    The measure is always the dot product, so higher scores are better, as everywhere in tfde.

    Args:
        kind: `exact` scores every vector; `hash` scores 4-bit codes of every vector and
            re-orders the best; `tree` does so in the leaves nearest to the query only. By
            default exact below 20,000 vectors, hash up to 100,000, tree above.
        num_leaves: Leaves of the tree; by default twice the square root of N.
        num_leaves_to_search: By default a tenth of the leaves.
        training_sample_size: Vectors that leaves are learned from, and at most 100,000 of them
            codes; by default 250 a leaf, and not below 100,000. ScaNN gives up leaves with few of
            them, and what belongs there is then scattered over others.
        dimensions_per_block: Dimensions that share one 4-bit code.
        anisotropic_quantization_threshold: ScaNN's T for vectors of unit norm (Guo et al. 2020);
            `None` for plain quantisation.
        reorder: How many of the best by code are scored again with the vectors; 0 for none
            (the index then keeps no vectors beside the codes, but `save` writes them).
    """

    kind: Literal["exact", "hash", "tree"] | None = None
    num_leaves: int | None = None
    num_leaves_to_search: int | None = None
    training_sample_size: int | None = None
    dimensions_per_block: int = 2
    anisotropic_quantization_threshold: float | None = 0.2
    reorder: int = 100

    def __post_init__(self) -> None:
        known = self.kind in (None, "exact", "hash", "tree")
        require(known, "kind", "exact, hash or tree", self.kind)
        for name in ("num_leaves", "num_leaves_to_search"):
            value = getattr(self, name)
            require(value is None or value >= 1, name, "at least 1", value)
            if value is not None and self.kind in ("exact", "hash"):
                raise ConfigError(f"`{name}` belongs to kind tree. Received: kind={self.kind!r}")
        for name, least in (("training_sample_size", _CODES), ("dimensions_per_block", 1)):
            value = getattr(self, name)
            require(value is None or value >= least, name, f"at least {least}", value)
        require(self.reorder >= 0, "reorder", "at least 0", self.reorder)
        bound = self.anisotropic_quantization_threshold
        name = "anisotropic_quantization_threshold"
        require(bound is None or 0 <= bound < 1, name, "null, or in [0, 1)", bound)

    def to_be_tuned(self, rows: int) -> ScannParameters:
        """Returns the parameters for an index of `rows` vectors whose recall will be tuned.

        Where no kind is asked for, a tree from 20,000 vectors on: at any recall it is faster than
        codes of all vectors (14 times at 50,000), which are the safer choice where nobody tunes.
        """
        if self.kind is None and rows >= EXACT_BELOW:
            return dataclasses.replace(self, kind="tree")
        return self

    def resolved(self, rows: int, dim: int) -> ScannParameters:
        """Returns the parameters for `rows` vectors of `dim` numbers, nothing left open.

        Fewer than 16 vectors are always searched exactly: they cannot train codes.

        Raises:
            ConfigError: more leaves than vectors or training samples, more leaves to search than
                leaves, or more dimensions in a block than there are.
        """
        kind = self.kind
        sample = self.training_sample_size or LEAST_SAMPLE
        if rows < _CODES:
            return dataclasses.replace(
                self,
                kind="exact",
                num_leaves=None,
                num_leaves_to_search=None,
                training_sample_size=sample,
            )
        if kind is None and (self.num_leaves or self.num_leaves_to_search):
            kind = "tree"
        if kind is None:
            kind = "exact" if rows < EXACT_BELOW else "hash" if rows <= HASH_UP_TO else "tree"
        block = self.dimensions_per_block
        fits = kind == "exact" or block <= dim
        require(fits, "dimensions_per_block", f"at most {dim}, the dimension", block)
        if kind != "tree":
            return dataclasses.replace(self, kind=kind, training_sample_size=sample)
        leaves = self.num_leaves or max(1, round(2 * rows**0.5))
        searched = self.num_leaves_to_search or max(1, round(leaves / 10))
        if self.training_sample_size is None:
            sample = max(sample, _SAMPLE_PER_LEAF * leaves)
        for most, what in ((rows, "vectors"), (sample, "training samples")):
            require(leaves <= most, "num_leaves", f"at most {most}, the {what}", leaves)
        rule = f"at most {leaves}, the leaves"
        require(searched <= leaves, "num_leaves_to_search", rule, searched)
        return dataclasses.replace(
            self,
            kind=kind,
            num_leaves=leaves,
            num_leaves_to_search=searched,
            training_sample_size=sample,
        )
