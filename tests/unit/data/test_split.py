"""Splits by query: sizes, sides of near duplicates, and a directory that stands on its own."""

import gzip
import hashlib
import itertools
import json
import os
import random
import shutil
import uuid
from pathlib import Path

import numpy as np
import pytest
import scipy.sparse

from tfde.cli.main import main
from tfde.data.dataset_directory import DatasetDirectory
from tfde.data.near_duplicates import NEARLY_EQUAL, normal_words
from tfde.data.pairs.dataset import pairs
from tfde.data.split import split_by_ratio, split_train_share
from tfde.errors import ConfigError, DataError


def words_of(i):
    """Six words that no other query has."""
    return " ".join(f"{letter}{i}" for letter in "uvwxyz")


def write(folder, texts, splits):
    """Queries q0.. with these texts; splits: name -> numbers of its queries, judged for d0..d4."""
    (folder / "qrels").mkdir(parents=True)
    with gzip.open(folder / "corpus.jsonl.gz", "wt") as file:
        for i in range(5):
            file.write(json.dumps({"_id": f"d{i}", "title": "", "text": f"text {i}"}) + "\n")
    with open(folder / "queries.jsonl", "w") as file:
        for number, text in texts:
            file.write(json.dumps({"_id": f"q{number}", "text": text}) + "\n")
    for name, numbers in splits.items():
        rows = "".join(f"q{n}\td{n % 5}\t1\n" for n in numbers)
        (folder / "qrels" / f"{name}.tsv").write_text("query-id\tcorpus-id\tscore\n" + rows)
    return folder


@pytest.fixture
def dataset(tmp_path):
    """100 queries: q0-q19 nearly equal by twos, the others far apart; three splits."""
    texts = [(i, words_of(i // 2) + (" more" if i % 2 else "")) for i in range(20)]
    texts += [(i, words_of(i)) for i in range(20, 100)]
    texts += [(500, "judged nowhere")]
    splits = {"train": range(50), "dev": range(50, 60), "test": range(60, 100)}
    return write(tmp_path / "data", texts, splits)


def sides(path):
    dataset = DatasetDirectory(path)
    return {split: set(dataset.qrels(split)) for split in dataset.splits}


def test_sizes_and_sides(tmp_path, dataset):
    record = split_by_ratio(dataset, tmp_path / "out", ratio=(80, 20), seed=3)
    found = sides(tmp_path / "out")
    assert {name: len(ids) for name, ids in found.items()} == {"train": 72, "dev": 8, "test": 20}
    assert set.union(*found.values()) == {f"q{i}" for i in range(100)}
    for i in range(0, 20, 2):
        assert sum({f"q{i}", f"q{i + 1}"} <= ids for ids in found.values()) == 1
    assert record == json.loads((tmp_path / "out" / "split.json").read_text())
    assert record["queries"] == {"train": 72, "dev": 8, "test": 20}
    assert record["counts"] == {
        "near_duplicate_groups": 10, "queries_in_near_duplicate_groups": 20,
        "queries_without_a_relevant_document": 0,
    }  # fmt: skip
    assert (record["seed"], record["ratio"], record["dev_share"]) == (3, "80/20", 0.1)
    for name, digest in record["sha256"].items():
        assert hashlib.sha256((tmp_path / "out" / name).read_bytes()).hexdigest() == digest
    assert len(record["sha256"]) == 5
    DatasetDirectory(tmp_path / "out").validate()
    assert pairs(tmp_path / "out", batch_size=8).num_pairs == 72


def test_small_splits_lie_inside_large_ones(tmp_path, dataset):
    found = {}
    for train in (5, 20, 80):
        split_by_ratio(dataset, tmp_path / f"{train}", ratio=(train, 100 - train), dev_share=0)
        found[train] = sides(tmp_path / f"{train}")
        assert set(found[train]) == {"train", "test"}
        assert len(found[train]["train"]) == train
    assert found[5]["train"] < found[20]["train"] < found[80]["train"]
    assert found[80]["test"] < found[20]["test"] < found[5]["test"]


def test_dev_queries_of_a_small_split_are_not_for_testing_in_a_large_one(tmp_path, dataset):
    found = []
    for train in (20, 80):
        split_by_ratio(dataset, tmp_path / f"{train}", ratio=(train, 100 - train), dev_share=0.2)
        found.append(sides(tmp_path / f"{train}"))
    small, large = found
    assert small["train"] | small["dev"] < large["train"] | large["dev"]


def test_seed_decides_and_order_does_not(tmp_path, dataset):
    split_by_ratio(dataset, tmp_path / "one", ratio=(1, 1), seed=1)
    split_by_ratio(dataset, tmp_path / "two", ratio=(1, 1), seed=2)
    assert sides(tmp_path / "one") != sides(tmp_path / "two")
    lines = (dataset / "queries.jsonl").read_text().splitlines(keepends=True)
    random.Random(0).shuffle(lines)
    (dataset / "queries.jsonl").write_text("".join(lines))
    split_by_ratio(dataset, tmp_path / "mixed", ratio=(1, 1), seed=1)
    assert sides(tmp_path / "mixed") == sides(tmp_path / "one")
    again = split_by_ratio(dataset, tmp_path / "mixed", ratio=(1, 1), seed=1, overwrite=True)
    assert again["sha256"] == json.loads((tmp_path / "mixed" / "split.json").read_text())["sha256"]


def test_it_shares_the_corpus_and_outlives_it(tmp_path, dataset):
    (dataset / "answers.jsonl.gz").write_bytes(gzip.compress(b'{"_id": "q1", "answers": ["x"]}\n'))
    split_by_ratio(dataset, tmp_path / "out", ratio=(1, 1))
    names = ("corpus.jsonl.gz", "queries.jsonl", "answers.jsonl.gz")
    assert all((tmp_path / "out" / n).stat().st_ino == (dataset / n).stat().st_ino for n in names)
    shutil.rmtree(dataset)
    assert len(list(DatasetDirectory(tmp_path / "out").queries("train"))) == 45
    assert DatasetDirectory(tmp_path / "out").num_documents == 5


def test_a_linked_corpus_becomes_a_file(tmp_path, dataset):
    (dataset / "corpus.jsonl.gz").rename(tmp_path / "elsewhere.gz")
    (dataset / "corpus.jsonl.gz").symlink_to(tmp_path / "elsewhere.gz")
    split_by_ratio(dataset, tmp_path / "out", ratio=(1, 1))
    assert not (tmp_path / "out" / "corpus.jsonl.gz").is_symlink()


def test_on_another_file_system_it_copies(tmp_path, dataset):
    memory = Path("/dev/shm")
    if not os.access(memory, os.W_OK) or memory.stat().st_dev == tmp_path.stat().st_dev:
        pytest.skip("there is no second file system to write to")
    output = memory / f"tfde-test-{uuid.uuid4().hex}"
    try:
        split_by_ratio(dataset, output, ratio=(1, 1))
        corpus = (dataset / "corpus.jsonl.gz").read_bytes()
        assert (output / "corpus.jsonl.gz").read_bytes() == corpus
        DatasetDirectory(output).validate()
    finally:
        shutil.rmtree(output, ignore_errors=True)


def test_a_share_of_train(tmp_path, dataset):
    # q16 and q17 are nearly equal; q17 moves to test, so q16 must not be drawn.
    write(
        tmp_path / "moved",
        [(i, words_of(i // 2) + (" more" if i % 2 else "")) for i in range(20)],
        {"train": [i for i in range(20) if i != 17], "test": [17]},
    )
    record = split_train_share(tmp_path / "moved", tmp_path / "all", share=1, seed=1)
    assert sides(tmp_path / "all")["train"] == {f"q{i}" for i in range(20) if i not in (16, 17)}
    assert record["counts"] == {
        "train_queries_near_another_split": 1, "queries_without_a_relevant_document": 0
    }  # fmt: skip
    small = split_train_share(dataset, tmp_path / "small", share=0.1, seed=4)
    split_train_share(dataset, tmp_path / "large", share=0.5, seed=4)
    assert (small["share"], small["seed"]) == (0.1, 4)
    assert small["queries"] == {"train": 5, "dev": 10, "test": 40}
    assert sides(tmp_path / "small")["train"] < sides(tmp_path / "large")["train"]
    for split in ("dev", "test"):
        assert sides(tmp_path / "small")[split] == sides(dataset)[split]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"ratio": (0, 1)}, r"`ratio` must be two whole numbers above 0\. Received: \(0, 1\)"),
        ({"ratio": (1, 1), "dev_share": 1}, r"`dev_share` must be in \[0, 1\)\. Received: 1"),
        ({"ratio": (1, 1), "seed": -1}, r"`seed` must be at least 0\. Received: -1"),
        ({"ratio": (1, 999)}, "100 queries leave none for train. Received: ratio 1/999"),
        ({"ratio": (4, 96)}, r"leave none for dev\. Received: ratio 4/96, dev_share 0\.1"),
        ({"ratio": (999, 1)}, "leave none for test"),
    ],
)
def test_impossible_ratios(tmp_path, dataset, options, message):
    with pytest.raises(ConfigError, match=message):
        split_by_ratio(dataset, tmp_path / "out", **options)
    assert not (tmp_path / "out").exists()


def test_impossible_shares(tmp_path, dataset):
    for share, message in (
        (0, r"`share` must be in \(0, 1\]"),
        (1.5, r"Received: 1\.5"),
        (0.001, r"50 train queries leave none\. Received: share 0\.001"),
    ):
        with pytest.raises(ConfigError, match=message):
            split_train_share(dataset, tmp_path / "out", share=share)
    with pytest.raises(ConfigError, match="the output must not be the dataset that is split"):
        split_train_share(dataset, dataset / ".", share=0.5, overwrite=True)
    shutil.rmtree(dataset / "qrels")
    with pytest.raises(ConfigError, match="no split has a judgement"):
        split_by_ratio(dataset, tmp_path / "out", ratio=(1, 1))


def test_a_fault_is_named_where_it_stands(tmp_path, dataset):
    with open(dataset / "qrels" / "dev.tsv", "a") as file:
        file.write("q777\td1\t1\n")
    with pytest.raises(DataError, match=r"data/qrels/dev\.tsv:12: query-id must be an id"):
        split_by_ratio(dataset, tmp_path / "out", ratio=(1, 1))
    assert not (tmp_path / "out").exists()


def test_queries_without_a_relevant_document_are_left_out_and_counted(tmp_path, capsys):
    folder = write(tmp_path / "in", [(i, words_of(i)) for i in range(60)], {"train": range(50)})
    (folder / "qrels" / "test.tsv").write_text(
        "query-id\tcorpus-id\tscore\n" + "".join(f"q{n}\td0\t0\n" for n in range(50, 60))
    )
    zeros = (folder / "qrels" / "train.tsv").read_text().replace("q7\td2\t1", "q7\td2\t0")
    (folder / "qrels" / "train.tsv").write_text(zeros)
    common = ["split", "--dataset", str(folder)]
    assert main([*common, "--output", str(tmp_path / "ratio"), "--ratio", "80/20"]) == 0
    assert "queries without a relevant document: 11" in capsys.readouterr().out
    found = sides(tmp_path / "ratio")
    assert set.union(*found.values()) == {f"q{i}" for i in range(50) if i != 7}
    assert main([*common, "--output", str(tmp_path / "share"), "--share", "1"]) == 0
    assert "queries without a relevant document: 1" in capsys.readouterr().out
    assert len(sides(tmp_path / "share")["train"]) == 49


def test_the_command(tmp_path, dataset, capsys):
    common = ["split", "--dataset", str(dataset), "--output", str(tmp_path / "out")]
    assert main([*common, "--ratio", "80/20", "--seed", "3"]) == 0
    out = capsys.readouterr().out
    assert "train 72, dev 8, test 20 queries" in out
    assert "near duplicate groups: 10" in out
    assert main([*common, "--ratio", "80/20"]) == 1
    assert (
        "exists and is not empty; choose another, or give --overwrite." in capsys.readouterr().err
    )
    assert main([*common, "--share", "0.1", "--overwrite"]) == 0
    assert "train 5, dev 10, test 40 queries" in capsys.readouterr().out
    for wrong, message in (
        ([], "either `ratio` or `share` must be given"),
        (["--ratio", "1/1", "--share", "0.5"], "either `ratio` or `share`"),
        (["--ratio", "0.5"], "`ratio` must be train/test, such as 1/99. Received: '0.5'"),
        (["--ratio", "80/30"], "at most 100 parts together, such as 80/20. Received: '80/30', 110"),
    ):
        assert main([*common, *wrong]) == 1
        assert message in capsys.readouterr().err


def sets_matrix(texts, columns):
    """(N, V) 0/1: which words and neighbouring words each text has."""
    rows, places = [], []
    for row, text in enumerate(texts):
        words = normal_words(text)
        members = {(word,) for word in words} | set(itertools.pairwise(words))
        for member in members:
            rows.append(row)
            places.append(columns.setdefault(member, len(columns)))
    return np.array(rows), np.array(places), len(texts)


def test_squad_80_20_by_an_independent_comparison(tmp_path, data_dir):
    record = split_by_ratio(data_dir / "squad_sent", tmp_path / "out", ratio=(80, 20))
    assert record["queries"] == {"train": 70_673, "dev": 7_853, "test": 19_632}
    dataset = DatasetDirectory(tmp_path / "out")
    known = [query.text for split in ("train", "dev") for query in dataset.queries(split)]
    test = [query.text for query in dataset.queries("test")]
    sample = random.Random(0).sample(test, 150)
    columns = {}
    parts = [sets_matrix(known, columns), sets_matrix(sample, columns)]
    one, two = (
        scipy.sparse.csr_matrix((np.ones(len(rows), np.int32), (rows, places)), (n, len(columns)))
        for rows, places, n in parts
    )
    shared = (two @ one.T).tocoo()
    sizes = [np.asarray(matrix.sum(axis=1)).ravel() for matrix in (two, one)]
    union = sizes[0][shared.row] + sizes[1][shared.col] - shared.data
    assert (shared.data / union).max() < NEARLY_EQUAL
    assert (shared.data / union).max() > 0.4  # the comparison does see likeness


def test_training_pairs_go_with_their_queries(tmp_path, dataset):
    folder = dataset / "pairs"
    folder.mkdir()
    for split, numbers in (("train", range(0, 50, 5)), ("dev", range(50, 60))):
        rows = [
            {"query": f"text {n}", "query_id": f"q{n}", "positive": "d0", "negatives": ["d1"]}
            for n in numbers
        ]
        (folder / f"{split}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    split_by_ratio(dataset, tmp_path / "ratio", ratio=(80, 20))
    divided = DatasetDirectory(tmp_path / "ratio")
    found = {}
    for split in divided.pair_splits:
        with gzip.open(divided.pair_file(split), "rt") as file:
            found[split] = {json.loads(line)["query_id"] for line in file}
        assert found[split] <= set(divided.qrels(split))
    assert sum(map(len, found.values())) == 20 == len(set().union(*found.values()))
    split_train_share(dataset, tmp_path / "share", share=0.5)
    shared = DatasetDirectory(tmp_path / "share")
    assert shared.pair_file("dev").read_bytes() == (folder / "dev.jsonl").read_bytes()
    with gzip.open(shared.pair_file("train"), "rt") as file:
        left = {json.loads(line)["query_id"] for line in file}
    assert left == {f"q{n}" for n in range(0, 50, 5)} & set(shared.qrels("train"))
    assert 0 < len(left) < 10
