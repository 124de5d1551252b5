"""Texts of like length in one batch."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import numpy as np

from tfde.errors import require
from tfde.progress import progress_bar


def batches_by_length(
    lengths: Sequence[int], batch_size: int, *, unit: str, show_progress: bool
) -> Iterator[list[int]]:
    """Yields row numbers in batches, the longest rows first, so that little is padding.

    The first batch is the largest: what does not fit into memory fails at once.

    Args:
        lengths: Length of each row, in whatever unit.
        batch_size: Rows a batch.
        unit: What the progress bar counts.
        show_progress: Whether a progress bar goes to stderr.

    Raises:
        ConfigError: `batch_size` is below 1.
    """
    require(batch_size >= 1, "batch_size", "at least 1", batch_size)
    order = sorted(range(len(lengths)), key=lambda row: -lengths[row])
    with progress_bar(total=len(order), unit=unit, disable=not show_progress) as progress:
        for start in range(0, len(order), batch_size):
            rows = order[start : start + batch_size]
            yield rows
            progress.update(len(rows))


def encode_by_length(
    encode: Callable[..., np.ndarray],
    texts: Sequence[tuple[str, ...]],
    embedding_dim: int,
    *,
    batch_size: int,
    show_progress: bool = False,
) -> np.ndarray:
    """Returns the embeddings of texts, (N, D) float32, in the order given.

    Args:
        encode: Gives (B, D) embeddings of columns of B strings.
        texts: Rows, a string for each column.
        embedding_dim: D.
        batch_size: Texts a batch.
        show_progress: Whether a progress bar goes to stderr.

    Raises:
        ConfigError: `batch_size` is below 1.
    """
    embeddings = np.zeros((len(texts), embedding_dim), np.float32)
    lengths = [sum(map(len, row)) for row in texts]
    for rows in batches_by_length(lengths, batch_size, unit="text", show_progress=show_progress):
        embeddings[rows] = encode(*zip(*(texts[row] for row in rows), strict=True))
    return embeddings
