"""The formats that `tfde convert` knows: what each reads, and how it is written."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Literal, NamedTuple

from tfde.data.dataset_directory import DatasetDirectory
from tfde.data.formats import (
    beir,
    columns,
    datasets,
    dpr,
    folders,
    ir_datasets,
    labelled_pairs,
    mrqa,
    msmarco,
    multireqa,
    squad,
    stack_exchange,
    trec,
)
from tfde.errors import ConfigError
from tfde.storage.atomic import atomic_directory, refuse_source


class Role(NamedTuple):
    """A kind of file that belongs to a format.

    `kind` says what may be given: a file; a file or folder, which the reader takes as it is; a
    table, or a folder of which every table is an input; a name that is no path.
    """

    name: str
    meaning: str
    has_split: bool = True
    required: bool = True
    kind: Literal["file", "folder", "tables", "name"] = "file"


class Format(NamedTuple):
    """A format: `read(sources, intake, **options)` yields records, `write` is the way back.

    `options` names the options of `read`; `write(dataset, directory, *, splits, suffix)` returns
    the number of records by file; `understood(source, columns)` says in a line what is read as
    what.
    """

    summary: str
    roles: tuple[Role, ...]
    read: Callable[..., Iterator[Any]]
    write: Callable[..., dict[str, int]] | None = None
    options: tuple[str, ...] = ()
    understood: Callable[..., str] | None = None


FORMATS = {
    "beir": Format(
        "a folder of corpus.jsonl, queries.jsonl, qrels/SPLIT.tsv",
        (Role("directory", "the folder", has_split=False, kind="folder"),),
        beir.read,
        beir.write,
    ),
    "folder": Format(
        "a folder of text and Markdown files, each a document without questions",
        (Role("files", "the folder, or a file", has_split=False, kind="folder"),),
        folders.read,
    ),
    "pages": Format(
        "a file of pages (tfde make-pages), each a document without questions",
        (Role("pages", "the JSON Lines", has_split=False),),
        folders.read_page_files,
    ),
    "squad": Format(
        "SQuAD JSON, 1.1 or 2.0",
        (Role("articles", "the JSON file"),),
        squad.read,
        options=("level", "context"),
    ),
    "mrqa": Format(
        "JSON Lines of contexts, questions, detected answers",
        (Role("contexts", "the JSON Lines"),),
        mrqa.read,
        options=("level", "context"),
    ),
    "multireqa": Format(
        "sentence boundaries of MRQA's contexts",
        (
            Role("mrqa", "MRQA's JSON Lines"),
            Role("boundaries", "candidates.json of the same set"),
        ),
        multireqa.read,
        options=("context",),
    ),
    "msmarco": Format(
        "TSVs of passages, queries and judgements, or triples of texts alone",
        (
            Role("collection", "id, passage", has_split=False, required=False),
            Role("queries", "id, query", has_split=False, required=False),
            Role("qrels", "query id, 0, passage id, relevance", required=False),
            Role("id_triples", "query id, positive id, negative id", required=False),
            Role("triples", "query, positive, negative", required=False),
        ),
        msmarco.read,
        msmarco.write,
    ),
    "dpr": Format(
        "JSON of questions with their contexts, and a TSV of passages",
        (
            Role("examples", "the JSON array"),
            Role("passages", "id, text, title", has_split=False, required=False),
        ),
        dpr.read,
        dpr.write,
    ),
    "nq-open": Format(
        "questions with answers, beside a corpus in DPR's passages TSV",
        (
            Role("questions", "the JSON Lines", has_split=False),
            Role("passages", "id, text, title", has_split=False),
        ),
        dpr.read_open_questions,
    ),
    "trec": Format(
        "documents in SGML, topics, qrels",
        (
            Role("documents", "a file or a folder of files", has_split=False, kind="folder"),
            Role("topics", "<top> or <topic> blocks", has_split=False),
            Role("qrels", "query id, iteration, document id, relevance", required=False),
        ),
        trec.read,
        trec.write,
        options=("topic_field", "encoding"),
    ),
    "stack-exchange": Format(
        "a dump of a community's posts: questions with their accepted or best answers",
        (Role("posts", "Posts.xml"),),
        stack_exchange.read,
    ),
    "sentence-transformers": Format(
        "a table of queries and documents: .jsonl, .json, .csv, .tsv, .parquet, .arrow",
        (Role("rows", "the table, or a folder of such", kind="tables"),),
        columns.read,
        columns.write,
        options=("columns",),
        understood=columns.understood,
    ),
    "datasets": Format(
        "a set of the library datasets: the same tables, or tables of documents, queries and"
        " judgements",
        (
            Role("rows", "queries with their documents", required=False, kind="tables"),
            Role("corpus", "id, title, text", has_split=False, required=False, kind="tables"),
            Role("queries", "id, text", has_split=False, required=False, kind="tables"),
            Role("qrels", "query id, document id, score", required=False, kind="tables"),
        ),
        datasets.read,
        options=("columns",),
        understood=datasets.understood,
    ),
    "ir_datasets": Format(
        "a set of the library ir_datasets by its id",
        (Role("set", "the id, such as beir/scifact/test", kind="name"),),
        ir_datasets.read,
        options=("columns",),
        understood=ir_datasets.understood,
    ),
    "sentence-pairs": Format(
        "two sentences and a label, as in GLUE: tables of the same kinds -> a folder of SPLIT.tsv",
        (Role("rows", "the table, or a folder of such", kind="tables"),),
        labelled_pairs.read,
        options=("columns",),
    ),
}


def write_format(
    name: str,
    dataset: DatasetDirectory,
    output: str | Path,
    *,
    splits: tuple[str, ...] | None = None,
    suffix: str = "",
    overwrite: bool = False,
) -> dict[str, int]:
    """Writes a dataset directory in another format; the folder appears whole or not at all.

    Args:
        name: A format that has a `write`.
        dataset: What is written.
        output: The folder of the format's files.
        splits: The splits; `None` takes all.
        suffix: ".gz" or ".zst" packs every file; "" none.
        overwrite: Whether a folder that holds something is replaced.

    Returns:
        The number of records by the name of the file.

    Raises:
        ConfigError: a format that is only read, no such split, an output that is not empty, or
            the format cannot hold the dataset.
        DataError: the dataset breaks a rule.
    """
    write = FORMATS[name].write
    if write is None:
        writable = ", ".join(key for key, known in FORMATS.items() if known.write)
        raise ConfigError(f"`format` can be written for {writable}. Received: {name!r}")
    for split in splits or ():
        dataset.qrels_file(split)
    wanted = dataset.splits if splits is None else splits
    refuse_source(output, dataset.path, "the dataset that is written")
    with atomic_directory(output, overwrite=overwrite) as temporary:
        return write(dataset, temporary, splits=wanted, suffix=suffix)
