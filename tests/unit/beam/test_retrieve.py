"""A run over shards, each searched alone, is the run of exact search over all."""

import json

import numpy as np
import pytest

from tfde.beam.encode import encode_with_beam
from tfde.beam.retrieve import MergeBest, retrieve_with_beam
from tfde.errors import ConfigError, MismatchError, PipelineError
from tfde.export.saved_encoder import SavedEncoder
from tfde.retrieval.exact_index import ExactIndex
from tfde.retrieval.retrieve import retrieve
from tfde.retrieval.runs import read_run, write_run


@pytest.fixture(scope="module")
def embeddings(scifact, bundle, tmp_path_factory):
    from apache_beam.options.pipeline_options import PipelineOptions

    output = tmp_path_factory.mktemp("embeddings") / "e"
    return encode_with_beam(bundle, scifact.path, output, PipelineOptions([]), shard_size=64)


def test_the_run_of_one_process(scifact, bundle, embeddings, tmp_path, options):
    queries = list(scifact.queries("train"))
    counts = retrieve_with_beam(
        bundle, embeddings.path, scifact.file("queries.jsonl"), tmp_path / "run.trec.gz", options,
        k=20, queries_a_part=10,
    )  # fmt: skip
    index = ExactIndex.from_embeddings(embeddings)
    expected: dict = {}
    for start in range(0, len(queries), 10):  # a matrix product of another shape differs by 1e-7
        expected |= retrieve(SavedEncoder(bundle), index, queries[start : start + 10], 20)
    write_run(tmp_path / "alone.trec.gz", expected)
    assert (tmp_path / "run.trec.gz").read_bytes() == (tmp_path / "alone.trec.gz").read_bytes()
    assert counts == {"queries": len(queries), "lines": 20 * len(queries)}


def test_more_than_there_are(scifact, bundle, embeddings, tmp_path, options):
    counts = retrieve_with_beam(
        bundle, embeddings.path, scifact.file("queries.jsonl"), tmp_path / "run", options, k=1000
    )
    assert counts["lines"] == 300 * counts["queries"]
    run = read_run(tmp_path / "run")
    assert all(set(row) == set(embeddings.doc_ids) for row in run.values())


def test_merging_keeps_the_order_of_the_corpus_in_ties_whatever_the_order_of_the_shards():
    rng = np.random.default_rng(0)
    scores = rng.integers(0, 4, (5, 60)).astype(np.float32)
    positions = np.tile(np.arange(60), (5, 1))
    shards = [(scores[:, a : a + 12], positions[:, a : a + 12]) for a in range(0, 60, 12)]
    order = np.argsort(-scores, axis=1, kind="stable")[:, :7]
    merge = MergeBest(7)
    for _ in range(20):
        rng.shuffle(shards)
        left, right = merge.create_accumulator(), merge.create_accumulator()
        for shard in shards[:2]:
            left = merge.add_input(left, shard)
        for shard in shards[2:]:
            right = merge.add_input(right, shard)
        empty = merge.create_accumulator()
        best = merge.extract_output(merge.merge_accumulators([right, empty, left]))
        np.testing.assert_array_equal(best[1], order)
        np.testing.assert_array_equal(best[0], np.take_along_axis(scores, order, 1))


def test_bad_queries_stop_the_job_or_are_kept_apart(bundle, embeddings, tmp_path, options, letters):
    queries, output = tmp_path / "queries.jsonl", tmp_path / "run.trec"
    rows = [{"_id": "a", "text": "cells"}, {"_id": "b"}, {"_id": "a", "text": "genes"}]
    queries.write_text("".join(json.dumps(row) + "\n" for row in rows))
    with pytest.raises(PipelineError, match=r"queries\.jsonl:2: field 'text' is missing"):
        retrieve_with_beam(bundle, embeddings.path, queries, output, options, k=3)
    assert not output.exists()
    counts = retrieve_with_beam(
        bundle, embeddings.path, queries, output, options, k=3, skip_bad=True
    )
    assert counts == {"queries": 1, "lines": 3}
    assert [letter["line"] for letter in letters(output)] == [2, 3]
    assert letters(output)[1]["rule"] == "field '_id' must be unique; line 1 has it too."
    queries.write_text("")
    with pytest.raises(PipelineError, match="`queries` must hold at least one query"):
        retrieve_with_beam(bundle, embeddings.path, queries, tmp_path / "none", options)


def test_impossible_requests(scifact, bundle, embeddings, tmp_path, options):
    def search(**changes):
        given = {"bundle": bundle, "embeddings": embeddings.path, **changes}
        retrieve_with_beam(
            given.pop("bundle"), given.pop("embeddings"), scifact.file("queries.jsonl"),
            tmp_path / "run", options, **given,
        )  # fmt: skip

    with pytest.raises(ConfigError, match=r"`k` must be at least 1\. Received: 0"):
        search(k=0)
    with pytest.raises(ConfigError, match="`tag` must be text without white space"):
        search(tag="a b")
    other = tmp_path / "other"
    other.mkdir()
    manifest = json.loads((bundle / "manifest.json").read_text())
    (other / "manifest.json").write_text(
        json.dumps({**manifest, "towers_fingerprint": "0123456789abcdef"})
    )
    with pytest.raises(MismatchError, match="would be encoded with model 0123456789abcdef"):
        search(bundle=other)
