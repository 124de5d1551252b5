"""Pre-training pairs written out as a pair file, with the statistics of the paper's Table 1."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from tfde.errors import require
from tfde.pretraining.guarded_map import ordered_map
from tfde.pretraining.page_store import PageStore
from tfde.pretraining.pair_stream import PairStream
from tfde.progress import progress_bar
from tfde.storage.compressed import open_writer

_PAIRS_A_CHUNK = 2000

# Of each of some texts, how many tokens it has.
CountTokens = Callable[[list[str]], list[int]]


@dataclass
class TaskStatistics:
    """A row of the table: how many pairs, and how long their texts are all together.

    Source: Chang et al. 2020, Table 1. A document's title counts, special tokens do not.
    """

    pairs: int = 0
    query_tokens: int = 0
    document_tokens: int = 0

    def add(self, other: TaskStatistics) -> None:
        """Adds the figures of other pairs."""
        self.pairs += other.pairs
        self.query_tokens += other.query_tokens
        self.document_tokens += other.document_tokens


def write_pair_file(
    stream: PairStream,
    path: str | Path,
    *,
    limit: int | None = None,
    workers: int = 1,
    count_tokens: CountTokens | None = None,
) -> dict[str, TaskStatistics]:
    """Writes pairs of a stream, from the first on, as JSON Lines, atomically.

    A line is that of a pair file with the name of the `task`:
    `{"query", "positive": {"title", "text"}, "task"}`. The file is the same whatever the number
    of workers.

    Args:
        stream: The pairs.
        path: The pair file.
        limit: How many pairs; `None` takes one epoch.
        workers: Processes that draw pairs.
        count_tokens: Counts tokens; `None` counts words between white space, in the workers.

    Returns:
        The statistics of each task.

    Raises:
        ConfigError: `limit` or `workers` is below 1.
    """
    stop = len(stream) if limit is None else limit
    for name, value in (("limit", stop), ("workers", workers)):
        require(value >= 1, name, "at least 1", value)
    statistics = {task: TaskStatistics() for task in stream.places}
    draw = functools.partial(draw_lines, recipe_of(stream))
    starts = (
        (start, min(start + _PAIRS_A_CHUNK, stop)) for start in range(0, stop, _PAIRS_A_CHUNK)
    )
    with open_writer(path) as file, progress_bar(total=stop, unit=" pairs") as progress:
        for lines, figures in ordered_map(draw, starts, workers=workers):
            if count_tokens is not None:
                figures = _count(map(json.loads, lines), count_tokens)
            file.write(b"\n".join(lines) + b"\n")
            for task, row in figures.items():
                statistics[task].add(row)
            progress.update(len(lines))
    return statistics


def format_statistics(statistics: Mapping[str, TaskStatistics], unit: str) -> str:
    """Returns the statistics as a table.

    Args:
        statistics: Rows by task.
        unit: What was counted: `tokens` or `words`.
    """
    head = ["task", f"{unit}", "pairs", f"query {unit}", f"document {unit}"]
    rows = [
        [
            task,
            f"{row.query_tokens + row.document_tokens:,}",
            f"{row.pairs:,}",
            f"{row.query_tokens / max(1, row.pairs):.2f}",
            f"{row.document_tokens / max(1, row.pairs):.2f}",
        ]
        for task, row in statistics.items()
    ]
    widths = [max(map(len, column)) for column in zip(head, *rows, strict=True)]
    return "\n".join(
        "  ".join(
            [cells[0].ljust(widths[0])]
            + [cell.rjust(width) for cell, width in zip(cells[1:], widths[1:], strict=True)]
        )
        for cells in [head, *rows]
    )


# What makes a stream anew in a worker: store, weights, seed, titles. Hashable, so that a worker
# makes it once.
StreamRecipe = tuple[str, tuple[tuple[str, float], ...], int, tuple[str, ...]]


def recipe_of(stream: PairStream) -> StreamRecipe:
    """Returns what makes the stream anew in another process."""
    return (
        str(stream.store.path),
        tuple(stream.weights.items()),
        stream.seed,
        tuple(sorted(stream.titles)),
    )


@functools.lru_cache(maxsize=1)
def _stream_of(recipe: StreamRecipe) -> PairStream:
    directory, weights, seed, titles = recipe
    return PairStream(PageStore(directory), dict(weights), seed=seed, titles=titles)


def draw_lines(
    recipe: StreamRecipe, bounds: tuple[int, int]
) -> tuple[list[bytes], dict[str, TaskStatistics]]:
    """Returns lines of a pair file, without their ends, and the statistics in words.

    Args:
        recipe: Of the stream, whose store this process can read.
        bounds: Number of the first pair, and of the one after the last.
    """
    stream = _stream_of(recipe)
    records = []
    for number in range(*bounds):
        query, positive, *_ = stream.pair(number)
        document = {"title": positive.title, "text": positive.text}
        records.append({"query": query.text, "positive": document, "task": stream.task(number)})
    lines = [json.dumps(record, ensure_ascii=False).encode() for record in records]
    return lines, _count(iter(records), lambda texts: [len(text.split()) for text in texts])


def _count(records: Iterator[dict], count_tokens: CountTokens) -> dict[str, TaskStatistics]:
    texts: list[str] = []
    tasks = []
    for record in records:
        document = record["positive"]
        texts += [record["query"], document["title"], document["text"]]
        tasks.append(record["task"])
    counts = iter(count_tokens(texts))
    figures: dict[str, TaskStatistics] = {}
    for task, query, title, text in zip(tasks, counts, counts, counts, strict=False):
        figures.setdefault(task, TaskStatistics()).add(TaskStatistics(1, query, title + text))
    return figures
