"""Which queries are about the same topic: a file of clusters, for batches of one topic."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from tfde.errors import ConfigError, DataError
from tfde.storage.json_lines import id_field, read_json_lines, write_json_lines


def read_clusters(path: str | Path) -> dict[str, int]:
    """Returns the cluster of each query id.

    Raises:
        DataError: a line is not `{"query_id", "cluster"}` with a whole number from 0, a query
            stands twice, or there is none.
    """
    clusters: dict[str, int] = {}
    for line, record in read_json_lines(path):
        query_id = id_field(path, line, record, "query_id")
        cluster = record.get("cluster")
        if not isinstance(cluster, int) or isinstance(cluster, bool) or cluster < 0:
            raise DataError(path, line, "field 'cluster' must be a whole number from 0.", record)
        if query_id in clusters:
            raise DataError(path, line, "field 'query_id' must be unique.", query_id)
        clusters[query_id] = cluster
    if not clusters:
        raise DataError(path, None, "must hold at least one query.")
    return clusters


def write_clusters(path: str | Path, clusters: Mapping[str, int]) -> None:
    """Writes one `{"query_id", "cluster"}` a line, atomically; packed as the name says."""
    write_json_lines(
        path,
        ({"query_id": query_id, "cluster": int(c)} for query_id, c in clusters.items()),
    )


class TopicOrder:
    """Draws epochs whose batches come from one cluster each.

    In an epoch the pairs of each cluster are shuffled and cut into full batches, and the batches
    of all clusters are shuffled; the last pairs of a cluster that fill no batch are left out
    (they stand elsewhere in the next epoch). So a cluster is drawn as often as it is large.

    Args:
        query_ids: Of the pairs, (N,).
        clusters: The cluster of each query id.
        batch_size: Pairs in a batch.

    Raises:
        ConfigError: a query has no cluster, or a cluster fills no batch.

    Source:
        Hofstätter et al. 2021 (TAS-B, topic-aware sampling).
    """

    def __init__(
        self, query_ids: Sequence[str], clusters: Mapping[str, int], batch_size: int
    ) -> None:
        for query_id in query_ids:
            if query_id not in clusters:
                raise ConfigError(
                    f"`clusters` must name the cluster of every query. Received: none for"
                    f" {query_id!r}"
                )
        names, self._cluster_of = np.unique(
            [clusters[query_id] for query_id in query_ids], return_inverse=True
        )
        sizes = np.bincount(self._cluster_of)
        smallest = int(np.argmin(sizes))
        if sizes[smallest] < batch_size:
            raise ConfigError(
                f"each of `clusters` must fill a batch of {batch_size} pairs; make fewer or larger"
                f" ones. Received: cluster {names[smallest]} with {sizes[smallest]}"
            )
        self._batch_size = batch_size
        self._full = sizes // batch_size * batch_size
        self._starts = np.cumsum(sizes) - sizes
        self.steps_per_epoch = int(self._full.sum()) // batch_size

    def epoch(self, generator: np.random.Generator) -> np.ndarray:
        """Returns the pairs of an epoch's batches, batch after batch, (steps x B,) int64."""
        mixed = generator.permutation(len(self._cluster_of))
        # Stable: inside a cluster the mixed order stays.
        clusters = self._cluster_of[mixed]
        order = np.argsort(clusters, kind="stable")
        places = np.arange(len(order)) - self._starts[clusters[order]]
        rows = mixed[order[places < self._full[clusters[order]]]]
        batches = rows.reshape(-1, self._batch_size)
        return batches[generator.permutation(len(batches))].reshape(-1)
