"""Clusters of queries by topic, none too small to fill a batch."""

from __future__ import annotations

import warnings
from collections.abc import Iterable
from pathlib import Path

import numpy as np
from scipy.cluster.vq import kmeans2

from tfde.data.pairs.query_clusters import write_clusters
from tfde.errors import require
from tfde.towers.dual_encoder import DualEncoder
from tfde.types import Query

_FITTED, _BLOCK = 50_000, 8192


def cluster_queries(
    query_embeddings: np.ndarray,
    clusters: int,
    *,
    min_size: int = 1,
    iterations: int = 20,
    seed: int = 0,
) -> np.ndarray:
    """Returns the cluster of each query by k-means.

    Centres are those of at most 50,000 queries, drawn at random; each other query goes to the
    nearest. Clusters below `min_size` are dissolved, the smallest first: each of their queries goes
    to the nearest of the other centres. So there may be fewer clusters than asked for.

    Args:
        query_embeddings: `(Q, D)` floating, finite.
        clusters: How many to begin with.
        min_size: Queries that a cluster must have.
        iterations: Of k-means.
        seed: Decides which queries are the first centres.

    Returns:
        (Q,) int64, numbered from 0 without gaps.

    Raises:
        ConfigError: not as many queries as clusters or as `min_size`, or a value below 1.

    Source:
        Hofstätter et al. 2021 (TAS-B, topic-aware sampling); the least size is our own.
    """
    queries = len(query_embeddings)
    for name, value in (("clusters", clusters), ("min_size", min_size), ("iterations", iterations)):
        require(value >= 1, name, "at least 1", value)
    for name, value in (("clusters", clusters), ("min_size", min_size)):
        require(value <= queries, name, f"at most the number of queries, {queries}", value)
    embeddings = np.asarray(query_embeddings, np.float32)
    generator = np.random.default_rng(seed)
    fitted = embeddings
    if queries > _FITTED:  # SciPy holds a number for each query and cluster
        fitted = embeddings[generator.choice(queries, max(_FITTED, clusters), replace=False)]
    with warnings.catch_warnings():
        # An empty cluster is dissolved like any other that is too small.
        warnings.filterwarnings("ignore", "One of the clusters is empty")
        centres, labels = kmeans2(fitted, clusters, iter=iterations, minit="points", rng=generator)
    if len(fitted) < queries:
        labels = _nearest(embeddings, centres)
    labels = _dissolve(embeddings, centres, labels.astype(np.int64), min_size)
    return np.unique(labels, return_inverse=True)[1]


def write_topics(
    path: str | Path,
    model: DualEncoder,
    queries: Iterable[Query],
    *,
    clusters: int,
    min_size: int,
    seed: int,
    batch_size: int = 64,
) -> np.ndarray:
    """Clusters queries by their embeddings and writes the file of clusters.

    Args:
        path: The file, as `write_clusters`.
        model: Embeds the queries.
        queries: Those to cluster, in any order.
        clusters: As `cluster_queries`.
        min_size: As `cluster_queries`.
        seed: As `cluster_queries`.
        batch_size: Texts a batch.

    Returns:
        The size of each cluster, (clusters,) int64.

    Raises:
        ConfigError: as `cluster_queries`.
    """
    # In the order of their ids: the order in a file must not decide about the first centres.
    queries = sorted(queries)
    texts = [query.text for query in queries]
    embeddings = model.encode_queries(texts, batch_size=batch_size, show_progress=True)
    found = cluster_queries(embeddings, clusters, min_size=min_size, seed=seed)
    ids = [query.query_id for query in queries]
    write_clusters(path, dict(zip(ids, found.tolist(), strict=True)))
    return np.bincount(found)


def _nearest(embeddings: np.ndarray, centres: np.ndarray) -> np.ndarray:
    """Returns the nearest centre of each embedding, (Q,) int64, some thousand at a time."""
    half = 0.5 * np.sum(centres**2, axis=1)
    found = np.empty(len(embeddings), np.int64)
    for start in range(0, len(embeddings), _BLOCK):
        block = embeddings[start : start + _BLOCK]
        found[start : start + _BLOCK] = np.argmax(block @ centres.T - half, axis=1)
    return found


def _dissolve(
    embeddings: np.ndarray, centres: np.ndarray, labels: np.ndarray, min_size: int
) -> np.ndarray:
    alive = np.ones(len(centres), bool)
    while alive.sum() > 1:
        sizes = np.bincount(labels, minlength=len(centres))
        smallest = int(np.argmin(np.where(alive, sizes, len(labels) + 1)))
        if sizes[smallest] >= min_size:
            break
        alive[smallest] = False
        rows = np.flatnonzero(labels == smallest)
        others = np.flatnonzero(alive)
        labels[rows] = others[_nearest(embeddings[rows], centres[others])]
    return labels
