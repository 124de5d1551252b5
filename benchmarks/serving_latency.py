"""How long does one query take through gRPC, and how many are answered in a second?

    python benchmarks/serving_latency.py [--documents 20000] [--requests 500]

A T5-shaped query tower (4 layers of 256, random weights) and random documents, served by
`tfde serve` in a process of its own; prints one JSON object.
"""

import argparse
import concurrent.futures
import json
import os
import platform
import re
import subprocess
import sys
import tempfile
import time
from importlib.metadata import version
from pathlib import Path

import numpy as np

import tfde
from tfde.export.bundle import export_bundle
from tfde.retrieval.scann_index import ScannIndex
from tfde.serving.client import Client
from tfde.text.sentence_piece.tokenizer import SentencePieceTokenizer
from tfde.text.sentence_piece.train import train_sentencepiece

SEED = 0
DIM = 256
TOWER = {"num_layers": 4, "num_heads": 4, "hidden_dim": 256, "intermediate_dim": 512}


def make_bundle(directory: Path, documents: int) -> Path:
    rng = np.random.default_rng(SEED)
    words = ["".join(rng.choice(list("abcdefghijklmnop"), 5)) for _ in range(2000)]
    texts = [" ".join(rng.choice(words, 12)) for _ in range(2000)]
    vocabulary = train_sentencepiece(texts, directory / "spiece.model", vocabulary_size=1000)
    model = tfde.DualEncoder.from_backbone(
        tfde.T5Config(vocabulary_size=1000, key_value_dim=64, **TOWER),
        tokenizer=SentencePieceTokenizer.from_file(vocabulary),
        embedding_dim=DIM,
        seed=SEED,
    )
    vectors = rng.normal(size=(documents, DIM)).astype(np.float32)
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    doc_ids = [f"d{number}" for number in range(documents)]
    index = ScannIndex.build(vectors, doc_ids, fingerprint=model.fingerprint())
    passages = (tfde.Document(doc_id, "", texts[0]) for doc_id in doc_ids)
    (directory / "texts.json").write_text(json.dumps(texts))
    return export_bundle(model, index, directory / "bundle", documents=passages)


def measure(ask, texts: list[str]) -> dict[str, float]:
    for text in texts[:20]:
        ask(text)
    seconds = []
    for text in texts:
        started = time.perf_counter()
        ask(text)
        seconds.append(time.perf_counter() - started)
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        started = time.perf_counter()
        list(pool.map(ask, texts))
        together = len(texts) / (time.perf_counter() - started)
    p50, p99 = np.percentile(seconds, [50, 99]) * 1000
    return {"p50_ms": round(p50, 2), "p99_ms": round(p99, 2), "qps_8_clients": round(together)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--documents", type=int, default=20_000)
    parser.add_argument("--requests", type=int, default=500)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        bundle = make_bundle(Path(directory), args.documents)
        texts = json.loads(Path(directory, "texts.json").read_text())[: args.requests]
        command = [sys.executable, "-m", "tfde.cli.main", "serve", str(bundle)]
        with subprocess.Popen(
            [*command, "--port", "0", "--rest_api_port", "0", "--http_port", "0"],
            stdout=subprocess.PIPE,
            text=True,
        ) as server:
            target = re.search(r"gRPC (\S+),", server.stdout.readline())[1]
            result = {}
            for name in ("retriever", "retriever_scann"):
                with Client(target, model=name) as client:
                    result[name] = measure(lambda text, c=client: c.search([text], 10), texts)
            with Client(target) as client:
                result["query_encoder"] = measure(lambda text: client.encode_queries([text]), texts)
            server.terminate()
    print(
        json.dumps(
            {
                **result,
                "documents": args.documents,
                "requests": args.requests,
                "tower": TOWER,
                "embedding_dim": DIM,
                "seed": SEED,
                "tfde": tfde.__version__,
                "tensorflow": version("tensorflow"),
                "machine": f"{platform.machine()}, {os.cpu_count()} cores",
            }
        )
    )


if __name__ == "__main__":
    main()
