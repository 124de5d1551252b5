"""Many texts are run in parts; few are not touched."""

import itertools

import numpy as np
import pytest
from grpc import StatusCode

from tfde.serving.application.search_service import check_size, run_in_parts
from tfde.serving.server.batching import in_parts
from tfde.serving.server.status import StatusError


def test_rows_keep_their_order_and_like_lengths_share_a_part():
    rng = np.random.default_rng(0)
    texts = np.array(["x" * n for n in rng.integers(1, 90, 300)], object)
    titles = np.array([f"{n} " for n in range(300)], object)
    seen = []

    def run(part):
        seen.append(
            [
                len(text) + len(title)
                for text, title in zip(part["text"], part["title"], strict=True)
            ]
        )
        assert part["k"] == 7
        assert part["k"].ndim == 0
        return {
            "title": part["title"],
            "vectors": np.array([[len(text), 7] for text in part["text"]]),
        }

    found = run_in_parts(run, {"title": titles, "text": texts, "k": np.array(7)})
    assert found["title"].tolist() == titles.tolist()
    assert found["vectors"].tolist() == [[len(text), 7] for text in texts]
    assert [len(part) for part in seen] == [128, 128, 44]
    for shorter, longer in itertools.pairwise(seen):
        assert max(shorter) <= min(longer)


def test_few_are_run_as_they_are():
    inputs = {"text": np.array(["a", "b"], object)}
    assert run_in_parts(lambda part: part, inputs) is inputs


def test_an_answer_is_bounded():
    check_size(["q"] * 20, 1000)
    with pytest.raises(
        StatusError, match=r"`k` must be at most 952 for 21 queries.*: 1000"
    ) as caught:
        check_size(["q"] * 21, 1000)
    assert caught.value.code is StatusCode.INVALID_ARGUMENT


def test_an_answer_in_parts_is_bounded():
    """Rows that fit in a message may ask for more than fits in memory."""
    done = []

    def run(part, rows, _):
        done.append(rows)
        return [np.zeros([rows, 1024], object), np.zeros([rows, 1024], np.float32)]

    with pytest.raises(
        StatusError, match=r"at most 268435456 bytes.*3872 of its 20000 rows"
    ) as caught:
        in_parts(run, [np.zeros([20_000, 1])], 32, timeout_s=None)
    assert caught.value.code is StatusCode.RESOURCE_EXHAUSTED
    assert sum(done) * 1024 * 68 > 2**28 >= (sum(done) - 32) * 1024 * 68
    assert len(in_parts(run, [np.zeros([3_840, 1])], 32, timeout_s=None)[0]) == 3_840
