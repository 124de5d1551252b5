"""Puts the sentences before it behind each sentence of a data set, and of pairs mined in it.

    python pipelines/preceding_sentences.py --dataset SENTENCES --count 2 --output D [--pairs P.gz]

A sentence alone says "he" and "the treaty". A reranker reads `sentence | the two before it`, the
first stage goes on with the sentence alone: ids stay, so runs of either data set are runs of both.
A sentence's id is its passage's, a full stop, and its number. With `--pairs`, a pair file of that
data set becomes `D.pairs.jsonl.gz`, with texts. Name sentences by id there, as `tfde
mine-negatives` does: a text may stand in several passages.
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
from tfde.storage.atomic import refuse_existing
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
        self._sentences: dict[str, Document] = {}
        self._places: dict[tuple[str, int], str] = {}  # passage and number -> text
        self._ids: dict[tuple[str, str], list[str]] = {}
        self.several = (
            0  # texts of pairs that stand in several places, of which the first was taken
        )
        for found in dataset.documents():
            self._sentences[found.doc_id] = found
            self._places[self._place(found.doc_id)] = found.text
            self._ids.setdefault((found.title, found.text), []).append(found.doc_id)

    def records(self) -> Iterator[Record]:
        """Yields the records of the data set, its documents with those before them."""
        for record in beir.read([Source("directory", self._dataset.path)], Intake()):
            if isinstance(record, Document):
                record = record._replace(text=self._with_those_before(record.doc_id))
            yield record

    def pairs(self, path: Path) -> Iterator[dict[str, Any]]:
        """Yields the rows of a pair file with the same texts.

        Raises:
            DataError: a document of a row is no sentence of the data set.
        """
        for line, row in read_json_lines(path, Intake()):
            row["positive"] = self._texts(row.get("positive"), path, line)
            if row.get("negatives"):
                row["negatives"] = [self._texts(each, path, line) for each in row["negatives"]]
            yield row

    def _texts(self, document: Any, path: Path, line: int) -> dict[str, str]:
        """Returns title and text of a pair's document, given by its id or its texts."""
        doc_id = document
        if isinstance(document, dict):
            ids = self._ids.get((document.get("title", ""), document.get("text", "")), [""])
            self.several += len(ids) > 1
            doc_id = ids[0]
        if not isinstance(doc_id, str) or doc_id not in self._sentences:
            rule = f"must name sentences of {self._dataset.path}, by id or by title and text."
            raise DataError(path, line, rule, document)
        title = self._sentences[doc_id].title
        return {"title": title, "text": self._with_those_before(doc_id)}

    def _with_those_before(self, doc_id: str) -> str:
        passage, number = self._place(doc_id)
        places = range(max(0, number - self._count), number)
        before = [self._places.get((passage, place), "") for place in places]
        text = self._sentences[doc_id].text
        return _MARK.join(filter(None, (text, " ".join(filter(None, before)))))

    def _place(self, doc_id: str) -> tuple[str, int]:
        passage, stop, number = doc_id.rpartition(".")
        if not (stop and number.isdecimal()):
            raise ConfigError(
                f"{self._dataset.path}: a sentence's id must be PASSAGE.NUMBER. Received: {doc_id}"
            )
        return passage, int(number)


def main() -> int:
    """Writes the data set; an expected error becomes one line and exit code 1."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--dataset", required=True, help="dataset directory of sentences")
    parser.add_argument("--count", type=int, default=2, help="sentences before each, at most")
    parser.add_argument("--pairs", type=Path, help="pair file mined in the data set")
    parser.add_argument("--output", required=True, type=Path, help="new dataset directory")
    return run_command("preceding_sentences.py", _write, parser.parse_args())


def _write(args: argparse.Namespace) -> None:
    if args.count < 1:
        raise ConfigError(f"`--count` must be at least 1. Received: {args.count}")
    if args.pairs is not None and not args.pairs.is_file():
        raise ConfigError(f"{args.pairs}: `--pairs` must be a file that exists.")
    refuse_existing(args.output, overwrite=False)
    output = args.output.with_name(f"{args.output.name}.pairs.jsonl.gz")
    if args.pairs is not None and output.exists():
        raise ConfigError(f"{output}: stands there from before; choose another output.")
    sentences = Sentences(DatasetDirectory(args.dataset), args.count)
    if args.pairs is not None:
        write_json_lines(output, sentences.pairs(args.pairs))
        if sentences.several:
            sys.stderr.write(
                f"{args.pairs}: {sentences.several:,} texts stand in several places, of which the"
                " first was taken: name sentences by id (tfde mine-negatives does)\n"
            )
    write_dataset(args.output, sentences.records())


if __name__ == "__main__":
    sys.exit(main())
