"""The page of benchmarks says what the JSON files say."""

import json
import subprocess
import sys
import tempfile
from pathlib import Path

SCRIPT = Path(__file__).parents[3] / "benchmarks" / "report.py"
MACHINE = {"cpu": "some processor", "cores": 2, "python": "3.11.1"}
TIMES = {"ratio_lowest": 1.5, "ratio_highest": 2.25, "pairs": 5, "ours_s": 0.01, "theirs_s": 0.02}
TIMES |= {"ours_per_s": 120.0, "theirs_per_s": 60.0}
LOSSES = {
    "dtype": "float32",
    "ours_loss": 0.5,
    "theirs_loss": 0.5,
    "ours_dropout": True,
    "theirs_dropout": True,
}
LOSSES |= {"ours_share_of_padding": 0.0, "theirs_share_of_padding": 0.0}


def cosines(ours):
    return {"ours_smallest_cosine": ours, "theirs_smallest_cosine": 0.9912}


def page(tmp_path, results):
    """Returns the table's rows by question, and the whole page."""
    tmp_path = Path(tempfile.mkdtemp(dir=tmp_path))
    for name, result in results.items():
        about = {**MACHINE, "command": f"python benchmarks/{name}.py", "versions": {"keras": "3"}}
        (tmp_path / f"{name}.json").write_text(json.dumps({**result, **about}))
    output = tmp_path / "page.md"
    command = [sys.executable, str(SCRIPT), "--results", str(tmp_path), "--output", str(output)]
    subprocess.run(command, check=True)
    text = output.read_text()
    lines = [line for line in text.splitlines() if line.startswith("| ")]
    cells = [[cell.strip() for cell in line.split("|")[1:-1]] for line in lines]
    return {question: rest for question, *rest in cells if question != "question"}, text


def test_rows_of_the_table(tmp_path):
    encoding = {
        "documents_float32 against onnxruntime": {"ratio": 0.99, **TIMES, **cosines(1.0)},
        "documents_bfloat16 against sentence_transformers": {
            "ratio": 1.81,
            **TIMES,
            **cosines(0.99951),
        },
        "documents_int8 against onnxruntime": {"left_out": "there is none yet"},
        "one_query_bfloat16 against sentence_transformers": {"ratio": 2.0, **TIMES},
        "one_query_float32 in openvino against onnxruntime": {"ratio": 1.5, **TIMES},
    }
    startup = {"help": {"runs": 10, "lowest_s": 0.1, "median_s": 0.12, "highest_s": 0.2}}
    times = {"times_plain": 1.51, "times_plain_lowest": 1.4, "times_plain_highest": 1.6}
    results = {"encoding": encoding, "startup": startup}
    rows, text = page(tmp_path, {**results, "gradient_cache": {"squad_float32": times}})
    spread, speeds = "(1.50-2.25)", ["120 texts/s", "60 texts/s"]
    assert rows == {
        "encode documents, float32, against ONNX Runtime": [
            f"0.99 {spread}", *speeds, "smallest cosine 1.0000 / 0.9912", "1.8", "**no**", "1",
        ],
        "encode documents, bfloat16, against sentence-transformers' autocast": [
            f"1.81 {spread}", *speeds, "smallest cosine 0.9995 / 0.9912", "1.8", "yes", "1",
        ],
        "one query, tokenization included, bfloat16, against sentence-transformers' autocast": [
            f"2.00 {spread}", "10.00 ms", "20.00 ms", "", "-", "-", "1",
        ],
        "one query in OpenVINO, tokenization included, float32, against ONNX Runtime": [
            f"1.50 {spread}", "10.00 ms", "20.00 ms", "", "1.2", "yes", "1",
        ],
        "`tfde --help`": ["0.12 s (0.10-0.20)", "-", "-", "", "at most 0.3 s", "yes", "2"],
        "gradient cache, mixed lengths, float32, time of as many plain chunks": [
            "1.51 x (1.40-1.60)", "-", "-", "", "at most 1.5 x", "**no**", "3",
        ],
    }  # fmt: skip
    assert "dynamic int8: there is none yet." in text
    assert "1. `python benchmarks/encoding.py`\n2. `python benchmarks/startup.py`" in text
    assert "- some processor, 2 cores, Python 3.11.1: keras 3" in text


def test_rows_of_servers_and_of_the_index(tmp_path):
    figures = {"queries_per_s": 80.4, "p50_ms": 12.0, "p99_ms": 17.04, "client_cpu_ms": 1.0}
    peer = {**figures, "queries_per_s": 61.0, "p50_ms": 16.0}
    seconds = {"median_s": 5.84, "lowest_s": 5.5, "highest_s": 6.25, "starts": 2}
    served = {
        "1 clients": {"tfde": figures, "peer": peer, "tfde against peer": {"ratio": 1.3, **TIMES}},
        "first_answer_s": {"tfde": seconds, "tfde_alone": seconds, "peer": seconds},
        "equal_ids": {"tfde, peer": 0.917},
    }
    way = {"ours_ms_per_query": 0.0654, "theirs_ms_per_query": 0.1}
    way |= {"ours_recall": 0.9672, "theirs_recall": 0.958}
    index = {"recall_0.95_batch_1_threads_2 against hnswlib": {"ratio": 1.49, **TIMES, **way}}
    sizes = {"build_s": 42.4, "resident_bytes": 638.2, "stored_bytes": 590.0}
    index["indexes"] = {"scann": sizes, "hnswlib": sizes}
    rows, text = page(tmp_path, {"served_search": served, "index_peers": index})
    spread, bound = "(1.50-2.25)", "5.84 s (5.50-6.25)"
    found = "p50 12 / 16 ms, p99 17 / 17 ms, 92% equal ids"
    assert rows == {
        "text in, ids out, 1 client, against the peer": [
            f"1.30 {spread}", "80 questions/s", "61 questions/s", found, "2", "**no**", "1",
        ],
        "start to first right answer, whole bundle": [
            bound, "-", "-", "", "at most 6 s", "yes", "1",
        ],
        "start to first right answer, one retriever": [
            bound, "-", "-", "", "at most 4 s", "**no**", "1",
        ],
        "start to first right answer, the peer": [bound, "-", "-", "", "-", "-", "1"],
        "": ["build, s", "bytes a vector, resident", "stored"],
        "ours": ["42", "638", "590"],
        "hnswlib": ["42", "638", "590"],
        "recall@10 of 0.95, one by one, two threads, against hnswlib": [
            f"1.49 {spread}", "0.065 ms", "0.100 ms", "recall 0.967 / 0.958", "1.5", "**no**", "2",
        ],
    }  # fmt: skip
    assert "## Encoding" not in text
    assert "## Through a server" in text


def reached(tmp_path, file, key, found):
    rows, _ = page(tmp_path, {file: {key: {"ratio": 1.9, **TIMES, **found}}})
    (row,) = rows.values()
    return row[-2] == "yes"


def test_a_ratio_alone_does_not_reach_the_bar(tmp_path):
    key = "documents_bfloat16 against sentence_transformers"
    assert reached(tmp_path, "encoding", key, cosines(0.999))
    assert not reached(tmp_path, "encoding", key, cosines(0.9989))
    key, points = "documents_int8 against onnxruntime", {"float32_scifact_ndcg10": 64.5}
    points["theirs_scifact_ndcg10"] = 63.0
    points["scifact_documents"] = 2000
    assert reached(tmp_path, "encoding", key, {**points, "ours_scifact_ndcg10": 64.0})
    assert not reached(tmp_path, "encoding", key, {**points, "ours_scifact_ndcg10": 63.99})
    key = "squad_float32_32"
    assert reached(tmp_path, "training", key, LOSSES)
    assert not reached(tmp_path, "training", key, {**LOSSES, "ours_loss": 0.5002})
    assert not reached(tmp_path, "training", key, {**LOSSES, "theirs_dropout": False})
    key = "unigram_32"
    assert reached(tmp_path, "tokenization", key, {"share_of_equal_ids": 1.0})
    assert not reached(tmp_path, "tokenization", key, {"share_of_equal_ids": 0.9999})
