"""Drawing tokens by given numbers."""

import numpy as np

from tfde.negatives.keras_hub_generator import DrawnSampler


def probabilities(rows, vocabulary, seed=0):
    values = np.random.default_rng(seed).random((rows, vocabulary)).astype(np.float32) ** 4
    return values / values.sum(axis=1, keepdims=True)


def test_a_token_is_where_the_fraction_of_the_line_ends():
    given = probabilities(40, 23)
    fractions = np.random.default_rng(1).random((40, 3), dtype=np.float32)
    sampler = DrawnSampler(5, 1.0)
    sampler.begin(fractions)
    for place in range(3):
        found = sampler.get_next_token(given).numpy()
        for row in range(40):
            best = sorted(range(23), key=lambda token: -given[row, token])[:5]
            line = np.cumsum(given[row, best].astype(np.float64))
            expected = best[int(np.searchsorted(line, fractions[row, place] * line[-1], "right"))]
            assert found[row] == expected


def test_shares_of_many_draws_are_the_probabilities():
    given = probabilities(1, 30)[0]
    draws = 10_000
    sampler = DrawnSampler(6, 1.0)
    sampler.begin(((np.arange(draws) + 0.5) / draws)[:, None].astype(np.float32))
    found = sampler.get_next_token(np.tile(given, (draws, 1))).numpy()
    best = np.argsort(-given)[:6]
    shares = np.bincount(found, minlength=30) / draws
    expected = np.zeros(30)
    expected[best] = given[best] / given[best].sum()
    np.testing.assert_allclose(shares, expected, atol=2 / draws)


def test_top_1_is_the_most_probable():
    given = probabilities(50, 9)
    sampler = DrawnSampler(1, 1.0)
    sampler.begin(np.full((50, 1), 0.999, np.float32))
    np.testing.assert_array_equal(sampler.get_next_token(given), given.argmax(axis=1))


def test_the_end_of_the_line_is_the_last_token():
    sampler = DrawnSampler(2, 1.0)
    sampler.begin(np.ones((1, 1), np.float32))
    assert sampler.get_next_token(np.array([[0.1, 0.7, 0.2]], np.float32)).numpy() == [2]


def test_temperature_divides_the_logits():
    logits = np.log(np.array([[0.2, 0.3, 0.5]]))
    found = DrawnSampler(3, 2.0).compute_probabilities(logits)
    roots = np.sqrt([[0.2, 0.3, 0.5]])
    np.testing.assert_allclose(found, roots / roots.sum(), rtol=1e-5)
