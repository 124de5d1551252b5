import numpy as np
import pytest
from scipy import stats

from tfde.pretraining.tasks import Draws, ShuffledRange


def test_equal_keys_draw_equal_numbers_and_others_do_not():
    def numbers(*key):
        draws = Draws(*key)
        return [draws.below(1000) for _ in range(20)]

    assert numbers(1, "ict", 7) == numbers(1, "ict", 7)
    assert numbers(1, "ict", 7) != numbers(1, "ict", 8)
    assert numbers(1, "2") != numbers(12, "")  # parts of a key do not run together


def test_numbers_are_uniform():
    counts = np.zeros(7, int)
    for key in range(1000):
        draws = Draws(key)
        for _ in range(14):
            counts[draws.below(7)] += 1
    assert stats.chisquare(counts).pvalue > 0.001
    fractions = [Draws(key).fraction() for key in range(2000)]
    assert stats.kstest(fractions, "uniform").pvalue > 0.001


@pytest.mark.parametrize("size", [1, 2, 3, 5, 16, 17, 100, 4096, 5000])
def test_a_shuffled_range_holds_each_number_once(size):
    order = ShuffledRange(size, "key", 3)
    assert sorted(order[place] for place in range(size)) == list(range(size))


def test_orders_of_other_keys_differ_and_look_random():
    size = 5000
    orders = [[ShuffledRange(size, key)[place] for place in range(size)] for key in (0, 1)]
    for order in orders:
        # Of random orders, neighbours and places correlate with 1 / sqrt(5000) = 0.014.
        assert abs(np.corrcoef(order[:-1], order[1:])[0, 1]) < 0.06
        assert abs(np.corrcoef(order, range(size))[0, 1]) < 0.06
        # How many of ten equal parts each tenth of the order takes from.
        table = np.histogram2d(order, np.arange(size), bins=10)[0]
        assert stats.chisquare(table.ravel()).pvalue > 0.001
    assert abs(np.corrcoef(*orders)[0, 1]) < 0.06


@pytest.mark.parametrize("place", [-1, 5])
def test_a_place_outside_is_refused(place):
    with pytest.raises(IndexError, match=rf"`place` must be in \[0, 5\)\. Received: {place}"):
        ShuffledRange(5)[place]
