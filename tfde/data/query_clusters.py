"""Which queries are about the same topic: a file of clusters, for batches of one topic."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from tfde.data.json_lines import id_field, read_json_lines, write_json_lines
from tfde.errors import DataError


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
