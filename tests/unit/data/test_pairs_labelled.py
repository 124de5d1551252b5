"""Pairs with labels: samples, parts and groups that follow from a seed; damaged files."""

import gzip

import numpy as np
import pytest

from tfde.data.pairs.labelled import LabelledPairs, ranked_pairs, read_labelled_pairs
from tfde.errors import ConfigError, DataError
from tfde.types import Document, Pair, Query


def write(folder, text, name="train.tsv"):
    (folder / name).write_text("sentence1\tsentence2\tlabel\n" + text)
    return folder


def test_labels_are_numbered_in_their_order(tmp_path):
    write(tmp_path, "a\tb\tyes\nc\td\tno\n")
    pairs = read_labelled_pairs(tmp_path, "train")
    assert (pairs.names, pairs.labels.tolist()) == (("no", "yes"), [1.0, 0.0])
    pairs = read_labelled_pairs(tmp_path, "train", names=["yes", "maybe", "no"])
    assert pairs.labels.tolist() == [0.0, 2.0]
    assert (pairs.first, pairs.titles, pairs.texts) == (["a", "c"], ["", ""], ["b", "d"])


def test_values_and_packed_files(tmp_path):
    text = "sentence1\tsentence2\tscore\na\tb\t2.5\nc\td\t0\n"
    (tmp_path / "dev.tsv.gz").write_bytes(gzip.compress(text.encode()))
    pairs = read_labelled_pairs(tmp_path, "dev", values=True)
    assert (pairs.names, pairs.labels.tolist()) == ((), [2.5, 0.0])


@pytest.mark.parametrize(
    ("text", "options", "error", "message"),
    [
        ("a\tb\tyes\n", {}, ConfigError, "at least two labels. Received: 'yes' alone"),
        ("a\tb\tyes\nc\td\tx\n", {"names": ["yes", "no"]}, DataError, "train.tsv:3: a label must"),
        ("a\tb\tnan\n", {"values": True}, DataError, "train.tsv:2: a label must be a number"),
        ("a\t\tyes\n", {}, DataError, "train.tsv:2: a row must have"),
        ("", {}, DataError, "must hold at least one pair"),
    ],
)
def test_damage_is_named(tmp_path, text, options, error, message):
    with pytest.raises(error) as raised:
        read_labelled_pairs(write(tmp_path, text), "train", **options)
    assert message in str(raised.value)


def test_a_missing_split(tmp_path):
    with pytest.raises(ConfigError, match=r"dev\.tsv: does not exist, packed or not"):
        read_labelled_pairs(tmp_path, "dev")


def test_a_sample_takes_whole_groups_in_their_order():
    rows = [str(n) for n in range(30)]
    pairs = LabelledPairs(rows, rows, rows, np.array([1.0, 0, 0] * 10, "f4"), ("0", "1"), 3)
    some = pairs.limited(12, seed=1)
    assert len(some) == 12
    numbers = [int(text) for text in some.first]
    assert numbers == sorted(numbers)
    assert all(n % 3 == 0 and numbers[i + 1 : i + 3] == [n + 1, n + 2]
               for i, n in list(enumerate(numbers))[::3])  # fmt: skip
    assert some.labels.tolist() == [1.0, 0, 0] * 4
    assert pairs.limited(12, seed=1).first == some.first
    assert pairs.limited(12, seed=2).first != some.first
    assert pairs.limited(None, seed=1) is pairs


def test_groups_of_a_pair_file(caplog):
    documents = [Document(f"d{n}", "t", f"text {n}") for n in range(4)]
    pairs = [
        Pair(Query("q", "one"), documents[0], tuple(documents[1:])),
        Pair(Query("r", "two"), documents[1]),
    ]
    found = ranked_pairs(pairs, negatives=2, path="pairs.jsonl")
    assert "pairs.jsonl: left out: 1 pairs have fewer than 2 negatives" in caplog.text
    assert found.first == ["one"] * 3
    assert found.texts == ["text 0", "text 1", "text 2"]
    assert (found.labels.tolist(), found.group_size) == ([1.0, 0.0, 0.0], 3)
    # What answers the question too is no wrong answer.
    also = Pair(Query("q", "one"), documents[0], tuple(documents[1:]), ("d0", "d2"))
    assert ranked_pairs([also], negatives=2, path="p").texts == ["text 0", "text 1", "text 3"]
    for given, negatives, most in ((pairs, 4, 3), (pairs[1:], 1, 0)):
        with pytest.raises(ConfigError, match=f"at most what a pair has, {most};"):
            ranked_pairs(given, negatives=negatives, path="pairs.jsonl")
