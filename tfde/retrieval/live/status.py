"""How large a live index is, and when it should be compacted."""

from __future__ import annotations

from dataclasses import dataclass

from tfde.retrieval.live.snapshot import Snapshot

# A compaction is advised from a tenth of the base on, but not below what costs nothing to scan,
# and always where `tfde build-index` would leave exact search.
_ADVISED_SHARE, _ADVISED_LEAST, _ADVISED_MOST = 0.1, 1_000, 20_000


@dataclass(frozen=True)
class LiveStatus:
    """Sizes of a live index.

    Args:
        kind: Of the base, as `exact`, `scann` or `faiss`.
        dim: D, the length of a vector.
        fingerprint: Of the model; "" if unknown.
        generation: Number of the base; a compaction makes the next.
        sequence: Number of the last change.
        documents: How many can be found.
        base_rows: Vectors of the base, deleted ones included.
        base_deleted: How many of these are deleted or replaced.
        added: Vectors beside the base, which every search scores one by one.
        index_bytes: Of the base's files.
        changes_bytes: Of the file of changes; what a compaction frees there is used again.
        compact_from: `base_deleted` + `added` from which on a compaction is advised.
        compaction_advised: Whether it is.
    """

    kind: str
    dim: int
    fingerprint: str
    generation: int
    sequence: int
    documents: int
    base_rows: int
    base_deleted: int
    added: int
    index_bytes: int
    changes_bytes: int
    compact_from: int
    compaction_advised: bool


def status_of(snapshot: Snapshot, changes_bytes: int) -> LiveStatus:
    """Returns the sizes of a live index.

    Args:
        snapshot: Its state.
        changes_bytes: Of the file of changes.
    """
    rows, dim = snapshot.base.index.shape
    compact_from = round(min(max(_ADVISED_LEAST, _ADVISED_SHARE * rows), _ADVISED_MOST))
    return LiveStatus(
        kind=snapshot.base.index.kind,
        dim=dim,
        fingerprint=snapshot.base.index.fingerprint,
        generation=snapshot.below.generation,
        sequence=snapshot.sequence,
        documents=snapshot.num_documents,
        base_rows=rows,
        base_deleted=snapshot.base.num_dead,
        added=snapshot.delta.num_living,
        index_bytes=snapshot.below.num_bytes,
        changes_bytes=changes_bytes,
        compact_from=compact_from,
        compaction_advised=snapshot.num_changed >= compact_from,
    )
