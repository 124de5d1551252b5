"""An endless stream of pre-training pairs, any of which can be asked for by its number."""

from __future__ import annotations

import functools
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from tfde.data.largest_remainders import largest_remainders
from tfde.errors import ConfigError, require
from tfde.pretraining.page_store import PageStore
from tfde.pretraining.tasks import (
    TASKS,
    Draws,
    ShuffledRange,
    bfs_pair,
    ict_pair,
    question_pair,
    span_crop_pair,
    wlp_pair,
)
from tfde.types import Pair

# So many pairs in a row hold each task in exact proportion.
ROUND = 1000


class PairStream:
    """Pairs of one task or of a mixture; pair number n is a pure function of (seed, n).

    A task goes through all its places in an order of its own and draws a pair at each; such a
    pass done, it begins another, in another order and with other draws. Its places are

    - `ict`, `span_crop`: every passage that has a pair;
    - `bfs`: every page of at least two passages, as often as it has passages;
    - `wlp`: every page that another page links to, as often as it has passages; which of the
      linking pages gives the document is drawn, each as likely, then which of its linking
      passages;
    - `question`: every heading that is a question.

    Of any `ROUND` pairs that begin at a multiple of it, each task has its share to one pair, in
    random order. An epoch is as many pairs as all tasks have places; with one task it is a pass,
    in a mixture the smaller tasks come round more often than the larger ones.

    Args:
        store: The pages.
        tasks: Names of tasks, mixed evenly, or tasks with their weights.
        seed: At least 0.
        titles: The tasks whose documents have the title of their page.

    Raises:
        ConfigError: no task, an unknown one, or one that has no pair in these pages; a weight
            that is not above 0 or gives a task less than one pair in `ROUND`; a negative seed.

    Attributes:
        weights: The tasks with their weights.
        places: How many places each task has.
        without_pair: For each task, of what and how much gives it no pair.

    Source: mixture and tasks Chang et al. 2020, sections 3 and 4.1; order and passes derived here.
    """

    def __init__(
        self,
        store: PageStore,
        tasks: Sequence[str] | Mapping[str, float] = ("ict", "bfs", "wlp"),
        *,
        seed: int = 0,
        titles: Collection[str] = ("ict",),
    ) -> None:
        weights = dict(tasks) if isinstance(tasks, Mapping) else dict.fromkeys(tasks, 1.0)
        check_tasks(weights, titles)
        require(seed >= 0, "seed", "at least 0", seed)
        self.store = store
        self.weights = weights
        self.seed = seed
        self.titles = frozenset(titles)
        self._places = [_places(store, task) for task in weights]
        self.places = {places.task: places.size for places in self._places}
        self.without_pair = {places.task: places.without for places in self._places}
        for places in self._places:
            if not places.size:
                without = ", ".join(f"{count:,} {what}" for what, count in places.without.items())
                raise ConfigError(
                    f"`task`: must leave out {places.task}, for the pages have no pair of it."
                    f" Received: {without}"
                )
        self._shares = _shares(weights)
        self._round = functools.lru_cache(maxsize=4)(self._new_round)
        self._order = functools.lru_cache(maxsize=2 * len(weights))(self._new_order)

    def __len__(self) -> int:
        """Returns the number of pairs of an epoch."""
        return sum(self.places.values())

    def pair(self, number: int) -> Pair:
        """Returns pair `number`, counted from 0 over all epochs."""
        row, turn = self._turn(number)
        places = self._places[row]
        lap, place = divmod(turn, places.size)
        place = self._order(row, lap)[place]
        page = int(np.searchsorted(places.starts, place, side="right")) - 1
        return self._draw(places.task, page, place - int(places.starts[page]), lap)

    def task(self, number: int) -> str:
        """Returns which task pair `number` is of."""
        return self._places[self._turn(number)[0]].task

    def pairs(self, start: int = 0, stop: int | None = None) -> Iterator[Pair]:
        """Yields the pairs from number `start` on; without `stop` they never end."""
        number = start
        while stop is None or number < stop:
            yield self.pair(number)
            number += 1

    def pairs_of(self, epoch: int) -> Iterator[Pair]:
        """Yields the pairs of an epoch, counted from 0."""
        return self.pairs(epoch * len(self), (epoch + 1) * len(self))

    def _draw(self, task: str, number: int, place: int, lap: int) -> Pair:
        """Returns the pair of a task at the place-th of its places on page `number`."""
        page = self.store.page(number)
        draws = Draws(self.seed, lap, task, page.page_id, place)
        title = task in self.titles
        if task == "ict":
            passage = int(self.store.ict_passages(number)[place])
            return ict_pair(page, passage, draws, title=title)
        if task == "span_crop":
            passage = int(self.store.crop_passages(number)[place])
            return span_crop_pair(page, passage, draws, title=title)
        if task == "bfs":
            return bfs_pair(page, draws, title=title)
        if task == "wlp":
            linking = self.store.linking_pages(number)
            chosen = draws.below(len(linking))
            passages = self.store.linking_passages(number, chosen).tolist()
            return wlp_pair(
                page, self.store.page(int(linking[chosen])), passages, draws, title=title
            )
        return question_pair(page, place, title=title)

    def _turn(self, number: int) -> tuple[int, int]:
        """Returns the row of the task of pair `number`, and how many pairs of it come before."""
        turn, place = divmod(number, ROUND)
        rows, ranks = self._round(turn)
        row = int(rows[place])
        return row, turn * self._shares[row] + int(ranks[place])

    def _new_round(self, turn: int) -> tuple[np.ndarray, np.ndarray]:
        """Returns the task of each pair of a round, and how many of the task came before it."""
        rows = np.repeat(np.arange(len(self._shares)), self._shares)
        np.random.Generator(np.random.PCG64([self.seed, turn])).shuffle(rows)
        ranks = np.empty_like(rows)
        for row, share in enumerate(self._shares):
            ranks[rows == row] = np.arange(share)
        return rows, ranks

    def _new_order(self, row: int, lap: int) -> ShuffledRange:
        places = self._places[row]
        return ShuffledRange(places.size, self.seed, lap, places.task)


class _Places(NamedTuple):
    """Where a task has pairs: `starts` counts them up over the pages, (pages + 1,) int64."""

    task: str
    size: int
    starts: np.ndarray
    without: dict[str, int]


def _places(store: PageStore, task: str) -> _Places:
    passages = np.diff(store.page_passages)
    total = int(store.page_passages[-1])
    if task == "ict":
        counts = store.ict_counts
        without = {"passages of one sentence": total - int(counts.sum())}
    elif task == "span_crop":
        counts = store.crop_counts
        without = {"passages of too few words": total - int(counts.sum())}
    elif task == "bfs":
        counts = np.where(passages > 1, passages, 0)
        without = {"pages of one passage": int(np.count_nonzero(passages < 2))}
    elif task == "wlp":
        counts = np.where(store.link_counts > 0, passages, 0)
        without = {"pages without a link to them": int(np.count_nonzero(store.link_counts == 0))}
    else:
        counts = store.question_counts
        without = {"pages without a question": int(np.count_nonzero(counts == 0))}
    starts = np.concatenate([[0], np.cumsum(counts, dtype=np.int64)])
    return _Places(task, int(starts[-1]), starts, without)


def _shares(weights: Mapping[str, float]) -> list[int]:
    """Returns how many of `ROUND` pairs each task has (largest remainders)."""
    shares = largest_remainders(ROUND, list(weights.values()))
    for task, share in zip(weights, shares, strict=True):
        if not share:
            raise ConfigError(
                f"`tasks`: each weight must be at least 1/{ROUND} of their sum."
                f" Received: {task}={weights[task]:g} of {sum(weights.values()):g}"
            )
    return shares


def check_tasks(weights: Mapping[str, float], titles: Collection[str]) -> None:
    """Finds what a `PairStream` would refuse whatever the pages are.

    Raises:
        ConfigError: as `PairStream`.
    """
    known = ", ".join(TASKS)
    for name, values in (("tasks", weights), ("titles", titles)):
        for value in values:
            require(value in TASKS, name, f"of {known}", value)
    if not weights:
        raise ConfigError(f"`tasks` must be one or several of {known}. Received: none")
    for task, weight in weights.items():
        require(0 < weight < float("inf"), f"tasks.{task}", "above 0", weight)
    _shares(weights)
