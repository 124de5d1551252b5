"""How much of the exact answer an approximate index finds, and how fast."""

from __future__ import annotations

import time
from typing import NamedTuple, Protocol

import numpy as np

from tfde.errors import ConfigError
from tfde.retrieval.top_k import exact_top_k

_SINGLE_QUERIES = 100


class _Index(Protocol):
    def search_positions(
        self, query_embeddings: np.ndarray, k: int
    ) -> tuple[np.ndarray, np.ndarray]: ...


class Recall(NamedTuple):
    """A measured recall: share of the exact top k that was found, and seconds per query."""

    recall: float
    k: int
    num_queries: int
    seconds_per_query: float  # all queries in one call
    seconds_per_single_query: float  # one query a call
    exact_seconds_per_query: float


def sample_queries(vectors: np.ndarray, sample: int, seed: int) -> np.ndarray:
    """Returns stand-ins for queries: stored vectors, moved to cosine 0.8 of themselves.

    A stored vector itself would be too easy (it finds itself), and holding vectors out would
    measure another index than the one that is shipped. Real queries are better where they exist.

    Args:
        vectors: `(N, D)` floating.
        sample: How many, drawn without replacement; at most N.
        seed: Of the draw and of the noise.

    Returns:
        `(min(sample, N), D)` float32 of unit norm.

    Source:
        Derived here: v/|v| + 0.75 u with u of unit norm and random direction; as u is nearly
        orthogonal to v, the cosine is about 1 / sqrt(1 + 0.75^2) = 0.8.
    """
    generator = np.random.default_rng(seed)
    rows = generator.choice(len(vectors), min(sample, len(vectors)), replace=False)
    queries = unit_rows(np.array(vectors[np.sort(rows)], np.float32))
    noise = unit_rows(generator.standard_normal(queries.shape).astype(np.float32))
    return unit_rows(queries + 0.75 * noise)


def measure_recall(index: _Index, vectors: np.ndarray, queries: np.ndarray, k: int) -> Recall:
    """Compares an index with exact search over the same vectors.

    A document counts as found if its exact score reaches that of the exact number k, so that
    documents with equal vectors may stand for one another.

    Args:
        index: Answers with positions in `vectors`.
        vectors: `(N, D)` float32.
        queries: `(Q, D)` float32, at least one.
        k: At least 1.

    Raises:
        ConfigError: no queries, or `k` below 1.
    """
    if not len(queries) or k < 1:
        raise ConfigError(
            f"recall needs queries and `k` of at least 1. Received: {len(queries)} queries, k={k}"
        )
    start = time.perf_counter()
    wanted, _ = exact_top_k([vectors], queries, k)
    exact_seconds = time.perf_counter() - start
    index.search_positions(queries[:1], k)
    start = time.perf_counter()
    _, found = index.search_positions(queries, k)
    seconds = time.perf_counter() - start
    singles = queries[:_SINGLE_QUERIES]
    start = time.perf_counter()
    for row in range(len(singles)):
        index.search_positions(singles[row : row + 1], k)
    single_seconds = time.perf_counter() - start
    hits = 0
    for query, positions, scores in zip(queries, found, wanted, strict=True):
        slack = 1e-5 * max(1.0, abs(float(scores[-1])))  # float32 sums in another order
        hits += int(
            (np.asarray(vectors[positions], np.float32) @ query >= scores[-1] - slack).sum()
        )
    return Recall(
        recall=hits / found.size,
        k=k,
        num_queries=len(queries),
        seconds_per_query=seconds / len(queries),
        seconds_per_single_query=single_seconds / len(singles),
        exact_seconds_per_query=exact_seconds / len(queries),
    )


def unit_rows(rows: np.ndarray) -> np.ndarray:
    """Returns rows divided by their norms; those of zeros stay."""
    return rows / np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), 1e-12)
