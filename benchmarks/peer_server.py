"""Search as one writes it without tfde: FastAPI, uvicorn, sentence-transformers and faiss.

    python benchmarks/peer_server.py build --model DIR --corpus corpus.jsonl --folder FOLDER
    python benchmarks/peer_server.py serve --model DIR --folder FOLDER --port 8600 [--batching]

`POST /search {"text": "...", "k": 10}` -> `{"doc_ids": [...], "scores": [...]}`. The model is
loaded and warmed up once; a question is encoded and searched in a pool of threads without locks.
With `--batching` questions wait in a queue and are encoded together: at most 32, and none waits
more than 2 ms for others. Runs in the peers' environment; knows nothing of tfde.
"""

import argparse
import asyncio
import contextlib
import json
import os
from collections.abc import Callable
from concurrent.futures import Executor, ThreadPoolExecutor
from pathlib import Path

import faiss
import fastapi
import pydantic
import torch
import uvicorn
from sentence_transformers import SentenceTransformer

BATCH, WAIT_S = 32, 0.002
NEIGHBOURS, SEARCHED = 32, 64  # of HNSW: links of a document, candidates of a search
INDEX, DOC_IDS = "index.faiss", "doc_ids.json"

Found = tuple[list[str], list[float]]


class Question(pydantic.BaseModel):
    text: str
    k: int = pydantic.Field(10, ge=1, le=1000)


class Answer(pydantic.BaseModel):
    doc_ids: list[str]
    scores: list[float]


class Searcher:
    """Finds documents for texts; safe to call from many threads."""

    def __init__(self, model: str, folder: Path) -> None:
        self._model = SentenceTransformer(model, device="cpu")
        self._index = faiss.read_index(str(folder / INDEX))
        self._doc_ids = json.loads((folder / DOC_IDS).read_text())
        self(["warm-up"], 10)

    def __call__(self, texts: list[str], k: int) -> list[Found]:
        """Returns the ids and scores of the k best documents of each text."""
        with torch.inference_mode():
            vectors = self._model.encode_query(
                texts, batch_size=BATCH, normalize_embeddings=True, show_progress_bar=False
            )
        scores, rows = self._index.search(vectors, min(k, len(self._doc_ids)))
        return [
            ([self._doc_ids[row] for row in found if row >= 0], best[found >= 0].tolist())
            for best, found in zip(scores, rows, strict=True)
        ]


class Batcher:
    """Answers questions that arrive together in one search."""

    def __init__(self, search: Callable[[list[str], int], list[Found]], pool: Executor) -> None:
        self._search, self._pool = search, pool
        self._waiting: asyncio.Queue = asyncio.Queue()

    async def ask(self, text: str, k: int) -> Found:
        """Returns what is found for one text."""
        answer = asyncio.get_running_loop().create_future()
        self._waiting.put_nowait((text, k, answer))
        return await answer

    async def run(self) -> None:
        """Answers for ever."""
        loop = asyncio.get_running_loop()
        while True:
            batch = await self._gather()
            texts, sizes, answers = zip(*batch, strict=True)
            try:
                found = await loop.run_in_executor(
                    self._pool, self._search, list(texts), max(sizes)
                )
            except Exception as error:
                for answer in answers:
                    if not answer.done():
                        answer.set_exception(error)
                continue
            for answer, k, (doc_ids, scores) in zip(answers, sizes, found, strict=True):
                if not answer.done():  # else its client has left
                    answer.set_result((doc_ids[:k], scores[:k]))

    async def _gather(self) -> list[tuple]:
        batch = [await self._waiting.get()]
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(WAIT_S):
                while len(batch) < BATCH:
                    batch.append(await self._waiting.get())
        return batch


def create_app(search: Searcher, *, threads: int, batching: bool) -> fastapi.FastAPI:
    """Returns the application."""
    pool = ThreadPoolExecutor(1 if batching else threads)
    batcher = Batcher(search, pool)

    @contextlib.asynccontextmanager
    async def lifespan(_: fastapi.FastAPI):
        task = asyncio.create_task(batcher.run())
        yield
        task.cancel()

    app = fastapi.FastAPI(lifespan=lifespan)

    @app.post("/search")
    async def answer(question: Question) -> Answer:
        if batching:
            doc_ids, scores = await batcher.ask(question.text, question.k)
        else:
            loop = asyncio.get_running_loop()
            found = await loop.run_in_executor(pool, search, [question.text], question.k)
            doc_ids, scores = found[0]
        return Answer(doc_ids=doc_ids, scores=scores)

    return app


def build(model: str, corpus: Path, folder: Path) -> None:
    """Encodes the documents and writes the index."""
    with corpus.open(encoding="utf-8") as file:
        documents = [json.loads(line) for line in file]
    vectors = SentenceTransformer(model, device="cpu").encode_document(
        [document["text"] for document in documents], normalize_embeddings=True
    )
    index = faiss.IndexHNSWFlat(vectors.shape[1], NEIGHBOURS, faiss.METRIC_INNER_PRODUCT)
    index.hnsw.efSearch = SEARCHED
    index.add(vectors)
    folder.mkdir(parents=True, exist_ok=True)
    faiss.write_index(index, str(folder / INDEX))
    (folder / DOC_IDS).write_text(json.dumps([document["_id"] for document in documents]))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("step", choices=["build", "serve"])
    parser.add_argument("--model", required=True, help="sentence-transformers directory")
    parser.add_argument("--folder", type=Path, required=True, help="of the index")
    parser.add_argument("--corpus", type=Path, help='JSON Lines {"_id", "text"}, for build')
    parser.add_argument("--port", type=int, default=8600)
    parser.add_argument("--batching", action="store_true", help="encode questions together")
    parser.add_argument("--threads", type=int, default=os.cpu_count(), help="that search")
    parser.add_argument("--torch-threads", type=int, help="within one encode; torch's own choice")
    args = parser.parse_args()
    if args.torch_threads:
        torch.set_num_threads(args.torch_threads)
        faiss.omp_set_num_threads(args.torch_threads)
    if args.step == "build":
        build(args.model, args.corpus, args.folder)
        return
    app = create_app(
        Searcher(args.model, args.folder), threads=args.threads, batching=args.batching
    )
    uvicorn.run(app, host="127.0.0.1", port=args.port, log_level="warning", access_log=False)


if __name__ == "__main__":
    main()
