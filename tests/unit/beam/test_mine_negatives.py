"""Negatives mined by parts are the file of one process."""

import json
import random

import pytest

from tfde.beam.mine_negatives import mine_with_beam
from tfde.config.negatives import MiningRules
from tfde.errors import ConfigError, PipelineError
from tfde.negatives.candidate_sources import RunCandidates
from tfde.negatives.mine import mine_negatives
from tfde.retrieval.bm25_index import Bm25Index
from tfde.retrieval.runs import write_run

RULES = MiningRules(
    count=3, min_rank=2, max_rank=40, relative_margin=0.1, choice="sampled", temperature=2.0, seed=7
)


@pytest.fixture(scope="module")
def run_file(scifact, tmp_path_factory):
    """BM25's run, its lines in random order, without those of some queries."""
    queries = list(scifact.queries("train"))
    run = Bm25Index.build(scifact.documents()).retrieve(queries, 50)
    for query in queries[:3]:
        del run[query.query_id]
    path = tmp_path_factory.mktemp("run") / "run.trec"
    write_run(path, run)
    lines = path.read_text().splitlines(keepends=True)
    random.Random(1).shuffle(lines)
    path.write_text("".join(lines))
    return path


@pytest.mark.parametrize("documents", ["ids", "texts"])
def test_the_file_of_one_process(scifact, run_file, tmp_path, options, documents):
    common = {"documents": documents, "queries_at_once": 7}
    made = mine_with_beam(scifact, run_file, tmp_path / "beam.jsonl.gz", RULES, options, **common)
    alone = mine_negatives(
        scifact, RunCandidates(run_file), tmp_path / "alone.jsonl.gz", RULES, **common
    )
    assert made == alone
    assert made.pairs > 20
    assert made.removed["positive"] > 0
    assert made.removed["margin"] > 0
    for suffix in ("", ".json"):
        beam, one = (tmp_path / f"{name}.jsonl.gz{suffix}" for name in ("beam", "alone"))
        assert beam.read_bytes() == one.read_bytes()
    assert not (tmp_path / "beam.jsonl.gz.parts").exists()
    again = mine_with_beam(scifact, run_file, tmp_path / "alone.jsonl.gz", RULES, options, **common)
    assert again == alone


def test_bad_lines_stop_the_job_or_are_kept_apart(scifact, run_file, tmp_path, options, letters):
    lines = run_file.read_text().splitlines(keepends=True)
    query_id, _, doc_id, *_ = lines[0].split()
    odd = [
        "one two three\n",
        f"{query_id} Q0 nobody 1 3.5 t\n",
        f"{query_id} Q0 {doc_id} 9 0.5 t\n",
        f"{query_id} Q0 {doc_id} 9 high t\n",
    ]
    broken = tmp_path / "broken.trec"
    broken.write_text("".join([*lines, *odd]))
    end = len(lines)
    output = tmp_path / "n.jsonl"
    with pytest.raises(PipelineError, match=rf"broken\.trec:{end + 1}: a run has six columns"):
        mine_with_beam(scifact, broken, output, RULES, options)
    assert not output.exists()
    report = mine_with_beam(scifact, broken, output, RULES, options, skip_bad=True)
    assert [(letter["line"], letter["kind"]) for letter in letters(output)] == [
        (end + 1, "bad record"),
        (end + 2, "unknown document"),
        (end + 3, "document that comes twice"),
        (end + 4, "bad record"),
    ]
    good = mine_with_beam(scifact, run_file, tmp_path / "good.jsonl", RULES, options)
    assert report == good
    assert output.read_bytes() == (tmp_path / "good.jsonl").read_bytes()
    for line, rule in ((odd[1], "must be a document"), (odd[2], "must name a document once")):
        broken.write_text("".join([*lines, line]))
        with pytest.raises(PipelineError, match=rf"broken\.trec:{end + 1}: .*{rule}"):
            mine_with_beam(scifact, broken, tmp_path / f"{rule[:6]}.jsonl", RULES, options)


def test_missing_parts_alone_are_mined(scifact, run_file, tmp_path, options):
    output = tmp_path / "n.jsonl"
    whole = mine_with_beam(scifact, run_file, output, RULES, options, queries_at_once=7)
    expected = output.read_bytes()
    record = json.loads((tmp_path / "n.jsonl.json").read_text())
    output.unlink()
    (tmp_path / "n.jsonl.json").unlink()
    (tmp_path / "n.jsonl.parts").mkdir()
    (tmp_path / "n.jsonl.parts/settings.json").write_text(json.dumps(record["settings"]))
    assert (
        mine_negatives(scifact, RunCandidates(run_file), output, RULES, queries_at_once=7) == whole
    )
    assert output.read_bytes() == expected


def test_impossible_requests(scifact, run_file, tmp_path, options):
    (tmp_path / "other.trec").write_text("nobody Q0 4983 1 1.0 x\n")
    with pytest.raises(ConfigError, match="must have candidates for queries of split 'train'"):
        mine_with_beam(scifact, tmp_path / "other.trec", tmp_path / "n", RULES, options)
    with pytest.raises(ConfigError, match="need `tfde mine-negatives`"):
        mine_with_beam(scifact, run_file, tmp_path / "n", MiningRules(max_cross_score=0.0), options)
    with pytest.raises(ConfigError, match="`queries_at_once` must be at least 1"):
        mine_with_beam(scifact, run_file, tmp_path / "n", RULES, options, queries_at_once=0)
