"""Pairs of texts with labels: GLUE's tables, SuperGLUE's lines, the folder that they become."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, BinaryIO

from tfde.data.formats.csv_rows import ending, read_rows, read_table, require_columns
from tfde.data.formats.records import LabelledPair, Source
from tfde.errors import DataError, require
from tfde.storage.atomic import atomic_directory
from tfde.storage.compressed import open_writer
from tfde.storage.intake import Intake

COLUMNS = ("sentence1", "sentence2", "label")
# First sentence, second sentence, label; a table is taken for the first that it has whole.
GLUE_COLUMNS = {
    "MRPC": ("#1 String", "#2 String", "Quality"),
    "MNLI, SNLI": ("sentence1", "sentence2", "gold_label"),
    "STS-B": ("sentence1", "sentence2", "score"),
    "QQP": ("question1", "question2", "is_duplicate"),
    "QNLI": ("question", "sentence", "label"),
    "RTE, WNLI, ours": COLUMNS,
    "SuperGLUE's RTE, CB": ("premise", "hypothesis", "label"),
    "SuperGLUE's BoolQ": ("question", "passage", "label"),
}


def read(
    sources: Sequence[Source], intake: Intake, *, columns: Sequence[str] | None = None
) -> Iterator[LabelledPair]:
    """Yields the pairs of tables with a header, tab-separated, where every `"` is text.

    `*.jsonl`, `*.csv` and `*.parquet` are read as what they are; labels may be numbers there.

    Args:
        sources: The tables.
        intake: The place, and what becomes of bad rows.
        columns: Of the first sentence, the second, and the label; `None` takes the first of
            `GLUE_COLUMNS` that a table has.

    Raises:
        ConfigError: not three `columns`.
        DataError: no known columns, as in the unlabelled test files of GLUE; a row of another
            length; an empty sentence; an empty label, or "-", SNLI's mark of no agreement.

    Source: the column names of GLUE's downloads, as read by github.com/nyu-mll/GLUE-baselines.
    """
    three = columns is None or len(columns) == 3
    require(three, "columns", "those of two sentences and a label", columns)
    for source in sources:
        names: Sequence[str] | None = None
        rows: Iterator[Mapping[str, Any]]
        if ending(source.path) in (".jsonl", ".csv", ".parquet"):
            rows = read_rows(source.path, intake)
        else:
            rows = read_table(source.path, intake, delimiter="\t", quoted=False)
        for row in rows:
            if names is None:
                names = columns or _known_columns(source.path, row)
                require_columns(source.path, row, names)
            cells = tuple(_cell(row.get(name)) for name in names)
            if not all(cells) or cells[2] == "-":
                rule = f"a row must have {', '.join(map(repr, names))}."
                intake.bad(DataError(source.path, intake.line, rule, cells))
                continue
            yield LabelledPair(source.split, *cells)


def _cell(value: Any) -> str:
    """Returns a cell as text without line ends; `true` and numbers are labels, all else is ""."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int | float):
        return str(value)
    return " ".join(value.split()) if isinstance(value, str) else ""


def _known_columns(path: Path, row: Mapping[str, Any]) -> tuple[str, ...]:
    for columns in GLUE_COLUMNS.values():
        if all(name in row for name in columns):
            return columns
    known = "; ".join(" ".join(map(repr, columns)) for columns in GLUE_COLUMNS.values())
    rule = f"`columns` must be named, or be one of these sets: {known}."
    raise DataError(path, 1, rule, list(row))


def write_labelled_pairs(
    path: str | Path,
    pairs: Iterable[LabelledPair],
    *,
    overwrite: bool = False,
    intake: Intake | None = None,
) -> dict[str, Counter[str]]:
    """Writes a folder of `SPLIT.tsv` with the header `sentence1 sentence2 label`.

    It appears whole or not at all.

    Returns:
        How often each label stands in each split.

    Raises:
        ConfigError: `path` is a file, or a directory that is not empty without `overwrite`.
        DataError: there is no pair; nothing is left behind.
    """
    labels: defaultdict[str, Counter[str]] = defaultdict(Counter)
    files: dict[str, BinaryIO] = {}
    with atomic_directory(path, overwrite=overwrite) as temporary:
        with ExitStack() as stack:
            for pair in pairs:
                if pair.split not in files:
                    file = stack.enter_context(open_writer(temporary / f"{pair.split}.tsv"))
                    file.write(("\t".join(COLUMNS) + "\n").encode())
                    files[pair.split] = file
                line = "\t".join((pair.first, pair.second, pair.label))
                files[pair.split].write(f"{line}\n".encode())
                labels[pair.split][pair.label] += 1
        if not labels:
            place = (intake.path if intake else None) or path
            raise DataError(place, None, "there is no pair of sentences.")
    return dict(labels)
