"""Reranking: whose documents change places, and whose do not."""

import numpy as np
import pytest

from tfde.data.ranking import ranking
from tfde.errors import ConfigError, DataError
from tfde.retrieval.rerank import rerank
from tfde.types import Document, Query

DOCUMENTS = {f"d{n}": Document(f"d{n}", "", "x" * n) for n in range(1, 9)}
QUERIES = [Query("q1", "a"), Query("q2", "b"), Query("q3", "not in the run")]
RUN = {"q1": {"d1": 3.0, "d2": 2.0, "d3": 1.0}, "q2": {"d4": 1.0, "d8": 1.0, "d6": 0.5}}


class Lengths:
    """Scores a pair by the length of its document; with labels, their logits."""

    def __init__(self, num_labels=1, labels=()):
        self.num_labels, self.labels = num_labels, labels
        self.asked = []

    def score(self, pairs, *, batch_size, show_progress):
        self.asked += [(query, document.doc_id) for query, document in pairs]
        lengths = np.array([len(document.text) for _, document in pairs], np.float32)
        if self.num_labels == 1:
            return lengths
        return np.stack([np.zeros_like(lengths), lengths, -lengths], axis=1)[:, : self.num_labels]


def test_the_best_are_scored_and_the_others_follow():
    model = Lengths()
    found = rerank(model, RUN, QUERIES, DOCUMENTS, depth=2)
    assert set(found) == {"q1", "q2"}
    assert ranking(found["q1"]) == ["d2", "d1", "d3"]
    assert ranking(found["q2"]) == ["d8", "d4", "d6"]
    assert model.asked == [("a", "d1"), ("a", "d2"), ("b", "d8"), ("b", "d4")]
    assert found["q1"]["d3"] < found["q1"]["d1"]


def test_a_label_gives_its_log_probability():
    model = Lengths(3, ("no", "yes", "maybe"))
    found = rerank(model, RUN, QUERIES[:1], DOCUMENTS, label="yes")["q1"]
    for doc_id, score in found.items():
        n = float(doc_id[1:])
        assert score == pytest.approx(n - np.log(1 + np.exp(n) + np.exp(-n)), abs=1e-6)


@pytest.mark.parametrize(
    ("model", "label", "best_first"),
    [
        (Lengths(2), None, ["d3", "d2", "d1"]),
        (Lengths(2), "0", ["d1", "d2", "d3"]),
        (Lengths(2, ("1", "0")), None, ["d1", "d2", "d3"]),
        (Lengths(1, ("0", "1")), None, ["d3", "d2", "d1"]),
        (Lengths(1, ("yes", "no")), "no", ["d3", "d2", "d1"]),
        (Lengths(1, ("yes", "no")), "yes", ["d1", "d2", "d3"]),
    ],
)
def test_which_label_says_relevant(model, label, best_first):
    found = rerank(model, RUN, QUERIES[:1], DOCUMENTS, label=label)
    assert ranking(found["q1"]) == best_first


def test_what_is_refused():
    with pytest.raises(ConfigError, match=r"`label` must be one of 0, 1, .* Received: '2'"):
        rerank(Lengths(2), RUN, QUERIES, DOCUMENTS, label="2")
    with pytest.raises(ConfigError, match=r"`label` must be one of no, yes, .* Received: None"):
        rerank(Lengths(2, ("no", "yes")), RUN, QUERIES, DOCUMENTS)
    with pytest.raises(ConfigError, match=r"`label` must be left out: .* score.* Received: '1'"):
        rerank(Lengths(), RUN, QUERIES, DOCUMENTS, label="1")
    with pytest.raises(ConfigError, match=r"`depth` must be at least 1\. Received: 0"):
        rerank(Lengths(), RUN, QUERIES, DOCUMENTS, depth=0)
    model = Lengths()
    with pytest.raises(DataError, match=r"^a\.trec: .* in the corpus \(query q2\).*'d9'"):
        rerank(model, {**RUN, "q2": {"d9": 1.0}}, QUERIES, DOCUMENTS, source="a.trec")
    assert not model.asked  # nothing is scored in vain
