"""The order of pairs in which every batch holds queries of one topic."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from tfde.errors import ConfigError


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
