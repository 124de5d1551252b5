"""The benchmarks of indexes run, on a few vectors."""

import runpy
import time

import numpy as np
import pytest
from benchmark_script import BENCHMARKS, run_benchmark

PEERS = ("tfde_faiss_hnsw", "faiss_hnsw", "hnswlib", "faiss_ivf_pq")


def test_the_page_and_the_makefile_know_the_engines(monkeypatch):
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    engines = set(runpy.run_path(str(BENCHMARKS / "index_engines.py"))["ENGINES"])
    assert set(runpy.run_path(str(BENCHMARKS / "report_rows.py"))["INDEXES"]) <= engines
    (line,) = [x for x in (BENCHMARKS.parent / "Makefile").open() if "index_peers.py" in x]
    asked = line.partition("--peers ")[2].partition(" --")[0].split()
    assert asked
    assert set(asked) <= engines


@pytest.fixture(scope="module")
def measures():
    return runpy.run_path(str(BENCHMARKS / "index_measures.py"))


@pytest.mark.parametrize("wanted", [3, 4, 11, 64, 100])
def test_the_least_value_that_reaches_a_recall(measures, wanted):
    tried = []

    def reached(value):
        tried.append(value)
        return 0.9 if value >= wanted else 0.5

    assert measures["least"](reached, 0.9, (3, 100)) == wanted
    assert len(tried) <= 14
    assert measures["least"](reached, 0.95, (3, 100)) is None
    assert max(tried) <= 100


def test_recall_counts_what_was_wanted_in_any_order(measures):
    found = np.array([[3, 1, 9], [7, -1, -1]])
    assert measures["recall"](found, np.array([[1, 2, 3], [4, 5, 7]])) == pytest.approx(3 / 6)


class Slow:
    """Needs some milliseconds a call, with or without Python's lock."""

    def __init__(self, *, locks):
        self.locks, self.threads, self.sizes = locks, set(), []

    def use_threads(self, count):
        self.threads.add(count)

    def search(self, queries, k):
        self.sizes.append(len(queries))
        if self.locks:
            sum(range(3_000_000))  # one call into C that keeps the lock
        else:
            time.sleep(0.05)


def test_who_asks_and_who_uses_threads(measures):
    queries = np.zeros((5, 2))
    for batch, threads, sizes, inner in ((1, 2, [1] * 5, {1}), (2, 2, [2, 2, 1], {2})):
        engine = Slow(locks=False)
        options = {"batch": batch, "threads": threads, "least_s": 0.0}
        assert measures["milliseconds"](engine, queries, 3, **options) > 0
        assert (engine.sizes, engine.threads) == (sizes, inner)


def test_whether_other_threads_run_meanwhile(measures):
    assert measures["releases_gil"](Slow(locks=False), np.zeros((5, 2)), 3)
    assert not measures["releases_gil"](Slow(locks=True), np.zeros((5, 2)), 3)


@pytest.mark.slow
def test_growth(tmp_path):
    figure = tmp_path / "growth.png"
    result = run_benchmark(
        "index_growth.py", "--corpora", 300, "--dims", 8, "--dims-rows", 20_000, "--ks", 1, 5,
        "--ks-rows", 500, "--least-s", 0.01, "--figure", figure,
    )  # fmt: skip
    small, shards = result["rows"]
    assert (small["rows"], small["dim"], small["kind"], small["recall"]) == (300, 128, "exact", 1)
    assert shards["rows"] == 3000
    for name in ("ms_alone", "ms_in_batch"):
        whole = 10 * small[name] + shards["merging"][name]
        assert shards[name] == pytest.approx(whole, abs=1e-3)
    (tuned,) = result["dim"]
    assert (tuned["kind"], tuned["dim"]) == ("tree", 8)
    assert tuned["recall"] > 0.9  # the target, 0.95, holds for the queries that choose
    assert tuned["setting"]["reorder"] >= 10
    assert tuned["bytes_per_vector"] > 4 * 8
    assert [point["k"] for point in result["k"]] == [1, 5]
    assert figure.read_bytes().startswith(b"\x89PNG")


def check(found):
    assert found["ratio"] > 0
    # The queries that are measured find about as much as those that choose.
    assert found["ours_recall"] > 0.9
    assert found["theirs_recall"] > 0.9


@pytest.mark.slow
@pytest.mark.peers
def test_peers(tmp_path, monkeypatch):
    # Threads that wait for one another wait long where the cores are shared.
    monkeypatch.setenv("OMP_WAIT_POLICY", "PASSIVE")
    options = ["--rows", 20_000, "--dim", 16, "--pairs", 1, "--least-s", 0.01, "--threads", 1]
    options += ["--folder", tmp_path]
    result = run_benchmark("index_peers.py", *options, "--targets", 0.95, "--batches", 250)
    assert set(result["indexes"]) == {"scann", *PEERS}
    for index in result["indexes"].values():
        assert index["releases_gil"]
        for name in ("resident_bytes", "build_peak_bytes", "stored_bytes"):
            assert index[name] > 4 * 16
    assert result["indexes"]["scann"]["of_which_ids"] > 8
    for peer in PEERS:
        check(result[f"recall_0.95_batch_250_threads_1 against {peer}"])

    # A later run builds nothing again; and a target that nothing reaches is said.
    built = {file: file.stat().st_mtime_ns for file in tmp_path.glob("*/*_build.json")}
    options += ["--targets", 0.95, 1.1, "--batches", 1, "--peers", "hnswlib"]
    result = run_benchmark("index_peers.py", *options)
    check(result["recall_0.95_batch_1_threads_1 against hnswlib"])
    missed = result["recall_1.1_batch_1_threads_1 against hnswlib"]
    assert missed.keys() == {"left_out"}
    assert "scann" in missed["left_out"]
    assert "hnswlib" in missed["left_out"]
    assert len(built) == 5
    assert {file: file.stat().st_mtime_ns for file in tmp_path.glob("*/*_build.json")} == built
