"""What does each kind of negatives give, on SQuAD's sentences and a small model?

    python benchmarks/hard_negatives_training.py $TFDE_DATA/squad_sent [--share 0.25] [--work DIR]

A bag of words of 256 dimensions is trained on a share of the train questions with the negatives of
the batch alone. From these weights on it is trained again for as many steps, once with the batch
alone and once with 2 negatives more a question of each kind (mined for the same questions; `model`:
by the first model itself). Prints a Markdown table: recall at 1 and 10 over all sentences, on a
sample of the dev questions. One seed.
"""

import argparse
import tempfile
import time
from pathlib import Path

from tfde.config import ModelConfig, OptimizerConfig, StageConfig, TrainRun
from tfde.data.dataset_directory import DatasetDirectory
from tfde.data.split import split_train_share
from tfde.evaluation.measures import evaluate
from tfde.negatives.bm25_candidates import Bm25Candidates
from tfde.negatives.mine import mine_negatives
from tfde.negatives.mining_rules import MiningRules
from tfde.negatives.model_candidates import ModelCandidates
from tfde.negatives.random_candidates import RandomCandidates
from tfde.retrieval.retrieve import retrieve_from_corpus
from tfde.towers.dual_encoder import DualEncoder
from tfde.training.run import train

SEED = 0
MEASURES = ["R@1", "R@10"]


def stage(data: Path, steps: int, rate: float, dataset: Path | None = None) -> StageConfig:
    return StageConfig(
        str(data),
        dataset=None if dataset is None else str(dataset),
        steps=steps,
        batch_size=256,
        negatives_per_query=0 if dataset is None else 2,
        temperature=0.05,
        optimizer=OptimizerConfig("adamw", learning_rate=rate, warmup_steps=steps // 10),
    )


def recall(path: Path, dataset: DatasetDirectory, queries: int) -> list[str]:
    chosen = sorted(dataset.queries("dev"))[:: max(1, len(dataset.qrels("dev")) // queries)]
    model = DualEncoder.from_preset(path)
    run = retrieve_from_corpus(model, dataset.documents(), chosen, 10, batch_size=256)
    qrels = dataset.qrels("dev")
    found = evaluate(run, {query.query_id: qrels[query.query_id] for query in chosen}, MEASURES)
    return [f"{found[name]:.3f}" for name in MEASURES]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("dataset")
    parser.add_argument("--share", type=float, default=0.25)
    parser.add_argument("--steps", type=int, default=600)
    parser.add_argument("--queries", type=int, default=2000)
    parser.add_argument("--work", help="directory that keeps everything; else a temporary one")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        work = Path(args.work or temporary)
        data = work / "data"
        if not data.exists():
            split_train_share(args.dataset, data, share=args.share, seed=SEED)
        dataset = DatasetDirectory(data)
        backbone = {"kind": "bag_of_words", "embedding_dim": 256, "hidden_dim": 256}
        first = TrainRun(ModelConfig(backbone), {"first": stage(data, args.steps, 2e-3)}, seed=SEED)
        train(first, work / "first", verbose=0)
        start = str(work / "first" / "model")
        print("| negatives | recall@1 | recall@10 | mining | training |\n|---|---|---|---|---|")
        print(f"| start | {' | '.join(recall(Path(start), dataset, args.queries))} | | |")
        model = DualEncoder.from_preset(start)
        kinds = {
            "the batch alone": None,
            "random": RandomCandidates(seed=SEED),
            "BM25": Bm25Candidates(),
            "model": ModelCandidates(model, batch_size=256),
        }
        rules = MiningRules(count=4, max_rank=50, choice="random", seed=SEED)
        for name, source in kinds.items():
            begin = time.perf_counter()
            pairs, documents = data, None
            if source is not None:
                pairs, documents = work / f"{name}.jsonl", data
                mine_negatives(dataset, source, pairs, rules)
            mined = time.perf_counter()
            stages = {"second": stage(pairs, args.steps, 1e-3, documents)}
            output = work / name.replace(" ", "_")
            train(TrainRun(ModelConfig(start), stages, seed=SEED + 1), output, verbose=0)
            trained = time.perf_counter()
            cells = recall(output / "model", dataset, args.queries)
            times = f"{mined - begin:.0f} s | {trained - mined:.0f} s"
            print(f"| {name} | {' | '.join(cells)} | {times} |", flush=True)
        print(f"\n{len(dataset.qrels('train')):,} train questions, {args.steps} steps of 256")


if __name__ == "__main__":
    main()
