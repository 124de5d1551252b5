"""How fast are texts encoded, against sentence-transformers and ONNX Runtime?

    python benchmarks/encoding.py --model DIR [--texts 2048] [--pairs 5]

The same weights (a sentence-transformers directory, such as all-MiniLM-L6-v2), the same paragraphs
of SQuAD (`TFDE_DATA`), batches of 32 by length, all cores. Ours is the exported SavedModel: strings
in, embeddings out, tokenization included on both sides. Prints one JSON object: float32 and
bfloat16 (autocast in PyTorch), one query at a time, and the smallest cosine to the library's
float32 embeddings.
"""

import argparse
import gzip
import json
import os
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import side_by_side

BATCH = 32
QUERY = "who wrote the play about a prince of denmark?"
WORKERS = ("tfde", "sentence_transformers", "onnxruntime")
POLICIES = {"float32": "float32", "bfloat16": "mixed_bfloat16"}


def read_texts(count: int) -> list[str]:
    """Returns paragraphs of SQuAD, spread over the corpus."""
    path = Path(os.environ["TFDE_DATA"]) / "squad" / "corpus.jsonl.gz"
    with gzip.open(path, "rt", encoding="utf-8") as file:
        texts = [json.loads(line)["text"] for line in file]
    return texts[:: max(1, len(texts) // count)][:count]


def tfde_encoder(args: argparse.Namespace):
    """Exports the model, loads the SavedModel, returns a function from texts to embeddings."""
    import tensorflow as tf

    from tfde.export.saved_models import QueryEncoder, save_encoder
    from tfde.towers.dual_encoder import DualEncoder

    model = DualEncoder.load(args.model, dtype=POLICIES[args.dtype])
    with tempfile.TemporaryDirectory() as directory:
        save_encoder(QueryEncoder(model.query_tower, model.preprocessor), Path(directory) / "m")
        loaded = tf.saved_model.load(str(Path(directory) / "m"))
    encode_batch = loaded.signatures["serving_default"]

    def encode(texts: list[str]) -> np.ndarray:
        order = sorted(range(len(texts)), key=lambda i: -len(texts[i]))
        result = None
        for start in range(0, len(order), BATCH):
            rows = order[start : start + BATCH]
            batch = encode_batch(text=tf.constant([texts[i] for i in rows]))["embeddings"].numpy()
            if result is None:
                result = np.empty((len(texts), batch.shape[1]), np.float32)
            result[rows] = batch
        return result

    return encode


def sentence_transformers_encoder(args: argparse.Namespace):
    """Returns the library's `encode`."""
    import torch
    from sentence_transformers import SentenceTransformer

    model = SentenceTransformer(args.model, device="cpu")

    def encode(texts: list[str]) -> np.ndarray:
        with torch.autocast("cpu", torch.bfloat16, enabled=args.dtype == "bfloat16"):
            return model.encode(
                texts, batch_size=BATCH, convert_to_numpy=True, normalize_embeddings=True
            )

    return encode


def onnxruntime_encoder(args: argparse.Namespace):
    """Exports the transformer to ONNX; tokenization by `tokenizers`, pooling in NumPy."""
    import onnxruntime
    import torch
    from sentence_transformers import SentenceTransformer

    model = SentenceTransformer(args.model, device="cpu")
    transformer = model[0].model.eval()
    tokenizer = model.tokenizer
    tokens = tokenizer(["a b c", "d"], padding=True, return_tensors="pt")
    names = ["input_ids", "attention_mask"]

    class Plain(torch.nn.Module):
        def forward(self, input_ids, attention_mask):
            return transformer(input_ids=input_ids, attention_mask=attention_mask).last_hidden_state

    with tempfile.TemporaryDirectory() as directory:
        path = f"{directory}/model.onnx"
        batch, length = torch.export.Dim("batch", min=1), torch.export.Dim("length", min=2)
        torch.onnx.export(
            Plain(),
            tuple(tokens[name] for name in names),
            path,
            input_names=names,
            output_names=["output"],
            dynamic_shapes={name: {0: batch, 1: length} for name in names},
            dynamo=True,
            verbose=False,
        )
        session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])

    def encode(texts: list[str]) -> np.ndarray:
        order = sorted(range(len(texts)), key=lambda i: -len(texts[i]))
        result = None
        for start in range(0, len(order), BATCH):
            rows = order[start : start + BATCH]
            tokens = tokenizer(
                [texts[i] for i in rows],
                padding=True,
                truncation=True,
                max_length=model.max_seq_length,
                return_tensors="np",
            )
            output = session.run(None, {name: tokens[name] for name in names})[0]
            mask = tokens["attention_mask"][:, :, None].astype(np.float32)
            pooled = (output * mask).sum(1) / mask.sum(1)
            pooled /= np.linalg.norm(pooled, axis=1, keepdims=True)
            if result is None:
                result = np.empty((len(texts), pooled.shape[1]), np.float32)
            result[rows] = pooled
        return result

    return encode


def work(args: argparse.Namespace) -> None:
    """One side: loads, then measures a pass over the texts, or single queries, when asked."""
    encode = globals()[f"{args.worker}_encoder"](args)
    texts = [QUERY] if args.queries else read_texts(args.texts)
    np.save(args.embeddings, encode(texts))

    def measure() -> dict:
        if not args.queries:
            start = time.perf_counter()
            encode(texts)
            return {"seconds": time.perf_counter() - start}
        seconds = []
        for _ in range(args.queries):
            start = time.perf_counter()
            encode(texts)
            seconds.append(time.perf_counter() - start)
        return {"seconds": float(np.median(seconds))}

    side_by_side.serve(measure)


def run(args: argparse.Namespace) -> dict:
    """Compares both sides for each question."""
    questions = [
        ("documents_float32", "sentence_transformers", "float32", 0),
        ("documents_float32", "onnxruntime", "float32", 0),
        ("documents_bfloat16", "sentence_transformers", "bfloat16", 0),
        ("one_query_float32", "sentence_transformers", "float32", args.single),
        ("one_query_float32", "onnxruntime", "float32", args.single),
    ]
    result: dict = {"model": Path(args.model).name, "texts": args.texts, "batch": BATCH}
    with tempfile.TemporaryDirectory() as directory:
        for name, peer, dtype, queries in questions:
            workers, embeddings = [], []
            for worker in ("tfde", peer):
                python = sys.executable if worker == "tfde" else side_by_side.peers_python()
                path = f"{directory}/{worker}.npy"
                options = ["--worker", worker, "--dtype", dtype, "--embeddings", path]
                options += ["--model", args.model, "--texts", str(args.texts)]
                options += ["--queries", str(queries)]
                workers.append(side_by_side.Worker(python, __file__, options))
                embeddings.append(np.load(path).astype(np.float32))
            found = side_by_side.compare(*workers, pairs=args.pairs)
            for worker in workers:
                worker.close()
            if name == "documents_float32" and peer == "sentence_transformers":
                reference = embeddings[1]
            if not queries:
                count = len(embeddings[0])
                found["ours_per_s"] = round(count / found["ours_s"], 1)
                found["theirs_per_s"] = round(count / found["theirs_s"], 1)
                for side, vectors in zip(("ours", "theirs"), embeddings, strict=True):
                    cosines = (vectors * reference).sum(1) / np.linalg.norm(vectors, axis=1)
                    found[f"{side}_smallest_cosine"] = round(float(cosines.min()), 6)
            result[f"{name} against {peer}"] = found
    packages = ("tensorflow", "keras", "torch", "sentence-transformers", "onnxruntime")
    return {**result, **side_by_side.machine(*packages)}


def main() -> None:
    """Runs a worker, or the whole comparison."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", required=True, help="sentence-transformers directory")
    parser.add_argument("--texts", type=int, default=2048, help="paragraphs a pass")
    parser.add_argument("--pairs", type=int, default=5, help="measurements of each side")
    parser.add_argument("--single", type=int, default=50, help="single queries a measurement")
    for name, kind in (("worker", str), ("dtype", str), ("embeddings", str), ("queries", int)):
        parser.add_argument(f"--{name}", type=kind, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.worker:
        work(args)
    else:
        print(json.dumps(run(args), indent=2))


if __name__ == "__main__":
    main()
