"""The Beam scripts with two worker processes: equal to the commands, killed, with bad records."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import tiny
from scifact_part import write_scifact_part

from tfde.cli.main import main
from tfde.data.dataset_directory import DatasetDirectory
from tfde.export.bundle import export_bundle
from tfde.export.saved_encoder import SavedEncoder
from tfde.retrieval.embeddings import Embeddings
from tfde.retrieval.encode_corpus import encode_corpus
from tfde.retrieval.exact_index import ExactIndex
from tfde.retrieval.retrieve import retrieve
from tfde.retrieval.runs import read_run
from tfde.storage.compressed import read_lines, write_lines
from tfde.towers.dual_encoder import DualEncoder

SCRIPTS = Path(__file__).parents[2] / "pipelines" / "beam"
WORKERS = ["--direct_running_mode", "multi_processing", "--direct_num_workers", "2"]


def start(name, *args, workers=WORKERS, **environment):
    return subprocess.Popen(
        [sys.executable, str(SCRIPTS / f"{name}.py"), *map(str, args), *workers],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        # What TensorFlow's C++ says of GPUs that are not there is no output of the job.
        env={**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3", "PYTHONFAULTHANDLER": "1", **environment},
    )


def run(name, *args, workers=WORKERS, **environment):
    process = start(name, *args, workers=workers, **environment)
    try:
        out, error = process.communicate(timeout=300)
    except subprocess.TimeoutExpired:
        process.send_signal(signal.SIGABRT)  # Python says where each of its threads stands
        _, error = process.communicate(timeout=30)
        pytest.fail(f"{name} does not end:\n{error[-20_000:]}")
    return process.returncode, out, error


@pytest.fixture(scope="module")
def work(tmp_path_factory, data_dir):
    """A bundle, and 600 documents of SciFact with the queries judged on them."""
    folder = tmp_path_factory.mktemp("beam")
    model = tiny.dual_encoder()
    model.save_to_preset(folder / "model")
    export_bundle(model, None, folder / "bundle")
    write_scifact_part(data_dir, folder / "data", documents=600)
    return folder


def test_two_workers_draw_the_pairs_of_one_process(tmp_path, data_dir, capsys):
    pages = tmp_path / "pages.jsonl"
    lines = read_lines(data_dir / "wikispeedia" / "pages.jsonl.gz")
    write_lines(pages, (line for _, (_, line) in zip(range(100), lines, strict=False)))
    code, out, error = run(
        "make_pairs", "--pages", pages, "--store", tmp_path / "store", "--task", "ict,wlp",
        "--weights", "2,1", "--output", tmp_path / "beam.jsonl.gz", "--limit", 1000,
        "--pairs_a_part", 90, "--skip_bad",
    )  # fmt: skip
    assert (code, error.count("\n")) == (0, 1)  # the line on links to nowhere
    assert "x link to nowhere (" in out
    assert main([
        "make-pairs", "--pages", str(pages), "--task", "ict,wlp", "--weights", "2,1", "--limit",
        "1000", "--skip_bad", "--output", str(tmp_path / "alone.jsonl.gz"),
    ]) == 0  # fmt: skip
    table = out[out.index("task ") :]
    assert table in capsys.readouterr().out
    assert (tmp_path / "beam.jsonl.gz").read_bytes() == (tmp_path / "alone.jsonl.gz").read_bytes()


@pytest.mark.slow
def test_two_workers_from_corpus_to_negatives(work, tmp_path, capsys):
    bundle, data = work / "bundle", work / "data"
    code, out, error = run(
        "encode_corpus", "--bundle", bundle, "--dataset", data, "--output", tmp_path / "e",
        "--shard_size", 130,
    )  # fmt: skip
    assert (code, error) == (0, "")
    assert "600 documents x " in out
    model, dataset = DualEncoder.load(work / "model"), DatasetDirectory(data)
    alone = encode_corpus(model, dataset.documents(), tmp_path / "alone", shard_size=130)
    made = Embeddings.open(tmp_path / "e")
    assert made.doc_ids == alone.doc_ids
    assert made.fingerprint == alone.fingerprint
    np.testing.assert_allclose(made.read(), alone.read(), atol=1e-6)
    index = ["build-index", "--embeddings", tmp_path / "e", "--output", tmp_path / "i"]
    assert main(list(map(str, index))) == 0

    code, out, error = run(
        "retrieve", "--bundle", bundle, "--embeddings", tmp_path / "e", "--queries",
        dataset.file("queries.jsonl"), "--output", tmp_path / "run.trec", "-k", 30,
        "--queries_a_part", 16,
    )  # fmt: skip
    assert (code, error) == (0, "")
    expected = retrieve(model, ExactIndex.from_embeddings(made), dataset.queries(), 30)
    found = read_run(tmp_path / "run.trec")
    assert list(found) == list(expected)
    for query_id, row in expected.items():
        scores = [found[query_id].get(doc_id, -2) for doc_id in row]
        # Only documents whose scores are equal to the sixth digit may change places.
        np.testing.assert_allclose(sorted(scores), sorted(row.values()), atol=1e-5)

    args = [
        "--dataset", data, "--run_file", tmp_path / "run.trec", "--choice", "sampled",
        "--temperature", 0.1, "--relative_margin", 0.02, "--seed", 3, "--output",
    ]  # fmt: skip
    code, out, error = run("mine_negatives", *args, tmp_path / "beam.jsonl.gz")
    assert (code, error) == (0, "")
    capsys.readouterr()
    assert main(["mine-negatives", *map(str, args), str(tmp_path / "alone.jsonl.gz")]) == 0
    alone = capsys.readouterr().out.splitlines()
    assert alone[-1].startswith("mined in ")
    assert out.splitlines()[1:] == alone[1:-1]
    for suffix in ("", ".json"):
        beam, one = (tmp_path / f"{name}.jsonl.gz{suffix}" for name in ("beam", "alone"))
        assert beam.read_bytes() == one.read_bytes()


def workers_of(process):
    """The process ids of a job's workers."""
    found = []
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            try:
                parent = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
                command = (folder / "cmdline").read_bytes()
            except OSError:
                continue  # it ended while we looked
            if parent == process.pid and b"local_worker_main" in command:
                found.append(int(folder.name))
    return found


def contents(directory):
    return {file.name: file.read_bytes() for file in sorted(directory.iterdir())}


@pytest.mark.kill
def test_a_killed_worker_ends_the_job_and_the_next_one_goes_on(work, tmp_path):
    output = tmp_path / "e"
    args = [
        "--bundle", work / "bundle", "--dataset", work / "data", "--shard_size", 10,
        "--batch_size", 1, "--output",
    ]  # fmt: skip
    process = start("encode_corpus", *args, output)
    deadline = time.monotonic() + 300
    while len(list(output.glob("shard-*.json"))) < 3:
        assert process.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.005)
    pids = workers_of(process)
    os.kill(pids[0], signal.SIGKILL)
    out, error = process.communicate(timeout=300)
    assert (process.returncode, out) == (1, "")
    # The other worker, cut off in the middle of its work, may leave words of its C++ threads.
    (told,) = [line for line in error.splitlines() if line.startswith("encode_corpus.py: ")]
    assert told.startswith("encode_corpus.py: worker_")
    assert "is gone: Worker subprocess exited with return code -9; give the job again" in told
    assert len(pids) == 2
    assert not any(Path(f"/proc/{pid}").exists() for pid in pids)
    assert not (output / "embeddings.json").exists()
    finished = {file.name: file.stat().st_mtime_ns for file in output.glob("shard-*.json")}
    assert 3 <= len(finished) < 60

    code, _, error = run("encode_corpus", *args, output, workers=[])
    assert (code, error) == (0, "")
    for name, written in finished.items():
        assert (output / name).stat().st_mtime_ns == written
    encode_corpus(
        SavedEncoder(work / "bundle"), DatasetDirectory(work / "data").documents(),
        tmp_path / "whole", shard_size=10, batch_size=1,
    )  # fmt: skip
    assert contents(output) == contents(tmp_path / "whole")


def test_a_bad_record_of_a_worker_is_one_line(work, tmp_path):
    data = tmp_path / "data"
    data.mkdir()
    lines = [line for _, line in read_lines(work / "data" / "corpus.jsonl.gz")]
    (data / "corpus.jsonl").write_text("\n".join([*lines[:50], '{"_id": "x y"}', *lines[50:70]]))
    args = [
        "--bundle", work / "bundle", "--dataset", data, "--output", tmp_path / "e",
        "--shard_size", 20,
    ]  # fmt: skip
    code, out, error = run("encode_corpus", *args)
    assert (code, out) == (1, "")
    assert error == (
        f"encode_corpus.py: {data}/corpus.jsonl:51: field '_id' must not hold white space."
        " Received: 'x y'\n"
    )


STAYS = """
import atexit, sys, time
if "tfde.beam.local_worker_main" in sys.orig_argv:
    atexit.register(time.sleep, 1000)
"""


def test_a_worker_that_does_not_end_is_ended(work, tmp_path):
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "sitecustomize.py").write_text(STAYS)
    lines = [line for _, line in read_lines(work / "data" / "corpus.jsonl.gz")]
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "corpus.jsonl").write_text("\n".join(lines[:40]))
    args = ["--bundle", work / "bundle", "--dataset", tmp_path / "data", "--shard_size", 20]
    path = os.pathsep.join(filter(None, [str(tmp_path / "site"), os.environ.get("PYTHONPATH")]))
    args += ["--output", tmp_path / "e"]
    code, out, error = run("encode_corpus", *args, workers=[*WORKERS[:3], "1"], PYTHONPATH=path)
    assert (code, error) == (0, "")
    assert "40 documents x " in out


@pytest.mark.parametrize("name", ["make_pairs", "encode_corpus", "retrieve", "mine_negatives"])
def test_help_tells_of_our_options_and_of_beams(name):
    code, out, _ = run(name, "--help", workers=[])
    assert code == 0
    assert "--output" in out
    assert "--direct_num_workers N" in out
