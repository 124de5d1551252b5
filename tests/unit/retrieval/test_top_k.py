import numpy as np
import pytest

from tfde.retrieval.top_k import TopK


def by_sorting(scores, k):
    order = np.argsort(-scores, axis=1, kind="stable")[:, :k]
    return np.take_along_axis(scores, order, 1), order


@pytest.mark.parametrize("k", [1, 3, 10, 64, 200])
@pytest.mark.parametrize("block", [1, 7, 50, 300])
def test_any_blocks_give_the_stable_sort(k, block):
    generator = np.random.default_rng(k * 1000 + block)
    # Few distinct values: ties everywhere, also across the borders of blocks.
    scores = generator.integers(0, 12, (9, 137)).astype(np.float32)
    top = TopK(9, k)
    for start in range(0, 137, block):
        top.update(scores[:, start : start + block], start)
    expected_scores, expected_positions = by_sorting(scores, k)
    np.testing.assert_array_equal(top.scores, expected_scores)
    np.testing.assert_array_equal(top.positions, expected_positions)


def test_constant_scores_keep_the_first():
    top = TopK(2, 3)
    for start in (0, 5, 10):
        top.update(np.zeros((2, 5), np.float32), start)
    np.testing.assert_array_equal(top.positions, [[0, 1, 2], [0, 1, 2]])


def test_ascending_scores_replace_everything():
    top = TopK(1, 2)
    for start in range(0, 40, 4):
        top.update(np.arange(start, start + 4, dtype=np.float32)[None], start)
    np.testing.assert_array_equal(top.positions, [[39, 38]])
