"""`tfde convert`: a data set of a known format becomes a dataset directory, or the way back."""

from __future__ import annotations

import argparse
import logging
import sys
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from tfde.cli.parser import CommandParser, command_parser

if TYPE_CHECKING:
    from tfde.data.dataset_writer import DatasetCounts
    from tfde.data.formats.records import LabelledPair, Source
    from tfde.data.formats.registry import Format, Role
    from tfde.storage.intake import Intake
    from tfde.types import Document

Item = TypeVar("Item")


def build_parser() -> CommandParser:
    """Returns the command's parser."""
    from tfde.data.formats.registry import FORMATS

    parser = command_parser(
        "convert",
        "Converts a data set of a known format to a dataset directory (BEIR's layout), with"
        " --dataset the other way. Every file may be packed (.gz, .zst). docs/data.md says which"
        " files belong to a format.",
    )
    parser.add_argument(
        "--format", type=_Format(), choices=list(FORMATS), required=True, help=_formats()
    )
    parser.add_argument(
        "--input",
        action="append",
        type=str,
        help="a file, or PART=FILE where a format has several kinds (collection=collection.tsv);"
        " for a table a folder of them, for ir_datasets an id; repeat it for several in one"
        " dataset",
    )
    parser.add_argument(
        "--dataset", type=str, help="a dataset directory that is written in the format"
    )
    parser.add_argument("--output", type=str, required=True, help="the directory to write")
    parser.add_argument(
        "--level",
        choices=["paragraph", "sentence"],
        help="squad and mrqa: what a document is (paragraph)",
    )
    parser.add_argument(
        "--context",
        action="store_true",
        help="squad and mrqa at the level sentence, multireqa: keep each sentence's paragraph as"
        " its context, which a document template may name: {context}",
    )
    parser.add_argument(
        "--topic_field",
        choices=["title", "description", "narrative"],
        help="trec: which part of a topic is the query (title)",
    )
    parser.add_argument(
        "--encoding",
        type=str,
        help="trec: that of documents and topics (utf-8; TREC's disks are in latin-1)",
    )
    parser.add_argument(
        "--columns",
        nargs="+",
        type=str,
        metavar="COLUMN",
        help="sentence-transformers, datasets: KIND=NAME for each column whose name is not known:"
        " query (known: anchor, query, question), document (positive, answer, document, passage),"
        " title, id (doc_id ...), query_id, label (label, score, relevance; label= reads none), or"
        " just the names of query and document; ir_datasets: query=FIELD, document=FIELD,"
        " title=FIELD; sentence-pairs: the columns of the two sentences and the label, where they"
        " are none of GLUE's and SuperGLUE's",
    )
    parser.add_argument(
        "--split",
        action="append",
        type=str,
        help="the split of the inputs that have one: one for all or one for each; by default the"
        " file name must begin with train, dev or test, or hold one of them, validation or val as"
        " a word. With --dataset: the splits to write",
    )
    parser.add_argument(
        "--pack",
        choices=["none", "gz", "zst"],
        default="none",
        help="with --dataset: pack the files that are written",
    )
    parser.add_argument(
        "--skip_bad",
        action="store_true",
        help="leave out, name and count records that break a rule, in place of stopping",
    )
    parser.add_argument(
        "--overwrite", action="store_true", help="replace an output that holds something"
    )
    return parser


class _Format:
    """Takes a format's name; says which one is meant by what tables' files end in."""

    def __call__(self, name: str) -> str:
        if name.lower().lstrip(".") in ("csv", "tsv", "json", "jsonl", "parquet"):
            raise argparse.ArgumentTypeError(
                "a table is of the format sentence-transformers, where its rows hold queries and"
                f" documents, or sentence-pairs (two sentences and a label). Received: {name!r}"
            )
        return name

    def __repr__(self) -> str:  # what --help calls the type
        return "name"


def _formats() -> str:
    from tfde.data.formats.registry import FORMATS

    return "; ".join(f"{name}: {known.summary}" for name, known in FORMATS.items())


def run(args: Any) -> int:
    """Runs the command."""
    from tfde.errors import ConfigError

    if bool(args.input) == bool(args.dataset):
        raise ConfigError("give either --input, to read a format, or --dataset, to write one.")
    return _write(args) if args.dataset else _read(args)


def _read(args: Any) -> int:
    from tfde.cli.shared_options import hint_of_skip_bad
    from tfde.storage.intake import Intake

    intake = Intake(skip_bad=args.skip_bad)
    with hint_of_skip_bad(intake):
        return _read_with(args, intake)


def _read_with(args: Any, intake: Intake) -> int:
    from tqdm.contrib.logging import logging_redirect_tqdm

    from tfde.cli.logs import show_logs
    from tfde.cli.shared_options import tell_garbled
    from tfde.data.dataset_writer import write_dataset
    from tfde.data.formats.labelled_pairs import write_labelled_pairs
    from tfde.data.formats.registry import FORMATS
    from tfde.errors import ConfigError
    from tfde.storage.atomic import refuse_existing, refuse_source

    known = FORMATS[args.format]
    sources = _sources(args.format, known, args.input, args.split)
    refuse_existing(args.output, overwrite=args.overwrite, flag="--overwrite")
    for source in sources:
        refuse_source(args.output, source.path, "what is read")
    show_logs()
    names = ("level", "context", "topic_field", "encoding", "columns")
    given = {name: getattr(args, name) for name in names}
    options = {name: value for name, value in given.items() if value not in (None, False)}
    for name in options:
        if name not in known.options:
            takers = ", ".join(other for other, one in FORMATS.items() if name in one.options)
            raise ConfigError(f"`--{name}` is for {takers}. Received: --format {args.format}")
    if known.understood is not None:
        lines: dict[str, Path] = {}  # files of one folder have the same columns
        for source in sources:
            lines.setdefault(known.understood(source, args.columns), source.path)
        for line, path in lines.items():
            if line:
                print(f"{path}: {line}", file=sys.stderr)
    records = _with_bar(known.read(sources, intake, **options), intake)
    with logging_redirect_tqdm([logging.getLogger("tfde")]):
        if args.format == "sentence-pairs":
            _pairs(args, records, intake, write_labelled_pairs)
        else:
            splits = dict.fromkeys(source.split for source in sources if source.split)
            counts = write_dataset(
                args.output, records, splits=splits, overwrite=args.overwrite, intake=intake
            )
            level = f" ({args.level or 'paragraph'}s)" if "level" in known.options else ""
            print(f"{args.output}: {_summary(counts, level)}")
            if counts.empty:
                print(f"{counts.empty:,} documents have neither title nor text")
            for split, count in counts.without_relevant.items():
                if count:
                    print(
                        f"{count:,} of {counts.judged[split]:,} {split} queries have no relevant"
                        " document; they count 0 in every measure, and `tfde split` leaves them out"
                    )
            if counts.judged_elsewhere:
                print(
                    f"{counts.judged_elsewhere:,} judgements are of documents that are not in the"
                    " corpus; they count as not found"
                )
    tell_garbled(intake)
    if intake.left_out:
        print(f"left out: {_listed(intake.left_out)}")
    if intake.skipped:
        print(f"{intake.skipped:,} bad records skipped")
    return 0


def _summary(counts: DatasetCounts, level: str) -> str:
    parts = [f"{counts.documents:,} documents{level}", f"{counts.queries:,} queries"]
    if counts.judged:
        parts[1] += f" ({_listed(counts.judged)})"
    if counts.answered:
        parts.append(f"{counts.answered:,} with answers")
    if counts.pairs:
        parts.append(f"training pairs ({_listed(counts.pairs)})")
    return ", ".join(parts)


def _listed(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{name} {count:,}" for name, count in counts.items())


def _pairs(args: Any, records: Iterator[LabelledPair], intake: Intake, write: Any) -> None:
    labels = write(args.output, records, overwrite=args.overwrite, intake=intake)
    for split, counts in labels.items():
        # Similarities are numbers of many values; classes are few.
        few = f" ({_listed(dict(sorted(counts.items())))})" if len(counts) <= 5 else ""
        print(f"{args.output}/{split}.tsv: {counts.total():,} pairs{few}")
        if "-1" in counts and few:
            print(
                f"note: {counts['-1']:,} pairs are labelled -1, which is how Hugging Face's sets"
                " mark pairs without a label; if that is so here, leave them out"
            )


def _write(args: Any) -> int:
    from tfde.data.dataset_directory import DatasetDirectory
    from tfde.data.formats.registry import write_format
    from tfde.progress import progress_bar
    from tfde.storage.atomic import refuse_existing

    refuse_existing(args.output, overwrite=args.overwrite, flag="--overwrite")

    class ShownDataset(DatasetDirectory):
        def documents(self) -> Iterator[Document]:
            return iter(progress_bar(super().documents(), unit=" documents"))

    counts = write_format(
        args.format,
        ShownDataset(args.dataset),
        args.output,
        splits=tuple(args.split) if args.split else None,
        suffix="" if args.pack == "none" else f".{args.pack}",
        overwrite=args.overwrite,
    )
    for name, count in counts.items():
        print(f"{args.output}/{name}: {count:,}")
    return 0


def _with_bar(records: Iterable[Item], intake: Intake) -> Iterator[Item]:
    from tfde.progress import progress_bar

    with progress_bar(unit=" records") as progress:
        path = None
        for record in records:
            if intake.path is not path:
                path = intake.path
                progress.desc = path.name if path else ""
            yield record
            progress.update()


def _sources(name: str, known: Format, inputs: list[str], splits: list[str] | None) -> list[Source]:
    """Returns the inputs with their roles and splits."""
    from tfde.data.formats.csv_rows import table_files
    from tfde.data.formats.records import Source
    from tfde.errors import ConfigError

    roles = {role.name: role for role in known.roles}
    given: list[tuple[Role, Path, str]] = []
    for value in inputs:
        part, _, file = value.partition("=")
        role = roles[part] if file and part in roles else known.roles[0]
        path = Path(file if file and part in roles else value)
        if role.kind == "tables" and path.is_dir():
            given += [(role, table, split) for table, split in table_files(path)]
        elif role.kind == "name" or path.is_file() or (role.kind == "folder" and path.is_dir()):
            given.append((role, path, ""))
        else:
            kind = "a file" if role.kind == "file" else "a file or folder"
            raise ConfigError(f"{path}: `input` must be {kind} that exists.")
    missing = [
        role.name
        for role in known.roles
        if role.required and role.name not in {given_role.name for given_role, _, _ in given}
    ]
    if missing:
        raise ConfigError(
            f"`input` must hold {' and '.join(f'{part}=FILE' for part in missing)}: {name} is"
            f" {', '.join(f'{role.name} ({role.meaning})' for role in known.roles)}."
        )
    without = [
        str(path) if role.kind == "name" else path.name
        for role, path, split in given
        if role.has_split and not split
    ]
    split_of = iter(_splits(without, splits))
    return [
        Source(role.name, path, (split or next(split_of)) if role.has_split else "")
        for role, path, split in given
    ]


def _splits(names: list[str], given: list[str] | None) -> list[str]:
    from tfde.data.formats.csv_rows import split_of_name
    from tfde.errors import ConfigError, require

    if given is None:
        found = [split_of_name(name) for name in names]
        if "" not in found:
            return found
        raise ConfigError(
            "`split` must be given where the file name does not begin with train, dev or test or"
            " hold one of train, dev, validation, val, test as a word."
            f" Received: {names[found.index('')]!r}"
        )
    if not names:
        raise ConfigError(
            "`split` is for inputs that have one; these have none, or hold their splits themselves."
            f" Received: {given[0]!r}"
        )
    if len(given) not in (1, len(names)):
        raise ConfigError(
            "`split` must be given once or once for each `input` that has a split."
            f" Received: {len(given)} for {len(names)} inputs"
        )
    for name in given:
        holds = name.replace("_", "").replace("-", "").isalnum()
        require(holds, "split", "a name of letters, digits, - and _", name)
    return given * (len(names) if len(given) == 1 else 1)
