"""Exact search against float64 NumPy, ScaNN against exact search at the sizes that decide."""

import numpy as np
import pytest

from tfde.retrieval.exact_index import ExactIndex
from tfde.retrieval.scann_index import ScannIndex
from tfde.retrieval.scann_parameters import ScannParameters


def clustered(rows, dim, seed, clusters=500):
    centers = np.random.default_rng(7).standard_normal((clusters, dim))
    generator = np.random.default_rng(seed)
    vectors = centers[generator.integers(0, clusters, rows)]
    vectors += 0.7 * generator.standard_normal((rows, dim))
    return (vectors / np.linalg.norm(vectors, axis=1, keepdims=True)).astype(np.float32)


@pytest.mark.parametrize("parts", [1, 4])
def test_exact_search_is_numpy_in_float64(parts):
    vectors, queries = clustered(20_000, 24, 0), clustered(700, 24, 1)
    index = ExactIndex(np.array_split(vectors, parts), [f"d{i}" for i in range(20_000)])
    scores, positions = index.search_positions(queries, 20)
    truth = queries.astype(np.float64) @ vectors.T.astype(np.float64)
    expected = np.sort(truth, axis=1)[:, ::-1][:, :20]
    np.testing.assert_allclose(scores, expected, atol=1e-6)
    np.testing.assert_allclose(np.take_along_axis(truth, positions, 1), expected, atol=1e-6)


@pytest.mark.parametrize(
    ("rows", "parameters", "kind"),
    [
        (19_999, None, "exact"),
        (20_000, None, "hash"),
        (30_000, ScannParameters(num_leaves=170, num_leaves_to_search=17), "tree"),
    ],
)
def test_scann_finds_what_exact_search_finds(rows, parameters, kind):
    vectors, queries = clustered(rows, 32, 2), clustered(300, 32, 3)
    doc_ids = [f"d{i}" for i in range(rows)]
    index = ScannIndex.build(vectors, doc_ids, parameters=parameters)
    assert index.parameters.kind == kind
    wanted = ExactIndex.build(vectors, doc_ids).search(queries, 10)[1]
    found = index.search(queries, 10)[1]
    recall = np.mean([len(set(a) & set(b)) / 10 for a, b in zip(wanted, found, strict=True)])
    assert recall >= (1 if kind == "exact" else 0.95)
    assert index.recall(10, query_embeddings=queries).recall == pytest.approx(recall, abs=1e-3)
    assert index.recall(10, sample=300).recall > 0.9
