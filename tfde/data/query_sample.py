"""Which queries of a split are measured where not all are."""

from __future__ import annotations

import numpy as np

from tfde.data.dataset_directory import DatasetDirectory
from tfde.types import Query


def sample_queries(
    dataset: DatasetDirectory, split: str, max_queries: int | None, rng: np.random.Generator
) -> list[Query]:
    """Returns the judged queries of a split, or a sample, in the order of the dataset.

    Args:
        dataset: The dataset.
        split: The split.
        max_queries: How many at most; `None` takes all.
        rng: Draws them, where there are more.
    """
    queries = list(dataset.queries(split))
    if max_queries is None or max_queries >= len(queries):
        return queries
    return [queries[row] for row in sorted(rng.choice(len(queries), max_queries, replace=False))]
