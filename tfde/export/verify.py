"""Is a bundle what was exported, and does it still answer as it did?"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

# Registers the text ops that the SavedModels hold.
import tensorflow_text  # noqa: F401

from tfde.argument_types import typed
from tfde.engines.tower_engine import is_installed, open_tower
from tfde.environment import load_scann_ops
from tfde.errors import CorruptError, first_line
from tfde.export.bundle_directory import BundleVersion, bundle_versions
from tfde.storage.atomic import LOCK
from tfde.storage.files import sha256

# Another machine multiplies in another order; half precision and 8-bit
# weights keep 8 bits of a number.
_TOLERANCE = {"float32": 1e-4}
_LOOSE_TOLERANCE = 2e-2
_LEAST_OVERLAP = 0.8
_RETRIEVERS = ("retriever", "retriever_partitioned", "retriever_scann")


@typed
def verify_bundle(path: str | Path) -> list[str]:
    """Compares each version of a bundle with its manifest and asks its models the golden queries.

    Args:
        path: The bundle.

    Returns:
        What differs, one line each; empty when nothing does. A model whose files differ is not
        asked. `retriever_scann` is asked only where ScaNN's ops load, the query encoder also in the
        other engines of the bundle that are installed.

    Raises:
        FileNotFoundError: no bundle there.
        CorruptError: a manifest cannot be read.
    """
    path = Path(path)
    versions = bundle_versions(path)
    differences = [line for version in versions.values() for line in _verify(path, version)]
    live = next((version for version in versions.values() if version.state == "live"), None)
    if live is not None:
        differences += [
            f"{name}: is not that of version {live.number}, which is live"
            for name in live.own_files
            if not _equal(path / name, live.files / name)
        ]
    return [*differences, *_unknown(path, versions.values())]


def _verify(path: Path, version: BundleVersion) -> list[str]:
    manifest, differences = version.manifest, []
    for name, checksum in sorted(manifest["files"].items()):
        file = _place(version, name)
        shown = file.relative_to(path).as_posix() if file.parent.exists() else name
        if not file.is_file():
            differences.append(f"{shown}: is missing")
        elif sha256(file) != checksum:
            differences.append(f"{shown}: differs from what was exported")
    towers, index = manifest["towers_fingerprint"], manifest["index_fingerprint"]
    if index not in (None, towers):
        differences.append(f"fingerprints: towers {towers}, index {index}")
    tolerance = _TOLERANCE.get(manifest["compute_dtype"], _LOOSE_TOLERANCE)
    if manifest["int8_weights"]:
        tolerance = _LOOSE_TOLERANCE
    for name, folder in version.models.items():
        prefix = f"{folder.relative_to(path).as_posix()}/"
        if not any(line.startswith(prefix) for line in differences):
            differences += _ask(folder, name, manifest, tolerance)
    return differences


def _equal(one: Path, other: Path) -> bool:
    if one == other or not other.is_file():  # the latter has its own line
        return True
    return one.is_file() and one.read_bytes() == other.read_bytes()


def _place(version: BundleVersion, name: str) -> Path:
    """Where a file of the manifest lies."""
    if not name.startswith("models/"):
        return version.files / name
    _, model, _, rest = name.split("/", 3)
    return version.models[model] / rest


def _unknown(path: Path, versions: Collection[BundleVersion]) -> Iterable[str]:
    known = {_place(version, name) for version in versions for name in version.manifest["files"]}
    known.add(path / LOCK)
    for version in versions:
        known |= {folder / name for name in version.own_files for folder in (path, version.files)}
    numbers = set()
    for file in sorted(file for file in path.rglob("*") if file.is_file() and file not in known):
        name = file.relative_to(path).as_posix()
        place = re.match(r"models/[^/]+/(\d+)[./]", name)
        if place and int(place[1]) not in {version.number for version in versions}:
            numbers.add(int(place[1]))
        else:
            yield f"{name}: was not exported"
    for number in sorted(numbers):
        yield f"version {number}: was not exported; tfde bundle install brings its manifest along"


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
        return [f"models/{name}/{directory.name}: cannot be loaded ({first_line(error)})"]
    text = tf.constant([query["text"] for query in golden])
    if name == "query_encoder":
        embeddings = signature(text=text)["embeddings"].numpy()
        lines = list(_compare_embeddings(golden, embeddings, tolerance))
        for engine in filter(is_installed, manifest.get("engines", {})):
            try:
                runner = open_tower(engine, directory)
            except CorruptError as error:
                lines.append(str(error))
                continue
            tokens = model.signatures["tokenize"](text=text)
            embeddings = runner(**{key: part.numpy() for key, part in tokens.items()})
            found = _compare_embeddings(golden, embeddings, tolerance)
            lines += [f"{line} in {engine}" for line in found]
        return lines
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
