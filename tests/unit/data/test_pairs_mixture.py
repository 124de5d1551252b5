"""Batches from a stream, and from several sources."""

import numpy as np
import pytest
import tiny

from tfde.config.training import SourceConfig, StageConfig
from tfde.data.ids import id_of_text, key_of
from tfde.data.pairs.dataset import PairDataset, pairs
from tfde.data.pairs.mixture import PairMixture, PairTurns, shares_of_batch
from tfde.data.pairs.streamed import StreamedPairs
from tfde.data.pairs.table import PairTable, pool_known_positives
from tfde.errors import ConfigError
from tfde.training.stage_data import StageData
from tfde.types import Document, Pair, Query


class Squares:
    """A stream whose pair n asks for n and answers with the square of n modulo 10."""

    def __len__(self):
        return 10

    def pair(self, number):
        document = Document(f"s{number**2 % 10}", "square", str(number**2 % 10))
        return Pair(Query(f"n{number}", str(number)), document, (), (document.doc_id, "other"))


def texts(array):
    return [text.decode() for text in array]


def test_batches_of_a_stream():
    batches = StreamedPairs(Squares(), batch_size=4, count_documents=True)
    assert (batches.num_pairs, batches.steps_per_epoch, batches.smallest_batch) == (10, 2, 4)
    batch = batches.batch(3)
    assert texts(batch["query"]) == ["12", "13", "14", "15"]
    assert texts(batch["document_text"]) == ["4", "9", "6", "5"]
    assert set(texts(batch["document_title"])) == {"square"}
    np.testing.assert_array_equal(batch["document_key"], [key_of(f"s{n}") for n in (4, 9, 6, 5)])
    for row, n in enumerate((4, 9, 6, 5)):
        assert set(batch["positive_keys"][row]) == {key_of(f"s{n}"), key_of("other")}
    # Of ten numbers in a row, two have the square 4, 9 and 6 each, one 5.
    np.testing.assert_allclose(batch["document_probability"], [0.2, 0.2, 0.2, 0.1])
    given = list(batches.dataset(start_step=3, steps=1).as_numpy_iterator())
    assert given[0]["query"].tolist() == batch["query"].tolist()
    assert given[0]["negative_text"].shape == (4, 0)
    assert list(batches.texts())[:4] == ["0", "square 0", "1", "square 1"]


def test_a_mixture_has_the_rows_of_all(tmp_path):
    data = tiny.write_dataset(tmp_path / "data", documents=40)
    negative = Document("x", "", "a negative")
    given = [Pair(Query("q", "asked"), Document("d", "", "found"), (negative,))]
    parts = [
        pairs(data, batch_size=3, seed=5),
        StreamedPairs(Squares(), batch_size=2),
        PairDataset(given, batch_size=1, negatives_per_query=1),
    ]
    mixture = PairMixture(parts)
    assert (mixture.batch_size, mixture.negatives_per_query) == (6, 1)
    assert mixture.num_pairs == 32 + 10 + 1
    for step in (0, 7, 100):
        batch = mixture.batch(step)
        assert {len(rows) for rows in batch.values()} == {6}
        expected = [part.batch(step)["query"] for part in parts]
        assert batch["query"].tolist() == np.concatenate(expected).tolist()
        assert texts(batch["negative_text"][:, 0]) == [""] * 5 + ["a negative"]
        assert (batch["negative_key"][:, 0] != 0).tolist() == [False] * 5 + [True]
        assert batch["positive_keys"].shape == (6, 2)
        assert not batch["positive_keys"][[0, 1, 2, 5], 1].any()
        # The third source is one document, in one row of six.
        assert batch["document_probability"][5] == pytest.approx(1 / 6)
    batch = next(mixture.dataset(start_step=7, steps=1).as_numpy_iterator())
    assert batch["query"].tolist() == mixture.batch(7)["query"].tolist()


def test_sources_take_turns(tmp_path):
    """Every batch is one of a single source; in a hundred each has its share, in its own order."""
    given = [Pair(Query("q", "asked"), Document("d", "", "found"), (Document("x", "", "no"),))] * 2
    parts = [
        pairs(tiny.write_dataset(tmp_path / "data", documents=40), batch_size=2, seed=5),
        StreamedPairs(Squares(), batch_size=2),
        PairDataset(given, batch_size=2, negatives_per_query=1),
    ]
    mixture = PairTurns(parts, [6, 3, 1], seed=3)
    assert (mixture.batch_size, mixture.negatives_per_query, mixture.num_pairs) == (2, 1, 44)
    next_of = [0, 0, 0]
    for step in range(200):
        part, number = mixture.turn(step)
        assert number == next_of[part]  # none is left out, none comes twice
        next_of[part] += 1
        if step % 29 == 0:
            batch, own = mixture.batch(step), parts[part].batch(number)
            assert batch["query"].tolist() == own["query"].tolist()
            assert batch["negative_text"].shape == (2, 1)
            assert batch["document_probability"].tolist() == own["document_probability"].tolist()
        if step == 99:
            assert next_of == [60, 30, 10]
    assert next_of == [120, 60, 20]
    assert [mixture.turn(step) for step in range(99)] != [
        PairTurns(parts, [6, 3, 1], seed=4).turn(step) for step in range(99)
    ]
    batch = next(mixture.dataset(start_step=7, steps=1).as_numpy_iterator())
    assert batch["query"].tolist() == mixture.batch(7)["query"].tolist()
    with pytest.raises(
        ConfigError,
        match=r"`mixture\[1\]` must be large enough for a batch in a h.*a share of 0\.001",
    ):
        PairTurns(parts, [1000, 1, 1], seed=0)


@pytest.mark.parametrize(("temperature", "rows"), [(1, [6, 2]), (2, [5, 3])])
def test_sources_weigh_by_their_size(tmp_path, temperature, rows):
    """Nine pairs beside three: 9:3, and 3:1.7 at temperature 2."""
    sources = []
    for name, count in (("large", 9), ("small", 3)):
        path = tmp_path / f"{name}.jsonl"
        lines = [f'{{"query": "{name} {n}", "positive": "{n}"}}\n' for n in range(count)]
        path.write_text("".join(lines))
        sources.append(SourceConfig(str(path)))
    stage = StageConfig(
        mixture=tuple(sources), steps=1, batch_size=8, source_temperature=temperature
    )
    found = texts(StageData(seed=0, stores=tmp_path).batches(stage).batch(0)["query"])
    assert [sum(name in query for query in found) for name in ("large", "small")] == rows


def test_sources_that_know_the_same_documents(tmp_path):
    """What one source knows of a question holds for the other's rows, and shares add up."""
    first, second = (tmp_path / f"{name}.jsonl" for name in "ab")
    first.write_text('{"query": "asked?", "positive": "one"}\n{"query": "?", "positive": "two"}\n')
    second.write_text('{"query": "asked?", "positive": "two"}\n')
    sources = (SourceConfig(str(first), weight=2), SourceConfig(str(second)))
    stage = StageConfig(mixture=sources, steps=1, batch_size=3, sampling_correction=True)
    batch = StageData(seed=0, stores=tmp_path).batches(stage).batch(0)
    one, two = (key_of(id_of_text(text)) for text in ("one", "two"))
    known = {"asked?": {one, two}, "?": {two, 0}}
    for query, keys in zip(texts(batch["query"]), batch["positive_keys"], strict=True):
        assert set(keys.tolist()) == known[query]
    share = {one: 1 / 3, two: 2 / 3}
    expected = [share[key] for key in batch["document_key"].tolist()]
    np.testing.assert_allclose(batch["document_probability"], expected)


def test_equal_ids_of_two_corpora_are_two_documents():
    tables = [PairTable([Pair(Query("q", "?"), Document("d1", "", text))]) for text in "aab"]
    keys = [int(table.document_keys[0]) for table in tables]
    assert keys[0] == keys[1] != keys[2]
    assert [table.known_keys.tolist() for table in tables] == [[key] for key in keys]
    pooled = pool_known_positives(tables)
    assert [set(table.known_keys.tolist()) for table in pooled] == [set(keys)] * 3
    assert [table.known_keys.tolist() for table in tables] == [[key] for key in keys]


def test_shares_of_a_batch():
    assert shares_of_batch(8192, [1, 1, 1]) == [2731, 2731, 2730]
    assert shares_of_batch(10, [0.7, 0.2, 0.1]) == [7, 2, 1]
    assert shares_of_batch(4, [2.0]) == [4]
    with pytest.raises(ConfigError, match=r"`batch_size` must be large enough .*weights 99, 1$"):
        shares_of_batch(10, [99, 1])
    with pytest.raises(ConfigError, match=r"`weight` must be above 0\. Received: -1"):
        shares_of_batch(10, [1, -1])
    with pytest.raises(ConfigError, match="`parts` must hold at least one source"):
        PairMixture([])
    with pytest.raises(ConfigError, match=r"`batch_size` must be at least 1\. Received: 0"):
        StreamedPairs(Squares(), batch_size=0)
