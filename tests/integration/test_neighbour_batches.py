"""Clusters of queries whose answers are neighbours, as a recipe reads them."""

import json
import runpy
import sys
from pathlib import Path

from tfde.data.pairs.query_clusters import read_clusters

SCRIPT = Path(__file__).parents[2] / "pipelines" / "neighbour_batches.py"


def test_clusters_follow_the_corpus_and_none_is_too_small(tmp_path, monkeypatch, capsys):
    data = tmp_path / "data"
    (data / "qrels").mkdir(parents=True)
    corpus = [json.dumps({"_id": f"d{i}", "title": "", "text": f"text {i}"}) for i in range(5)]
    (data / "corpus.jsonl").write_text("\n".join(corpus))
    queries = [json.dumps({"_id": f"q{i}", "text": f"query {i}"}) for i in range(6)]
    (data / "queries.jsonl").write_text("\n".join(queries))
    judged = [
        "q0\td4\t1",
        "q1\td0\t1",
        "q2\td1\t1",
        "q3\td3\t1",
        "q3\td0\t1",
        "q4\td2\t1",
        "q4\td0\t0",
        "q4\tgone\t1",
        "q5\tgone\t1",
    ]
    (data / "qrels" / "train.tsv").write_text(
        "\n".join(["query-id\tcorpus-id\tscore", *judged]) + "\n"
    )
    output = tmp_path / "near.jsonl"
    arguments = ["--dataset", str(data), "--size", "2", "--output", str(output)]
    main = runpy.run_path(str(SCRIPT))["main"]
    monkeypatch.setattr(sys, "argv", ["script", *arguments])
    assert main() == 0
    told = "near.jsonl: 5 queries in 2 clusters; 1 judged queries have no answer in the corpus\n"
    assert capsys.readouterr().out.endswith(told)
    # By first answer: q1 and q3 (d0), q2 (d1), q4 (d2), q0 (d4); the last cluster takes the rest.
    assert read_clusters(output) == {"q1": 0, "q3": 0, "q2": 1, "q4": 1, "q0": 1}
    arguments = ["--dataset", str(data), "--size", "4", "--together", "2", "--output", str(output)]
    met = set()
    for seed in range(9):
        monkeypatch.setattr(sys, "argv", ["script", *arguments, "--seed", str(seed)])
        assert main() == 0
        order = list(read_clusters(output))
        assert order.index("q3") == order.index("q1") + 1
        assert order.index("q4") == order.index("q2") + 1
        met.add(tuple(order))
    assert len(met) > 2
    monkeypatch.setattr(
        sys, "argv", ["script", "--dataset", str(tmp_path / "none"), *arguments[2:]]
    )
    assert main() == 1
    assert "none: a dataset directory" in capsys.readouterr().err
