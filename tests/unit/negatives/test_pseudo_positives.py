"""Pseudo-positives (RocketQA): what a cross-encoder takes for relevant makes pairs of its own."""

import json

import numpy as np
import pytest

from tfde.config.negatives import MiningRules
from tfde.data.dataset_directory import DatasetDirectory
from tfde.data.pairs.read_pairs import read_pairs
from tfde.errors import ConfigError
from tfde.negatives.candidate_sources import RunCandidates
from tfde.negatives.mine import mine_negatives
from tfde.retrieval.runs import write_run

DOCUMENTS = {
    "a": "paris is the capital of france",
    "a2": "Paris is the capital of France!",
    "b": "france is governed from paris",
    "b2": "France is governed from Paris.",
    "c": "rome is the capital of italy",
    "d": "bread and cheese",
    "e": "the french government sits in the city of paris",
}
QUERIES = {"q1": "capital of france", "q2": "what to eat", "q3": "another split's question"}
RANKING = {"e": 9.0, "a2": 8.0, "b": 7.0, "b2": 6.5, "a": 6.0, "c": 5.0, "d": 4.0}
# The label of q1 is `a`; `b` and `e` answer it too, and nobody has said so.
SCORES = {
    "q1": {"a": 5.0, "a2": 5.0, "b": 3.0, "b2": 3.0, "e": 2.0, "c": -3.0, "d": -9.0},
    "q2": {"a": -9.0, "a2": -9.0, "b": -9.0, "b2": -9.0, "e": -9.0, "c": -8.0, "d": 4.0},
}


class Scorer:
    """A cross-encoder whose scores are written down."""

    num_labels = 1
    labels = ()

    def __init__(self):
        self.ids = {text: doc_id for doc_id, text in DOCUMENTS.items()}
        self.asked = []

    def fingerprint(self):
        return "written down"

    def score(self, pairs, *, batch_size, show_progress=False):
        queries = {text: query_id for query_id, text in QUERIES.items()}
        asked = [(queries[text], self.ids[document.text]) for text, document in pairs]
        self.asked += asked
        return np.array([SCORES[query_id][doc_id] for query_id, doc_id in asked], np.float32)


def write(folder, qrels):
    (folder / "qrels").mkdir(parents=True)
    with open(folder / "corpus.jsonl", "w") as file:
        for doc_id, text in DOCUMENTS.items():
            file.write(json.dumps({"_id": doc_id, "title": "", "text": text}) + "\n")
    with open(folder / "queries.jsonl", "w") as file:
        for query_id, text in QUERIES.items():
            file.write(json.dumps({"_id": query_id, "text": text}) + "\n")
    for split, rows in qrels.items():
        table = "".join(f"{query}\t{doc_id}\t{judged}\n" for query, doc_id, judged in rows)
        (folder / "qrels" / f"{split}.tsv").write_text("query-id\tcorpus-id\tscore\n" + table)
    write_run(folder / "run.trec", {"q1": RANKING, "q2": RANKING, "q3": RANKING})
    return DatasetDirectory(folder)


def mine(dataset, *, unlabelled=False, scorer=None, name="n.jsonl", **rules):
    output = dataset.path / name
    report = mine_negatives(
        dataset,
        RunCandidates(dataset.path / "run.trec"),
        output,
        MiningRules(**rules),
        cross_encoder=scorer or Scorer(),
        unlabelled=unlabelled,
    )
    return report, [json.loads(line) for line in output.read_text().splitlines()]


@pytest.fixture
def dataset(tmp_path):
    return write(tmp_path / "data", {"train": [("q1", "a", 1)], "test": [("q3", "d", 1)]})


def test_unlabelled_answers_become_positives_and_no_negatives(dataset):
    report, lines = mine(dataset, count=2, pseudo_positives=5, min_pseudo_score=2.0)
    assert [(line["positive"], line.get("pseudo", False)) for line in lines] == [
        ("a", False),
        ("e", True),  # by rank; a score equal to the limit reaches it
        ("b", True),  # b2 has its text, a2 that of the label
    ]
    assert all(line["negatives"] == ["c", "d"] for line in lines)
    assert lines[1]["cross_scores"] == {"positive": 2.0, "negatives": [-3.0, -9.0]}
    assert lines[1]["scores"] == {"positive": 9.0, "negatives": [5.0, 4.0]}
    assert (report.pairs, report.pseudo_positives, report.without_positive) == (3, 2, 0)
    left_out = {reason: count for reason, count in report.removed.items() if count}
    # Of each of the three pairs: a; b and e; a2 and b2.
    assert left_out == {"positive": 3, "pseudo_positive": 6, "same_text": 6}
    pairs = read_pairs(dataset.path / "n.jsonl", dataset=dataset.path)
    assert [pair.positive.doc_id for pair in pairs] == ["a", "e", "b"]


def test_what_is_relevant_beyond_their_number_is_no_negative(dataset):
    report, lines = mine(dataset, count=2, pseudo_positives=1, min_pseudo_score=2.0)
    assert [line["positive"] for line in lines] == ["a", "e"]
    assert all(line["negatives"] == ["c", "d"] for line in lines)
    assert report.removed["cross_encoder"] == 2  # b, for each pair; b2 has its text


def test_the_window_is_of_negatives_alone(dataset):
    _, lines = mine(dataset, count=1, min_rank=7, pseudo_positives=1, min_pseudo_score=2.0)
    assert [(line["positive"], line["negatives"]) for line in lines] == [("a", ["d"]), ("e", ["d"])]


def test_who_judged_a_document_0_is_believed(tmp_path):
    dataset = write(tmp_path / "data", {"train": [("q1", "a", 1), ("q1", "e", 0)]})
    _, lines = mine(dataset, count=1, pseudo_positives=1, min_pseudo_score=2.0)
    assert [line["positive"] for line in lines] == ["a", "b"]


def test_queries_without_a_label(dataset):
    scorer = Scorer()
    report, lines = mine(
        dataset, count=1, pseudo_positives=1, min_pseudo_score=1.0, unlabelled=True, scorer=scorer
    )
    # q3 is judged in another split: its answers are not looked for.
    assert [(line["query_id"], line["positive"]) for line in lines] == [
        ("q1", "a"), ("q1", "e"), ("q2", "d"),
    ]  # fmt: skip
    assert lines[2]["negatives"] == ["e"]
    assert report.without_positive == 0
    assert len(scorer.asked) == len(set(scorer.asked))  # a pair of texts is read once
    report, lines = mine(
        dataset, count=1, pseudo_positives=1, min_pseudo_score=4.5, unlabelled=True, name="m.jsonl"
    )
    assert [line["query_id"] for line in lines] == ["q1"]
    assert (report.pseudo_positives, report.without_positive) == (0, 1)
    text = "pseudo-positives: 0 of the pairs; unlabelled queries without one: 1"
    assert text in report.text(1).splitlines()


def test_impossible_rules(dataset):
    for rules in ({"pseudo_positives": 1}, {"min_pseudo_score": 1.0}):
        with pytest.raises(ConfigError, match="`pseudo_positives` goes with `min_pseudo_score`"):
            MiningRules(**rules)
    message = r"`min_pseudo_score` must be above `max_cross_score`, 1\.0\. Received: 1\.0"
    with pytest.raises(ConfigError, match=message):
        MiningRules(pseudo_positives=1, min_pseudo_score=1.0, max_cross_score=1.0)
    with pytest.raises(ConfigError, match=r"`pseudo_positives` must be at least 0\. Received: -1"):
        MiningRules(pseudo_positives=-1)
    with pytest.raises(ConfigError, match="`unlabelled` goes with `pseudo_positives`"):
        mine(dataset, unlabelled=True, max_cross_score=0.0)
    source = RunCandidates(dataset.path / "run.trec")
    rules = MiningRules(pseudo_positives=1, min_pseudo_score=1.0)
    with pytest.raises(ConfigError, match=r"`cross_encoder` goes with .* give both or neither"):
        mine_negatives(dataset, source, dataset.path / "n", rules)


def test_files_from_before_are_still_done(dataset):
    """The settings of a mining without pseudo-positives are those that 0.1.0 wrote."""
    mine(dataset, max_cross_score=0.0)
    settings = json.loads((dataset.path / "n.jsonl.json").read_text())["settings"]
    assert "unlabelled" not in settings
    assert not any("pseudo" in name for name in settings["rules"])
