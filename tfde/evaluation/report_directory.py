"""`tfde evaluate --report DIR`: what was measured, how sure it is, and the texts behind it."""

from __future__ import annotations

import csv
import datetime
import itertools
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from tfde.data.dataset_directory import DatasetDirectory
from tfde.data.ranking import first_documents
from tfde.evaluation.measures import evaluate
from tfde.evaluation.report_charts import (
    difference_chart,
    length_chart,
    recall_chart,
    score_chart,
)
from tfde.evaluation.report_pages import (
    Chart,
    Example,
    ExamplePair,
    Report,
    ShownDocument,
    html_page,
    markdown_page,
)
from tfde.evaluation.significance import (
    EvaluatedSystem,
    compare_systems,
    largest_differences,
)
from tfde.storage.atomic import atomic_directory
from tfde.types import Document, Qrels, Query
from tfde.version import __version__

_CUTOFFS = (1, 2, 3, 5, 10, 20, 30, 50, 100, 200, 500, 1000)
_TOP = 10  # documents of a query whose lengths are shown
_EXAMPLES = 8  # gains, and losses, of a pair of systems
_RELEVANT_SHOWN = 2


def write_report(
    directory: str | Path,
    dataset: DatasetDirectory,
    split: str,
    systems: Sequence[EvaluatedSystem],
    measures: Sequence[str],
    *,
    depth: int,
    command: str,
) -> None:
    """Writes `report.html` (one file, no network), `report.md` with `charts/`, `queries.csv`.

    The corpus is read once.

    Args:
        directory: A new one; whole or not.
        dataset: What the systems searched.
        split: Whose queries.
        systems: With the values of all `measures`.
        measures: The first one that is not 0 or 1 for every query (P@1 is) decides which queries
            are shown.
        depth: Documents that each system was asked for.
        command: What makes this report again.

    Raises:
        ConfigError: the directory is not empty.
    """
    qrels = dataset.qrels(split)
    queries = {query.query_id: query for query in dataset.queries(split)}
    relevant = {q: {d for d, r in judged.items() if r > 0} for q, judged in qrels.items()}
    leading = _leading(systems, measures)
    picked = {
        (one.name, other.name): largest_differences(one, other, leading, _EXAMPLES)
        for one, other in itertools.combinations(systems, 2)
    }
    shown = {row.query_id for parts in picked.values() for part in parts for row in part}
    corpus = _read_corpus(dataset, systems, relevant, shown)
    lengths = {"corpus": corpus.lengths, "relevant": corpus.of(itertools.chain(*relevant.values()))}
    for system in systems:
        found = (first_documents(system.run.get(q, {}), _TOP) for q in relevant)
        lengths[f"{system.name}, first {_TOP}"] = corpus.of(itertools.chain.from_iterable(found))
    curves = _curves(systems, qrels, depth)
    charts = [
        Chart("recall", "Recall", recall_chart(curves), _recall_lines(curves)),
        Chart("scores", "Scores", score_chart(_scores(systems, relevant))),
        Chart("lengths", "Lengths", length_chart(lengths), _length_lines(lengths)),
    ]
    if len(systems) > 1:
        drawn = difference_chart(systems, leading)
        charts.insert(1, Chart("differences", "Differences by query", drawn))
    by_name = {system.name: system for system in systems}
    examples = [
        ExamplePair(
            first,
            second,
            *(
                [
                    _example(
                        queries[row.query_id],
                        (row.first, row.second),
                        (by_name[first], by_name[second]),
                        relevant[row.query_id],
                        corpus.documents,
                    )
                    for row in part
                ]
                for part in parts
            ),
        )
        for (first, second), parts in picked.items()
    ]
    about = {
        "data set": f"{dataset.path}, {split}",
        "queries": f"{len(qrels):,}",
        "documents": f"{len(corpus.lengths):,}",
        "depth": f"{depth} documents a query; a given run has what it has",
    }
    about |= {f"texts cut by {one.name}": one.cut for one in systems if one.cut}
    origin = {
        "command": command,
        "made": f"{datetime.date.today().isoformat()} by tfde {__version__}",
    }
    origin |= {f"sha256 of {name}": value for name, value in dataset.checksums().items()}
    intervals = {one.name: {name: one.interval(name) for name in measures} for one in systems}
    pairs = compare_systems(systems, measures)
    report = Report(about, origin, measures, leading, systems, intervals, pairs, charts, examples)
    with atomic_directory(directory) as temporary:
        (temporary / "report.html").write_text(html_page(report), "utf-8")
        (temporary / "report.md").write_text(markdown_page(report), "utf-8")
        (temporary / "charts").mkdir()
        for chart in charts:
            (temporary / "charts" / f"{chart.name}.svg").write_text(chart.svg, "utf-8")
        _write_queries(temporary / "queries.csv", report, queries)


def _leading(systems: Sequence[EvaluatedSystem], measures: Sequence[str]) -> str:
    """Returns the first measure that tells more of a query than yes or no."""
    for measure in measures:
        if any(row[measure] not in (0, 1) for one in systems for row in one.values.values()):
            return measure
    return measures[0]


class _Corpus(NamedTuple):
    """Lengths in words: of all documents, and of those with an id that is asked for; texts."""

    lengths: list[int]
    by_id: dict[str, int]
    documents: dict[str, Document]

    def of(self, doc_ids: Iterable[str]) -> list[int]:
        return [self.by_id[doc_id] for doc_id in doc_ids if doc_id in self.by_id]


def _read_corpus(
    dataset: DatasetDirectory,
    systems: Sequence[EvaluatedSystem],
    relevant: Mapping[str, set[str]],
    shown: set[str],
) -> _Corpus:
    measured = set().union(*relevant.values())
    texts = set().union(*(relevant[query_id] for query_id in shown))
    for system in systems:
        for query_id in relevant:
            best = first_documents(system.run.get(query_id, {}), _TOP)
            measured.update(best)
            if query_id in shown:
                texts.update(itertools.islice(best, 1))
    corpus = _Corpus([], {}, {})
    for document in dataset.documents():
        length = len(document.title.split()) + len(document.text.split())
        corpus.lengths.append(length)
        if document.doc_id in measured:
            corpus.by_id[document.doc_id] = length
        if document.doc_id in texts:
            corpus.documents[document.doc_id] = document
    return corpus


def _curves(
    systems: Sequence[EvaluatedSystem], qrels: Qrels, depth: int
) -> dict[str, dict[int, float]]:
    cutoffs = [k for k in _CUTOFFS if k <= depth]
    names = [f"R@{k}" for k in cutoffs]
    found = {}
    for system in systems:
        values = evaluate(system.run, qrels, names)
        found[system.name] = dict(zip(cutoffs, values.values(), strict=True))
    return found


def _recall_lines(curves: Mapping[str, Mapping[int, float]]) -> list[list[str]]:
    cutoffs = next(iter(curves.values()), {})
    rows = ([name, *(f"{value:.4f}" for value in curve.values())] for name, curve in curves.items())
    return [["system", *(f"R@{k}" for k in cutoffs)], *rows]


def _length_lines(lengths: Mapping[str, Sequence[int]]) -> list[list[str]]:
    """Returns how long documents are, in words; documents that several queries find count often."""
    lines = [["length in words", "documents", "mean", "25 %", "median", "75 %"]]
    for name, part in lengths.items():
        numbers = [np.mean(part), *np.percentile(part, (25, 50, 75))] if part else []
        cells = [f"{number:.1f}" for number in numbers] or ["-"] * 4
        lines.append([name, f"{len(part):,}", *cells])
    return lines


def _scores(
    systems: Sequence[EvaluatedSystem], relevant: Mapping[str, set[str]]
) -> dict[str, tuple[list[float], list[float]]]:
    found: dict[str, tuple[list[float], list[float]]] = {}
    for system in systems:
        right: list[float] = []
        others: list[float] = []
        for query_id, wanted in relevant.items():
            scores = system.run.get(query_id, {})
            right += [scores[doc_id] for doc_id in wanted if doc_id in scores]
            others += sorted((s for d, s in scores.items() if d not in wanted), reverse=True)[:1]
        found[system.name] = (right, others)
    return found


def _example(
    query: Query,
    values: tuple[float, float],
    systems: tuple[EvaluatedSystem, EvaluatedSystem],
    relevant: set[str],
    documents: Mapping[str, Document],
) -> Example:
    ranks = [system.ranks(query.query_id) for system in systems]
    deepest = max(map(len, ranks)) + 1
    wanted = sorted(relevant, key=lambda d: (min(rank.get(d, deepest) for rank in ranks), d))
    best = [next(iter(rank)) for rank in ranks if rank]
    doc_ids = dict.fromkeys([*wanted[:_RELEVANT_SHOWN], *best])
    return Example(
        query,
        *values,
        [
            ShownDocument(documents[d], d in relevant, ranks[0].get(d), ranks[1].get(d))
            for d in doc_ids
            if d in documents
        ],
    )


def _write_queries(path: Path, report: Report, queries: Mapping[str, Query]) -> None:
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        names = [f"{system.name}: {m}" for system in report.systems for m in report.measures]
        writer.writerow(["query_id", "text", *names])
        for query_id in report.systems[0].values:
            values = [s.values[query_id][m] for s in report.systems for m in report.measures]
            writer.writerow([query_id, queries[query_id].text, *np.round(values, 6)])
