"""Is a bundle what was exported, and does it still answer as it did?"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

# Registers the text ops that the SavedModels hold.
import tensorflow_text  # noqa: F401

from tfde.data.files import sha256
from tfde.export.manifest import MANIFEST, read_manifest
from tfde.retrieval.scann_ops import load_scann_ops

# Another machine multiplies in another order; half precision and 8-bit
# weights keep 8 bits of a number.
_TOLERANCE = {"float32": 1e-4}
_LOOSE_TOLERANCE = 2e-2
_LEAST_OVERLAP = 0.8
_RETRIEVERS = ("retriever", "retriever_partitioned", "retriever_scann")


def verify_bundle(path: str | Path) -> list[str]:
    """Compares a bundle with its manifest and asks its models the golden queries.

    Args:
        path: The bundle.

    Returns:
        What differs, one line each; empty when nothing does. A model whose files differ is not
        asked. `retriever_scann` is asked only where ScaNN's ops load.

    Raises:
        FileNotFoundError: no bundle there.
        CorruptError: its manifest cannot be read.
    """
    path = Path(path)
    manifest = read_manifest(path)
    differences = list(_files(path, manifest["files"]))
    towers, index = manifest["towers_fingerprint"], manifest["index_fingerprint"]
    if index not in (None, towers):
        differences.append(f"fingerprints: towers {towers}, index {index}")
    tolerance = _TOLERANCE.get(manifest["compute_dtype"], _LOOSE_TOLERANCE)
    if manifest["int8_weights"]:
        tolerance = _LOOSE_TOLERANCE
    for name in manifest["models"]:
        folder = f"models/{name}/"
        if not any(line.startswith(folder) for line in differences):
            differences += _ask(path / folder / str(manifest["version"]), name, manifest, tolerance)
    return differences


def _files(path: Path, recorded: dict[str, str]) -> Iterable[str]:
    for name, checksum in sorted(recorded.items()):
        if not (path / name).is_file():
            yield f"{name}: is missing"
        elif sha256(path / name) != checksum:
            yield f"{name}: differs from what was exported"
    there = {file.relative_to(path).as_posix() for file in path.rglob("*") if file.is_file()}
    for name in sorted(there - set(recorded) - {MANIFEST}):
        yield f"{name}: was not exported"


def _ask(directory: Path, name: str, manifest: dict[str, Any], tolerance: float) -> list[str]:
    golden = manifest["golden_queries"]
    if name not in ("query_encoder", *_RETRIEVERS) or not golden:
        return []
    if name == "retriever_scann" and not load_scann_ops():
        return []
    try:
        model = tf.saved_model.load(str(directory))  # held here: it owns the variables
        signature = model.signatures["serving_default"]
    except (tf.errors.OpError, OSError, ValueError, KeyError) as error:
        return [f"models/{name}: cannot be loaded ({str(error).strip().splitlines()[0]})"]
    text = tf.constant([query["text"] for query in golden])
    if name == "query_encoder":
        embeddings = signature(text=text)["embeddings"].numpy()
        return list(_compare_embeddings(golden, embeddings, tolerance))
    answers = signature(text=text, k=tf.constant(manifest["golden_k"]))
    doc_ids = [[value.decode() for value in row] for row in answers["doc_ids"].numpy()]
    # Bundles of before `retrievers` was written have no other exact one.
    about = manifest.get("retrievers", {}).get(name, {"exact": name == "retriever"})
    if not about["exact"]:
        scores = answers["scores"].numpy()
        return list(_compare_approximate(name, golden, doc_ids, scores, tolerance))
    lines = []
    for query, ids, scores in zip(golden, doc_ids, answers["scores"].numpy(), strict=True):
        line = _compare_answer(query["retriever"], ids, scores, tolerance)
        if line:
            lines.append(f"retriever: query {query['text']!r}: {line}")
    return lines


def _compare_embeddings(
    golden: list[dict[str, Any]], embeddings: np.ndarray, tolerance: float
) -> Iterable[str]:
    for query, embedding in zip(golden, embeddings, strict=True):
        expected = np.array(query["embedding"], np.float32)
        worst = np.inf if expected.shape != embedding.shape else np.abs(expected - embedding).max()
        if not worst <= tolerance * max(1.0, float(np.abs(expected).max())):
            yield f"query_encoder: query {query['text']!r}: embedding differs by {worst:.2g}"


def _compare_approximate(
    name: str,
    golden: list[dict[str, Any]],
    doc_ids: list[list[str]],
    scores: np.ndarray,
    tolerance: float,
) -> Iterable[str]:
    """Compares scores of documents that were found then and now, and how many those are.

    Which documents are found may change with the last bit of an embedding: it decides between
    two leaves, or two codes, of equal distance.
    """
    common = 0
    for query, ids, row in zip(golden, doc_ids, scores, strict=True):
        answer = query[name]
        known = dict(zip(answer["doc_ids"], answer["scores"], strict=True))
        limit = tolerance * max(1.0, *map(abs, answer["scores"]))
        for doc_id, score in zip(ids, row, strict=True):
            common += doc_id in known
            if not abs(known.get(doc_id, score) - score) <= limit:
                yield (
                    f"{name}: query {query['text']!r}: document {doc_id!r}:"
                    f" score {score:.6f}, expected {known[doc_id]:.6f}"
                )
    expected = sum(len(query[name]["doc_ids"]) for query in golden)
    if common < _LEAST_OVERLAP * expected:
        yield f"{name}: finds {common} of the {expected} documents expected"


def _compare_answer(
    expected: dict[str, Any], doc_ids: list[str], scores: np.ndarray, tolerance: float
) -> str | None:
    """Returns what differs; documents whose scores are equal within the tolerance may swap."""
    if len(doc_ids) != len(expected["doc_ids"]):
        return f"{len(doc_ids)} documents, expected {len(expected['doc_ids'])}"
    known = dict(zip(expected["doc_ids"], expected["scores"], strict=True))
    limit = tolerance * max(1.0, *map(abs, expected["scores"]))
    rows = zip(doc_ids, scores, expected["doc_ids"], expected["scores"], strict=True)
    for rank, (doc_id, score, expected_id, expected_score) in enumerate(rows, start=1):
        if not abs(score - expected_score) <= limit:
            return f"rank {rank}: score {score:.6f}, expected {expected_score:.6f}"
        # An id that was not among the expected ones can only be equal to the last of them.
        swapped = abs(known.get(doc_id, expected["scores"][-1]) - expected_score) <= limit
        if doc_id != expected_id and not swapped:
            return f"rank {rank}: document {doc_id!r}, expected {expected_id!r}"
    return None
