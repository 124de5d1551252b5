"""Run -> pairs with hard negatives: parts of the queries, each mined by whoever is free."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import lru_cache
from itertools import groupby
from pathlib import Path
from typing import Literal

import apache_beam as beam
from apache_beam.options.pipeline_options import PipelineOptions
from apache_beam.pvalue import AsList, TaggedOutput

from tfde.beam.dead_letters import BAD, DeadLetter, DeadLetters, write_dead_letters
from tfde.beam.run_pipeline import run_pipeline
from tfde.config.negatives import MiningRules
from tfde.data.dataset_directory import DatasetDirectory
from tfde.data.document_file import DocumentFile
from tfde.errors import ConfigError, DataError, require
from tfde.negatives.candidate_sources import RunCandidates
from tfde.negatives.judged_queries import JudgedQueries
from tfde.negatives.mine import MiningReport, mining_settings
from tfde.negatives.part_miner import PartMiner
from tfde.retrieval.runs import RunLine, document_twice, stream_run
from tfde.storage.files import sha256
from tfde.storage.intake import Intake
from tfde.storage.json_lines import json_line
from tfde.storage.resumable_file import PartedFile
from tfde.types import Run

# Number of a part, and lines of a run of one of its queries.
Candidates = tuple[int, list[tuple[int, str, str, float]]]


class ReadRun(beam.DoFn):
    """The path of a run -> its lines by parts of the queries of a split.

    Args:
        dataset: Path of the dataset directory.
        split: Whose queries.
        queries_at_once: Queries a part.
        skip_bad: Whether bad records go to the output `BAD`.
    """

    def __init__(self, dataset: str, split: str, queries_at_once: int, *, skip_bad: bool) -> None:
        self._dataset, self._split = dataset, split
        self._queries_at_once = queries_at_once
        self._skip_bad = skip_bad

    def process(self, path: str) -> Iterator[Candidates | TaggedOutput]:
        """Yields the lines, those of a query together, then what was skipped."""
        bad = DeadLetters(skip_bad=self._skip_bad)
        queries = _judged_queries(self._dataset, self._split).queries
        places = {query.query_id: place for place, query in enumerate(queries)}
        for query_id, lines in groupby(stream_run(path, bad.intake), lambda line: line.query_id):
            # Plain tuples have a fast coder; a class of ours would be pickled, one by one.
            rows = [(number, query, doc_id, score) for number, query, doc_id, score in lines]
            if query_id in places:
                yield places[query_id] // self._queries_at_once, rows
        for letter in bad.letters:
            yield TaggedOutput(BAD, letter)


class MinePart(beam.DoFn):
    """The number of a part and the lines of a run for it -> the number, once the pairs are written.

    Args:
        dataset: Path of the dataset directory; every worker reads it under the same path.
        run_file: Path of the run, for errors.
        work: The pair file, begun, with its documents beside the parts.
        rules: What is left out and what is taken.
        split: Whose pairs.
        documents: Whether the file names documents by id or holds their texts.
        queries_at_once: Queries a part.
        skip_bad: Whether bad records go to the output `BAD`.
    """

    def __init__(
        self,
        dataset: str,
        run_file: str,
        work: PartedFile,
        rules: MiningRules,
        *,
        split: str,
        documents: Literal["ids", "texts"],
        queries_at_once: int,
        skip_bad: bool,
    ) -> None:
        self._dataset, self._run_file, self._work, self._rules = dataset, run_file, work, rules
        self._split, self._documents, self._queries_at_once = split, documents, queries_at_once
        self._skip_bad = skip_bad

    def setup(self) -> None:
        """Opens the documents; once for each worker."""
        self._store = DocumentFile(documents_of(self._work))
        self._judged = _judged_queries(self._dataset, self._split)

    def teardown(self) -> None:
        """Closes them."""
        self._store.close()

    def process(
        self, part: tuple[int, Iterable[list[tuple[int, str, str, float]] | None]]
    ) -> Iterator[int | TaggedOutput]:
        """Yields what was skipped, then the number."""
        number, groups = part
        bad = DeadLetters(skip_bad=self._skip_bad)
        lines = sorted(RunLine(*row) for rows in groups if rows for row in rows)
        run = self._run(lines, bad.intake)
        if self._work.part(number) is None:
            source = RunCandidates(self._run_file, run=run)
            miner = PartMiner(
                source,
                self._store,
                self._judged,
                self._rules,
                documents=self._documents,
                cross_encoder=None,
            )
            start = number * self._queries_at_once
            pairs, counts = miner.mine(self._judged.queries[start : start + self._queries_at_once])
            self._work.write_part(number, map(json_line, pairs), counts)
        for letter in bad.letters:
            yield TaggedOutput(BAD, letter)
        yield number

    def _run(self, lines: Iterable[RunLine], intake: Intake) -> Run:
        run: Run = {}
        for line in lines:
            results = run.setdefault(line.query_id, {})
            if line.doc_id in results:
                intake.bad(document_twice(self._run_file, line), "document that comes twice")
            elif line.doc_id not in self._store:
                rule = "a candidate must be a document of the dataset."
                error = DataError(self._run_file, line.number, rule, line.doc_id)
                intake.bad(error, "unknown document")
            else:
                results[line.doc_id] = line.score
        return run


@lru_cache(maxsize=1)
def _judged_queries(dataset: str, split: str) -> JudgedQueries:
    return JudgedQueries.read(DatasetDirectory(dataset), split)


def documents_of(work: PartedFile) -> Path:
    """Returns where the documents of a mining lie by id."""
    return work.directory / "documents"


def mine_with_beam(
    dataset: DatasetDirectory,
    run_file: str | Path,
    output: str | Path,
    rules: MiningRules,
    options: PipelineOptions,
    *,
    split: str = "train",
    documents: Literal["ids", "texts"] = "ids",
    queries_at_once: int = 500,
    skip_bad: bool = False,
) -> MiningReport:
    """Writes a pair file with hard negatives, as `mine_negatives` does from a run.

    Given again after a kill, it mines the parts that are missing; given again when all is done, it
    returns the report. A mining that one of the two began, the other can end.

    Args:
        dataset: Queries, judgements and documents.
        run_file: The candidates, a TREC run.
        output: The pair file, packed by its name.
        rules: What is left out and what is taken; none that asks a cross-encoder.
        options: Beam's.
        split: Whose pairs.
        documents: Whether the file names documents by id or holds their texts.
        queries_at_once: Queries a part.
        skip_bad: Whether bad lines of the run are left out, and written to `OUTPUT.skipped.jsonl`.

    Raises:
        ConfigError: no such split, no pair in it, a rule that asks a cross-encoder, or an output
            that holds something else.
        MismatchError: the killed run had other settings.
        DataError: the dataset breaks a rule.
        CorruptError: a file of the killed run differs from what was written.
        PipelineError: a step failed, or a worker is gone.
    """
    if rules.needs_cross_encoder:
        raise ConfigError(
            "`max_cross_score`, `cross_margin` and `min_pseudo_score` need `tfde mine-negatives`."
        )
    require(queries_at_once >= 1, "queries_at_once", "at least 1", queries_at_once)
    settings = mining_settings(
        dataset,
        {"kind": "run", "sha256": sha256(Path(run_file))},
        rules,
        split=split,
        documents=documents,
        cross_encoder=None,
        queries_at_once=queries_at_once,
    )
    work = PartedFile(output, settings)
    counts = work.finished()
    if counts is not None:
        return MiningReport.of(counts)
    dataset.validate([split])
    queries = JudgedQueries.read(dataset, split).queries
    known = {query.query_id for query in queries}
    if not any(line.query_id in known for line in stream_run(run_file, Intake(skip_bad=True))):
        raise ConfigError(
            f"{run_file}: must have candidates for queries of split {split!r}; a run of another"
            " split goes with `--split`."
        )
    parts = range(-(-len(queries) // queries_at_once))

    def build(pipeline: beam.Pipeline) -> None:
        reader = ReadRun(str(dataset.path), split, queries_at_once, skip_bad=skip_bad)
        read = (
            pipeline
            | "Run" >> beam.Create([str(run_file)])
            | "Read" >> beam.ParDo(reader).with_outputs(BAD, main="candidates")
        )
        # Each part is there, whether the run names a query of it or not.
        every = pipeline | "Parts" >> beam.Create([(number, None) for number in parts])
        miner = MinePart(
            str(dataset.path),
            str(run_file),
            work,
            rules,
            split=split,
            documents=documents,
            queries_at_once=queries_at_once,
            skip_bad=skip_bad,
        )
        found = (
            (every, read.candidates)
            | beam.Flatten()
            | beam.GroupByKey()
            | "Mine" >> beam.ParDo(miner).with_outputs(BAD, main="mined")
        )
        _ = (
            pipeline
            | "End" >> beam.Create([len(parts)])
            | "Join"
            >> beam.Map(_join, work, AsList(found.mined), AsList(read[BAD]), AsList(found[BAD]))
        )

    _judged_queries.cache_clear()  # of an earlier job in this process, on other judgements perhaps
    with work.begin():
        DocumentFile.build(dataset.documents(), documents_of(work)).close()
        run_pipeline(options, build)
    return MiningReport.of(work.finished() or {})


def _join(
    parts: int,
    work: PartedFile,
    mined: Iterable[int],
    bad_lines: Iterable[DeadLetter],
    bad_candidates: Iterable[DeadLetter],
) -> None:
    write_dead_letters(work.output, [*bad_lines, *bad_candidates])
    # A runner may repeat a step whose end it did not hear of.
    if work.finished() is None:
        work.finish(parts)
