"""Measures of a run, by trec_eval's own code (ir-measures over pytrec_eval)."""

from __future__ import annotations

import logging
import math
import numbers
import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import ir_measures
from ir_measures import RR
from ir_measures.providers import registry

from tfde.argument_types import typed
from tfde.data.qrels import MAX_SCORE
from tfde.data.ranking import first_documents, without_query
from tfde.errors import ConfigError, require, shorten
from tfde.evaluation.answer_matching import AnswerTexts, answer_ranks
from tfde.types import Qrels, Run

DEFAULT_MEASURES = ("P@1", "RR", "RR@10", "nDCG@10", "R@10", "R@100")
EXAMPLES = "P@1, RR, RR@10, R@100, nDCG@10, Success@20, AP"
_log = logging.getLogger(__name__)
_MEANS = ("P", "R", "RR", "AP", "nDCG", "Success", "Rprec")


class AnswerMeasure(NamedTuple):
    """`Answer@k`: whether one of the first k documents holds an accepted answer (DPR's rule)."""

    cutoff: int


@typed
def evaluate(
    run: Run,
    qrels: Qrels,
    measures: str | Sequence[str] = DEFAULT_MEASURES,
    *,
    ignore_identical_ids: bool = False,
) -> dict[str, float]:
    """Returns the mean of each measure over all judged queries.

    A query that is judged and has no results counts 0 (trec_eval's -c); one that has results and
    is not judged does not count. Ties are broken as trec_eval does: scores as float32, equal ones
    by document id, descending.

    Args:
        run: Query -> document -> score; ids are texts, scores numbers of Python's or NumPy's.
        qrels: Query -> document -> relevance, a whole number; relevant from 1.
        measures: ir-measures' names, such as P@1, RR, RR@10, R@100, nDCG@10, Success@20; or one.
        ignore_identical_ids: Leave out a document whose id is that of the query (BEIR's rule for
            tasks whose queries stand in the corpus).

    Raises:
        ConfigError: an unknown measure, no measures, no judged queries, a score that is not finite;
            an id that is no text, a score that is no number, a relevance that is not whole.
    """
    measures = (measures,) if isinstance(measures, str) else measures
    qrels = _plain("qrels", qrels, int)
    run = _plain("run", run, float)
    asked = run.keys() & qrels.keys()
    if asked and not any_judged(run, qrels):
        _log.warning(
            "no document of the run is judged: it has %r", next(iter(run[next(iter(asked))]), None)
        )
    if run and not asked:
        _log.warning(
            "no query of the run is judged: it has %r, the judgements %r",
            next(iter(run)),
            next(iter(qrels), None),
        )
    if qrels and not any(value > 0 for judged in qrels.values() for value in judged.values()):
        _log.warning("no document is relevant (1 or more) in the judgements: measures are 0")
    rows = per_query(run, qrels, measures, ignore_identical_ids=ignore_identical_ids)
    return mean_values(rows)


def any_judged(run: Run, qrels: Qrels) -> bool:
    """Returns whether any document of a run is judged for its query; else ids may be others'."""
    return any(
        not judged.keys().isdisjoint(run.get(query_id, ())) for query_id, judged in qrels.items()
    )


def _plain(name: str, given: Any, number: type[int] | type[float]) -> dict[str, dict[str, Any]]:
    """Returns a run or judgements with Python's own numbers, which alone pytrec_eval reads."""
    form, ids = "a mapping of query ids to mappings of document ids", "of ids that are texts"
    require(isinstance(given, Mapping), name, form, given)
    plain: dict[str, dict[str, Any]] = {}
    for query_id, documents in given.items():
        require(isinstance(query_id, str), name, ids, query_id)
        require(isinstance(documents, Mapping), name, form, {query_id: documents})
        if not set(map(type, documents)) <= {str}:
            odd = next((doc_id for doc_id in documents if not isinstance(doc_id, str)), None)
            require(odd is None, name, ids, {query_id: odd})
        if set(map(type, documents.values())) <= {number}:
            plain[query_id] = dict(documents)
        else:
            plain[query_id] = {key: _number(name, v, number) for key, v in documents.items()}
        if number is int:
            farthest = max(plain[query_id].values(), key=abs, default=0)
            rule = f"from -{MAX_SCORE} to {MAX_SCORE}"
            require(abs(farthest) <= MAX_SCORE, name, rule, farthest)
    return plain


def _number(name: str, value: Any, number: type[int] | type[float]) -> int | float:
    real = isinstance(value, numbers.Real)
    if number is float:
        require(real, name, "of scores that are numbers", value)
        return float(value)
    require(real and value % 1 == 0, name, "of whole numbers", value)
    return int(value)


def mean_values(rows: Mapping[str, Mapping[str, float]]) -> dict[str, float]:
    """Returns measure -> mean over queries of what `per_query` gives."""
    names = next(iter(rows.values()))
    return {name: math.fsum(row[name] for row in rows.values()) / len(rows) for name in names}


def per_query(
    run: Run,
    qrels: Qrels,
    measures: Sequence[str] = DEFAULT_MEASURES,
    *,
    ignore_identical_ids: bool = False,
    answers: AnswerTexts | None = None,
) -> dict[str, dict[str, float]]:
    """Returns query -> measure -> value for all judged queries, in the order of `qrels`.

    Arguments and errors as `evaluate`; `Answer@k` needs `answers`, to all judged queries.
    """
    parsed = parse_measures(measures)
    of_answers = {name: one for name, one in parsed.items() if isinstance(one, AnswerMeasure)}
    for name in of_answers:
        if answers is None:
            raise ConfigError(
                "`measures` must be such as judgements alone give; answers are known to `tfde"
                f" evaluate`, validation and studies. Received: {name!r}"
            )
        del parsed[name]
    if not qrels:
        raise ConfigError("`qrels` must judge at least one query. Received: none")
    # A copy: pytrec_eval reads plain floats, and queries that are not judged do not count.
    judged = {query_id: dict(run[query_id]) for query_id in qrels if run.get(query_id)}
    if ignore_identical_ids:
        judged = {query_id: without_query(judged[query_id], query_id) for query_id in judged}
    for query_id, results in judged.items():
        if not all(map(math.isfinite, results.values())):
            raise ConfigError(f"`run` scores must be finite. Received: query {query_id!r}")
    rows: dict[str, dict[str, float]] = {query_id: {} for query_id in qrels}
    whole = {name: measure for name, measure in parsed.items() if not _is_cut_rr(measure)}
    _compute(judged, qrels, whole, rows)
    for name, measure in parsed.items():
        if _is_cut_rr(measure):
            # trec_eval has no cut reciprocal rank: it is the whole one of the cut run.
            cut = {
                query_id: first_documents(results, measure["cutoff"])
                for query_id, results in judged.items()
            }
            _compute(cut, qrels, {name: RR(rel=measure["rel"])}, rows)
    if answers is not None and of_answers:
        ranks = answer_ranks(
            judged,
            {query_id: answers.by_query[query_id] for query_id in qrels},
            answers.documents(),
            depth=max(measure.cutoff for measure in of_answers.values()),
        )
        for query_id, rank in ranks.items():
            for name, measure in of_answers.items():
                rows[query_id][name] = float(rank is not None and rank <= measure.cutoff)
    return {query_id: {name: row[name] for name in measures} for query_id, row in rows.items()}


def parse_measures(measures: Sequence[str]) -> dict[str, Any]:
    """Returns name -> ir-measures' object, or an `AnswerMeasure`.

    Raises:
        ConfigError: no measures, or one that is unknown or not a mean over queries.
    """
    if not measures:
        raise ConfigError(f"`measures` must name at least one, such as {EXAMPLES}.")
    parsed: dict[str, Any] = {}
    for name in measures:
        if (answer := re.fullmatch(r"Answer@([1-9]\d*)", str(name))) is not None:
            parsed[name] = AnswerMeasure(int(answer[1]))
            continue
        try:
            measure = ir_measures.parse_measure(name)
            measure.validate_params()
        except Exception as error:  # its parser raises whatever the expression in the name raises
            raise _unknown(name) from error
        by_trec_eval = _is_cut_rr(measure) or registry["pytrec_eval"].supports(measure)
        if measure.NAME not in _MEANS or not by_trec_eval or _cutoff(measure) == 0:
            raise _unknown(name)
        parsed[name] = measure
    return parsed


def needs_answers(measures: Sequence[str]) -> bool:
    """Returns whether `Answer@k` is among the measures.

    Raises:
        ConfigError: as `parse_measures`.
    """
    return bool(answer_cutoffs(measures))


def answer_cutoffs(measures: Sequence[str]) -> set[int]:
    """Returns k of each `Answer@k` among the measures.

    Raises:
        ConfigError: as `parse_measures`.
    """
    parsed = parse_measures(measures).values()
    return {one.cutoff for one in parsed if isinstance(one, AnswerMeasure)}


def _unknown(name: str) -> ConfigError:
    return ConfigError(f"unknown measure; try {EXAMPLES}. Received: {shorten(name)}")


def depth(measures: Sequence[str]) -> int:
    """Returns the greatest cutoff among the measures; 0 if none is cut.

    Raises:
        ConfigError: as `parse_measures`.
    """
    return max((_cutoff(measure) or 0) for measure in parse_measures(measures).values())


def _cutoff(measure: Any) -> int | None:
    if isinstance(measure, AnswerMeasure):
        return measure.cutoff
    value = measure.params.get("cutoff")
    return value if isinstance(value, int) else None


def _is_cut_rr(measure: Any) -> bool:
    cut = measure.NAME == "RR" and _cutoff(measure) is not None
    return cut and not measure.params.get("judged_only")


def _as_trec_eval_can(grades: dict[str, int]) -> dict[str, int]:
    """Returns grades that mean the same, from -1 on, and with one from 0 on.

    trec_eval's code reads and writes beside its memory where all of a query are below 0 ("junk").
    """
    lowest = -1 if max(grades.values(), default=0) >= 0 else 0
    return {doc_id: max(grade, lowest) for doc_id, grade in grades.items()}


def _compute(
    run: Run, qrels: Qrels, measures: dict[str, Any], rows: dict[str, dict[str, float]]
) -> None:
    """Adds the values of `measures` to `rows`; queries without results get 0."""
    if not measures:
        return
    judged = {query: _as_trec_eval_can(row) for query, row in qrels.items()}
    evaluator = registry["pytrec_eval"].evaluator(list(measures.values()), judged)
    names: dict[Any, list[str]] = {}
    for name, measure in measures.items():
        names.setdefault(measure, []).append(name)
    for metric in evaluator.iter_calc(run):
        for name in names[metric.measure]:
            rows[metric.query_id][name] = float(metric.value)
