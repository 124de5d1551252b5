"""Puts the sentences before it behind each sentence of a data set, and of pairs mined in it.

    python pipelines/preceding_sentences.py --dataset SENTENCES --count 2 --output D [--pairs P.gz]

A sentence alone says "he" and "the treaty". A reranker reads `sentence | the two before it`, the
first stage goes on with the sentence alone: ids stay, so runs of either data set are runs of both.
A sentence's id is its passage's, a full stop, and its number. With `--pairs`, a pair file with
texts (`tfde mine-negatives --documents texts`) of that data set becomes `D.pairs.jsonl.gz`.
"""

import argparse
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tfde.cli.main import run_command
from tfde.data.dataset_directory import DatasetDirectory
from tfde.data.dataset_writer import write_dataset
from tfde.data.formats import beir
from tfde.data.formats.records import Record, Source
from tfde.errors import ConfigError, DataError
from tfde.storage.intake import Intake
from tfde.storage.json_lines import read_json_lines, write_json_lines
from tfde.types import Document

_MARK = " | "


class Sentences:
    """The sentences of a data set, in memory.

    Args:
        dataset: Its documents are sentences.
        count: How many sentences of the same passage are put behind one, at most.
    """

    def __init__(self, dataset: DatasetDirectory, count: int) -> None:
        self._dataset, self._count = dataset, count
        self._texts: dict[str, str] = {}
        self._ids: dict[tuple[str, str], str] = {}  # of equal sentences the first counts
        for found in dataset.documents():
            self._texts[found.doc_id] = found.text
            self._ids.setdefault((found.title, found.text), found.doc_id)

    def records(self) -> Iterator[Record]:
        """Yields the records of the data set, its documents with those before them."""
        for record in beir.read([Source("directory", self._dataset.path)], Intake()):
            if isinstance(record, Document):
                record = record._replace(text=self._with_those_before(record.doc_id))
            yield record

    def pairs(self, path: Path) -> Iterator[dict[str, Any]]:
        """Yields the rows of a pair file with the same texts.

        Raises:
            DataError: a document of a row has no text, or is no sentence of the data set.
        """
        for line, row in read_json_lines(path, Intake()):
            for document in (row.get("positive"), *(row.get("negatives") or ())):
                texts = document if isinstance(document, dict) else {}
                doc_id = self._ids.get((texts.get("title", ""), texts.get("text", "")))
                if doc_id is None:
                    rule = f"must hold titles and texts of sentences of {self._dataset.path}."
                    raise DataError(path, line, rule, document)
                texts["text"] = self._with_those_before(doc_id)
            yield row

    def _with_those_before(self, doc_id: str) -> str:
        passage, stop, number = doc_id.rpartition(".")
        if not (stop and number.isdecimal()):
            raise ConfigError(
                f"{self._dataset.path}: a sentence's id must be PASSAGE.NUMBER. Received: {doc_id}"
            )
        places = range(max(0, int(number) - self._count), int(number))
        before = [self._texts.get(f"{passage}.{place}", "") for place in places]
        return _MARK.join(filter(None, (self._texts[doc_id], " ".join(filter(None, before)))))


def main() -> int:
    """Writes the data set; an expected error becomes one line and exit code 1."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--dataset", required=True, help="dataset directory of sentences")
    parser.add_argument("--count", type=int, default=2, help="sentences before each, at most")
    parser.add_argument("--pairs", type=Path, help="pair file with texts, mined in the data set")
    parser.add_argument("--output", required=True, type=Path, help="new dataset directory")
    return run_command("preceding_sentences", _write, parser.parse_args())


def _write(args: argparse.Namespace) -> None:
    if args.count < 1:
        raise ConfigError(f"`--count` must be at least 1. Received: {args.count}")
    if args.pairs is not None and not args.pairs.is_file():
        raise ConfigError(f"{args.pairs}: `--pairs` must be a file that exists.")
    sentences = Sentences(DatasetDirectory(args.dataset), args.count)
    write_dataset(args.output, sentences.records())
    if args.pairs is not None:
        output = args.output.with_name(f"{args.output.name}.pairs.jsonl.gz")
        write_json_lines(output, sentences.pairs(args.pairs))


if __name__ == "__main__":
    sys.exit(main())
