"""What `tfde serve` chooses by itself."""

from argparse import Namespace

import pytest

from tfde.cli.serve import op_threads


@pytest.mark.parametrize(
    ("about", "options", "threads"),
    [
        ({"documents": 20_000, "embedding_dim": 384}, {}, 1),
        ({"documents": 22_000, "embedding_dim": 384}, {}, 8),
        ({"documents": 22_000, "embedding_dim": 384}, {"retriever": "retriever_scann"}, 1),
        ({"documents": 22_000, "embedding_dim": 384}, {"index": "index"}, 1),
        ({"documents": 22_000, "embedding_dim": 384}, {"op_threads": 3}, 3),
        ({"documents": None, "embedding_dim": 384}, {}, 1),  # towers alone
        ({}, {}, 1),  # models alone
    ],
)
def test_ops_have_more_threads_for_products_with_many_vectors(monkeypatch, about, options, threads):
    monkeypatch.setenv("TFDE_CORES", "8")
    args = {"index": None, "retriever": "retriever", "op_threads": None, **options}
    assert op_threads(Namespace(**args), about) == threads
