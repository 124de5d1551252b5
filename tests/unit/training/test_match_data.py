"""What a run of `tfde train-matcher` trains on, and the model that it builds."""

import json

import tiny

from tfde.config.matching import MatchDataConfig, MatchModelConfig, MatchRun
from tfde.training.match_data import read_parts
from tfde.training.match_run import build_model


def test_a_query_is_on_one_side_alone(tmp_path):
    rows = [
        {"query": f"query {i // 2}", "positive": f"yes {i}", "negatives": [f"no {i}"]}
        for i in range(40)
    ]
    path = tmp_path / "pairs.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    data = MatchDataConfig(str(path), held_out=0.25)
    run = MatchRun(
        MatchModelConfig("siamese", "none"),
        data,
        objective="ranking",
        validation=MatchDataConfig(str(path), held_out=0.25, part="held_out"),
    )
    parts = read_parts(run)
    training, held_out = set(parts["data"].first), set(parts["validation"].first)
    assert (len(training), len(held_out)) == (15, 5)
    assert training.isdisjoint(held_out)
    assert len(parts["data"]) + len(parts["validation"]) == 80


def test_random_weights_have_a_row_for_each_token(tmp_path):
    vocabulary = tmp_path / "vocab.txt"
    vocabulary.write_text("\n".join(tiny.VOCABULARY) + "\n")
    backbone = {"kind": "bert", "num_layers": 1, "num_heads": 2, "hidden_dim": 8}
    config = MatchModelConfig("siamese", backbone, str(vocabulary))
    model = build_model(config, num_labels=2, labels=("no", "yes"), seed=1)
    shapes = {tuple(weight.shape) for weight in model.weights}
    assert (len(tiny.VOCABULARY), 8) in shapes
