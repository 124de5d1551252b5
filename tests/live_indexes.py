"""Small live indexes whose answers are exact, and what they must answer like."""

import numpy as np

from tfde.retrieval.exact_index import ExactIndex
from tfde.types import Document

DIM = 6


def whole_numbers(generator, rows, dim=DIM):
    """Dot products of these are exact in float32, in any order of summing; and there are ties."""
    return generator.integers(-4, 5, (rows, dim)).astype(np.float32)


def documents_of(doc_ids, note=""):
    return [Document(doc_id, f"title {doc_id}", f"text {doc_id} {note}") for doc_id in doc_ids]


def exact(path, rows=40, seed=0):
    vectors = whole_numbers(np.random.default_rng(seed), rows)
    doc_ids = [f"d{i}" for i in range(rows)]
    ExactIndex.build(vectors, doc_ids, fingerprint="f").save(path)
    return dict(zip(doc_ids, vectors, strict=True))


def add(index, vectors, note=""):
    return index.add(documents_of(vectors, note), np.stack(list(vectors.values())), fingerprint="f")


def assert_answers_like(index, expected, queries, ks=(1, 3, 10, 1000)):
    """`expected`: vectors by id, in the order of base and last change."""
    anew = ExactIndex.build(np.stack(list(expected.values())), list(expected))
    assert index.doc_ids.tolist() == list(expected)
    for k in ks:
        scores, doc_ids = index.search(queries, k)
        wanted_scores, wanted = anew.search(queries, k)
        assert doc_ids.tolist() == wanted.tolist()
        np.testing.assert_array_equal(scores, wanted_scores)
