"""A foreign checkpoint, exported and served, ranks as sentence-transformers does."""

import importlib
import json
import re
import subprocess
import sys
from itertools import islice

import numpy as np
import pytest

from tfde.cli.main import main
from tfde.data.dataset_directory import DatasetDirectory
from tfde.serving.client import Client

pytestmark = pytest.mark.peers

DOCUMENTS, QUERIES, K = 300, 40, 10


@pytest.fixture(scope="module")
def library():
    """The library; imported here, after TensorFlow, and only when a test of this file runs."""
    return importlib.import_module("sentence_transformers")


@pytest.fixture(scope="module")
def dataset(data_dir, tmp_path_factory):
    """The first documents and queries of SciFact."""
    directory = tmp_path_factory.mktemp("scifact")
    source = DatasetDirectory(data_dir / "scifact")
    with (directory / "corpus.jsonl").open("w") as file:
        for document in islice(source.documents(), DOCUMENTS):
            row = {"_id": document.doc_id, "title": document.title, "text": document.text}
            file.write(json.dumps(row) + "\n")
    with (directory / "queries.jsonl").open("w") as file:
        for query in islice(source.queries(), QUERIES):
            file.write(json.dumps({"_id": query.query_id, "text": query.text}) + "\n")
    return directory


def lines(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_served_ranking(library, minilm, dataset, tmp_path):
    """`tfde encode`, `build-index`, `export`, `serve` straight from the foreign directory."""
    embeddings, index, bundle = (str(tmp_path / name) for name in ("embeddings", "index", "bundle"))
    for command in (
        ["encode", "--model", str(minilm), "--dataset", str(dataset), "--output", embeddings],
        ["build-index", "--embeddings", embeddings, "--output", index],
        ["export", "--model", str(minilm), "--index", index, "--output", bundle],
    ):
        assert main(command) == 0
    documents, queries = lines(dataset / "corpus.jsonl"), lines(dataset / "queries.jsonl")
    model = library.SentenceTransformer(str(minilm), device="cpu")
    passages = model.encode([f"{d['title']} {d['text']}".strip() for d in documents])
    expected = model.encode([query["text"] for query in queries]) @ passages.T

    command = [sys.executable, "-m", "tfde.cli.main", "serve", bundle]
    command += ["--port", "0", "--rest_api_port", "0", "--http_port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        try:
            target = re.search(r"gRPC (\S+),", server.stdout.readline())[1]
            with Client(target) as client:
                found = client.search([query["text"] for query in queries], k=K)
        finally:
            server.terminate()
    rows = {document["_id"]: row for row, document in enumerate(documents)}
    for scores, hits in zip(expected, found, strict=True):
        assert len({hit.doc_id for hit in hits}) == K
        # Place by place; documents whose scores differ by rounding alone may change places.
        theirs = np.sort(scores)[::-1][:K]
        ours = [scores[rows[hit.doc_id]] for hit in hits]
        np.testing.assert_allclose(ours, theirs, atol=2e-6)
        np.testing.assert_allclose([hit.score for hit in hits], theirs, atol=1e-5)
