"""BEIR's own arithmetic beside ours, on sets of its form with all the oddities of its own sets."""

import copy
import importlib
import json

import numpy as np
import pytest

from tfde.cli.main import main
from tfde.data.dataset_directory import DatasetDirectory
from tfde.data.ranking import without_query
from tfde.evaluation.measures import evaluate
from tfde.retrieval.bm25_index import Bm25Index

pytestmark = pytest.mark.peers
CUTS = [1, 3, 5, 10, 100]
# BEIR's name of a measure, and ours.
NAMES = {"NDCG": "nDCG", "MAP": "AP", "Recall": "R", "P": "P", "MRR": "RR", "Accuracy": "Success"}


@pytest.fixture(scope="module")
def peer():
    """BEIR's evaluation."""
    return importlib.import_module("beir.retrieval.evaluation").EvaluateRetrieval


def theirs(peer, run, qrels, *, ignore_identical_ids=False):
    run = copy.deepcopy(run)  # BEIR takes the documents of identical ids out of it
    tables = list(peer.evaluate(qrels, run, CUTS, ignore_identical_ids=ignore_identical_ids))
    tables += [peer.evaluate_custom(qrels, run, CUTS, name) for name in ("mrr", "accuracy")]
    values = {name: value for table in tables for name, value in table.items()}
    return {
        f"{NAMES[name.partition('@')[0]]}@{name.partition('@')[2]}": value
        for name, value in values.items()
    }


def bm25_run(dataset, split="test", k=100):
    return Bm25Index.build(dataset.documents()).retrieve(list(dataset.queries(split)), k)


@pytest.mark.parametrize("name", ["scifact", "stackexchange_bev", "covid_faq"])
def test_bm25_on_real_sets(peer, data_dir, name):
    """One relevant document a query, several, and grades."""
    dataset = DatasetDirectory(data_dir / name)
    run, qrels = bm25_run(dataset), dataset.qrels("test")
    expected = theirs(peer, run, qrels)
    assert evaluate(run, qrels, list(expected)) == pytest.approx(expected, abs=1e-4)


@pytest.mark.parametrize("name", ["empty_documents", "judged_missing"])
def test_what_its_loader_reads_is_what_we_wrote(peer, tmp_path, name):
    """FiQA's empty documents and ArguAna's judged ones that are in no corpus, by its own loader."""
    loader = importlib.import_module("beir.datasets.data_loader").GenericDataLoader
    (tmp_path / "in" / "qrels").mkdir(parents=True)
    text = {"empty_documents": "", "judged_missing": "more words"}[name]
    for file, rows in (
        ("corpus.jsonl", [("d1", "first words"), ("d2", text), ("d3", "last words")]),
        ("queries.jsonl", [("q1", "first"), ("q2", "more")]),
    ):
        lines = [json.dumps({"_id": key, "title": "", "text": value}) for key, value in rows]
        (tmp_path / "in" / file).write_text("\n".join(lines))
    other = {"empty_documents": "d2", "judged_missing": "gone"}[name]
    (tmp_path / "in" / "qrels" / "test.tsv").write_text(
        f"query-id\tcorpus-id\tscore\nq1\td1\t1\nq1\t{other}\t1\nq2\td3\t2\n"
    )
    convert = ["convert", "--format", "beir"]
    packed, out = str(tmp_path / "packed"), str(tmp_path / "out")
    assert main([*convert, "--input", str(tmp_path / "in"), "--output", packed]) == 0
    assert main([*convert, "--dataset", packed, "--output", out]) == 0
    corpus, queries, qrels = loader(data_folder=out).load(split="test")
    dataset = DatasetDirectory(packed)
    assert {d.doc_id: {"text": d.text, "title": d.title} for d in dataset.documents()} == corpus
    assert {query.query_id: query.text for query in dataset.queries("test")} == queries
    assert dataset.qrels("test") == qrels
    run = bm25_run(dataset, k=3)
    expected = theirs(peer, run, qrels)
    received = evaluate(run, dataset.qrels("test"), list(expected))
    assert received == pytest.approx(expected, abs=1e-4)
    assert received["R@10"] < 1  # the other judged document stays in the denominator


def odd_set():
    """Grades, ids of queries that are ids of documents, judged documents that no run can hold."""
    generator = np.random.default_rng(0)
    doc_ids = [f"d{number}" for number in range(60)] + [f"q{number}" for number in range(40)]
    qrels, run = {}, {}
    for number in range(40):
        judged = [d for d in generator.choice(doc_ids, 5, replace=False) if d != f"q{number}"]
        qrels[f"q{number}"] = {str(d): int(generator.integers(0, 3)) for d in judged}
        qrels[f"q{number}"]["missing"] = 1
        found = [d for d in generator.choice(doc_ids, 30, replace=False) if d != f"q{number}"]
        run[f"q{number}"] = {str(d): float(generator.random()) for d in found}
        run[f"q{number}"][f"q{number}"] = 2.0  # itself, first
    return run, qrels


@pytest.mark.parametrize("ignore", [False, True])
def test_queries_that_are_documents_and_judged_ones_that_are_missing(peer, ignore):
    """Quora's and ArguAna's oddities; the option is BEIR's default there."""
    run, qrels = odd_set()
    expected = theirs(peer, run, qrels, ignore_identical_ids=ignore)
    if ignore:
        run = {query_id: without_query(found, query_id) for query_id, found in run.items()}
    received = evaluate(run, qrels, list(expected))
    assert received == pytest.approx(expected, abs=1e-4)
    assert received["P@1"] == 0 or ignore


def test_a_query_without_any_result_counts_here_and_not_there(peer):
    """BEIR divides nDCG by the queries of the run, and MRR by those that were judged.

    Ours divides all by those that were judged, as `trec_eval -c` does.
    """
    run, qrels = odd_set()
    del run["q0"], run["q1"]
    expected = theirs(peer, run, qrels)
    received = evaluate(run, qrels, list(expected))
    for name, value in expected.items():
        by_judged = name.partition("@")[0] in ("RR", "Success")
        assert received[name] == pytest.approx(value * (1 if by_judged else 38 / 40), abs=1e-4)
