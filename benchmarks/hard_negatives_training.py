"""What does each kind of negatives give, on SQuAD's sentences and a small model?

    python benchmarks/hard_negatives_training.py $TFDE_DATA/squad_sent [--share 0.25] [--work DIR]

For each seed a bag of words is trained on a share of the train questions with the negatives of the
batch alone. From these weights on it is trained again, each time for the same steps: with the batch
alone, and with 2 negatives more a question, drawn from 4 that were found for it among the ranks 1
to 30: by chance, by BM25, by the first model once, and by the model in training too, which mines
anew so many times on the way. Prints a Markdown table: P@1 and RR over all sentences on the dev
questions, the mean of the seeds and each seed's. With --work, what is done is not done again.
"""

import argparse
import json
import tempfile
from dataclasses import replace
from pathlib import Path

import numpy as np

from tfde.config.negatives import MiningRules, RefreshConfig
from tfde.config.optimizer import OptimizerConfig
from tfde.config.training import ModelConfig, StageConfig, TrainRun
from tfde.data.dataset_directory import DatasetDirectory
from tfde.data.split import split_train_share
from tfde.evaluation.measures import evaluate
from tfde.negatives.candidate_sources import Bm25Candidates, ModelCandidates, RandomCandidates
from tfde.negatives.mine import mine_negatives
from tfde.retrieval.retrieve import retrieve_from_corpus
from tfde.towers.dual_encoder import DualEncoder
from tfde.training.run import train

MEASURES = ["P@1", "RR"]
KINDS = ["the batch alone", "random", "BM25", "model, once", "model, refreshed"]
BATCH = 256
WINDOW = {"count": 4, "max_rank": 30, "choice": "random"}


def measure(path: Path, dataset: DatasetDirectory, queries: int) -> dict[str, float]:
    chosen = sorted(dataset.queries("dev"))[:: max(1, len(dataset.qrels("dev")) // queries)]
    model = DualEncoder.from_preset(path)
    run = retrieve_from_corpus(model, dataset.documents(), chosen, 100, batch_size=BATCH)
    qrels = dataset.qrels("dev")
    return evaluate(run, {query.query_id: qrels[query.query_id] for query in chosen}, MEASURES)


class Comparison:
    """One training of each kind for each seed, in a directory."""

    def __init__(self, args: argparse.Namespace, work: Path) -> None:
        self.args, self.work = args, work
        self.data = work / "data"
        if not self.data.exists():
            split_train_share(args.dataset, self.data, share=args.share)
        self.dataset = DatasetDirectory(self.data)

    def first(self, seed: int) -> Path:
        """Trains what all kinds start from; returns the model directory."""
        sizes = {"embedding_dim": self.args.dim, "hidden_dim": self.args.dim}
        sizes |= {"vocabulary_size": self.args.vocabulary_size, "dropout": self.args.dropout}
        model = ModelConfig({"kind": "bag_of_words", **sizes})
        stage = self.stage(self.args.first_steps, 2e-3)
        output = self.work / f"first_{seed}"
        train(TrainRun(model, {"first": stage}, seed=seed), output, verbose=0)
        return output / "model"

    def second(self, kind: str, start: Path, seed: int) -> Path:
        """Trains on with negatives of a kind; returns the model directory."""
        stage = self.stage(self.args.steps, 1e-3)
        if kind != "the batch alone":
            mined = self.mined(kind.replace("refreshed", "once"), start, seed)
            stage = replace(stage, data=str(mined), dataset=str(self.data), negatives_per_query=2)
        if kind == "model, refreshed":
            every = self.args.steps // (self.args.refreshes + 1)
            stage = replace(
                stage, refresh=RefreshConfig(every_steps=every, batch_size=BATCH, **WINDOW)
            )
        output = self.work / f"{kind.replace(', ', '_').replace(' ', '_')}_{seed}"
        run = TrainRun(ModelConfig(str(start)), {"second": stage}, seed=seed)
        train(run, output, verbose=0)
        return output / "model"

    def mined(self, kind: str, start: Path, seed: int) -> Path:
        """Mines for all questions, or finds it done."""
        source = {
            "random": lambda: RandomCandidates(seed=seed),
            "BM25": Bm25Candidates,
            "model, once": lambda: ModelCandidates(
                DualEncoder.from_preset(start), batch_size=BATCH
            ),
        }[kind]()
        output = self.work / f"mined_{kind.split(',')[0]}_{seed}.jsonl"
        mine_negatives(self.dataset, source, output, MiningRules(**WINDOW, seed=seed))
        return output

    def stage(self, steps: int, rate: float) -> StageConfig:
        return StageConfig(
            data=str(self.data),
            steps=steps,
            batch_size=min(BATCH, len(self.dataset.qrels("train"))),
            temperature=0.05,
            optimizer=OptimizerConfig("adamw", learning_rate=rate, warmup_steps=steps // 10),
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("dataset")
    parser.add_argument("--share", type=float, default=0.25)
    parser.add_argument("--first-steps", type=int, default=600)
    parser.add_argument("--steps", type=int, default=600)
    parser.add_argument("--refreshes", type=int, default=3)
    parser.add_argument("--queries", type=int, default=5000)
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--dim", type=int, default=256)
    parser.add_argument("--dropout", type=float, default=0.1)
    parser.add_argument("--vocabulary-size", type=int, default=8000)
    parser.add_argument("--work", help="directory that keeps everything; else a temporary one")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        comparison = Comparison(args, Path(args.work or temporary))
        found: dict[str, list[list[float]]] = {name: [] for name in ("start", *KINDS)}
        for seed in range(args.seeds):
            start = comparison.first(seed)
            for kind, values in found.items():
                path = start if kind == "start" else comparison.second(kind, start, seed)
                known = path.parent / f"measures_{args.queries}.json"
                if not known.exists():
                    result = measure(path, comparison.dataset, args.queries)
                    known.write_text(json.dumps(result))
                result = json.loads(known.read_text())
                values.append([result[name] for name in MEASURES])
        print(f"| negatives | {' | '.join(MEASURES)} | each seed |")
        print("|---" * (len(MEASURES) + 2) + "|")
        for kind, values in found.items():
            cells = [f"{value:.4f}" for value in np.mean(values, axis=0)]
            each = "; ".join(", ".join(f"{value:.4f}" for value in row) for row in values)
            print(f"| {kind} | {' | '.join(cells)} | {each} |")
        count = len(comparison.dataset.qrels("train"))
        print(f"\n{count:,} train questions, {args.first_steps} and {args.steps} steps")


if __name__ == "__main__":
    main()
