"""Is it what generated queries say that helps BM25, or only that documents grow?

    python benchmarks/query_expansion.py $TFDE_DATA/multireqa_squad pairs.jsonl.gz --measure P@1

The pairs are those of `tfde generate-queries` on the same dataset. Prints a measure of BM25 on the
corpus as it is, with each document's own queries, and with those of another document (twice); and
the difference of the last ones to the first, with its standard error over the questions.
"""

import argparse
from collections import defaultdict

import numpy as np

from tfde.data.dataset_directory import DatasetDirectory
from tfde.evaluation.measures import depth, per_query
from tfde.retrieval.bm25_index import Bm25Index
from tfde.storage.json_lines import read_json_lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("dataset")
    parser.add_argument("pairs")
    parser.add_argument("--split", default="test")
    parser.add_argument("--measure", default="nDCG@10")
    args = parser.parse_args()
    dataset = DatasetDirectory(args.dataset)
    documents, queries = list(dataset.documents()), list(dataset.queries(args.split))
    qrels = dataset.qrels(args.split)
    written: defaultdict[str, list[str]] = defaultdict(list)
    for _, line in read_json_lines(args.pairs):
        written[line["positive"]].append(line["query"])
    shifts = {"as it is": None, "own": 0, "another's": 777, "another's, again": 5003}
    first = np.zeros(0)
    print(f"| queries | {args.measure} | difference | standard error |\n|---|---|---|---|")
    for name, shift in shifts.items():
        corpus = documents
        if shift is not None:
            others = documents[shift % len(documents) :] + documents[: shift % len(documents)]
            corpus = [
                document._replace(text=" ".join([document.text, *written[other.doc_id]]))
                for document, other in zip(documents, others, strict=True)
            ]
        run = Bm25Index.build(corpus).retrieve(queries, depth([args.measure]))
        rows = per_query(run, qrels, [args.measure])
        hits = np.array([row[args.measure] for row in rows.values()])
        first = first if len(first) else hits
        gain = hits - first
        error = gain.std() / len(gain) ** 0.5
        print(f"| {name} | {hits.mean():.4f} | {gain.mean():+.4f} | {error:.4f} |", flush=True)


if __name__ == "__main__":
    main()
