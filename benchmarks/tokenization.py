"""How fast is WordPiece in the graph, against Hugging Face's `tokenizers` on the same texts?

    TFDE_DATA=... python benchmarks/tokenization.py --tokenizer DIR_WITH_TOKENIZER_JSON

Prints JSON: texts/s of both and the ratio (above 1: ours is faster), median and range over
alternated pairs of measurements, by the clock and by CPU time. Both may use all cores; on a
machine that does other work too, only the CPU time says something.
"""

import argparse
import gzip
import importlib.metadata
import json
import os
import platform
import random
import statistics
import time
from pathlib import Path

import tensorflow as tf
from tokenizers import Tokenizer

from tfde.text.word_piece_tokenizer import WordPieceTokenizer

BATCH_SIZE = 256


def sample(directory: Path, count: int, seed: int) -> list[str]:
    with gzip.open(directory / "corpus.jsonl.gz", "rt", encoding="utf-8") as lines:
        texts = [json.loads(line)["text"] for line in lines]
    return random.Random(seed).sample(texts, count)


def seconds(function, batches) -> tuple[float, float]:
    """Time by the clock and CPU time of all threads."""
    begin = time.perf_counter(), time.process_time()
    for batch in batches:
        function(batch)
    return time.perf_counter() - begin[0], time.process_time() - begin[1]


def measure(ours, theirs, texts: list[str], pairs: int) -> dict:
    batches = [texts[i : i + BATCH_SIZE] for i in range(0, len(texts), BATCH_SIZE)]
    tensors = [tf.constant(batch) for batch in batches]

    def peer(batch):
        return theirs(batch, add_special_tokens=False)

    seconds(ours, tensors)
    seconds(peer, batches)
    times = [(seconds(ours, tensors), seconds(peer, batches)) for _ in range(pairs)]
    result = {"texts": len(texts), "mean_characters": round(statistics.mean(map(len, texts)))}
    for kind, name in enumerate(("clock", "cpu")):
        ratios = [b[kind] / a[kind] for a, b in times]
        result[name] = {
            "ours_texts_per_s": round(len(texts) / statistics.median(a[kind] for a, _ in times)),
            "peer_texts_per_s": round(len(texts) / statistics.median(b[kind] for _, b in times)),
            "ratio_median": round(statistics.median(ratios), 2),
            "ratio_range": [round(min(ratios), 2), round(max(ratios), 2)],
        }
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tokenizer", type=Path, required=True)
    parser.add_argument("--texts", type=int, default=2048)
    parser.add_argument("--pairs", type=int, default=7)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()

    data = Path(os.environ["TFDE_DATA"])
    peer = Tokenizer.from_file(str(args.tokenizer / "tokenizer.json"))
    peer.no_truncation()
    peer.no_padding()
    tokenizer = WordPieceTokenizer.from_hugging_face(args.tokenizer)
    ours = tf.function(tokenizer.tokenize, input_signature=[tf.TensorSpec([None], tf.string)])
    result = {
        "batch_size": BATCH_SIZE,
        "pairs": args.pairs,
        "seed": args.seed,
        "versions": {
            name: importlib.metadata.version(name)
            for name in ("tensorflow", "tensorflow-text", "tokenizers", "tfde")
        },
        "machine": {"processor": platform.machine(), "cores": os.cpu_count()},
    }
    for name in ("squad", "xquad_multi"):
        texts = sample(data / name, args.texts, args.seed)
        for method in ("encode_batch", "encode_batch_fast"):
            measured = measure(ours, getattr(peer, method), texts, args.pairs)
            result[f"{name}, {method}"] = measured
    print(json.dumps(result, indent=2))


if __name__ == "__main__":
    main()
