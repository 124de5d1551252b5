"""Does encoding a large corpus keep its memory and its pace from the first text to the last?

    python benchmarks/encode_memory.py [--documents 1000000] [--dtype float16 int8]
        [--shard-size 20000] [--folder DIR]

For each dtype of the shards a process of its own runs `tfde.retrieval.encode_corpus` on passages of
random words that are made as they are drawn (20 to 60 tokens), with a BERT of 2 layers and 128
dimensions (random weights), all cores. Prints one JSON object: the largest memory that the kernel
counted as resident (VmHWM, imports and model included), what was resident at the beginning of the
second and of the last shard, and the texts per second of the first tenth and the last tenth of the
shards (the first shard, which compiles, and the last, which may be short, are left out);
`last_to_first` is their ratio, `drift` that of the halves.
"""

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import numpy as np
import side_by_side
from training_memory import memory

SEED, LAYERS, HIDDEN, HEADS, WORDS = 0, 2, 128, 2, 20_000


def vocabulary() -> list[str]:
    """Returns special tokens and words of three to seven letters."""
    rng = np.random.default_rng(SEED)
    letters = np.array(list("abcdefghijklmnopqrstuvwxyz"))
    words = {"".join(rng.choice(letters, rng.integers(3, 8))) for _ in range(WORDS)}
    return ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *sorted(words)]


def encode(documents: int, dtype: str, shard_size: int, output: str) -> None:
    """Encodes and prints what it took; runs in a process of its own."""
    import tfde
    from tfde.retrieval.encode_corpus import encode_corpus
    from tfde.text.word_piece.tokenizer import WordPieceTokenizer
    from tfde.towers.dual_encoder import DualEncoder

    tokens = vocabulary()
    config = tfde.BertConfig(
        vocabulary_size=len(tokens),
        num_layers=LAYERS,
        num_heads=HEADS,
        hidden_dim=HIDDEN,
        intermediate_dim=4 * HIDDEN,
    )
    model = DualEncoder.from_backbone(config, tokenizer=WordPieceTokenizer(tokens), seed=SEED)
    words = np.array(tokens[5:])
    marks: list[tuple[float, int]] = []  # at the beginning of each shard: time, memory

    def corpus() -> Iterator[tfde.Document]:
        rng = np.random.default_rng(SEED)
        for number in range(documents):
            if number % shard_size == 0:
                marks.append((time.perf_counter(), memory("self", "VmRSS")))
            text = " ".join(words[rng.integers(0, len(words), rng.integers(18, 59))])
            yield tfde.Document(f"d{number}", "", text)

    start = time.perf_counter()
    embeddings = encode_corpus(model, corpus(), output, shard_size=shard_size, dtype=dtype)
    seconds = time.perf_counter() - start
    rates = [shard_size / (after[0] - before[0]) for before, after in pairwise(marks)][1:]
    tenth, half = max(1, len(rates) // 10), max(1, len(rates) // 2)
    first, last = statistics.median(rates[:tenth]), statistics.median(rates[-tenth:])
    drift = statistics.median(rates[-half:]) / statistics.median(rates[:half])
    figures = {
        "peak_bytes": memory("self", "VmHWM"),
        "second_shard_bytes": marks[1][1],
        "last_shard_bytes": marks[-1][1],
        "first_texts_per_s": round(first, 1),
        "last_texts_per_s": round(last, 1),
        "last_to_first": round(last / first, 3),
        "drift": round(drift, 3),
        "seconds": round(seconds, 1),
        "stored_bytes": sum(file.stat().st_size for file in embeddings.path.glob("*.npy")),
    }
    print(json.dumps(figures))


def main() -> None:
    """Runs one process a dtype."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--documents", type=int, default=1_000_000, help="at least three shards")
    parser.add_argument("--dtype", nargs="+", default=["float16", "int8"])
    parser.add_argument("--shard-size", type=int, default=20_000)
    parser.add_argument("--folder", help="where the temporary folder is made")
    parser.add_argument("--encode", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.documents < 3 * args.shard_size:
        parser.error("--documents must be at least three times --shard-size")
    if args.encode:
        encode(args.documents, args.dtype[0], args.shard_size, args.encode)
        return
    result: dict = {
        "seed": SEED,
        "model": {"layers": LAYERS, "hidden_dim": HIDDEN},
        "documents": args.documents,
        "shard_size": args.shard_size,
    }
    for dtype in args.dtype:
        with tempfile.TemporaryDirectory(dir=args.folder) as folder:
            command = [sys.executable, __file__, "--encode", str(Path(folder, "embeddings"))]
            command += ["--documents", str(args.documents), "--dtype", dtype]
            command += ["--shard-size", str(args.shard_size)]
            done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
        result[dtype] = json.loads(done.stdout.splitlines()[-1])
    print(json.dumps({**result, **side_by_side.machine("tensorflow", "keras")}, indent=2))


if __name__ == "__main__":
    main()
