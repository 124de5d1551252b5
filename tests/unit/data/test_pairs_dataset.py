import hashlib
import time

import numpy as np
import pytest

from tfde.data.ids import key_of
from tfde.data.pairs.dataset import PairDataset, pairs
from tfde.errors import ConfigError
from tfde.types import Document, Pair, Query


def document(i):
    return Document(f"d{i}", f"T{i}", f"text {i} é")


def key(doc_id):
    """Of the id and a hash of title and text."""
    _, title, text, _ = document(int(doc_id[1:]))
    content = hashlib.blake2b(f"{len(title)} {title}{text}".encode(), digest_size=12).hexdigest()
    digest = hashlib.blake2b(f"{doc_id} x{content}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") // 2


def pair(i, *, positive=None, negatives=(), positives=()):
    return Pair(
        Query(f"q{i}", f"query {i}"),
        document(i if positive is None else positive),
        tuple(document(n) for n in negatives),
        positives,
    )


def texts(values):
    return [value.decode() for value in values.numpy()]


def queries_of(batches):
    return [texts(batch["query"]) for batch in batches]


def test_a_batch_holds_what_the_pairs_say():
    data = PairDataset(
        [
            pair(0, positive=7, negatives=(1, 2), positives=("d7", "d8")),
            pair(1, positive=7),
            pair(2, positive=3, negatives=(4,)),
            pair(2, positive=5),
        ],
        batch_size=4,
        negatives_per_query=2,
        shuffle=False,
    )
    (batch,) = data.dataset(steps=1)
    assert texts(batch["query"]) == ["query 0", "query 1", "query 2", "query 2"]
    assert texts(batch["document_title"]) == ["T7", "T7", "T3", "T5"]
    assert texts(batch["document_text"])[0] == "text 7 é"
    assert batch["document_key"].numpy().tolist() == [key("d7"), key("d7"), key("d3"), key("d5")]
    assert batch["positive_keys"].numpy().tolist() == [
        [key("d7"), key_of("d8")],
        [key("d7"), 0],
        [key("d3"), key("d5")],
        [key("d3"), key("d5")],
    ]
    assert batch["negative_key"].numpy().tolist() == [
        [key("d1"), key("d2")], [0, 0], [key("d4"), 0], [0, 0]
    ]  # fmt: skip
    assert batch["negative_text"].numpy()[2].tolist() == ["text 4 é".encode(), b""]
    assert batch["negative_title"].numpy()[0].tolist() == [b"T1", b"T2"]
    assert batch["document_probability"].numpy().tolist() == [0.5, 0.5, 0.25, 0.25]
    assert data.dataset().element_spec == data.element_spec
    for name, spec in data.element_spec.items():
        assert spec.is_compatible_with(batch[name])


def test_margins_stand_beside_their_negatives():
    taught = pair(0, negatives=(1, 2))._replace(margins=(0.5, -2.0))
    data = PairDataset([taught, pair(1)], batch_size=2, negatives_per_query=2, shuffle=False)
    assert data.batch(0)["negative_margin"].tolist() == [[0.5, -2.0], [0.0, 0.0]]
    assert data.table[0].margins == (0.5, -2.0)
    assert data.table[1].margins == ()
    with pytest.raises(ConfigError, match=r"`margins` must be 2, as the negatives\. Received: \(1"):
        PairDataset([taught._replace(margins=(1.0,))], batch_size=1)


def test_a_negative_without_a_score_has_no_margin():
    pairs = [pair(0, negatives=(1, 2)), pair(1)]
    data = PairDataset(pairs, batch_size=2, negatives_per_query=2, shuffle=False)
    np.testing.assert_array_equal(data.batch(0)["negative_margin"], [[np.nan] * 2, [0.0] * 2])


def test_balanced_margins_draw_the_parts_of_the_range_alike():
    """Nine margins near 0 and one of 10: by chance it is drawn one time in ten, here every other.

    The parts are [0, 5) and [5, 10]; what is drawn comes with its own margin.
    """
    margins = (*(0.1 * i for i in range(9)), 10.0)
    taught = pair(0, negatives=range(1, 11))._replace(margins=margins)
    drawn = {}
    for bins in (0, 2):
        data = PairDataset([taught], batch_size=1, negatives_per_query=1, margin_bins=bins, seed=3)
        batches = [data.batch(step) for step in range(400)]
        drawn[bins] = np.array([batch["negative_margin"][0, 0] for batch in batches])
        for batch in batches[:20]:
            place = list(margins).index(pytest.approx(batch["negative_margin"][0, 0]))
            assert batch["negative_key"][0, 0] == key(f"d{place + 1}")
    assert abs(np.mean(drawn[0] == 10) - 0.1) < 0.05
    assert abs(np.mean(drawn[2] == 10) - 0.5) < 0.08
    near = drawn[2][drawn[2] < 5]
    assert {round(float(x), 1) for x in near} == {round(0.1 * i, 1) for i in range(9)}


def test_balanced_margins_draw_none_twice_and_want_them_all():
    taught = pair(0, negatives=(1, 2, 3, 4))._replace(margins=(1.0, 1.0, 1.0, 9.0))
    options = {"batch_size": 1, "margin_bins": 10}
    data = PairDataset([taught], negatives_per_query=3, **options)
    for step in range(10):
        batch = data.batch(step)
        assert len(set(batch["negative_key"][0])) == 3
        assert 9.0 in batch["negative_margin"][0]
    equal = PairDataset([taught._replace(margins=(2.0,) * 4)], negatives_per_query=2, **options)
    assert equal.batch(0)["negative_margin"].tolist() == [[2.0, 2.0]]
    with pytest.raises(ConfigError, match=r"`margin_bins` must be 0 where .* '10, 1 without'"):
        PairDataset([taught, pair(1, negatives=(5,))], negatives_per_query=1, **options)


def test_without_negatives_their_columns_are_there_and_empty():
    data = PairDataset([pair(0, negatives=(1,)), pair(1)], batch_size=2)
    (batch,) = data.dataset(steps=1)
    for name in ("negative_title", "negative_text", "negative_key"):
        assert batch[name].shape == (2, 0)


def test_an_epoch_is_the_documented_permutation_in_full_batches():
    data = PairDataset([pair(i) for i in range(10)], batch_size=3, seed=5)
    assert data.num_pairs == 10
    assert data.steps_per_epoch == 3
    got = queries_of(data.dataset(steps=6))
    for epoch in (0, 1):
        order = np.random.Generator(np.random.PCG64([5, epoch])).permutation(10)
        expected = [[f"query {i}" for i in order[s : s + 3]] for s in (0, 3, 6)]
        assert got[3 * epoch : 3 * epoch + 3] == expected


def test_batches_depend_on_seed_and_step_alone():
    rows = [pair(i, negatives=range(100, 120)) for i in range(23)]

    def batches(**options):
        data = PairDataset(rows, batch_size=4, negatives_per_query=3, seed=1)
        return [
            (texts(batch["query"]), batch["negative_key"].numpy().tolist())
            for batch in data.dataset(**options)
        ]

    unbroken = batches(steps=14)
    assert batches(steps=4) + batches(start_step=4, steps=10) == unbroken
    assert unbroken[0][1] != unbroken[5][1]
    assert all(len(set(row)) == 3 for _, negatives in unbroken for row in negatives)
    other = PairDataset(rows, batch_size=4, negatives_per_query=3, seed=2)
    assert queries_of(other.dataset(steps=14)) != [queries for queries, _ in unbroken]


def test_two_readers_in_different_epochs_do_not_disturb_each_other():
    data = PairDataset([pair(i) for i in range(12)], batch_size=3)
    late, early = data.dataset(start_step=40, steps=8), data.dataset(steps=8)
    expected = queries_of(early), queries_of(late)
    together = list(zip(early, late, strict=True))
    assert tuple(queries_of(side) for side in zip(*together, strict=True)) == expected


def test_in_order_the_rest_is_the_last_batch():
    data = PairDataset([pair(i) for i in range(5)], batch_size=2, shuffle=False)
    assert data.steps_per_epoch == 3
    assert queries_of(data.dataset(steps=4)) == [
        ["query 0", "query 1"], ["query 2", "query 3"], ["query 4"], ["query 0", "query 1"]
    ]  # fmt: skip


def test_every_given_negative_is_drawn_sooner_or_later():
    data = PairDataset([pair(0, negatives=(1, 2, 3, 4))], batch_size=1, negatives_per_query=1)
    drawn = [int(data.batch(step)["negative_key"][0, 0]) for step in range(400)]
    counts = [drawn.count(key(f"d{i}")) for i in (1, 2, 3, 4)]
    assert sum(counts) == 400
    assert min(counts) > 60  # binomial(400, 1/4): 100 +- 8.7


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"batch_size": 0}, "`batch_size` must be at least 1. Received: 0"),
        ({"batch_size": 3}, "`batch_size` must be at most the number of pairs, 2. Received: 3"),
        ({"batch_size": 1, "seed": -1}, "`seed` must be at least 0. Received: -1"),
        ({"batch_size": 1, "negatives_per_query": -1}, "`negatives_per_query` must be at least 0"),
        ({"batch_size": 1, "negatives_per_query": 2}, "`negatives_per_query` must be 0, for no p"),
    ],
)
def test_impossible_values_are_refused(options, message):
    with pytest.raises(ConfigError, match=message):
        PairDataset([pair(0), pair(1)], **options)


def test_no_pairs_and_no_such_step_are_refused():
    with pytest.raises(ConfigError, match="`pairs` must hold at least one pair"):
        PairDataset([], batch_size=1)
    with pytest.raises(ConfigError, match=r"`start_step` must be at least 0\. Received: -1"):
        PairDataset([pair(0)], batch_size=1).dataset(start_step=-1)


def test_real_pairs_feed_training_fast_enough_from_any_step(data_dir):
    data = pairs(data_dir / "scifact", split="train", batch_size=128)
    assert data.num_pairs == 917
    next(iter(data.dataset(steps=1)))
    start = time.perf_counter()
    assert sum(1 for _ in data.dataset(start_step=10**9, steps=50)) == 50
    assert time.perf_counter() - start < 5  # ten times slower than on an idle core would pass
