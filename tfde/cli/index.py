"""`tfde index ACTION`: an index is changed where it lies, also after years."""

from __future__ import annotations

import dataclasses
import json
import shlex
import time
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

from jsonargparse.typing import PositiveInt

from tfde.cli.parser import (
    Action,
    CommandParser,
    actions_parser,
    command_parser,
    run_action,
)
from tfde.cli.shared_options import add_lengths, load_encoder
from tfde.errors import DataError

if TYPE_CHECKING:
    from tfde.types import Document


def build_parser() -> CommandParser:
    """Returns the parser of the command."""
    return actions_parser(
        "index",
        "Changes an index directory (tfde build-index) in place: what a command reports as done"
        " survives a kill. One process at a time can change an index; others read it meanwhile.",
        _ACTIONS,
    )


def run(args: Any) -> int:
    """Runs one of the actions."""
    return run_action(_ACTIONS, args)


def _parser(command: str, description: str) -> CommandParser:
    parser = command_parser(command, description)
    parser.add_argument("index", help="directory that tfde build-index wrote")
    return parser


def _add_parser(command: str, description: str) -> CommandParser:
    parser = _parser(command, description)
    parser.add_argument("--model", required=True, help="the model that encoded the index")
    parser.add_argument(
        "--input", required=True, help="JSON Lines with _id, title and text; .gz and .zst by name"
    )
    parser.add_argument("--batch_size", type=PositiveInt, default=64, help="documents a batch")
    add_lengths(parser)
    return parser


def _delete_parser(command: str, description: str) -> CommandParser:
    parser = _parser(command, description)
    parser.add_argument("--ids", nargs="+", type=str, help="ids of documents")
    parser.add_argument("--ids_file", help="a file with one id a line")
    return parser


def _status_parser(command: str, description: str) -> CommandParser:
    parser = _parser(command, description)
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    return parser


def _backup_parser(command: str, description: str) -> CommandParser:
    parser = _parser(command, description)
    parser.add_argument("--output", required=True, help="a new directory, which is an index too")
    return parser


def _add(args: Any) -> None:
    import numpy as np

    from tfde.checkpoints.checkpoint_files import check_checkpoint
    from tfde.data.batched import batched
    from tfde.data.dataset_directory import unique_documents
    from tfde.progress import progress_bar
    from tfde.retrieval.embeddings_writer import BATCHES_PER_WINDOW, encode_finite
    from tfde.retrieval.live.live_index import LiveIndex
    from tfde.retrieval.parents import ParentEncoder, in_parents

    check_checkpoint(args.model)
    start, added = time.perf_counter(), 0
    with (
        LiveIndex.open(args.index, write=True) as index,
        progress_bar(unit="doc", desc="add") as progress,
    ):
        model: Any = load_encoder(args.model, args)
        documents: Any = unique_documents(args.input)
        if index.parents is not None:
            model = ParentEncoder(model, index.parents)
            documents = in_parents(documents, index.parents.separator)
        fingerprint = model.fingerprint()
        index.check_model(fingerprint)
        documents = _UntilBad(documents)
        for window in batched(documents, args.batch_size * BATCHES_PER_WINDOW):
            embeddings = encode_finite(
                model, window, batch_size=args.batch_size, dtype=np.dtype(np.float32)
            )
            index.add(window, embeddings, fingerprint=fingerprint)
            added += len(window)
            progress.update(len(window))
        if documents.fault is not None:
            progress.close()
            print(f"{args.index}: {added:,} documents added or replaced, those before the fault")
            raise documents.fault
        seconds = time.perf_counter() - start
        print(f"{args.index}: {added:,} documents added or replaced, {seconds:.1f} s")
        _print_documents(args.index, index.status())


class _UntilBad:
    """Documents up to the first bad one, and what is wrong with that."""

    def __init__(self, documents: Iterable[Document]) -> None:
        self._documents = documents
        self.fault: DataError | None = None

    def __iter__(self) -> Iterator[Document]:
        try:
            yield from self._documents
        except DataError as error:
            self.fault = error


def _delete(args: Any) -> None:
    from tfde.retrieval.live.live_index import LiveIndex
    from tfde.storage.compressed import read_lines
    from tfde.storage.files import check_id

    if (args.ids is None) == (args.ids_file is None):
        raise ValueError("`--ids` or `--ids_file` must be given, and not both.")
    doc_ids = args.ids
    if doc_ids is None:
        doc_ids = [check_id(line, args.ids_file, n) for n, line in read_lines(args.ids_file)]
    with LiveIndex.open(args.index, write=True) as index:
        done = index.delete(doc_ids)
        unknown = f", {len(done.unknown):,} were not there" if done.unknown else ""
        print(f"{args.index}: {len(done.deleted):,} documents deleted{unknown}")
        _print_documents(args.index, index.status())


def _compact(args: Any) -> None:
    from tfde.retrieval.live.live_index import LiveIndex

    with LiveIndex.open(args.index, write=True) as index:
        start = time.perf_counter()
        if index.compact():
            print(f"{args.index}: built anew in {time.perf_counter() - start:.1f} s")
        else:
            print(f"{args.index}: nothing to compact")
        _print_documents(args.index, index.status())


def _status(args: Any) -> None:
    from tfde.retrieval.live.live_index import LiveIndex

    status = LiveIndex.open(args.index, verify=False).status()
    if args.json:
        print(json.dumps(dataclasses.asdict(status)))
        return
    print(
        f"{args.index}: {status.kind}, dimension {status.dim}, model"
        f" {status.fingerprint or 'unknown'}, generation {status.generation}"
    )
    print(
        f"index {status.base_rows:,} documents ({status.index_bytes / 1e6:,.1f} MB),"
        f" {status.base_deleted:,} of them deleted or replaced"
    )
    print(
        f"added {status.added:,} documents ({status.changes_bytes / 1e6:,.1f} MB),"
        f" last change {status.sequence:,}"
    )
    _print_documents(args.index, status)


def _backup(args: Any) -> None:
    from tfde.retrieval.live.backup import back_up_index

    status = back_up_index(args.index, args.output)
    print(f"{args.output}: a copy of {args.index}, last change {status.sequence:,}")
    _print_documents(args.output, status)


def _recover(args: Any) -> None:
    from pathlib import Path

    from tfde.retrieval.live.live_index import LiveIndex
    from tfde.retrieval.live.recover_changes import recover

    done = recover(Path(args.index))
    known = "unknown" if done.acknowledged is None else f"{done.acknowledged:,}"
    print(f"{args.index}: {done.changes:,} changed documents kept")
    print(f"last change kept {done.last:,}, last change acknowledged {known}")
    print(f"rows that cannot be read {done.unreadable:,}, pages lost {done.lost_pages:,}")
    if done.is_whole:
        print("nothing is lost")
    elif done.is_whole is None:
        print("nothing that is known of is lost: what was acknowledged last is unknown")
    else:
        print("something is lost: give the last changes again (tfde index add, delete)")
    print(f"the files of before are in {done.aside}, which can go when all is well")
    _print_documents(args.index, LiveIndex.open(args.index).status())


def _print_documents(index: str, status: Any) -> None:
    print(f"documents {status.documents:,}")
    changed = status.base_deleted + status.added
    if status.compaction_advised:
        print(
            f"{changed:,} changes, and from {status.compact_from:,} on the index should be built"
            f" anew: tfde index compact {shlex.quote(index)}"
        )


_ACTIONS: dict[str, Action] = {
    "add": (
        _add_parser,
        "encode documents and insert them, or replace those with the same ids",
        _add,
    ),
    "delete": (_delete_parser, "delete documents by id", _delete),
    "compact": (_parser, "build the index anew of all documents that are there now", _compact),
    "status": (_status_parser, "print sizes, and whether a compaction is advised", _status),
    "backup": (
        _backup_parser,
        "copy the index of this moment, also while a server changes it",
        _backup,
    ),
    "recover": (
        _parser,
        "keep what is whole of a damaged file of changes, and count the rest",
        _recover,
    ),
}
