"""`mine_negatives`: the pairs of a split with hard negatives, written so that a kill costs little.

Queries are worked on in the order of their ids, a part at a time, and every choice depends on
seed, query and positive alone: neither the order of the queries nor a kill changes the output.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from typing import Any, Literal, NamedTuple

from tfde.config.negatives import MiningRules
from tfde.data.dataset_directory import DatasetDirectory
from tfde.data.document_file import DocumentFile
from tfde.errors import ConfigError, require
from tfde.matching.relevance import relevant_label
from tfde.negatives.candidate_sources import CandidateSource, Corpus
from tfde.negatives.cross_scores import ScoresPairs
from tfde.negatives.judged_queries import JudgedQueries
from tfde.negatives.part_miner import PartMiner
from tfde.negatives.selection import REASONS
from tfde.progress import progress_bar
from tfde.storage.json_lines import json_line
from tfde.storage.resumable_file import PartedFile


class MiningReport(NamedTuple):
    """What mining did.

    `short` of the `pairs` have fewer negatives than were asked for, `empty` of these none;
    `removed` counts candidates by `tfde.negatives.selection.REASONS`. `pseudo_positives` of the
    `pairs` have a positive that a cross-encoder chose; `without_positive` unlabelled queries have
    none, and no pair.
    """

    pairs: int
    negatives: int
    short: int
    empty: int
    candidates: int
    removed: dict[str, int]
    pseudo_positives: int = 0
    without_positive: int = 0

    @classmethod
    def of(cls, counts: Mapping[str, int]) -> MiningReport:
        """Returns the report of what was counted."""
        found: dict[str, Any] = {name: counts.get(name, 0) for name in cls._fields}
        return cls(**{**found, "removed": {reason: counts.get(reason, 0) for reason in REASONS}})

    def text(self, count: int) -> str:
        """Returns lines to read.

        Args:
            count: How many negatives of each pair were asked for.
        """
        left_out = [f"  {REASONS[reason]}: {n:,}" for reason, n in self.removed.items() if n]
        pseudo = []
        if self.pseudo_positives or self.without_positive:
            pseudo = [
                f"pseudo-positives: {self.pseudo_positives:,} of the pairs;"
                f" unlabelled queries without one: {self.without_positive:,}"
            ]
        return "\n".join(
            [
                f"{self.pairs:,} pairs, {self.negatives:,} negatives,"
                f" {self.short:,} pairs with fewer than {count} ({self.empty:,} with none)",
                *pseudo,
                f"candidates: {self.candidates:,}; left out:",
                *left_out,
            ]
        )


def mine_negatives(
    dataset: DatasetDirectory,
    source: CandidateSource,
    output: str | Path,
    rules: MiningRules,
    *,
    split: str = "train",
    judged: JudgedQueries | None = None,
    documents: Literal["ids", "texts"] = "ids",
    cross_encoder: ScoresPairs | None = None,
    unlabelled: bool = False,
    queries_at_once: int = 500,
    show_progress: bool = False,
) -> MiningReport:
    """Writes a pair file: each pair of a split with negatives and the scores of all.

    Known positives of a query are those judged above 0 in the split, for it or for a query of
    equal words. Given again after a kill, it goes on with the next part; given again when all is
    done, it returns the report.

    Args:
        dataset: Queries, judgements and documents.
        source: Who ranks the candidates.
        output: The pair file, packed if its name ends in `.gz`; `OUTPUT.json` beside it holds
            settings and counts.
        rules: What is left out and what is taken.
        split: Whose pairs.
        judged: Other queries with their positives, in place of those of the split.
        documents: Whether the file names documents by id or holds their texts.
        cross_encoder: Throws out candidates that it takes for relevant, or makes positives of them;
            its scores are written as `cross_scores`.
        unlabelled: Whether queries that no split judges take part, for their pseudo-positives; not
            with `judged`.
        queries_at_once: Queries a part.
        show_progress: Whether progress bars go to stderr.

    Raises:
        ConfigError: no such split, no pair in it, a rule without what it needs, or an output
            that holds something else.
        MismatchError: the killed run had other settings.
        DataError: the dataset breaks a rule, or a candidate is none of its documents.
        CorruptError: a file of the killed run differs from what was written.
    """
    _check(source, rules, cross_encoder, queries_at_once)
    if unlabelled and not rules.pseudo_positives:
        raise ConfigError("`unlabelled` goes with `pseudo_positives`.")
    if unlabelled and judged is not None:
        raise ConfigError("`unlabelled` goes with the queries of a split, and not with `judged`.")
    settings = mining_settings(
        dataset,
        source.describe(),
        rules,
        split=split if judged is None else judged.checksum(),
        documents=documents,
        cross_encoder=None if cross_encoder is None else cross_encoder.fingerprint(),
        queries_at_once=queries_at_once,
    )
    if unlabelled:
        settings["unlabelled"] = True
    work = PartedFile(output, settings)
    done = work.finished()
    if done is not None:
        return MiningReport.of(done)
    if judged is None:
        dataset.validate([split])
        judged = JudgedQueries.read(dataset, split, unlabelled=unlabelled)
    queries = judged.queries
    parts = [queries[at : at + queries_at_once] for at in range(0, len(queries), queries_at_once)]
    with (
        work.begin(),
        closing(DocumentFile.build(dataset.documents(), work.directory / "documents")) as store,
    ):
        miner = PartMiner(
            source, store, judged, rules, documents=documents, cross_encoder=cross_encoder
        )
        left = [number for number in range(len(parts)) if work.part(number) is None]
        if left:
            source.prepare(Corpus(dataset, store, work.directory, show_progress))
        there = len(queries) - sum(len(parts[number]) for number in left)
        options = {"total": len(queries), "initial": there, "unit": "query", "desc": "mine"}
        with progress_bar(**options, disable=not show_progress) as bar:
            for number in left:
                lines, counts = miner.mine(parts[number])
                work.write_part(number, map(json_line, lines), counts)
                bar.update(len(parts[number]))
        return MiningReport.of(work.finish(len(parts)))


def mining_settings(
    dataset: DatasetDirectory,
    source: Mapping[str, Any],
    rules: MiningRules,
    *,
    split: str,
    documents: Literal["ids", "texts"],
    cross_encoder: str | None,
    queries_at_once: int,
) -> dict[str, Any]:
    """Returns what a mined pair file depends on, as JSON.

    Args:
        dataset: As `mine_negatives`.
        source: What the source of the candidates says of itself.
        rules: As `mine_negatives`.
        split: As `mine_negatives`.
        documents: As `mine_negatives`.
        cross_encoder: Its fingerprint.
        queries_at_once: As `mine_negatives`.
    """
    described = dataclasses.asdict(rules)
    if not rules.pseudo_positives:  # so that what was made before there were any is not made anew
        del described["pseudo_positives"], described["min_pseudo_score"]
    if rules.cross_label is None:
        del described["cross_label"]
    return {
        "dataset": dataset.checksums(),
        "split": split,
        "source": dict(source),
        "rules": described,
        "documents": documents,
        "cross_encoder": cross_encoder,
        "queries_at_once": queries_at_once,
    }


def _check(
    source: CandidateSource,
    rules: MiningRules,
    cross_encoder: ScoresPairs | None,
    queries_at_once: int,
) -> None:
    if rules.needs_scores and not source.has_scores:
        raise ConfigError("a margin and `choice` sampled need scores; random candidates have none.")
    if rules.needs_cross_encoder != (cross_encoder is not None):
        raise ConfigError(
            "`cross_encoder` goes with `max_cross_score`, `cross_margin` or `min_pseudo_score`;"
            " give both or neither."
        )
    if cross_encoder is not None:
        relevant_label(cross_encoder, rules.cross_label, name="cross_label")
    require(queries_at_once >= 1, "queries_at_once", "at least 1", queries_at_once)
