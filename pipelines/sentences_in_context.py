"""Sentences with the paragraph around them: `sentence | rest of the paragraph`.

    python pipelines/sentences_in_context.py --dataset $TFDE_DATA/squad_sent --output squad_context

Sentences of one paragraph stand one after the other in the corpus, with ids PARAGRAPH.NUMBER. Ids,
titles, queries and judgements stay as they are, so that models of either corpus are measured by the
same questions; the sentence comes first, for what is too long is cut at its end.
"""

import argparse
import itertools
from collections.abc import Iterator

from tfde.data.dataset_directory import DatasetDirectory
from tfde.data.dataset_writer import write_dataset
from tfde.data.formats.records import Judgement, Record
from tfde.types import Document


def in_context(dataset: DatasetDirectory) -> Iterator[Document]:
    """Yields every sentence of a dataset, followed by the others of its paragraph."""
    paragraphs = itertools.groupby(dataset.documents(), lambda d: d.doc_id.rpartition(".")[0])
    for _, group in paragraphs:
        sentences = list(group)
        for number, sentence in enumerate(sentences):
            rest = [other.text for other in sentences[:number] + sentences[number + 1 :]]
            text = " | ".join([sentence.text, " ".join(rest)]) if rest else sentence.text
            yield sentence._replace(text=text)


def records(dataset: DatasetDirectory) -> Iterator[Record]:
    """Yields all that the new dataset directory holds."""
    yield from in_context(dataset)
    yield from dataset.queries()
    for split in dataset.splits:
        for query_id, documents in dataset.qrels(split).items():
            for doc_id, relevance in documents.items():
                yield Judgement(split, query_id, doc_id, relevance)


def main() -> None:
    """Writes the dataset directory."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--dataset", required=True, help="dataset directory")
    parser.add_argument("--output", required=True, help="new dataset directory")
    args = parser.parse_args()
    write_dataset(args.output, records(DatasetDirectory(args.dataset)))


if __name__ == "__main__":
    main()
