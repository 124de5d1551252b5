"""`tfde evaluate`: models, run files and BM25 on one dataset, one row each in one table."""

from __future__ import annotations

import dataclasses
import re
import shlex
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from jsonargparse.typing import PositiveInt

from tfde.cli.parser import CommandParser, command_parser
from tfde.cli.shared_options import (
    add_bm25,
    add_lengths,
    add_max_passage,
    add_parents,
    bm25_options,
    fold_passages,
    load_encoder,
    name_and_path,
    named_datasets,
    parent_config,
    passages_wanted,
    split_name,
)

if TYPE_CHECKING:
    from tfde.data.dataset_directory import DatasetDirectory
    from tfde.evaluation.report import Row
    from tfde.text.cut_texts import CutTexts
    from tfde.types import Qrels, Query, Run

MEASURES = "P@1,RR,RR@10,nDCG@10,R@10,R@100"
_GUARD_MEASURE, _GUARD_SPLIT = "nDCG@10", "test"


def build_parser() -> CommandParser:
    """Returns the parser of the command."""
    parser = command_parser(
        "evaluate",
        "Measures models (searched exactly), TREC runs and BM25 on a split of a dataset. --model,"
        " --run_file and --bm25 may stand together, the first two more than once. All judged"
        " queries count; one without results counts 0. Ties are broken as trec_eval does.",
    )
    parser.add_argument("--dataset", required=True, help="dataset directory")
    parser.add_argument("--split", default="test", help="whose queries and judgements")
    parser.add_argument(
        "--model",
        action="append",
        default=[],
        metavar="[NAME=]PATH",
        help="model directory, preset or checkpoint, and what tables call it",
    )
    parser.add_argument(
        "--run_file",
        action="append",
        default=[],
        metavar="[NAME=]PATH",
        help="TREC run, plain or .gz",
    )
    parser.add_argument("--bm25", action="store_true", help="BM25 over title and text")
    parser.add_argument(
        "--bm25_fields",
        nargs="+",
        default=["title", "text"],
        help="what BM25 indexes of a document: some of title, text and context",
    )
    add_bm25(parser)
    parser.add_argument(
        "--measures",
        nargs="+",
        default=MEASURES.split(","),
        help="separated by blanks or commas, e.g. P@1 RR RR@10 R@100 nDCG@10 Success@20; Answer@k"
        " (as --answers) where every question has answers",
    )
    parser.add_argument(
        "-k",
        type=PositiveInt,
        default=100,
        help="documents a query; never fewer than the measures ask for",
    )
    parser.add_argument(
        "--ignore_identical_ids",
        action="store_true",
        help="leave out a document whose id is that of the query",
    )
    parser.add_argument(
        "--answers",
        action="store_true",
        help="also the share of questions with an answer in the first 1, 5, 20 and 100 documents"
        " (DPR's top-k accuracy), by the dataset's answers.jsonl; a dataset without judgements"
        " is measured by that alone, on all its questions with answers",
    )
    parser.add_argument(
        "--guard",
        action="append",
        default=[],
        metavar="[NAME=]DATASET",
        help="a dataset directory away from home, on whose test split models and BM25 are measured"
        f" too ({_GUARD_MEASURE}); may be repeated",
    )
    parser.add_argument("--batch_size", type=PositiveInt, default=64, help="texts a batch")
    parser.add_argument("--json", action="store_true", help="JSON in place of the table")
    parser.add_argument("--save_runs", help="directory for the runs of models and BM25")
    parser.add_argument(
        "--report",
        help="new directory for a page: intervals, significance of differences, recall, lengths,"
        " and the queries on which systems differ most (pip install 'tfde[figures]')",
    )
    add_lengths(parser)
    add_parents(parser)
    add_max_passage(parser)
    return parser


class _System(NamedTuple):
    """One row of the table: a model, a run file or BM25.

    Attributes:
        text: How the command line names it, [NAME=]PATH.
        find: Gives its run of a data set's queries.
        ours: Whether that is work of this command, and not only read.
        cut: Gives, afterwards, which texts it cut.
    """

    text: str
    find: Callable[[DatasetDirectory, list[Query]], Run]
    ours: bool
    cut: Callable[[], list[CutTexts]] = list


def run(args: Any) -> int:
    """Checks everything that can be checked, then works row by row."""
    from tfde.checkpoints.checkpoint_files import check_checkpoint
    from tfde.data.dataset_directory import DatasetDirectory
    from tfde.data.qrels import with_relevant
    from tfde.data.ranking import without_query
    from tfde.errors import ConfigError, require
    from tfde.evaluation.answer_matching import CUTOFFS, AnswerTexts, answer_accuracy
    from tfde.evaluation.measures import answer_cutoffs, depth, mean_values, per_query
    from tfde.evaluation.report import Row, format_json, format_table
    from tfde.evaluation.significance import EvaluatedSystem
    from tfde.retrieval.runs import write_run
    from tfde.text.cut_texts import cut_line

    for name in ("report", "save_runs"):  # "$UNSET" would be taken for "none"
        require(getattr(args, name) != "", name, "a directory", "")
    parent_config(args)  # refuses what does not go together
    measures = [name for value in args.measures for name in _names(value)]
    wanted = answer_cutoffs(measures)
    for name, given in (
        ("report", args.report),
        ("answers", args.answers),
        ("measures Answer@k", wanted),
    ):
        if args.max_passage and given:
            raise ConfigError(
                f"`--{name}` needs the texts of what is measured, and with `--max_passage` the"
                " corpus holds passages: save the run (--save_runs), and evaluate it with"
                " --run_file on the dataset that was cut."
            )
    k = max(args.k, depth(measures), *(CUTOFFS if args.answers else ()))
    if not (args.model or args.run_file or args.bm25):
        raise ConfigError("nothing to evaluate: give --model, --run_file or --bm25.")
    for text in args.model:
        check_checkpoint(split_name(text)[1])
    dataset = DatasetDirectory(args.dataset)
    judged = bool(dataset.splits) or not args.answers
    if args.report:
        _check_report(args.report, judged=judged)
    if args.model or args.bm25 or args.report:
        # A judgement of a document that is not there would read as a bad system.
        separator = args.parent_separator if args.max_passage else None
        dataset.validate([args.split] if judged else [], parent_separator=separator)
    qrels = dataset.qrels(args.split) if judged else {}
    if unanswered := len(qrels) - len(with_relevant(qrels)):
        print(
            f"tfde evaluate: {unanswered:,} of {len(qrels):,} queries have no relevant document;"
            " they count 0 in every measure",
            file=sys.stderr,
        )
    queries = list(dataset.queries(args.split if judged else None))
    answers = _answers(dataset, queries) if args.answers else {}
    answer_texts = AnswerTexts.of(dataset, qrels) if wanted and judged else None
    if not judged:
        queries = [query for query in queries if query.query_id in answers]
    guards = {}
    if args.guard:
        require(bool(args.model) or args.bm25, "--guard", "beside --model or --bm25", args.guard)
        k = max(k, depth([_GUARD_MEASURE]) + 1)  # a query that is a document is taken out
    for name, path in named_datasets("--guard", args.guard).items():
        require(name not in ("", "mean"), "--guard", "NAME=DATASET, not 'mean'", name)
        guards[name] = DatasetDirectory(path)
        guards[name].validate([_GUARD_SPLIT])
    names = _short_names(args)
    saved = _saved_runs(args, names)
    systems = _systems(args, dataset, queries, k, qrels)
    rows, told = list[Row](), False
    evaluated: list[EvaluatedSystem] = []
    for name, file, system in zip(names, saved, systems, strict=True):
        given_name, path = split_name(system.text)
        start = time.perf_counter()
        results = system.find(dataset, queries)
        seconds = time.perf_counter() - start if system.ours else None
        results = fold_passages(
            args, results, k + args.ignore_identical_ids if system.ours else None
        )
        if args.ignore_identical_ids:
            # Ours hold one more, in case that the query itself is found.
            most = k if system.ours else None
            results = {q: without_query(found, q, most) for q, found in results.items()}
        elif not told:
            told = _tell_identical(dataset, queries, results)
        if file is not None:
            write_run(file, results, tag=_tag(name))
        values = {}
        cut = [dataclasses.replace(part) for part in system.cut()]  # guards' texts are counted on
        if judged:
            by_query = per_query(results, qrels, measures, answers=answer_texts)
            values = mean_values(by_query)
            if args.report:  # runs are large: kept only where they are needed
                evaluated.append(EvaluatedSystem(name, results, by_query, seconds, cut_line(cut)))
        if answers:
            cutoffs = sorted({*CUTOFFS, *wanted})
            values |= answer_accuracy(results, answers, dataset.documents(), cutoffs=cutoffs)
        rows.append(Row(given_name or path, values, seconds, cut))
    if args.report:
        from tfde.evaluation.report_directory import write_report

        command = shlex.join(["tfde", *sys.argv[1:]])
        write_report(
            args.report, dataset, args.split, evaluated, measures, depth=k, command=command
        )
        print(f"\n{Path(args.report) / 'report.html'}", file=sys.stderr)
    about = {"dataset": str(args.dataset), "split": args.split, "queries": len(queries), "k": k}
    about |= {"queries_with_answers": len(answers)} if answers else {}
    if args.json:
        away = {"guards": [row._asdict() for row in _away(systems, guards)]} if guards else {}
        print(format_json(rows, **about, **away))
    else:
        print(f"{args.dataset}, {args.split}: {len(queries):,} queries, top {k}\n")
        print(format_table(rows))
        for row in rows:
            if row.cut:
                print(f"\n{row.name}: {cut_line(row.cut)}")
        if guards:  # which take their time: what is known stands there before
            print(f"\naway from home, {_GUARD_SPLIT}: {_GUARD_MEASURE}\n", flush=True)
            print(format_table(_away(systems, guards)))
    return 0


def _short_names(args: Any) -> list[str]:
    """Returns what each system is called in reports and files of runs, in their order."""
    names: list[str] = []
    for text in (*args.model, *args.run_file, *(["BM25"] if args.bm25 else [])):
        names.append(name_and_path(text, names)[0])
    return names


def _tag(name: str) -> str:
    return re.sub(r"\W+", "_", name)


def _saved_runs(args: Any, names: Sequence[str]) -> list[Path | None]:
    """Returns the file of each system's run, `None` where none is written.

    Raises:
        ConfigError: it is a run that is read, or cannot be written.
    """
    from tfde.retrieval.runs import check_output

    files: list[Path | None] = [None] * len(names)
    if not args.save_runs:
        return files
    folder = Path(args.save_runs)
    folder.mkdir(parents=True, exist_ok=True)
    given = [split_name(text)[1] for text in args.run_file]
    read = range(len(args.model), len(args.model) + len(given))
    for place, name in enumerate(names):
        if place not in read:
            files[place] = file = folder / f"{place + 1}_{_tag(name)}.trec"
            check_output(file, _tag(name), given=given)
    return files


def _systems(
    args: Any, dataset: DatasetDirectory, queries: list[Query], k: int, qrels: Qrels
) -> list[_System]:
    """Reads all run files and loads all models: a wrong name costs no hours of encoding."""
    from tfde.errors import ConfigError
    from tfde.evaluation.measures import any_judged
    from tfde.retrieval.runs import read_run

    if args.parent_weight is not None and not args.model:
        raise ConfigError("`--parent_weight` is for models: give --model.")
    given = [split_name(text)[0] for text in (*args.model, *args.run_file)]
    twice = next((name for name in given if name is not None and given.count(name) > 1), None)
    if twice is not None:
        raise ConfigError(f"systems must have names of their own. Received: {twice!r} twice")
    wanted = passages_wanted(args, k + args.ignore_identical_ids)
    runs = [(text, read_run(split_name(text)[1])) for text in args.run_file]
    for text, results in runs:
        path = split_name(text)[1]
        _check_coverage(path, results, [query.query_id for query in queries])
        if qrels and not any_judged(fold_passages(args, results, None), qrels):
            found = next((doc_id for documents in results.values() for doc_id in documents), "none")
            print(
                f"tfde evaluate: {path}: no document of it is judged, as one of other ids would be:"
                f" it has {found}",
                file=sys.stderr,
            )
    bm25 = [_System("BM25", _bm25(args, wanted), True)] if args.bm25 else []
    return [
        *(_model(text, wanted, args) for text in args.model),
        *(_System(text, lambda *_, found=found: dict(found), False) for text, found in runs),
        *bm25,
    ]


def _away(systems: list[_System], guards: dict[str, DatasetDirectory]) -> list[Row]:
    """Measures models and BM25 on data sets away from home; the last column is their mean."""
    return [_one_away(system, guards) for system in systems if system.ours]


def _one_away(system: _System, guards: dict[str, DatasetDirectory]) -> Row:
    from tfde.data.ranking import without_query
    from tfde.evaluation.measures import mean_values, per_query
    from tfde.evaluation.report import Row

    start, values = time.perf_counter(), {}
    for name, guard in guards.items():
        found = system.find(guard, list(guard.queries(_GUARD_SPLIT)))
        # A query that is a document too, as in BEIR's ArguAna, does not count as its own answer.
        found = {query: without_query(row, query, None) for query, row in found.items()}
        measured = per_query(found, guard.qrels(_GUARD_SPLIT), [_GUARD_MEASURE])
        (values[name],) = mean_values(measured).values()
    values["mean"] = sum(values.values()) / len(values)
    given_name, path = split_name(system.text)
    return Row(given_name or path, values, time.perf_counter() - start)


def _check_coverage(path: str, results: Run, query_ids: list[str]) -> None:
    """Refuses a run of other queries, and tells of one that has not all of them."""
    from tfde.errors import ConfigError, shorten

    found = sum(query_id in results for query_id in query_ids)
    if query_ids and not found:
        wanted, there = (shorten(next(iter(ids), "")) for ids in (query_ids, results))
        raise ConfigError(
            f"{path}: must hold results for the evaluated queries, such as {wanted}."
            f" Received: {f'{there} and others, none of them evaluated' if results else 'none'}"
        )
    if found < len(query_ids):
        print(
            f"tfde evaluate: {path}: has results for {found:,} of {len(query_ids):,} evaluated"
            " queries; the others count 0",
            file=sys.stderr,
        )


def _check_report(directory: str, *, judged: bool) -> None:
    """Refuses before any work what would fail after it."""
    from tfde.environment import require_extra
    from tfde.errors import ConfigError
    from tfde.storage.atomic import refuse_existing

    if not judged:
        raise ConfigError("`--report` needs judgements; this dataset has answers alone.")
    refuse_existing(directory, overwrite=False)
    require_extra("figures", "`--report`")


def _tell_identical(dataset: DatasetDirectory, queries: list[Query], results: Run) -> bool:
    """Tells, where queries are documents, that they find themselves; returns whether they do."""
    found = {q.query_id: q.text for q in queries if q.query_id in results.get(q.query_id, ())}
    documents = dataset.document_store(found) if found else {}
    same = sum(found[doc_id] == document.text for doc_id, document in documents.items())
    if same:
        print(
            f"tfde evaluate: {same:,} of {len(queries):,} queries find themselves, a document of"
            " their id and text; --ignore_identical_ids leaves these out, as BEIR does",
            file=sys.stderr,
        )
    return bool(same)


def _answers(dataset: DatasetDirectory, queries: list[Query]) -> dict[str, tuple[str, ...]]:
    from tfde.errors import ConfigError

    texts = dataset.answers()
    answers = {q.query_id: texts[q.query_id] for q in queries if texts.get(q.query_id)}
    if not answers:
        raise ConfigError(
            f"{dataset.file('answers.jsonl')}: `--answers` needs answers to at least one query of"
            " the split."
        )
    return answers


def _names(value: str) -> list[str]:
    # A comma inside parentheses belongs to a measure: nDCG(gains={0:0,1:3})@10.
    return [name for name in re.split(r"[,\s]+(?![^(]*\))", value) if name]


def _model(text: str, k: int, args: Any) -> _System:
    from tfde.retrieval.retrieve import retrieve_from_corpus

    model = load_encoder(split_name(text)[1], args)

    def work(dataset: DatasetDirectory, queries: list[Query]) -> Run:
        return retrieve_from_corpus(
            model,
            dataset.documents(),
            queries,
            k,
            batch_size=args.batch_size,
            parents=parent_config(args) if dataset.path == Path(args.dataset) else None,
            total=dataset.num_documents,
            show_progress=True,
        )

    return _System(text, work, True, model.cut_texts)


def _bm25(args: Any, k: int) -> Callable[[DatasetDirectory, list[Query]], Run]:
    from tfde.progress import progress_bar
    from tfde.retrieval.bm25_index import Bm25Index, check_bm25

    options = bm25_options(args)
    check_bm25(**options, fields=args.bm25_fields)

    def work(dataset: DatasetDirectory, queries: list[Query]) -> Run:
        index = Bm25Index.build(
            progress_bar(dataset.documents(), unit="doc", desc="BM25: read"),
            **options,
            fields=args.bm25_fields,
        )
        return index.retrieve(queries, k, show_progress=True)

    return work
