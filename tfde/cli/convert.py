"""`tfde convert`: a data set of a known format becomes a dataset directory."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from tfde.cli.parser import CommandParser, command_parser

if TYPE_CHECKING:
    from tfde.types import Document, Qrels, Query

SPLITS = ("train", "dev", "test")


def build_parser() -> CommandParser:
    """Returns the command's parser."""
    parser = command_parser(
        "convert",
        "Converts a data set of a known format to a dataset directory (BEIR's layout).",
    )
    parser.add_argument("--format", choices=["squad"], required=True, help="squad: SQuAD 1.1 JSON")
    parser.add_argument(
        "--input",
        action="append",
        type=str,
        required=True,
        help="the file, plain or .gz; repeat it for several files in one dataset",
    )
    parser.add_argument("--output", type=str, required=True, help="the dataset directory")
    parser.add_argument(
        "--level",
        choices=["paragraph", "sentence"],
        default="paragraph",
        help="what a document is",
    )
    parser.add_argument(
        "--split",
        action="append",
        type=str,
        help="the split of the questions: one for all files or one for each; by default the file"
        " name must begin with train, dev or test",
    )
    parser.add_argument(
        "--overwrite", action="store_true", help="replace an output that holds something"
    )
    return parser


def run(args: Any) -> int:
    """Runs the command."""
    from tqdm import tqdm

    from tfde.data.atomic import refuse_existing
    from tfde.data.dataset_directory import write_dataset_directory
    from tfde.data.squad import read_squad, squad_records
    from tfde.errors import ConfigError

    inputs = [Path(value) for value in args.input]
    splits = _splits(inputs, args.split)
    for path in inputs:
        if not path.is_file():
            raise ConfigError(f"{path}: `input` must be a file that exists.")
    refuse_existing(args.output, overwrite=args.overwrite)
    documents: list[Document] = []
    queries: list[Query] = []
    qrels: dict[str, Qrels] = {split: {} for split in splits}
    with tqdm(unit=" paragraphs", disable=None) as progress:
        for path, split in zip(inputs, splits, strict=True):
            progress.set_description(path.name)
            for pieces, judged in squad_records(read_squad(path), level=args.level):
                documents += pieces
                for query, doc_id in judged:
                    queries.append(query)
                    qrels[split][query.query_id] = {doc_id: 1}
                progress.update()
    write_dataset_directory(args.output, documents, queries, qrels, overwrite=args.overwrite)
    counts = ", ".join(f"{name} {len(judged):,}" for name, judged in qrels.items())
    print(
        f"{args.output}: {len(documents):,} documents ({args.level}s),"
        f" {len(queries):,} queries ({counts})"
    )
    return 0


def _splits(inputs: list[Path], given: list[str] | None) -> list[str]:
    from tfde.errors import ConfigError

    if given is None:
        splits = []
        for path in inputs:
            split = next((name for name in SPLITS if path.name.startswith(name)), None)
            if split is None:
                raise ConfigError(
                    "`split` must be given where the file name does not begin with"
                    f" {', '.join(SPLITS)}. Received: {path.name!r}"
                )
            splits.append(split)
        return splits
    if len(given) not in (1, len(inputs)):
        raise ConfigError(
            "`split` must be given once or once for each `input`."
            f" Received: {len(given)} for {len(inputs)} inputs"
        )
    for name in given:
        if not name.replace("_", "").replace("-", "").isalnum():
            raise ConfigError(
                f"`split` must be a name of letters, digits, - and _. Received: {name!r}"
            )
    return given * (len(inputs) if len(given) == 1 else 1)
