"""Pages -> pre-training pairs: ranges of pair numbers, each drawn by whoever is free."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from pathlib import Path

import apache_beam as beam
from apache_beam.options.pipeline_options import PipelineOptions
from apache_beam.pvalue import AsList, PCollection

from tfde.beam.dead_letters import DeadLetters, write_dead_letters
from tfde.beam.run_pipeline import run_pipeline
from tfde.errors import require
from tfde.pretraining.build_store import page_store
from tfde.pretraining.page_store import STORE_FILE
from tfde.pretraining.pair_stream import PairStream
from tfde.pretraining.write_pair_file import (
    StreamRecipe,
    TaskStatistics,
    draw_lines,
    recipe_of,
)
from tfde.storage.resumable_file import PartedFile


class DrawPairs(beam.PTransform):
    """Numbers of parts -> the same numbers, once their pairs are written.

    Args:
        recipe: Of the stream; every worker reads its store under the same path.
        work: The pair file.
        pairs: How many pairs it is to hold.
        pairs_a_part: Pairs a part.
    """

    def __init__(
        self, recipe: StreamRecipe, work: PartedFile, *, pairs: int, pairs_a_part: int
    ) -> None:
        super().__init__()
        self._recipe = recipe
        self._work = work
        self._pairs = pairs
        self._pairs_a_part = pairs_a_part

    def expand(self, numbers: PCollection) -> PCollection:
        """Adds the steps."""
        draw = beam.ParDo(_DrawPart(self._recipe, self._work, self._pairs, self._pairs_a_part))
        return numbers | beam.Reshuffle() | draw


class _DrawPart(beam.DoFn):
    def __init__(
        self, recipe: StreamRecipe, work: PartedFile, pairs: int, pairs_a_part: int
    ) -> None:
        self._recipe, self._work = recipe, work
        self._pairs, self._pairs_a_part = pairs, pairs_a_part

    def process(self, number: int) -> Iterator[int]:
        start = number * self._pairs_a_part
        bounds = start, min(start + self._pairs_a_part, self._pairs)
        lines, figures = draw_lines(self._recipe, bounds)
        counts = {
            f"{task} {name}": count
            for task, row in figures.items()
            for name, count in vars(row).items()
        }
        self._work.write_part(number, (line + b"\n" for line in lines), counts)
        yield number


def make_pairs_with_beam(
    pages: str | Path,
    store: str | Path,
    output: str | Path,
    options: PipelineOptions,
    *,
    weights: Mapping[str, float],
    titles: Collection[str] = ("ict",),
    seed: int = 0,
    limit: int | None = None,
    epochs: int = 1,
    pairs_a_part: int = 10_000,
    language: str = "en",
    workers: int = 1,
    skip_bad: bool = False,
) -> dict[str, TaskStatistics]:
    """Writes pre-training pairs of pages as `write_pair_file` does.

    Where there is no store yet, this process cuts the pages. Given again after a kill, it draws the
    parts that are missing; given again when all is done, it returns the statistics.

    Args:
        pages: The file of pages.
        store: Directory of the pages cut into sentences; every worker reads it under this path.
        output: The pair file, packed by its name.
        options: Beam's.
        weights: Tasks with their weights, as `PairStream`.
        titles: As `PairStream`.
        seed: As `PairStream`.
        limit: How many pairs; `None` takes those of `epochs`.
        epochs: How often all places are gone through.
        pairs_a_part: Pairs that a worker draws in one go.
        language: As `build_store`.
        workers: Processes of this machine that cut the pages.
        skip_bad: Whether bad pages are left out, and written to `OUTPUT.skipped.jsonl`.

    Returns:
        The statistics of each task, in words.

    Raises:
        ConfigError: a number below 1, an impossible mixture, the store is of other pages, or the
            output holds something else.
        DataError: a page breaks a rule.
        MismatchError: the killed run had other settings.
        CorruptError: a file of the killed run differs from what was written.
        PipelineError: a step failed, or a worker is gone.
    """
    bad = DeadLetters(skip_bad=skip_bad)
    cuts = not (Path(store) / STORE_FILE).is_file()
    cut = page_store(pages, store, language=language, workers=workers, intake=bad.intake)
    if cuts:
        write_dead_letters(output, bad.letters)
    stream = PairStream(cut, weights, seed=seed, titles=titles)
    pairs = epochs * len(stream) if limit is None else limit
    for name, value in (("limit", pairs), ("pairs_a_part", pairs_a_part)):
        require(value >= 1, name, "at least 1", value)
    about = stream.store.about
    settings = {
        **{name: about[name] for name in ("sha256", "language", "splitter")},
        "weights": stream.weights,
        "seed": stream.seed,
        "titles": sorted(stream.titles),
        "pairs": pairs,
        "pairs_a_part": pairs_a_part,
    }
    work = PartedFile(output, settings)
    counts = work.finished()
    if counts is None:
        parts = range(-(-pairs // pairs_a_part))

        def build(pipeline: beam.Pipeline) -> None:
            missing = [number for number in parts if work.part(number) is None]
            draw = DrawPairs(recipe_of(stream), work, pairs=pairs, pairs_a_part=pairs_a_part)
            drawn = pipeline | "Parts" >> beam.Create(missing) | "Draw" >> draw
            end = pipeline | "End" >> beam.Create([len(parts)])
            _ = end | "Join" >> beam.Map(join_parts, work, AsList(drawn))

        with work.begin():
            run_pipeline(options, build)
        counts = work.finished() or {}
    return {
        task: TaskStatistics(
            **{name: counts.get(f"{task} {name}", 0) for name in vars(TaskStatistics())}
        )
        for task in stream.places
    }


def join_parts(parts: int, work: PartedFile, done: Iterable[int]) -> None:
    """Joins the parts of a file; the last step of a pipeline.

    Args:
        parts: How many there are.
        work: The file.
        done: The steps before it, which it waits for.
    """
    # A runner may repeat a step whose end it did not hear of.
    if work.finished() is None:
        work.finish(parts)
