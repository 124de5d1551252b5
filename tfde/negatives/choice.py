"""The order in which candidates become negatives."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import numpy as np

from tfde.config.negatives import MiningRules


def generator_of(seed: int, *names: str) -> np.random.Generator:
    """Returns a random generator that depends on seed and names alone."""
    text = "".join(f"{len(name)} {name}" for name in names)
    digest = hashlib.blake2b(text.encode(), digest_size=16).digest()
    return np.random.Generator(np.random.PCG64([seed, int.from_bytes(digest, "little")]))


def choice_order(
    scores: Sequence[float], rules: MiningRules, *, query_id: str, doc_id: str
) -> list[int]:
    """Returns the positions of candidates in the order in which they are taken.

    Leaving a candidate out of the order is drawing without it, so that a later rule (the
    cross-encoder) only looks at as many as it must.

    Args:
        scores: Of the candidates, best first.
        rules: `choice`, `temperature`, `seed`.
        query_id: The pair's query.
        doc_id: The pair's positive.

    Source:
        Sampling without replacement by softmax: Kool et al. 2019 (Gumbel-top-k).
    """
    if rules.choice == "top":
        return list(range(len(scores)))
    generator = generator_of(rules.seed, "choice", query_id, doc_id)
    if rules.choice == "random":
        return generator.permutation(len(scores)).tolist()
    keys = np.asarray(scores, np.float64) / rules.temperature + generator.gumbel(size=len(scores))
    return np.argsort(-keys, kind="stable").tolist()
