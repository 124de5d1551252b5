"""encode -> build-index -> retrieve -> evaluate as commands, with a real dual encoder."""

import json
import os
import re
import shutil
import subprocess
import sys
import time

import numpy as np
import pytest
import tiny

from tfde.cli.main import main
from tfde.data.dataset_directory import DatasetDirectory
from tfde.retrieval.embeddings import Embeddings
from tfde.retrieval.runs import read_run
from tfde.towers.dual_encoder import DualEncoder


@pytest.fixture(scope="module")
def work(tmp_path_factory):
    directory = tmp_path_factory.mktemp("work")
    tiny.write_dataset(directory / "data")
    tiny.dual_encoder().save_to_preset(directory / "model")
    return directory


def tfde(capsys, *args):
    code = main([str(arg) for arg in args])
    out, error = capsys.readouterr()
    return code, out, error


def test_the_road(work, capsys):
    data, model = work / "data", work / "model"
    code, out, error = tfde(
        capsys, "encode", "--model", model, "--dataset", data, "--output", work / "e",
        "--shard_size", 64,
    )  # fmt: skip
    assert (code, error) == (0, "")
    assert "200 documents x 6 float32" in out
    embeddings = Embeddings.open(work / "e")
    assert len(embeddings.manifest["shards"]) == 4
    documents = list(DatasetDirectory(data).documents())
    assert embeddings.doc_ids == [document.doc_id for document in documents]
    encoder = DualEncoder.load(model)
    np.testing.assert_allclose(embeddings.read(), encoder.encode_documents(documents), atol=1e-6)
    assert embeddings.fingerprint == encoder.fingerprint()

    args = ["build-index", "--embeddings", work / "e", "--output", work / "index"]
    code, out, _ = tfde(capsys, *args)
    assert code == 0
    assert "200 x 6, scann, exact, built in" in out
    assert "recall@10 1.0000 against exact search, 200 stand-ins for queries" in out
    assert "time per query: " in out
    code, _, error = tfde(capsys, *args)
    assert code == 1
    assert "exists and is not empty" in error
    code, out, error = tfde(capsys, *args, "--overwrite", "--target_recall", 0.95)
    assert (code, error) == (0, "")
    assert "200 vectors are searched exactly: there is nothing to choose\n" in out
    for engine in ("scann", "exact"):  # what searches, and nothing of what encodes the queries
        asked = ["--overwrite", "--engine", engine, "--dataset", data, "--model", model]
        code, out, error = tfde(capsys, *args, *asked)
        assert (code, error) == (0, "")
        assert "queries of the dataset" in out
    tree = ["--overwrite", "--num_leaves", 10, "--num_leaves_to_search", 10]
    code, out, _ = tfde(capsys, *args, *tree)
    assert code == 0
    assert "tree (10 of 10 leaves)" in out

    queries = data / "queries.jsonl"
    code, out, _ = tfde(
        capsys, "retrieve", "--model", model, "--index", work / "index", "--queries", queries,
        "--output", work / "run.trec", "-k", 200,
    )  # fmt: skip
    assert code == 0
    run = read_run(work / "run.trec")
    assert len(run) == sum(1 for _ in DatasetDirectory(data).queries())
    assert {len(results) for results in run.values()} == {200}
    args = ["retrieve", "--model", model, "--index", work / "index", "-k", 200, "--output"]
    (work / "q.jsonl").write_text('{"_id": "no text"}\n' + queries.read_text())
    bad = [work / "all.trec", "--queries", work / "q.jsonl"]
    code, _, error = tfde(capsys, *args, *bad)
    assert code == 1
    assert "q.jsonl:1: " in error
    assert "(--skip_bad leaves out and counts such)" in error
    code, out, _ = tfde(capsys, *args, *bad, "--skip_bad")
    assert code == 0
    assert f"{len(run):,} queries, 1 bad skipped, " in out
    assert read_run(work / "all.trec") == run
    split = ["--dataset", data, "--split", "dev"]
    code, _, _ = tfde(capsys, *args, work / "dev.trec", *split)
    judged = DatasetDirectory(data).qrels("dev")
    assert code == 0
    assert read_run(work / "dev.trec").keys() == judged.keys() < run.keys()
    for wrong, told in (
        ([], "--queries` or `--dataset`"),
        ([*split, "--queries", queries], "--queries` or `--dataset`"),
        (["--queries", queries, "--split", "dev"], "`--split` must be beside"),
    ):
        code, _, error = tfde(capsys, *args, work / "none.trec", *wrong)
        assert code == 1
        assert told in error

    code, out, error = tfde(
        capsys, "evaluate", "--dataset", data, "--split", "dev", "--model", model, "--run_file",
        f"stored={work}/run.trec", "--bm25", "--measures", "P@1,RR", "R@200", "--json",
        "--save_runs", work / "runs",
    )  # fmt: skip
    assert (code, error) == (0, "")
    value = json.loads(out)
    saved_run = f"1_{re.sub(r'[^a-zA-Z0-9_]+', '_', model.parent.name)}.trec"
    assert [row["name"] for row in value["rows"]] == [str(model), "stored", "BM25"]
    assert value["k"] == 200
    by_model, by_run, by_bm25 = (row["measures"] for row in value["rows"])
    assert by_model == pytest.approx(by_run, abs=0.03)  # float32 near-ties between two searches
    own = read_run(work / "runs" / saved_run)
    for query_id, scores in read_run(work / "run.trec").items():
        if query_id in own:
            assert scores == pytest.approx(own[query_id], abs=1e-4)
    assert by_model["R@200"] == 1
    assert by_bm25["P@1"] > 0.5
    assert [row["seconds"] is None for row in value["rows"]] == [False, True, False]
    saved = {file.name for file in (work / "runs").iterdir()}
    assert saved == {saved_run, "3_BM25.trec"}

    code, out, _ = tfde(capsys, "evaluate", "--dataset", data, "--split", "dev", "--bm25")
    assert code == 0
    assert "| system |" in out
    assert "| BM25   |" in out


def test_another_model_refuses_the_index(work, capsys):
    tiny.dual_encoder(seed=2).save_to_preset(work / "other")
    main(
        [
            "encode",
            "--model",
            f"{work}/model",
            "--dataset",
            f"{work}/data",
            "--output",
            f"{work}/e2",
        ]
    )
    main(["build-index", "--embeddings", f"{work}/e2", "--output", f"{work}/index2"])
    code, _, error = tfde(
        capsys, "retrieve", "--model", work / "other", "--index", work / "index2", "--queries",
        work / "data/queries.jsonl", "--output", work / "no.trec",
    )  # fmt: skip
    assert code == 1
    assert "the index was made with model" in error
    assert not (work / "no.trec").exists()
    code, _, error = tfde(
        capsys, "encode", "--model", work / "other", "--dataset", work / "data", "--output",
        work / "e2",
    )  # fmt: skip
    assert code == 1
    assert "was begun otherwise: fingerprint was" in error


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["--split", "nope", "--bm25"], "`split` must be one of its splits: "),
        (["--split", "dev"], "nothing to evaluate: give --model, --run_file or --bm25."),
        (
            ["--split", "dev", "--bm25", "--measures", "bar@3"],
            "unknown measure; try P@1, RR, RR@10",
        ),
        (["--split", "dev", "--run_file", "missing.trec"], "missing.trec"),
        (["--split", "dev", "--bm25", "--bm25_language", "klingon"], "`language` must be"),
        (
            ["--split", "dev", "--bm25", "--report", ""],
            "`report` must be a directory. Received: ''",
        ),
        (
            ["--split", "dev", "--bm25", "--parent_separator", "#"],
            "`parent_separator` must be left out without `parent_weight`. Received: '#'",
        ),
        (["--split", "dev", "--bm25", "--bm25_b", "7"], "`b` must be in [0, 1]. Received: 7.0"),
    ],
)
def test_evaluate_refuses_before_it_works(work, capsys, args, message):
    code, out, error = tfde(capsys, "evaluate", "--dataset", work / "data", *args)
    assert code == 1
    assert out == ""
    assert message in error
    assert len(error.splitlines()) == 1


def test_retrieve_refuses_before_it_works(work, capsys):
    args = ["retrieve", "--model", "x", "--index", "y", "--queries", work / "data/queries.jsonl"]
    for extra, message in [
        (
            ["--output", work / "a.trec", "--tag", "my tag"],
            "`tag` must be text without white space",
        ),
        (["--output", work / "no/a.trec"], "`output` must be in a directory that exists"),
        (["--output", work / "a.trec"], "y: no index.json there."),
    ]:
        code, _, error = tfde(capsys, *args, *extra)
        assert code == 1
        assert message in error


@pytest.mark.parametrize("command", ["encode", "build-index", "retrieve", "evaluate"])
def test_help_imports_no_tensorflow(command):
    script = (
        "import sys; sys.argv = ['tfde', sys.argv[1], '--help']\n"
        "from tfde.cli.main import main\n"
        "try: main()\n"
        "finally:\n"
        "    heavy = {'tensorflow', 'keras', 'scann', 'bm25s', 'numpy'} & set(sys.modules)\n"
        "    print('HEAVY', sorted(heavy))\n"
    )
    start = time.perf_counter()
    done = subprocess.run(
        [sys.executable, "-c", script, command], capture_output=True, text=True, check=False,
        env={**os.environ, "COLUMNS": "200"},
    )  # fmt: skip
    assert time.perf_counter() - start < 5  # 0.3 s alone; other tests run beside
    assert done.returncode == 0, done.stderr
    assert f"usage: tfde {command}" in done.stdout
    assert "HEAVY []" in done.stdout


def test_other_lengths_than_the_models_own(work, capsys):
    """Documents of one word each: what is encoded is the same as from such texts."""
    data, model = work / "data", work / "model"
    lengths = ["--document_max_length_tokens", 3]
    encode = ["encode", "--model", model, "--dataset", data, "--output", work / "short"]
    assert tfde(capsys, *encode, *lengths)[0] == 0
    texts = [document.text.split()[0] for document in DatasetDirectory(data).documents()]
    embeddings = Embeddings.open(work / "short")
    expected = DualEncoder.load(model).encode_documents(texts)
    np.testing.assert_allclose(embeddings.read(), expected, atol=1e-6)
    args = ["build-index", "--embeddings", work / "short", "--output", work / "short_index"]
    args += ["--dataset", data, "--model", model]
    code, _, error = tfde(capsys, *args)
    assert code == 1
    assert "`--model` must be the one that made the embeddings" in error
    assert tfde(capsys, *args, *lengths)[0] == 0
    retrieve = ["retrieve", "--model", model, "--index", work / "short_index"]
    retrieve += ["--queries", data / "queries.jsonl", "--output", work / "short.trec"]
    code, _, error = tfde(capsys, *retrieve)
    assert code == 1
    assert "the index was made with model" in error
    assert tfde(capsys, *retrieve, *lengths)[0] == 0
    evaluate = ["evaluate", "--dataset", data, "--split", "dev", "--measures", "RR", "--json"]
    values = [
        json.loads(tfde(capsys, *evaluate, "--model", model, *given)[1])["rows"][0]["measures"]
        for given in ([], lengths, ["--document_max_length_tokens", 16])
    ]
    assert values[0] == values[2]
    assert values[1]["RR"] < values[0]["RR"]
    code, _, error = tfde(capsys, *encode, "--query_max_length_tokens", 2)
    assert code == 1
    assert "`query_max_length_tokens` must be an integer of at least 3. Received: 2" in error


def test_passages_and_the_documents_they_are_cut_from(work, capsys, tmp_path):
    model, data = work / "model", tmp_path / "data"
    shutil.copytree(work / "data", data)
    lines = (data / "corpus.jsonl").read_text().splitlines()
    # The first document says the same after 40 other words, of which a passage has at most 14.
    first = json.loads(lines[0])
    padding = " ".join(["tree road"] * 20)
    lines[0] = json.dumps({**first, "text": f"{padding}\n\n{first['text']}"})
    (data / "corpus.jsonl").write_text("\n".join(lines) + "\n")
    code, out, _ = tfde(
        capsys, "chunk", "--dataset", data, "--model", model, "--output", tmp_path / "parts"
    )
    assert (code, out.splitlines()[0]) == (
        0,
        f"{tmp_path}/parts: 203 passages of 200 documents, of which 1 were cut",
    )
    evaluate = ["evaluate", "--split", "dev", "--model", model, "--measures", "RR"]
    code, out, _ = tfde(capsys, *evaluate, "--dataset", data)
    assert code == 0
    assert "1 of 200 documents (0.5%) cut at 16 tokens, which lost 67.4% of theirs" in out
    parts = ["--dataset", tmp_path / "parts", "--max_passage"]
    code, out, error = tfde(capsys, *evaluate, *parts, "--save_runs", tmp_path / "runs")
    assert (code, "none of 203 documents cut at 16 tokens" in out) == (0, True), error
    (file,) = (tmp_path / "runs").iterdir()
    run = read_run(file)
    assert {len(found) for found in run.values()} == {100}
    assert set().union(*run.values()) <= {f"d{number}" for number in range(200)}
    # What was saved is a run of the documents that were cut.
    saved = ["--run_file", file, "--measures", "RR"]
    _, again, _ = tfde(capsys, "evaluate", "--split", "dev", "--dataset", data, *saved)
    assert again.splitlines()[-1].split("|")[2] == out.splitlines()[4].split("|")[2]
    code, _, error = tfde(capsys, *evaluate, *parts, "--report", tmp_path / "report")
    assert code == 1
    assert "`--report` needs the texts of what is measured" in error
    code, _, error = tfde(capsys, *evaluate, *parts[:2])
    assert (code, "no judged document is in the corpus" in error) == (1, True)
