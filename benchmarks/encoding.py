"""How fast are texts encoded, against sentence-transformers, ONNX Runtime and OpenVINO?

    python benchmarks/encoding.py [--questions documents_float32 ...] [--peers onnxruntime]
        [--engines tensorflow openvino] [--model DIR | random-t5-small] [--texts 128] [--pairs 3]

The same weights (a sentence-transformers directory; all-MiniLM-L6-v2 by default), the same
paragraphs of SQuAD (`TFDE_DATA`), batches of 32 by length, all cores. Ours is the exported
SavedModel, or with another engine the model as `DualEncoder.load(..., engine=)` has it: strings
in, embeddings out, tokenization included on both sides. The peers pad. Prints one JSON object:
documents in float32, bfloat16 (autocast in PyTorch, a hint in OpenVINO) and int8 (dynamic
quantisation in ONNX Runtime, TensorFlow alone on our side), one query at a time, and the smallest
cosine to the library's float32 embeddings.
For int8 also nDCG@10 on SciFact, in points, of both sides and of our float32.
"""

import argparse
import itertools
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import inputs
import numpy as np
import side_by_side

BATCH = 32
QUERY = "who wrote the play about a prince of denmark?"
SENTENCE_TRANSFORMERS, ONNXRUNTIME = "sentence_transformers", "onnxruntime"
OPENVINO, TENSORFLOW = "openvino", "tensorflow"
QUESTIONS = [
    ("documents_float32", SENTENCE_TRANSFORMERS),
    ("documents_float32", ONNXRUNTIME),
    ("documents_float32", OPENVINO),
    ("documents_bfloat16", SENTENCE_TRANSFORMERS),
    ("documents_bfloat16", OPENVINO),
    ("documents_int8", ONNXRUNTIME),
    ("one_query_float32", SENTENCE_TRANSFORMERS),
    ("one_query_float32", ONNXRUNTIME),
    ("one_query_float32", OPENVINO),
    ("one_query_bfloat16", SENTENCE_TRANSFORMERS),
]
POLICIES = {"float32": "float32", "bfloat16": "mixed_bfloat16", "int8": "mixed_bfloat16"}
SCIFACT = "scifact"


def in_batches(texts: list[str], encode: Callable[[list[str]], np.ndarray]) -> np.ndarray:
    """Returns the embeddings in the texts' order; texts of like length share a batch."""
    order = sorted(range(len(texts)), key=lambda i: -len(texts[i]))
    parts = [order[start : start + BATCH] for start in range(0, len(order), BATCH)]
    vectors = np.concatenate([encode([texts[i] for i in rows]) for rows in parts])
    return vectors[np.argsort(order)]


def tfde_encoder(args: argparse.Namespace):
    """Exports the model, loads the SavedModel, returns a function from texts to embeddings.

    With another engine: the model in it.
    """
    import tensorflow as tf

    from tfde.towers.dual_encoder import DualEncoder
    from tfde.towers.saved_models import QueryEncoder, save_encoder

    model = DualEncoder.load(args.model, dtype=POLICIES[args.dtype], engine=args.engine)
    if args.engine != TENSORFLOW:
        encode = model.encode_queries if args.single else model.encode_documents
        return lambda texts: encode(texts, batch_size=BATCH)
    options = {"int8_weights": True} if args.dtype == "int8" else {}
    encoder = QueryEncoder(model.query_tower, model.preprocessor, **options)
    with tempfile.TemporaryDirectory() as directory:
        save_encoder(encoder, Path(directory) / "m")
        loaded = tf.saved_model.load(str(Path(directory) / "m"))
    signature = loaded.signatures["serving_default"]

    def encode_batch(texts: list[str]) -> np.ndarray:
        return signature(text=tf.constant(texts))["embeddings"].numpy()

    return lambda texts: in_batches(texts, encode_batch)


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
    """ONNX Runtime on the transformer as ONNX."""
    import onnxruntime
    from onnxruntime.quantization import quantize_dynamic

    def load(path: str):
        if args.dtype == "int8":
            quantize_dynamic(path, f"{path}.int8.onnx")
            path = f"{path}.int8.onnx"
        session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
        return lambda tokens: session.run(None, tokens)[0]

    return padded_encoder(args, load)


def openvino_encoder(args: argparse.Namespace):
    """OpenVINO, as its documentation first shows it, on the transformer as ONNX."""
    sys.modules["openvino_telemetry"] = None  # it would tell Google Analytics of the import
    import openvino

    hints = {
        "PERFORMANCE_HINT": "LATENCY" if args.single else "THROUGHPUT",
        "INFERENCE_PRECISION_HINT": {"float32": "f32", "bfloat16": "bf16"}[args.dtype],
    }

    def load(path: str):
        compiled = openvino.Core().compile_model(path, "CPU", hints)
        return lambda tokens: compiled(tokens)[0]

    return padded_encoder(args, load)


def padded_encoder(args: argparse.Namespace, load: Callable):
    """Exports the transformer to ONNX; tokenization by `tokenizers`, pooling in NumPy.

    `load` makes of the file a function from token ids and mask to a vector a token.
    """
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
        run = load(path)

    def encode_batch(texts: list[str]) -> np.ndarray:
        tokens = tokenizer(
            texts,
            padding=True,
            truncation=True,
            max_length=model.max_seq_length,
            return_tensors="np",
        )
        output = run({name: tokens[name] for name in names})
        mask = tokens["attention_mask"][:, :, None].astype(np.float32)
        pooled = (output * mask).sum(1) / mask.sum(1)
        return pooled / np.linalg.norm(pooled, axis=1, keepdims=True)

    return lambda texts: in_batches(texts, encode_batch)


def work(args: argparse.Namespace) -> None:
    """One side: loads, then measures a pass over the texts, or single queries, when asked.

    With `--scifact` it only writes that data set's embeddings.
    """
    encode = globals()[f"{args.worker}_encoder"](args)
    if args.scifact:
        documents, queries, _ = inputs.read_dataset(SCIFACT, args.scifact)
        texts = [*documents.values(), *queries.values()]
    else:
        texts = [QUERY] if args.single else inputs.read_texts(args.texts)
    np.save(args.embeddings, encode(texts))
    if args.once:
        return

    def measure() -> dict:
        seconds = []
        for _ in range(args.single or 1):
            start = time.perf_counter()
            encode(texts)
            seconds.append(time.perf_counter() - start)
        return {"seconds": float(np.median(seconds))}

    side_by_side.serve(measure)


def command(
    args: argparse.Namespace, worker: str, dtype: str, path: Path, engine: str = TENSORFLOW
) -> tuple:
    """Returns interpreter, script and arguments of a worker that writes embeddings to `path`."""
    python = sys.executable if worker == "tfde" else side_by_side.peers_python()
    options = ["--worker", worker, "--dtype", dtype, "--embeddings", str(path), "--engine", engine]
    return python, __file__, [*options, "--model", args.model, "--texts", str(args.texts)]


def embed_once(args: argparse.Namespace, worker: str, dtype: str, *more: str) -> np.ndarray:
    """Returns what one side makes of the texts."""
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "embeddings.npy"
        python, script, options = command(args, worker, dtype, path)
        line = [str(python), script, *options, "--once", *more]
        subprocess.run(line, check=True, stdout=subprocess.DEVNULL)
        return np.load(path).astype(np.float32)


def scifact_ndcg(args: argparse.Namespace, worker: str, dtype: str) -> float:
    """Returns nDCG@10 on SciFact, in points."""
    from tfde.evaluation.measures import evaluate

    documents, queries, qrels = inputs.read_dataset(SCIFACT, args.scifact_documents)
    vectors = embed_once(args, worker, dtype, "--scifact", str(args.scifact_documents))
    scores = vectors[len(documents) :] @ vectors[: len(documents)].T
    run = {
        query_id: dict(zip(documents, row.tolist(), strict=True))
        for query_id, row in zip(queries, scores, strict=True)
    }
    return round(100 * evaluate(run, qrels, ["nDCG@10"])["nDCG@10"], 2)


def compare(
    args: argparse.Namespace, name: str, peers: list[str], reference: np.ndarray | None
) -> dict[str, dict]:
    """Compares ours, in each engine, with each peer on one question; all take turns.

    Args:
        args: The command line's.
        name: The question.
        peers: Who is asked beside us.
        reference: The documents' embeddings; `None` where one query is asked.

    Returns:
        What was found by key: the question, in which engine, against whom.
    """
    dtype = name.rpartition("_")[2]
    single = ["--single", str(args.single)] if reference is None else []
    engines = [each for each in args.engines if each == TENSORFLOW or dtype != "int8"]
    if not engines:
        return {}
    sides = [*(("tfde", engine) for engine in engines), *((peer, "") for peer in peers)]
    with tempfile.TemporaryDirectory() as directory:
        paths = {side: Path(directory) / f"{'_'.join(side)}.npy" for side in sides}
        workers = {}
        for side in sides:
            python, script, options = command(args, side[0], dtype, paths[side], side[1])
            workers[side] = side_by_side.Worker(python, script, [*options, *single])
        times = side_by_side.in_turns(workers, rounds=args.pairs)
        vectors = {side: np.load(path).astype(np.float32) for side, path in paths.items()}
        for worker in workers.values():
            worker.close()
    results = {}
    for engine, peer in itertools.product(engines, peers):
        ours, theirs = ("tfde", engine), (peer, "")
        found = side_by_side.ratio(list(zip(times[ours], times[theirs], strict=True)))
        if reference is not None:
            for label, side in (("ours", ours), ("theirs", theirs)):
                found[f"{label}_per_s"] = round(len(reference) / found[f"{label}_s"], 1)
                found |= cosines(label, vectors[side], reference)
        if dtype == "int8":
            found["scifact_documents"] = len(
                inputs.read_dataset(SCIFACT, args.scifact_documents)[0]
            )
            found["ours_scifact_ndcg10"] = scifact_ndcg(args, "tfde", "int8")
            found["theirs_scifact_ndcg10"] = scifact_ndcg(args, peer, "int8")
            found["float32_scifact_ndcg10"] = scifact_ndcg(args, "tfde", "float32")
        by = "" if engine == TENSORFLOW else f" in {engine}"
        results[f"{name}{by} against {peer}"] = found
    return results


def cosines(side: str, vectors: np.ndarray, reference: np.ndarray) -> dict[str, float]:
    """Returns how close the embeddings are to the reference, which has the norm 1."""
    found = (vectors * reference).sum(1) / np.linalg.norm(vectors, axis=1)
    return {
        f"{side}_smallest_cosine": round(float(found.min()), 6),
        f"{side}_mean_cosine": round(float(found.mean()), 6),
    }


def main() -> None:
    """Runs a worker, or the comparisons asked for."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    names = list(dict.fromkeys(name for name, _ in QUESTIONS))
    peers, engines = [SENTENCE_TRANSFORMERS, ONNXRUNTIME, OPENVINO], [TENSORFLOW, OPENVINO]
    parser.add_argument("--model", default=inputs.MINILM, help="sentence-transformers directory")
    parser.add_argument("--questions", nargs="+", choices=names, default=names)
    parser.add_argument("--peers", nargs="+", choices=peers, default=peers)
    parser.add_argument("--engines", nargs="+", choices=engines, default=engines)
    parser.add_argument("--texts", type=int, default=128, help="paragraphs a pass")
    parser.add_argument("--pairs", type=int, default=3, help="measurements of each side")
    parser.add_argument("--single", type=int, help="single queries a measurement (default 50)")
    parser.add_argument("--scifact-documents", type=int, default=10_000, help="at most so many")
    parser.add_argument("--output", type=Path, help="JSON file, besides standard output")
    parser.add_argument("--scifact", type=int, default=0, help=argparse.SUPPRESS)
    parser.add_argument("--once", action="store_true", help=argparse.SUPPRESS)
    for name in ("worker", "dtype", "embeddings", "engine"):
        parser.add_argument(f"--{name}", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.worker:
        work(args)
        return
    args.single = args.single or 50
    args.model = inputs.model_directory(name := args.model)
    result: dict = {"model": Path(name).name, "texts": args.texts, "batch": BATCH}
    asked = [q for q in QUESTIONS if q[0] in args.questions and q[1] in args.peers]
    reference = None
    if any(name.startswith("documents") for name, _ in asked):
        reference = embed_once(args, SENTENCE_TRANSFORMERS, "float32")
    for question in dict.fromkeys(name for name, _ in asked):
        among = [peer for name, peer in asked if name == question]
        documents = question.startswith("documents")
        result |= compare(args, question, among, reference if documents else None)
    packages = ("tensorflow", "keras", "torch", "transformers", "sentence-transformers")
    packages += ("onnx", "onnxruntime", "openvino")
    side_by_side.finish(result, packages, args.output)


if __name__ == "__main__":
    main()
