"""Writes a dataset of passages as one of whole documents, to measure what cutting them costs.

    python benchmarks/long_documents.py $TFDE_DATA/covidqa build/articles

A document is all passages of one parent (`PARENT.PART`) in a row, and relevant where one of them
is. docs/long_documents.md has the commands that follow, and what they gave.
"""

import argparse
import itertools

from tfde.data.dataset_directory import DatasetDirectory
from tfde.data.dataset_writer import write_dataset_directory
from tfde.data.ids import parent_of
from tfde.types import Document


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("dataset")
    parser.add_argument("output")
    parser.add_argument("--separator", default=".")
    args = parser.parse_args()
    dataset = DatasetDirectory(args.dataset)

    def parent(doc_id: str) -> str:
        return parent_of(doc_id, args.separator)

    documents = []
    for doc_id, group in itertools.groupby(dataset.documents(), lambda d: parent(d.doc_id)):
        parts = list(group)
        text = "\n\n".join(part.text for part in parts)
        documents.append(Document(doc_id, parts[0].title, text))
    qrels = {
        split: {
            query_id: {parent(doc_id): relevance for doc_id, relevance in judged.items()}
            for query_id, judged in dataset.qrels(split).items()
        }
        for split in dataset.splits
    }
    write_dataset_directory(args.output, documents, dataset.queries(), qrels)
    words = sum(len(document.text.split()) for document in documents) / len(documents)
    print(f"{args.output}: {len(documents):,} documents of {words:,.0f} words on average")


if __name__ == "__main__":
    main()
