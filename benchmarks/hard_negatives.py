"""What are the negatives of each kind, on SQuAD's sentences?

    python benchmarks/hard_negatives.py $TFDE_DATA/squad_sent --model MODEL [--share 0.04]

Takes a share of the train questions, mines 4 negatives for each in several ways, and prints a
Markdown table: how many of the negatives are sentences of the positive's paragraph and of its
article, how much they resemble the positive, how many words of the question they hold, and how
many of 100 candidates each rule left out. Nothing is trained here.
"""

import argparse
import json
import tempfile
import time
from pathlib import Path

import numpy as np

from tfde.config.negatives import MiningRules
from tfde.data.dataset_directory import DatasetDirectory
from tfde.data.near_duplicates import normal_words, resemblance, shingles
from tfde.data.split import split_train_share
from tfde.negatives.candidate_sources import Bm25Candidates, ModelCandidates, RandomCandidates
from tfde.negatives.mine import MiningReport, mine_negatives
from tfde.negatives.selection import REASONS
from tfde.retrieval.encode_corpus import encode_corpus
from tfde.retrieval.exact_index import ExactIndex
from tfde.towers.dual_encoder import DualEncoder
from tfde.types import Document

COLUMNS = ["same paragraph", "same article", "resemblance", "question's words", "short"]


def paragraph(doc_id: str) -> str:
    """A sentence's id is that of its paragraph, a point, and its number."""
    return doc_id.rpartition(".")[0]


def row_of(path: Path, documents: dict[str, Document], report: MiningReport) -> list[str]:
    """Returns the cells of the pair file's row."""
    same_paragraph, same_article, likeness, words = [], [], [], []
    for text in path.read_text().splitlines():
        line = json.loads(text)
        positive = documents[line["positive"]]
        of_positive = shingles(normal_words(positive.text))
        of_query = set(normal_words(line["query"]))
        for doc_id in line["negatives"]:
            negative = documents[doc_id]
            of_negative = normal_words(negative.text)
            same_paragraph.append(paragraph(doc_id) == paragraph(line["positive"]))
            same_article.append(negative.title == positive.title)
            likeness.append(resemblance(of_positive, shingles(of_negative)))
            words.append(len(of_query.intersection(of_negative)) / len(of_query))
    cells = [f"{np.mean(values):.1%}" for values in (same_paragraph, same_article)]
    cells += [f"{np.mean(likeness):.3f}", f"{np.mean(words):.1%}"]
    cells.append(f"{report.short / report.pairs:.1%}")
    shares = (report.removed[reason] / report.candidates for reason in REASONS)
    return cells + [f"{100 * share:.2f}" if share else "" for share in shares]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("dataset")
    parser.add_argument("--model", required=True)
    parser.add_argument("--share", type=float, default=0.04)
    parser.add_argument("--work", help="directory that keeps the embeddings; else a temporary one")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        work = Path(args.work or temporary)
        work.mkdir(parents=True, exist_ok=True)
        split_train_share(args.dataset, work / "data", share=args.share, overwrite=True)
        dataset = DatasetDirectory(work / "data")
        documents = dataset.document_store()
        model = DualEncoder.load(args.model)
        embeddings = encode_corpus(
            model, dataset.documents(), work / "embeddings", total=len(documents),
            show_progress=True,
        )  # fmt: skip
        ExactIndex.from_embeddings(embeddings).save(work / "index", overwrite=True)
        by_model = ModelCandidates(model, index=work / "index")
        kinds = {
            "random": (RandomCandidates(), MiningRules()),
            "BM25, top": (Bm25Candidates(), MiningRules()),
            "BM25, sampled": (Bm25Candidates(), MiningRules(choice="sampled")),
            "BM25, ranks 11-100, random": (
                Bm25Candidates(), MiningRules(min_rank=11, choice="random"),
            ),
            "model, top": (by_model, MiningRules()),
            "model, 5 % below the positive": (by_model, MiningRules(relative_margin=0.05)),
            "model, sampled, temperature 0.05": (
                by_model, MiningRules(choice="sampled", temperature=0.05),
            ),
            "model, ranks 11-100, random": (
                by_model, MiningRules(min_rank=11, choice="random"),
            ),
        }  # fmt: skip
        head = ["candidates", *COLUMNS, *REASONS]
        print("| " + " | ".join(head) + " | seconds |")
        print("|---" * (len(head) + 1) + "|")
        for number, (name, (source, rules)) in enumerate(kinds.items()):
            output = work / f"{number}.jsonl"
            output.unlink(missing_ok=True)
            Path(f"{output}.json").unlink(missing_ok=True)
            start = time.perf_counter()
            report = mine_negatives(dataset, source, output, rules, show_progress=True)
            seconds = time.perf_counter() - start
            cells = [name, *row_of(output, documents, report), f"{seconds:.0f}"]
            print("| " + " | ".join(cells) + " |", flush=True)
        print(f"\n{report.pairs:,} questions, model {args.model}, at most 100 candidates each")


if __name__ == "__main__":
    main()
