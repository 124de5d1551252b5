"""Pairs whose queries begin with a prompt of their source's."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from tfde.data.pairs.batches import PairBatches


class PromptedQueries(PairBatches):
    """The batches of another, each of whose queries has a prompt before it.

    Args:
        batches: Batches of pairs.
        prompt: Put before each query as it stands.
    """

    def __init__(self, batches: PairBatches, prompt: str) -> None:
        self.prompt = prompt
        self._batches = batches
        self.batch_size = batches.batch_size
        self.negatives_per_query = batches.negatives_per_query
        self.has_context = batches.has_context

    @property
    def num_pairs(self) -> int:
        """Pairs in an epoch."""
        return self._batches.num_pairs

    @property
    def smallest_batch(self) -> int:
        """Pairs in the smallest batch of an epoch."""
        return self._batches.smallest_batch

    @property
    def steps_per_epoch(self) -> int:
        """Batches in an epoch."""
        return self._batches.steps_per_epoch

    def shares_of(self, keys: np.ndarray) -> np.ndarray:
        """Returns the share of the pairs whose positive is that document, (N,) float32."""
        return self._batches.shares_of(keys)

    def texts(self) -> Iterator[str]:
        """Yields the prompt, then the texts of queries and documents."""
        yield self.prompt
        yield from self._batches.texts()

    def batch(self, step: int) -> dict[str, np.ndarray]:
        """Returns batch number `step`, strings as `bytes` objects."""
        batch = self._batches.batch(step)
        prompt = self.prompt.encode()
        queries = np.empty_like(batch["query"])
        queries[:] = [prompt + query for query in batch["query"]]
        return {**batch, "query": queries}
