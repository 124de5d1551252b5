"""Which queries are about the same topic: a file of clusters, for batches of one topic."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from tfde.errors import ConfigError, DataError, require
from tfde.storage.json_lines import id_field, read_json_lines, write_json_lines


def read_clusters(path: str | Path) -> dict[str, int | None]:
    """Returns the cluster of each query id; `None` for one that takes no part.

    Raises:
        DataError: a line is not `{"query_id", "cluster"}` with a whole number from 0 or null, a
            query stands twice, or there is none.
    """
    clusters: dict[str, int | None] = {}
    for line, record in read_json_lines(path):
        query_id = id_field(path, line, record, "query_id")
        cluster = record.get("cluster", "")
        number = isinstance(cluster, int) and not isinstance(cluster, bool) and cluster >= 0
        if cluster is not None and not number:
            rule = "field 'cluster' must be a whole number from 0, or null."
            raise DataError(path, line, rule, record)
        if query_id in clusters:
            raise DataError(path, line, "field 'query_id' must be unique.", query_id)
        clusters[query_id] = cluster
    if not clusters:
        raise DataError(path, None, "must hold at least one query.")
    return clusters


def write_clusters(path: str | Path, clusters: Mapping[str, int | None]) -> None:
    """Writes one `{"query_id", "cluster"}` a line, atomically; packed as the name says."""
    write_json_lines(
        path,
        ({"query_id": query_id, "cluster": cluster} for query_id, cluster in clusters.items()),
    )


class TopicOrder:
    """Draws epochs whose batches come from one cluster each.

    In an epoch the pairs of each cluster are shuffled and cut into full batches, and the batches
    of all clusters are shuffled; the last pairs of a cluster that fill no batch are left out
    (they stand elsewhere in the next epoch). So a cluster is drawn as often as it is large.

    Args:
        query_ids: Of the pairs, (N,).
        clusters: The cluster of each query id; `None` for one whose pairs take no part.
        batch_size: Pairs in a batch.

    Raises:
        ConfigError: a query is not named, a cluster fills no batch, or no query takes part.

    Source:
        Hofstätter et al. 2021 (TAS-B, topic-aware sampling).
    """

    def __init__(
        self, query_ids: Sequence[str], clusters: Mapping[str, int | None], batch_size: int
    ) -> None:
        for query_id in query_ids:
            if query_id not in clusters:
                raise ConfigError(
                    f"`clusters` must name the cluster of every query. Received: none for"
                    f" {query_id!r}"
                )
        taking_part = [
            (row, cluster)
            for row, query_id in enumerate(query_ids)
            if (cluster := clusters[query_id]) is not None
        ]
        require(bool(taking_part), "clusters", "those of at least one query", clusters)
        rows, found = zip(*taking_part, strict=True)
        self._rows = np.array(rows, np.int64)
        names, self._cluster_of = np.unique(found, return_inverse=True)
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
        return self._rows[batches[generator.permutation(len(batches))].reshape(-1)]
