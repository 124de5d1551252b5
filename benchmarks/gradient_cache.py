"""How much longer does a large batch take with the gradient cache than its chunks as steps?

    python benchmarks/gradient_cache.py [--batch 256] [--chunk 64] [--data fixed squad]
        [--dtype float32 bfloat16] [--model DIR] [--pairs 5]

Both sides are `DualEncoder.fit` on the same pairs of SQuAD in the same process, in turns: `cached`
is one step of the whole batch in chunks, `plain` the same pairs in steps of the chunk's size,
whose queries choose among the few documents of their chunk only. In-batch softmax at temperature
0.05, AdamW, gradients clipped at norm 1, the checkpoint's dropout, all cores. `fixed`: real text
cut at 32 and 64 tokens, no row shorter; `squad`: questions and paragraphs as they are, cut at 64
and 256. Prints one JSON object; `times_plain` is cached / plain, the median of the turns.
"""

import argparse
import itertools
import statistics
import time
from pathlib import Path

import inputs
import side_by_side

TEMPERATURE, LEARNING_RATE = 0.05, 2e-5
LENGTHS = {"fixed": (32, 64), "squad": (64, 256)}
POLICIES = {"float32": "float32", "bfloat16": "mixed_bfloat16"}


def trainer(args: argparse.Namespace, data: str, dtype: str, chunk_size: int | None):
    """Returns a function that trains on all pairs once and returns the seconds it took."""
    import tfde
    from tfde.data.pairs.dataset import PairDataset
    from tfde.towers.dual_encoder import DualEncoder

    model = DualEncoder.from_backbone(
        args.model, text=tfde.TextConfig(*LENGTHS[data]), dtype=POLICIES[dtype], seed=inputs.SEED
    )
    optimizer = tfde.adamw(LEARNING_RATE, decay_steps=10**6)
    model.compile(optimizer, task=tfde.RetrievalTask(TEMPERATURE), chunk_size=chunk_size)
    texts = (
        inputs.long_pairs(args.batch, *LENGTHS["fixed"])
        if data == "fixed"
        else inputs.read_pairs(args.batch)
    )
    pairs = PairDataset(
        [
            tfde.Pair(tfde.Query(f"q{i}", query), tfde.Document(f"d{i}", "", document))
            for i, (query, document) in enumerate(texts)
        ],
        batch_size=args.chunk if chunk_size is None else args.batch,
        shuffle=False,
    )

    def measure() -> float:
        start = time.perf_counter()
        model.fit(pairs, verbose=0)
        return time.perf_counter() - start

    return measure


def compare(args: argparse.Namespace, data: str, dtype: str) -> dict:
    """Measures both sides in turns; the first turn does not count."""
    sides = {
        "cached": trainer(args, data, dtype, args.chunk),
        "plain": trainer(args, data, dtype, None),
    }
    turns = []
    for number in range(args.pairs + 1):
        order = sides if number % 2 == 0 else reversed(sides)
        turns.append({side: sides[side]() for side in order})
    turns = turns[1:]
    ratios = sorted(turn["cached"] / turn["plain"] for turn in turns)
    return {
        "times_plain": round(statistics.median(ratios), 3),
        "times_plain_lowest": round(ratios[0], 3),
        "times_plain_highest": round(ratios[-1], 3),
        "pairs": args.pairs,
        **{
            f"{side}_s": round(statistics.median(turn[side] for turn in turns), 3) for side in sides
        },
    }


def main() -> None:
    """Runs the comparisons asked for."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default=inputs.MINILM, help="sentence-transformers directory")
    parser.add_argument("--batch", type=int, default=256, help="pairs of the large batch")
    parser.add_argument("--chunk", type=int, default=64, help="a multiple of it is the batch")
    parser.add_argument("--data", choices=LENGTHS, nargs="+", default=list(LENGTHS))
    parser.add_argument("--dtype", choices=POLICIES, nargs="+", default=list(POLICIES))
    parser.add_argument("--pairs", type=int, default=5, help="measurements of each side")
    parser.add_argument("--output", type=Path, help="JSON file, besides standard output")
    args = parser.parse_args()
    args.model = inputs.model_directory(name := args.model)
    result = {"model": Path(name).name, "seed": inputs.SEED}
    result |= {"batch": args.batch, "chunk": args.chunk}
    for data, dtype in itertools.product(args.data, args.dtype):
        result[f"{data}_{dtype}"] = compare(args, data, dtype)
        side_by_side.finish(result, ("tensorflow", "keras"), args.output)


if __name__ == "__main__":
    main()
