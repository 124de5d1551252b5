"""What the day of operations serves: texts, a model, versions of a bundle, an index, servers."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import socket
import sys
import time
import urllib.request
from collections.abc import Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from day_check import ABSENT, Truth

import tfde
from tfde.data.dataset_directory import DatasetDirectory
from tfde.export.bundle import export_bundle
from tfde.retrieval.exact_index import ExactIndex
from tfde.retrieval.scann_index import ScannIndex
from tfde.text.sentence_piece.tokenizer import SentencePieceTokenizer
from tfde.text.sentence_piece.train import train_sentencepiece
from tfde.types import Document

SEED = 0
KEY = "a key of this run alone"
RECONNECT_S = 0.3  # what gRPC lets pass between tfde.Client's tries to connect, at most
QUERY_CHARACTERS = 120
GOLDEN = 4
SHIFT = 37  # of the texts under the ids, from a version to the next
TOWER = {"num_layers": 6, "num_heads": 6, "hidden_dim": 384, "intermediate_dim": 1536}
LENGTHS = tfde.TextConfig(query_max_length_tokens=32, document_max_length_tokens=64)


class World:
    """Everything that is served, in one folder.

    `d0` stands for another text in each version, so that no answer can be of two.

    Args:
        dataset: A dataset directory; its documents and queries.
        folder: An empty one.
        documents: How many texts there are; three quarters of them are served at the start.
        queries: How many queries are asked, beside the beginnings of all texts.
        model: A model directory; "" for a tower like MiniLM's with random weights.
    """

    def __init__(
        self, dataset: str, folder: Path, *, documents: int, queries: int, model: str
    ) -> None:
        source = DatasetDirectory(dataset)
        self.folder, self.model, self.data = folder, folder / "model", folder / "data"
        self._documents = _different(source, documents)
        self._model = tfde.DualEncoder.load(model) if model else _random(self._documents, folder)
        self._model.save_to_preset(self.model)
        asked = [query.text for query in islice(source.queries(), queries)]
        self.first_text = len(asked)  # the query of text 0
        self.queries = [*asked, *(_begins(document) for document in self._documents)]
        self._vectors = self._model.encode_documents(self._documents)
        self.query_embeddings = self._model.encode_queries(self.queries)
        self.truth = Truth(self._documents, self.query_embeddings @ self._vectors.T)
        # As many ids as texts: those beyond the live ones come and go.
        self.live = len(self._documents) * 3 // 4
        self.index = folder / "index"
        base = self.state_of(1)
        numbers = np.flatnonzero(base != ABSENT)
        ids = [f"d{number}" for number in numbers]
        vectors = self._vectors[base[numbers]]
        ScannIndex.build(vectors, ids, fingerprint=self._model.fingerprint()).save(self.index)
        self._write_data(base)
        (folder / "key").write_text(KEY)

    def state_of(self, version: int) -> np.ndarray:
        """Returns what an exported version holds."""
        total = len(self._documents)
        state = np.full(total, ABSENT, np.int32)
        state[: self.live] = (np.arange(self.live) + SHIFT * (version - 1)) % total
        return state

    def documents_of(self, state: np.ndarray) -> list[Document]:
        """Returns the documents of a state, in the order of their ids."""
        numbers = np.flatnonzero(state != ABSENT).tolist()
        return [self._documents[state[n]]._replace(doc_id=f"d{n}") for n in numbers]

    def export(self, version: int) -> Path:
        """Exports a version of the bundle, and returns its directory."""
        state = self.state_of(version)
        ids = [f"d{number}" for number in range(self.live)]
        vectors = self._vectors[state[: self.live]]
        return export_bundle(
            self._model,
            ExactIndex.build(vectors, ids, fingerprint=self._model.fingerprint()),
            self.folder / f"version-{version}",
            documents=self.documents_of(state),
            golden_queries=self.queries[:GOLDEN],
            version=version,
            scann=False,
        )

    def _write_data(self, state: np.ndarray) -> None:
        """Writes the dataset that the live index was built from."""
        self.data.mkdir()
        corpus = [
            {"_id": d.doc_id, "title": d.title, "text": d.text} for d in self.documents_of(state)
        ]
        queries = [{"_id": f"q{n}", "text": t} for n, t in enumerate(self.queries[:GOLDEN])]
        for name, records in (("corpus", corpus), ("queries", queries)):
            lines = (json.dumps(record) + "\n" for record in records)
            (self.data / f"{name}.jsonl").write_text("".join(lines), "utf-8")


def _different(dataset: DatasetDirectory, number: int) -> list[Document]:
    """Returns documents whose beginnings differ, for these are queries too."""
    found: dict[str, Document] = {}
    for document in dataset.documents():
        if document.text.strip():
            found.setdefault(_begins(document), document._replace(metadata=None))
        if len(found) == number:
            break
    return list(found.values())


def _begins(document: Document) -> str:
    return " ".join(f"{document.title} {document.text}".split())[:QUERY_CHARACTERS]


def _random(documents: Sequence[Document], folder: Path) -> tfde.DualEncoder:
    vocabulary = folder / "spiece.model"
    train_sentencepiece((d.text for d in documents), vocabulary, vocabulary_size=4000)
    return tfde.DualEncoder.from_backbone(
        tfde.T5Config(vocabulary_size=4096, key_value_dim=64, **TOWER),
        tokenizer=SentencePieceTokenizer.from_file(vocabulary),
        text=LENGTHS,
        seed=SEED,
    )


class Server:
    """`tfde serve` on ports that stay, killed and started again.

    Args:
        name: What it is called in the table.
        folder: Where its log lies.
        arguments: Of `tfde serve`.
    """

    def __init__(self, name: str, folder: Path, *arguments: object) -> None:
        self.name, self._log = name, folder / f"{name}.log"
        with (
            socket.create_server(("127.0.0.1", 0)) as one,
            socket.create_server(("127.0.0.1", 0)) as other,
        ):
            grpc_port, http_port = one.getsockname()[1], other.getsockname()[1]
        self.grpc, self.http = f"127.0.0.1:{grpc_port}", f"127.0.0.1:{http_port}"
        ports = ["--port", grpc_port, "--rest_api_port", 0, "--http_port", http_port]
        self._arguments = [*map(str, arguments), *map(str, ports)]
        self._downs: list[list[float]] = []
        self.up = asyncio.Event()
        self._process: asyncio.subprocess.Process | None = None

    @property
    def pid(self) -> int:
        """Of the process."""
        return self._process.pid

    async def start(self) -> None:
        """Returns when it says `ready`."""
        with self._log.open("ab") as log:
            self._process = await asyncio.create_subprocess_exec(
                sys.executable, "-m", "tfde.cli.main", "serve", *self._arguments,
                stdout=asyncio.subprocess.PIPE, stderr=log,
                env={**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3"},
            )  # fmt: skip
        if not (await self._process.stdout.readline()).startswith(b"ready"):
            raise RuntimeError(f"{self.name} did not start: {self._log.read_text()[-1000:]}")
        if self._downs:
            self._downs[-1][1] = time.monotonic() + RECONNECT_S
        self.up.set()

    async def kill(self) -> None:
        """Ends it by SIGKILL; it is down until it has started again."""
        self.up.clear()
        self._downs.append([time.monotonic(), np.inf])
        self._process.kill()
        await self._process.wait()

    async def stop(self) -> str:
        """Ends it by SIGTERM; returns what is wrong with that."""
        if self._process is None:
            return ""
        with contextlib.suppress(ProcessLookupError):
            self._process.terminate()
        code = await self._process.wait()
        return f"{self.name} ended with exit code {code}" if code else ""

    def was_down(self, asked_at: float, now: float) -> bool:
        """Whether it was down at a moment between two."""
        return any(since <= now and asked_at <= until for since, until in self._downs)


def index_status(target: str) -> Mapping[str, Any]:
    """Returns what a server says of its index."""
    headers = {"Authorization": f"Bearer {KEY}"}
    request = urllib.request.Request(f"http://{target}/v1/index/status", headers=headers)
    with urllib.request.urlopen(request, timeout=60) as response:
        return json.load(response)
