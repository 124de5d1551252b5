"""What the mixed load serves: documents, a model, an index, bundles, and the servers of them."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import subprocess
import sys
import urllib.request
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import grpc
import numpy as np
from model_server import free_port

import tfde
from tfde.data.dataset_directory import DatasetDirectory
from tfde.export.bundle import export_bundle
from tfde.retrieval.scann_index import ScannIndex
from tfde.text.sentence_piece.tokenizer import SentencePieceTokenizer
from tfde.text.sentence_piece.train import train_sentencepiece
from tfde.types import Document

SEED = 0
KEY = "a key of this run alone"
TOWER = {"num_layers": 6, "num_heads": 6, "hidden_dim": 384, "intermediate_dim": 1536}
LENGTHS = tfde.TextConfig(query_max_length_tokens=32, document_max_length_tokens=64)


class World(NamedTuple):
    """All that is served, and what it must answer."""

    bundle: Path
    index: Path
    versions: tuple[Path, Path]  # models of even versions, of odd ones
    documents: list[Document]
    live: int  # so many of them are in the index at the start
    queries: list[str]  # after these, the texts of the documents are queries too
    query_embeddings: np.ndarray
    similarity: np.ndarray


def read_documents(dataset: DatasetDirectory, number: int) -> list[Document]:
    """Returns documents whose texts differ; a title is part of the text, as a query has none."""
    found: dict[str, Document] = {}
    for document in dataset.documents():
        text = " ".join(f"{document.title} {document.text}".split())
        if text:
            found.setdefault(text, Document(document.doc_id, "", text))
        if len(found) == number:
            break
    return list(found.values())


def random_model(documents: Sequence[Document], folder: Path) -> tfde.DualEncoder:
    vocabulary = folder / "spiece.model"
    train_sentencepiece((d.text for d in documents), vocabulary, vocabulary_size=4000)
    return tfde.DualEncoder.from_backbone(
        tfde.T5Config(vocabulary_size=4096, key_value_dim=64, **TOWER),
        tokenizer=SentencePieceTokenizer.from_file(vocabulary),
        text=LENGTHS,
        seed=SEED,
    )


def make_world(args: argparse.Namespace, folder: Path) -> World:
    """Exports a bundle with an index of three quarters of the documents, and two versions."""
    dataset = DatasetDirectory(args.dataset)
    documents = read_documents(dataset, args.documents)
    model = tfde.DualEncoder.load(args.model) if args.model else random_model(documents, folder)
    queries = [query.text for query in islice(dataset.queries(), args.queries)]
    vectors = model.encode_documents(documents)
    query_embeddings = model.encode_queries([*queries, *(d.text for d in documents)])
    live = len(documents) * 3 // 4

    def export(chosen: slice, name: str) -> tuple[Path, ScannIndex]:
        some = documents[chosen]
        ids = [document.doc_id for document in some]
        index = ScannIndex.build(vectors[chosen], ids, fingerprint=model.fingerprint())
        export_bundle(
            model, index, folder / name, documents=some, golden_queries=queries[:4], scann=False
        )
        return folder / name, index

    bundle, index = export(slice(live), "bundle")
    other, _ = export(slice(live // 2, None), "other")
    index.save(folder / "index")
    return World(
        bundle=bundle,
        index=folder / "index",
        versions=(other / "models", bundle / "models"),
        documents=documents,
        live=live,
        queries=queries,
        query_embeddings=query_embeddings,
        similarity=query_embeddings @ vectors.T,
    )


@contextlib.contextmanager
def server_process(module: str, *options: object) -> Iterator[subprocess.Popen[str]]:
    """Starts a server; it must end well when it is asked to."""
    with subprocess.Popen(
        [sys.executable, "-m", module, *map(str, options)],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env={**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3"},
    ) as server:
        try:
            yield server
        finally:
            server.terminate()
            code = server.wait()
    if code:
        raise RuntimeError(f"{module} ended with exit code {code}")


@contextlib.contextmanager
def search_server(world: World, folder: Path) -> Iterator[tuple[int, str]]:
    """Gives pid and HTTP target of a server of the live index."""
    (folder / "key").write_text(KEY)
    options = ["--index", world.index, "--admin_key_file", folder / "key"]
    ports = ["--port", 0, "--rest_api_port", 0, "--http_port", 0]
    with server_process("tfde.cli.main", "serve", world.bundle, *options, *ports) as server:
        ready = re.search(r"search http://(\S+);", server.stdout.readline())
        if ready is None:
            raise RuntimeError("tfde serve did not start")
        yield server.pid, ready[1]


@contextlib.contextmanager
def model_server(base: Path, names: Sequence[str], *options: str) -> Iterator[tuple[int, str]]:
    """Gives pid and gRPC target of a model server."""
    models = "".join(
        f"config {{ name: '{name}' base_path: '{base / name}' model_platform: 'tensorflow' }} "
        for name in names
    )
    (base / "models.config").write_text(f"model_config_list {{ {models} }}")
    target = f"127.0.0.1:{free_port()}"
    with server_process(
        "tfde.cli.model_server",
        f"--model_config_file={base / 'models.config'}",
        f"--port={target.rpartition(':')[2]}",
        "--host=127.0.0.1",
        "--enable_batching",
        *options,
    ) as server:
        with grpc.insecure_channel(target) as channel:
            ready = grpc.channel_ready_future(channel)
            while True:
                with contextlib.suppress(grpc.FutureTimeoutError):
                    ready.result(timeout=1)
                    break
                if server.poll() is not None:
                    raise RuntimeError("tfde-model-server did not start")
        yield server.pid, target


def index_status(http_target: str) -> dict[str, Any]:
    """Returns what `tfde serve` says of its index; its generation counts compactions from 1."""
    headers = {"Authorization": f"Bearer {KEY}"}
    request = urllib.request.Request(f"http://{http_target}/v1/index/status", headers=headers)
    with urllib.request.urlopen(request, timeout=600) as response:
        return json.load(response)
