"""Gives the sentences of a data set their passages as contexts, from a data set of the passages.

    python pipelines/sentence_contexts.py --dataset SENTENCES --passages PASSAGES --output D

A sentence's id is its passage's, a full stop, and more. Other metadata of sentences is left out, so
that those of a passage have the same. `tfde convert --level sentence --context` does this for data
that is cut into sentences here.
"""

import argparse
import sys
from collections.abc import Iterator
from pathlib import Path

from tfde.cli.main import run_command
from tfde.data.dataset_directory import DatasetDirectory
from tfde.data.dataset_writer import write_dataset
from tfde.data.formats import beir
from tfde.data.formats.records import Record, Source
from tfde.data.ids import parent_of
from tfde.errors import ConfigError
from tfde.storage.intake import Intake
from tfde.types import CONTEXT, Document


def with_contexts(sentences: DatasetDirectory, passages: DatasetDirectory) -> Iterator[Record]:
    """Yields the records of a data set of sentences, whose documents have contexts.

    Memory holds the passages.

    Raises:
        ConfigError: there is no passage for a sentence.
    """
    texts = {passage.doc_id: passage.text for passage in passages.documents()}
    for record in beir.read([Source("directory", sentences.path)], Intake()):
        if isinstance(record, Document):
            parent = parent_of(record.doc_id, ".")
            if parent not in texts:
                raise ConfigError(f"{passages.path}: must hold the passage {parent!r}.")
            record = record._replace(metadata={CONTEXT: texts[parent]})
        yield record


def main() -> int:
    """Writes the data set; an expected error becomes one line and exit code 1."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--dataset", required=True, help="dataset directory of sentences")
    parser.add_argument("--passages", required=True, help="dataset directory of their passages")
    parser.add_argument("--output", required=True, help="new dataset directory")
    return run_command("sentence_contexts.py", _write, parser.parse_args())


def _write(args: argparse.Namespace) -> None:
    sentences, passages = DatasetDirectory(args.dataset), DatasetDirectory(args.passages)
    write_dataset(Path(args.output), with_contexts(sentences, passages))


if __name__ == "__main__":
    sys.exit(main())
