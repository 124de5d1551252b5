"""The whole road on the documentation of this machine's own Python packages."""

from __future__ import annotations

import logging
import re
import shutil
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from tfde.config import TextConfig
from tfde.data.dataset_directory import DatasetDirectory
from tfde.demo.demo_dataset import PAIRS_FILE, demo_dataset
from tfde.demo.python_docs import python_pages
from tfde.errors import ConfigError
from tfde.evaluation.measures import evaluate
from tfde.evaluation.report import Row, format_table
from tfde.export.bundle import export_bundle
from tfde.recipe import ModelConfig, OptimizerConfig, StageConfig, TrainRun, ValidationConfig
from tfde.retrieval.bm25_index import Bm25Index
from tfde.retrieval.embeddings import Embeddings
from tfde.retrieval.encode_corpus import encode_corpus
from tfde.retrieval.exact_index import ExactIndex
from tfde.retrieval.retrieve import retrieve
from tfde.retrieval.scann_index import ScannIndex
from tfde.serving.client import Client
from tfde.towers.dual_encoder import DualEncoder
from tfde.training.run import train
from tfde.types import Run

QUESTIONS = (
    "read a csv file row by row into dictionaries",
    "copy a whole directory tree",
    "measure the execution time of a small piece of code",
    "draw random samples from a normal distribution",
    "layer that normalizes its inputs over a batch",
)
MEASURES = ("P@1", "RR", "nDCG@10", "R@100")
MARKER = "demo.json"
_PRODUCTS = {MARKER, "data", "run", "embeddings", "index", "bundle", "server.log"}
SEED = 7
_SERVER_WAIT_S = 120


def run_demo(
    output: str | Path,
    *,
    packages: Sequence[str] = (),
    backbone: str | None = None,
    steps: int | None = None,
) -> None:
    """Corpus, training, measures, export, index, server, answers; prints all the way.

    Args:
        output: A new directory, or that of an earlier demo, which is replaced.
        packages: More installed packages whose documentation belongs to the corpus.
        backbone: A pre-trained backbone in place of random weights.
        steps: Training steps; by default what fits into five minutes on two cores.

    Raises:
        ConfigError: `output` holds something else, or a package is not found.
    """
    output = Path(output)
    _take_over(output)
    road = _Road()
    with road.stage("corpus: documentation of the installed packages"):
        counts = demo_dataset(python_pages(packages), output / "data", seed=SEED)
        print(
            f"{counts.pages:,} pages, {counts.documents:,} documents,"
            f" {counts.summary_pairs:,} summary and {counts.cloze_pairs:,} cloze pairs;"
            f" {counts.test_queries} held-out queries"
        )
    dataset = DatasetDirectory(output / "data")
    with road.stage("training: both towers from scratch" if backbone is None else "training"):
        model = train(_recipe(output / "data", backbone, steps), output / "run")
        print(model.summary_of_sharing())
    with road.stage("encoding the corpus"):
        encode_corpus(
            model,
            dataset.documents(),
            output / "embeddings",
            total=dataset.num_documents,
            show_progress=sys.stderr.isatty(),
        )
        embeddings = Embeddings.open(output / "embeddings")
    with road.stage("measuring on the held-out queries, beside BM25"):
        rows = _measure(model, dataset, embeddings)
        print(format_table(rows))
        print(_verdict(rows))
    with road.stage("ScaNN index and bundle"):
        index = ScannIndex.from_embeddings(embeddings)
        index.save(output / "index")
        recall = index.recall(10)
        print(f"recall@10 of the index against exact search: {recall.recall:.4f}")
        bundle = export_bundle(
            model,
            index,
            output / "bundle",
            documents=dataset.documents(),
            golden_queries=QUESTIONS,
            measures={row.name: row.measures for row in rows},
        )
    with road.stage("a model server of its own, asked over gRPC"), _server(bundle) as target:
        _ask(target)
    print(f"\n{time.perf_counter() - road.began:.0f} s in all. What is left:")
    print(f"  tfde serve {bundle}      # the same server again; then, in another shell:")
    print('  tfde query --target localhost:8500 "how do I join two paths?"')
    print(f"  tfde evaluate --dataset {output / 'data'} --model {output / 'run/model'} --bm25")


class _Road:
    """Prints which stage it is, and how long each took."""

    def __init__(self) -> None:
        self.began = time.perf_counter()
        self._number = 0

    @contextmanager
    def stage(self, title: str) -> Iterator[None]:
        self._number += 1
        start = time.perf_counter()
        print(f"\n[{self._number}/6] {title}", flush=True)
        yield
        print(f"      {time.perf_counter() - start:.0f} s", flush=True)


def _take_over(output: Path) -> None:
    """Empties the directory of an earlier demo; refuses any other that is not empty."""
    found = {path.name for path in output.iterdir()} if output.exists() else set()
    foreign = {name for name in found - _PRODUCTS if not name.startswith(".")}
    if found and (MARKER not in found or foreign):
        raise ConfigError(f"{output} is not empty and holds no demo; choose another --output.")
    if found:
        shutil.rmtree(output)
    output.mkdir(parents=True, exist_ok=True)
    (output / MARKER).write_text('{"made_by": "tfde demo"}\n', "utf-8")


def _recipe(data: Path, backbone: str | None, steps: int | None) -> TrainRun:
    """The recipe: a small T5-style ADE-SPL from random weights, or a given backbone."""
    small = {
        "kind": "t5",
        "vocabulary_size": 8000,
        "num_layers": 2,
        "num_heads": 4,
        "hidden_dim": 128,
        "intermediate_dim": 256,
        "key_value_dim": 32,
        "dropout": 0.1,
    }
    if steps is None:
        steps = 450 if backbone is None else 60
    third = -(-steps // 3)
    stage = StageConfig(
        data=str(data / PAIRS_FILE),
        steps=steps,
        batch_size=128 if backbone is None else 32,
        temperature=0.05,
        bidirectional=True,
        optimizer=OptimizerConfig(
            name="adafactor" if backbone is None else "adamw",
            learning_rate=0.01 if backbone is None else 5e-5,
            warmup_steps=min(50, steps // 4),
        ),
        validation=ValidationConfig(str(data), split="dev", every_steps=third, max_documents=2000),
        checkpoint_every_steps=third,
    )
    model = ModelConfig(
        backbone=small if backbone is None else backbone,
        sharing="ade_spl",
        embedding_dim=128 if backbone is None else None,
        text=TextConfig(query_max_length_tokens=32, document_max_length_tokens=64),
    )
    return TrainRun(model, {"demo": stage}, seed=SEED)


def _measure(model: DualEncoder, dataset: DatasetDirectory, embeddings: Embeddings) -> list[Row]:
    queries, qrels = list(dataset.queries("test")), dataset.qrels("test")
    start = time.perf_counter()
    dense = retrieve(model, ExactIndex.from_embeddings(embeddings), queries, 100)
    rows = [Row("tfde ade_spl", evaluate(dense, qrels, MEASURES), time.perf_counter() - start)]
    start = time.perf_counter()
    found = Bm25Index.build(dataset.documents()).search([query.text for query in queries], 100)
    bm25: Run = {q.query_id: dict(row) for q, row in zip(queries, found, strict=True)}
    return [*rows, Row("BM25", evaluate(bm25, qrels, MEASURES), time.perf_counter() - start)]


def _verdict(rows: list[Row]) -> str:
    ours, bm25 = (row.measures["nDCG@10"] for row in rows)
    if ours < bm25:
        return "BM25 wins: a small model from scratch has seen too little text to beat it."
    return "The trained model wins." if ours > bm25 else "They are equal."


@contextmanager
def _server(bundle: Path) -> Iterator[str]:
    """Runs `tfde serve` as a process of its own; gives its gRPC address."""
    command = [sys.executable, "-m", "tfde.cli.main", "serve", str(bundle)]
    log = bundle.parent / "server.log"
    with log.open("w") as errors:
        process = subprocess.Popen(
            [*command, "--port", "0", "--rest_api_port", "0", "--http_port", "0"],
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
        )
        try:
            line = process.stdout.readline() if process.stdout else ""
            found = re.search(r"gRPC (\S+:\d+)", line)
            if not found:
                raise ConfigError(f"the server did not start; its log is {log}.")
            print(f"serving {bundle} at {found.group(1)} (process {process.pid})")
            yield found.group(1)
        finally:
            process.terminate()
            try:
                process.wait(_SERVER_WAIT_S)
            except subprocess.TimeoutExpired:
                logging.getLogger("tfde").warning("the server did not stop; killing it")
                process.kill()


def _ask(target: str) -> None:
    with Client(target, model="retriever_scann") as client:
        client.search(QUESTIONS[:1], 3)  # the first request traces; the time below should not
        start = time.perf_counter()
        answers = client.search(QUESTIONS, 3)
        seconds = time.perf_counter() - start
    for question, hits in zip(QUESTIONS, answers, strict=True):
        print(f"\n  {question}")
        for hit in hits:
            passage = textwrap.shorten(hit.text, 70, placeholder=" ...")
            print(f"  {hit.rank}  {hit.score:.3f}  {hit.title}: {passage}")
    print(f"\n  five questions answered in {1e3 * seconds:.0f} ms")
