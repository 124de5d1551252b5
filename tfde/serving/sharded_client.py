"""A client of several servers that each hold a part of the index."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

import grpc

from tfde.argument_types import typed
from tfde.errors import ServerError, require
from tfde.serving.client import Client
from tfde.serving.hit import Hit

_CALLS = 8  # of a shard at a time


class ShardedAnswer(NamedTuple):
    """What the shards found together, and which of them did not answer.

    Args:
        hits: One list a query, best first.
        answered: Targets whose documents were searched.
        failed: The reason by target; their documents are missing from the hits.
    """

    hits: list[list[Hit]]
    answered: list[str]
    failed: dict[str, str]

    @property
    def complete(self) -> bool:
        """Whether all documents were searched."""
        return not self.failed


class ShardedClient:
    """Asks all shards at once and merges what they find by score.

    The shards must serve one model: scores of different ones cannot be compared.

    Args:
        targets: `HOST:PORT` of each shard's server.
        timeout_s: Seconds to wait for one answer of a shard.
        model: The retriever to ask.
        min_shards: A search of which fewer shards answer is an error; `None` takes one.
        credentials: As `Client` takes them, for all shards.
    """

    def __init__(
        self,
        targets: Sequence[str],
        *,
        timeout_s: float = 30.0,
        model: str = "retriever",
        min_shards: int | None = None,
        credentials: grpc.ChannelCredentials | None = None,
    ) -> None:
        require(len(targets) > 0, "targets", "not empty", targets)
        require(len(set(targets)) == len(targets), "targets", "different", targets)
        self._min_shards = 1 if min_shards is None else min_shards
        bounds = f"in [1, {len(targets)}], the number of targets"
        require(1 <= self._min_shards <= len(targets), "min_shards", bounds, min_shards)
        self._clients = [
            Client(target, timeout_s=timeout_s, model=model, credentials=credentials)
            for target in targets
        ]
        # Each its own: what waits for one that hangs waits for it alone.
        self._pools = [ThreadPoolExecutor(_CALLS, "shard") for _ in targets]

    @typed
    def search(self, texts: Sequence[str], k: int = 10) -> ShardedAnswer:
        """Finds the best documents of all shards for each query.

        Args:
            texts: The queries.
            k: How many documents a query gets, at most.

        Returns:
            Hits, ranked anew over all shards (equal scores by document id; of a document that two
            shards have, the better), and the shards that answered and failed.

        Raises:
            ConfigError: one text in place of a list.
            ServerError: fewer than `min_shards` shards answered.
        """
        require(not isinstance(texts, str), "texts", "a list of strings", texts)
        running = [
            pool.submit(client.search, texts, k)
            for pool, client in zip(self._pools, self._clients, strict=True)
        ]
        found: list[list[list[Hit]]] = []
        answered: list[str] = []
        failed: dict[str, str] = {}
        for client, future in zip(self._clients, running, strict=True):
            try:
                found.append(future.result())
                answered.append(client.target)
            except ServerError as error:
                failed[client.target] = str(error)
        if len(answered) < self._min_shards:
            raise ServerError(
                f"{len(answered)} of {len(self._clients)} shards answered, at least"
                f" {self._min_shards} must; {next(iter(failed.values()))}"
            )
        hits = [_merged(itertools.chain(*of_query), k) for of_query in zip(*found, strict=True)]
        return ShardedAnswer(hits, answered, failed)

    def close(self) -> None:
        """Closes the connections."""
        for pool in self._pools:
            pool.shutdown()
        for client in self._clients:
            client.close()

    def __enter__(self) -> ShardedClient:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _merged(hits: itertools.chain[Hit], k: int) -> list[Hit]:
    best: dict[str, Hit] = {}  # a document may be on its way from one shard to another
    for hit in sorted(hits, key=lambda hit: (-hit.score, hit.doc_id)):
        best.setdefault(hit.doc_id, hit)
    first = itertools.islice(best.values(), k)
    return [hit._replace(rank=rank) for rank, hit in enumerate(first, start=1)]
