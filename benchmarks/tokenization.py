"""How fast is tokenization in the graph, against Hugging Face's `tokenizers` on the same texts?

    python benchmarks/tokenization.py [--kinds wordpiece unigram] [--batch 32 256] [--pairs 5]

WordPiece with the vocabulary of all-MiniLM-L6-v2, Unigram (SentencePiece) with that of
random-t5-small; paragraphs of SQuAD (`TFDE_DATA`), without special tokens, all cores. Ours is
`tokenize` in a `tf.function`, theirs `encode_batch_fast`. Prints one JSON object, with the share
of texts that get the same ids.
"""

import argparse
import itertools
import json
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import inputs
import side_by_side

MODELS = {"wordpiece": inputs.MINILM, "unigram": inputs.RANDOM_T5}


def read_batches(args: argparse.Namespace) -> list[list[str]]:
    """Returns the texts in batches."""
    texts = inputs.read_texts(args.texts, args.dataset)
    return [texts[start : start + args.batch] for start in range(0, len(texts), args.batch)]


def tfde_worker(args: argparse.Namespace) -> None:
    """Ours: graph ops."""
    import tensorflow as tf

    from tfde.text.read_tokenizer import read_tokenizer

    tokenizer = read_tokenizer(args.model)
    spec = tf.TensorSpec([None], tf.string)
    tokenize = tf.function(tokenizer.tokenize, input_signature=[spec], autograph=False)
    batches = [tf.constant(batch) for batch in read_batches(args)]
    ids = [row for batch in batches for row in tokenize(batch).to_list()]
    serve(args, ids, tokenize, batches)


def tokenizers_worker(args: argparse.Namespace) -> None:
    """Theirs: the library in Rust."""
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(Path(args.model) / "tokenizer.json"))
    tokenizer.no_truncation()
    tokenizer.no_padding()

    def tokenize(texts: list[str]) -> list:
        return tokenizer.encode_batch_fast(texts, add_special_tokens=False)

    batches = read_batches(args)
    ids = [encoding.ids for batch in batches for encoding in tokenize(batch)]
    serve(args, ids, tokenize, batches)


def serve(args: argparse.Namespace, ids: list, tokenize: Callable, batches: Sequence) -> None:
    """Writes the ids, then measures a pass over all batches whenever it is asked to."""
    Path(args.ids).write_text(json.dumps(ids))

    def measure() -> dict:
        start = time.perf_counter()
        for batch in batches:
            tokenize(batch)
        return {"seconds": time.perf_counter() - start}

    side_by_side.serve(measure)


def compare(args: argparse.Namespace, model: str, batch: int) -> dict:
    """Compares both on one vocabulary and batch size."""
    workers = []
    with tempfile.TemporaryDirectory() as directory:
        paths = [Path(directory) / f"{worker}.json" for worker in ("tfde", "tokenizers")]
        for worker, path in zip(("tfde", "tokenizers"), paths, strict=True):
            python = sys.executable if worker == "tfde" else side_by_side.peers_python()
            options = ["--worker", worker, "--model", model, "--batch", str(batch)]
            options += ["--texts", str(args.texts), "--dataset", args.dataset, "--ids", str(path)]
            workers.append(side_by_side.Worker(python, __file__, options))
        found = side_by_side.compare(*workers, pairs=args.pairs)
        ids = [json.loads(path.read_text()) for path in paths]
    for worker in workers:
        worker.close()
    count = len(ids[0])
    same = sum(ours == theirs for ours, theirs in zip(*ids, strict=True))
    return {
        **found,
        "ours_per_s": round(count / found["ours_s"]),
        "theirs_per_s": round(count / found["theirs_s"]),
        "mean_tokens": round(sum(map(len, ids[1])) / count, 1),
        "share_of_equal_ids": round(same / count, 4),
    }


def main() -> None:
    """Runs a worker, or the comparisons asked for."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kinds", choices=MODELS, nargs="+", default=list(MODELS))
    parser.add_argument("--model", help="directory of the tokenizer, in place of the kind's own")
    parser.add_argument("--batch", type=int, nargs="+", default=[32, 256])
    parser.add_argument("--dataset", default="squad", help="a dataset of TFDE_DATA")
    parser.add_argument("--texts", type=int, default=8192, help="texts a pass")
    parser.add_argument("--pairs", type=int, default=5, help="measurements of each side")
    parser.add_argument("--output", type=Path, help="JSON file, besides standard output")
    for name in ("worker", "ids"):
        parser.add_argument(f"--{name}", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.worker:
        args.batch = args.batch[0]
        globals()[f"{args.worker}_worker"](args)
        return
    result: dict = {"texts": args.texts, "dataset": args.dataset}
    for kind, batch in itertools.product(args.kinds, args.batch):
        model = inputs.model_directory(args.model or MODELS[kind])
        result[f"{kind}_{batch}"] = compare(args, model, batch)
    packages = ("tensorflow", "tensorflow-text", "tokenizers")
    side_by_side.finish(result, packages, args.output)


if __name__ == "__main__":
    main()
