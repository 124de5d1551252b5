"""`tfde phrases ACTION`: phrases of passages as answers, from training to measures."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from jsonargparse.typing import PositiveInt

from tfde.cli.parser import Action, CommandParser, actions_parser, command_parser, run_action
from tfde.cli.shared_options import name_and_path
from tfde.config.phrases import PhraseRun

if TYPE_CHECKING:
    from tfde.phrases.measure import Answered


def build_parser() -> CommandParser:
    """Returns the parser of the command."""
    return actions_parser(
        "phrases",
        "Answers questions with phrases of passages (Lee et al. 2021): trains a phrase encoder,"
        " indexes the tokens of passages, searches them, and measures exact match and F1.",
        _ACTIONS,
    )


def run(args: Any) -> int:
    """Runs one of the actions."""
    return run_action(_ACTIONS, build_parser().instantiate(args))  # refuses impossible values


def _train_parser(command: str, description: str) -> CommandParser:
    usage = ["--run RECIPE --output DIR [--run.FIELD VALUE ...]"]
    parser = command_parser(command, description, usage=usage)
    parser.add_argument(
        "--run",
        type=PhraseRun,
        required=True,
        help="recipe (YAML); any field can be set too: --run.limit 1000",
    )
    parser.add_argument("--output", required=True, help="directory of the run")
    return parser


def _index_parser(command: str, description: str) -> CommandParser:
    parser = command_parser(command, description)
    parser.add_argument("--model", required=True, help="what tfde phrases train leaves in `model`")
    parser.add_argument("--dataset", required=True, help="dataset directory")
    parser.add_argument("--split", help="only the documents judged in it; by default the corpus")
    parser.add_argument("--output", required=True, help="directory of the index")
    parser.add_argument("--overwrite", action="store_true", help="replace an existing output")
    parser.add_argument(
        "--engine", choices=["scann", "exact", "faiss"], default="scann", help="what searches"
    )
    parser.add_argument(
        "--options", type=dict[str, Any], default={}, help="the engine's own, by name"
    )
    parser.add_argument(
        "--least_probability",
        type=float,
        default=0.0,
        help="tokens at which the filter finds a phrase less probable than this are left out",
    )
    return parser


def _search_parser(command: str, description: str) -> CommandParser:
    parser = command_parser(command, description)
    parser.add_argument("queries", nargs="+", help="questions")
    parser.add_argument("--model", required=True, help="the model that made the index")
    parser.add_argument("--index", required=True, help="what tfde phrases index wrote")
    parser.add_argument("-k", type=PositiveInt, default=5, help="phrases a question")
    parser.add_argument(
        "--tokens_per_query", type=PositiveInt, default=100, help="tokens looked up for each end"
    )
    return parser


def _evaluate_parser(command: str, description: str) -> CommandParser:
    parser = command_parser(command, description)
    parser.add_argument("--model", required=True, help="what tfde phrases train leaves in `model`")
    parser.add_argument("--dataset", required=True, help="dataset directory with answers")
    parser.add_argument("--split", default="dev", help="whose questions")
    parser.add_argument(
        "--index",
        action="append",
        default=[],
        metavar="[NAME=]PATH",
        help="also among all its passages; repeat it",
    )
    parser.add_argument(
        "--sentences_of",
        action="append",
        default=[],
        metavar="[NAME=]PATH",
        help="beside it: the best sentence by a dual encoder, taken whole",
    )
    parser.add_argument("--bm25", action="store_true", help="beside it: the best sentence by BM25")
    parser.add_argument(
        "--limit", type=PositiveInt, help="only the questions of the first so many passages"
    )
    parser.add_argument(
        "--tokens_per_query", type=PositiveInt, default=100, help="tokens looked up for each end"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    return parser


def _train(args: Any) -> None:
    from tfde.cli.logs import show_logs
    from tfde.phrases.training import train_phrases

    show_logs()
    train_phrases(args.run, args.output)
    print(f"model: {args.output}/model")


def _index(args: Any) -> None:
    from tfde.cli.logs import show_logs
    from tfde.data.dataset_directory import DatasetDirectory
    from tfde.phrases.phrase_encoder import PhraseEncoder
    from tfde.phrases.phrase_index import PhraseIndex
    from tfde.retrieval.index import index_class
    from tfde.storage.atomic import refuse_existing, refuse_source

    refuse_existing(args.output, overwrite=args.overwrite, flag="--overwrite")
    refuse_source(args.output, args.dataset, "the dataset")
    refuse_source(args.output, args.model, "the model")
    parameters = index_class(args.engine).parameters_of(args.options)
    dataset = DatasetDirectory(args.dataset)
    show_logs()
    if args.split is None:
        documents = list(dataset.documents())
    else:
        judged = {doc_id for docs in dataset.qrels(args.split).values() for doc_id in docs}
        documents = [d for d in dataset.documents() if d.doc_id in judged]
    index = PhraseIndex.build(
        PhraseEncoder.from_preset(args.model),
        documents,
        engine=args.engine,
        parameters=parameters,
        least_probability=args.least_probability,
        show_progress=True,
    )
    index.save(args.output, overwrite=args.overwrite)
    print(f"{args.output}: {index!r}, {index.vectors}")


def _search(args: Any) -> None:
    from tfde.phrases.phrase_encoder import PhraseEncoder
    from tfde.phrases.phrase_index import PhraseIndex

    index, model = PhraseIndex.load(args.index), PhraseEncoder.from_preset(args.model)
    index.check_model(model)
    found = index.search(
        model.encode_queries(args.queries), args.k, tokens_per_query=args.tokens_per_query
    )
    for query, phrases in zip(args.queries, found, strict=True):
        print(query)
        for score, document, start, end in phrases:
            before, after = document.text[max(start - 40, 0) : start], document.text[end : end + 40]
            text = document.text[start:end]
            print(f"  {score:9.3f}  {text}  ({document.doc_id}: {before}[{text}]{after})")


def _evaluate(args: Any) -> None:
    from tfde.checkpoints.checkpoint_files import check_checkpoint
    from tfde.environment import require_extra
    from tfde.phrases.measure import (
        Sentences,
        answer_given,
        answer_open,
        count_answers,
        measure,
        searched_documents,
    )
    from tfde.phrases.phrase_encoder import PhraseEncoder
    from tfde.phrases.phrase_index import PhraseIndex
    from tfde.phrases.questions import asked_documents
    from tfde.towers.dual_encoder import DualEncoder

    if args.bm25:
        require_extra("bm25", "`--bm25`")
    encoders = _named(args.sentences_of)
    for path in encoders.values():
        check_checkpoint(path)
    asked, counts = asked_documents(args.dataset, args.split)
    model = PhraseEncoder.from_preset(args.model)
    indexes = {name: PhraseIndex.load(path) for name, path in _named(args.index).items()}
    for index in indexes.values():
        index.check_model(model)
    documents = searched_documents(indexes, asked)
    counts = count_answers(model, asked, counts)
    asked = asked[: args.limit]
    answered: list[Answered] = [answer_given(model, asked, show_progress=True)]
    options = {"tokens_per_query": args.tokens_per_query, "show_progress": True}
    answered += [answer_open(n, model, index, asked, **options) for n, index in indexes.items()]
    sentences = Sentences(documents if args.bm25 or args.sentences_of else [])
    if args.bm25:
        answered += sentences.by_bm25(asked)
    for name, path in encoders.items():
        answered += sentences.by_model(name, DualEncoder.load(path), asked)
    rows = [{"way": a.name, "setting": a.setting, **measure(a, asked)} for a in answered]
    questions = sum(len(part.queries) for part in asked)
    if args.json:
        print(json.dumps({"questions": questions, "counts": vars(counts), "rows": rows}))
        return
    print(f"{args.split}: {counts}")
    print(f"measured: {questions:,} questions")
    width = max(len(str(row["way"])) for row in rows)
    measures = [name for name in rows[0] if name not in ("way", "setting")]
    print(f"{'':<{width}} {'passage':>8} " + " ".join(f"{name:>13}" for name in measures))
    for row in rows:
        numbers = " ".join(f"{row[name]:>13.4f}" for name in measures)
        print(f"{row['way']:<{width}} {row['setting']:>8} {numbers}")


def _named(given: list[str]) -> dict[str, str]:
    """Returns name -> path of what `[NAME=]PATH` gives."""
    found: dict[str, str] = {}
    for text in given:
        name, path = name_and_path(text, list(found))
        found[name] = path
    return found


_ACTIONS: dict[str, Action] = {
    "train": (_train_parser, "train a phrase encoder by a recipe; a killed run goes on", _train),
    "index": (_index_parser, "encode passages, and index the tokens that the filter keeps", _index),
    "search": (_search_parser, "questions -> phrases with their passages", _search),
    "evaluate": (
        _evaluate_parser,
        "exact match and F1, in the passage given and among all, beside the best sentence",
        _evaluate,
    ),
}
