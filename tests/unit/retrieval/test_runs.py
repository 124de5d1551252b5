import numpy as np
import pytest

from tfde.errors import ConfigError, DataError
from tfde.retrieval.runs import check_output, read_run, write_run


def test_six_columns_ranks_from_one_and_ties_in_trec_evals_order(tmp_path):
    run = {"q1": {"b": 1.5, "a": 2.0, "c": 1.5}, "q2": {}, "q3": {"ä": -0.5}}
    write_run(tmp_path / "r.trec", run, tag="mine")
    assert (tmp_path / "r.trec").read_text("utf-8").splitlines() == [
        "q1 Q0 a 1 2.0 mine",
        "q1 Q0 c 2 1.5 mine",
        "q1 Q0 b 3 1.5 mine",
        "q3 Q0 ä 1 -0.5 mine",
    ]


@pytest.mark.parametrize("name", ["r.trec", "r.trec.gz"])
def test_scores_come_back_as_they_went(tmp_path, name):
    generator = np.random.default_rng(0)
    scores = [*map(float, generator.standard_normal(200).astype(np.float32)), 1e-30, 1 / 3, 1e20]
    run = {"q": {f"d{i}": score for i, score in enumerate(scores)}}
    write_run(tmp_path / name, run)
    assert read_run(tmp_path / name) == run


def test_reading_trusts_scores_and_takes_any_white_space(tmp_path):
    (tmp_path / "r").write_text("q Q0 a 1 0.5 t\n\nq\tQ0\tb\t0\t7e-1\tt\n")
    assert read_run(tmp_path / "r") == {"q": {"a": 0.5, "b": 0.7}}


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("q Q0 d 1 0.5", r"r:2: a run has six columns: .* Received: 'q Q0 d 1 0\.5'"),
        ("q Q0 d e 1 0.5 t", r"r:2: a run has six columns"),
        ("q Q0 d one 0.5 t", r"r:2: the rank \(column 4\) must be an integer\. Received: 'one'"),
        ("q Q0 d 1 high t", r"r:2: the score \(column 5\) must be a finite number.*'high'"),
        ("q Q0 d 1 nan t", r"r:2: the score \(column 5\) must be a finite number.*'nan'"),
        ("q Q0 a 2 0.4 t", r"r:2: query q must name a document once\. Received: 'a'"),
    ],
)
def test_bad_lines_are_named(tmp_path, line, message):
    (tmp_path / "r").write_text(f"q Q0 a 1 0.5 t\n{line}\n")
    with pytest.raises(DataError, match=message):
        read_run(tmp_path / "r")


@pytest.mark.parametrize(
    ("run", "message"),
    [
        (
            {"q": {"a": 1.0, "b c": 0.5}},
            r":2: a document id must be UTF-8 text without white space",
        ),
        ({"q": {"a": 1.0, "": 0.5}}, r":2: a document id must be UTF-8 text"),
        ({"q 1": {"a": 1.0}}, r":1: a query id must be UTF-8 text without white space"),
        ({"q": {"a": float("nan")}}, r":1: a score must be finite\. Received: nan"),
    ],
)
def test_what_cannot_be_read_again_is_not_written(tmp_path, run, message):
    with pytest.raises(DataError, match=message):
        write_run(tmp_path / "r", run)
    assert list(tmp_path.iterdir()) == []


def test_a_tag_with_white_space_is_refused(tmp_path):
    with pytest.raises(ConfigError, match=r"`tag` must be text without white space"):
        write_run(tmp_path / "r", {}, tag="my tag")


def test_what_is_read_is_not_written_over(tmp_path):
    (tmp_path / "link.trec").symlink_to(tmp_path / "run.trec")
    for given in ("run.trec", "link.trec"):
        with pytest.raises(ConfigError, match=r"`output` must be another file than those"):
            check_output(tmp_path / "run.trec", "tag", given=[tmp_path / "x", tmp_path / given])
    check_output(tmp_path / "run.trec", "tag", given=[tmp_path / "x"])
