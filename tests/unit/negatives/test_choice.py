"""Top, random and sampled: frequencies as computed by hand."""

import itertools

import numpy as np
import pytest

from tfde.config.negatives import MiningRules
from tfde.data.ids import generator_of
from tfde.negatives.selection import choice_order

SCORES = [3.0, 2.0, 2.0, 0.0]


def orders(draws=6000, **options):
    rules = MiningRules(**options)
    return [tuple(choice_order(SCORES, rules, query_id=f"q{i}", doc_id="d")) for i in range(draws)]


def test_top_keeps_the_ranking():
    assert choice_order(SCORES, MiningRules(), query_id="q", doc_id="d") == [0, 1, 2, 3]


def test_random_takes_any_order_equally_often():
    counts = dict.fromkeys(itertools.permutations(range(4)), 0)
    for order in orders(choice="random"):
        counts[order] += 1
    # 24 orders, 250 each; binomial, standard deviation 15.5.
    assert min(counts.values()) > 170
    assert max(counts.values()) < 330


@pytest.mark.parametrize("temperature", [0.5, 1.0, 2.0])
def test_sampled_draws_by_softmax_without_replacement(temperature):
    found = orders(choice="sampled", temperature=temperature)
    weights = np.exp(np.array(SCORES) / temperature)
    for first, second in itertools.permutations(range(4), 2):
        left = weights.sum() - weights[first]
        expected = weights[first] / weights.sum() * weights[second] / left
        share = np.mean([order[:2] == (first, second) for order in found])
        assert abs(share - expected) < 4.5 * np.sqrt(expected * (1 - expected) / len(found)) + 1e-3


@pytest.mark.parametrize("choice", ["random", "sampled"])
def test_it_depends_on_seed_query_and_positive(choice):
    def order(seed=0, query_id="q1", doc_id="d1"):
        rules = MiningRules(choice=choice, seed=seed)
        return choice_order([0.0] * 50, rules, query_id=query_id, doc_id=doc_id)

    assert order() == order()
    assert len({tuple(o) for o in (order(), order(1), order(0, "q2"), order(0, "q1", "d2"))}) == 4


def test_names_do_not_run_together():
    assert generator_of(0, "a", "bc").random() != generator_of(0, "ab", "c").random()
    assert generator_of(0, "a").random() == generator_of(0, "a").random()
