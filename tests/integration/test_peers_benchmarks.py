"""Every benchmark runs, smaller, and both sides of it compute the same."""

import json
import os
import subprocess
import sys
from pathlib import Path

import foreign
import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
PYTHON = Path(sys.executable)
RATIOS = {"ratio", "ratio_lowest", "ratio_highest", "pairs", "ours_s", "theirs_s"}
SPEEDS = {"ours_per_s", "theirs_per_s"}

pytestmark = pytest.mark.peers


def run(tmp_path, script, *options, key=None):
    """Runs a benchmark with one pair of measurements; returns its JSON, or an entry of it."""
    # The peers' environment may stand elsewhere than where `make` puts it: it is this one.
    code = (
        "import pathlib, runpy, sys; sys.path.insert(0, sys.argv[1]); import side_by_side;"
        "side_by_side.PEERS_PYTHON = pathlib.Path(sys.executable);"
        "sys.argv = sys.argv[2:]; runpy.run_path(sys.argv[0], run_name='__main__')"
    )
    output = tmp_path / "result.json"
    command = [sys.executable, "-c", code, str(BENCHMARKS), str(BENCHMARKS / script), *options]
    done = subprocess.run(
        [*command, "--output", str(output)],
        env={**os.environ, "OMP_NUM_THREADS": "1", "TF_NUM_INTRAOP_THREADS": "1"},
        stdout=subprocess.PIPE,
        text=True,
        check=True,
        timeout=900,
    )
    result = json.loads(output.read_text())
    assert json.loads(done.stdout) == result
    assert result["command"].startswith(f"python benchmarks/{script}")
    assert {"cpu", "cores", "python", "versions"} <= set(result)
    return result if key is None else result[key]


def with_pooling(transformer):
    """Adds what makes a sentence-transformers directory of one of transformers."""
    modules = [("", "Transformer"), ("1_Pooling", "Pooling"), ("2_Normalize", "Normalize")]
    rows = [
        {"idx": i, "name": str(i), "path": path, "type": f"sentence_transformers.models.{name}"}
        for i, (path, name) in enumerate(modules)
    ]
    (transformer / "modules.json").write_text(json.dumps(rows))
    (transformer / "sentence_bert_config.json").write_text('{"max_seq_length": 256}')
    (transformer / "1_Pooling").mkdir()
    width = json.loads((transformer / "config.json").read_text())["hidden_size"]
    pooling = {"word_embedding_dimension": width, "pooling_mode_mean_tokens": True}
    (transformer / "1_Pooling" / "config.json").write_text(json.dumps(pooling))
    return transformer


@pytest.fixture(scope="module")
def bert(tmp_path_factory, data_dir):
    """A small BERT with random weights as a sentence-transformers directory."""
    import tensorflow  # noqa: F401  # before torch
    import transformers

    directory = tmp_path_factory.mktemp("bert") / "model"
    foreign.word_piece(directory, foreign.real_texts(data_dir, 300))
    sizes = {**foreign.SIZES, "max_position_embeddings": 256}  # SQuAD's longest are cut there
    model = transformers.BertModel(transformers.BertConfig(vocab_size=2000, **sizes))
    foreign.randomize(model).save_pretrained(directory)
    return with_pooling(directory)


@pytest.fixture(scope="module")
def t5(tmp_path_factory, data_dir):
    """What benchmarks/random_t5.py writes, smaller."""
    directory = tmp_path_factory.mktemp("t5") / "model"
    sizes = ["--layers", "1", "--hidden-dim", "64", "--vocabulary-size", "1000", "--texts", "300"]
    script = str(BENCHMARKS / "random_t5.py")
    subprocess.run([sys.executable, script, "--output", str(directory), *sizes], check=True)
    return directory


def test_encoding(tmp_path, bert):
    options = ["--model", str(bert), "--texts", "20", "--pairs", "1"]
    options += ["--peers", "onnxruntime", "openvino", "--scifact-documents", "40"]
    options += ["--questions", "documents_float32", "documents_int8"]
    result = run(tmp_path, "encoding.py", *options)
    for engine, peer in (("", "onnxruntime"), (" in openvino", "openvino")):
        found = result[f"documents_float32{engine} against {peer}"]
        assert set(found) >= RATIOS | SPEEDS
        assert found["ours_smallest_cosine"] == pytest.approx(1, abs=1e-5)
        assert found["theirs_smallest_cosine"] == pytest.approx(1, abs=1e-5)
    found = result["documents_int8 against onnxruntime"]
    assert found["ours_smallest_cosine"] > 0.9
    assert 0 < found["ours_scifact_ndcg10"] < 100
    assert 0 < found["theirs_scifact_ndcg10"] < 100


def test_encoding_of_a_t5(tmp_path, t5):
    options = ["--model", str(t5), "--texts", "20", "--pairs", "1", "--single", "2"]
    options += ["--questions", "documents_float32", "one_query_bfloat16"]
    result = run(
        tmp_path,
        "encoding.py",
        *options,
        "--peers",
        "sentence_transformers",
        "--engines",
        "tensorflow",
    )
    found = result["documents_float32 against sentence_transformers"]
    assert found["ours_smallest_cosine"] == pytest.approx(1, abs=1e-5)
    assert set(result["one_query_bfloat16 against sentence_transformers"]) == RATIOS


@pytest.mark.parametrize(
    ("model", "data", "dtype", "error"),
    [("bert", "fixed", "float32", 1e-5), ("t5", "squad", "bfloat16", 0.0625)],
)
def test_training(tmp_path, request, model, data, dtype, error):
    options = ["--model", str(request.getfixturevalue(model)), "--pairs", "1", "--steps", "2"]
    options += ["--batch", "4", "--data", data, "--dtype", dtype]
    options += ["--apart"] if data == "squad" else []
    found = run(tmp_path, "training.py", *options, key=f"{data}_{dtype}_4")
    assert set(found) >= RATIOS | SPEEDS
    assert found.get("apart", False) == (data == "squad")
    assert found["ours_loss"] == pytest.approx(found["theirs_loss"], abs=error)
    assert found["ours_dropout"]
    assert found["theirs_dropout"]
    for name in ("mean_query_tokens", "mean_document_tokens"):
        assert found[f"ours_{name}"] == found[f"theirs_{name}"]
    if data == "fixed":
        assert (found["ours_mean_query_tokens"], found["ours_mean_document_tokens"]) == (32, 128)
        assert found["ours_share_of_padding"] == found["theirs_share_of_padding"] == 0
    else:
        assert 0 < found["theirs_share_of_padding"] < found["ours_share_of_padding"] < 1


@pytest.mark.parametrize("model", ["bert", "t5"])
def test_tokenization(tmp_path, request, model):
    options = ["--model", str(request.getfixturevalue(model)), "--kinds", "wordpiece"]
    options += ["--batch", "8", "--texts", "40", "--pairs", "1"]
    found = run(tmp_path, "tokenization.py", *options, key="wordpiece_8")
    assert set(found) == RATIOS | SPEEDS | {"mean_tokens", "share_of_equal_ids"}
    assert found["share_of_equal_ids"] == 1


@pytest.mark.slow
def test_served_search(tmp_path, bert):
    options = ["--model", str(bert), "--documents", "60", "--seconds", "0.3", "--pairs", "1"]
    options += ["--clients", "4", "--starts", "1", "--folder", str(tmp_path / "made")]
    result = run(tmp_path, "served_search.py", *options)
    assert result["documents"] == 60
    found = result["4 clients"]
    for name in ("tfde", "peer", "peer_batched"):
        assert found[name]["queries_per_s"] > 0
        assert 0 < found[name]["p50_ms"] <= found[name]["p99_ms"]
    for theirs in ("peer", "peer_batched"):
        assert found[f"tfde against {theirs}"]["ratio"] > 0
    assert len(result["equal_ids"]) == 3
    assert all(share > 0.9 for share in result["equal_ids"].values())
    assert set(result["first_answer_s"]) == {"tfde", "tfde_alone", "peer", "peer_batched"}
    assert result["first_answer_s"]["peer"]["starts"] == 1
    with pytest.raises(subprocess.CalledProcessError):  # made of 60 documents
        run(tmp_path, "served_search.py", *options, "--documents", "70")


def test_startup(tmp_path):
    found = run(tmp_path, "startup.py", "--runs", "2", key="help")
    assert 0 < found["lowest_s"] <= found["median_s"] <= found["highest_s"]


def test_gradient_cache(tmp_path, bert):
    options = ["--model", str(bert), "--batch", "8", "--chunk", "4", "--pairs", "1"]
    options += ["--data", "squad", "--dtype", "float32"]
    found = run(tmp_path, "gradient_cache.py", *options, key="squad_float32")
    assert 0 < found["times_plain_lowest"] <= found["times_plain"] <= found["times_plain_highest"]


def test_operations():
    script = str(BENCHMARKS / "operations.py")
    command = [sys.executable, script, "--tokens", "128", "--turns", "1"]
    found = json.loads(subprocess.run(command, stdout=subprocess.PIPE, check=True).stdout)
    for dtype in ("float32", "bfloat16"):
        assert found[dtype]["matmul"]["gflop_per_s"] > 0
        assert all(row["fastest_ms"] <= row["median_ms"] for row in found[dtype].values())


@pytest.mark.slow  # three minutes where the cores are shared
def test_memory_of_training_and_encoding(tmp_path):
    figure = tmp_path / "memory.png"
    sizes = ["--batches", "8", "16", "32", "--lengths", "16", "--chunks", "0", "4"]
    script = str(BENCHMARKS / "training_memory.py")
    command = [sys.executable, script, *sizes, "--figure", str(figure)]
    found = json.loads(subprocess.run(command, stdout=subprocess.PIPE, check=True).stdout)
    assert [point["batch"] for point in found["points"]] == [8, 16, 32] * 2
    assert all(point["peak_bytes"] > 0 for point in found["points"])
    assert figure.read_bytes().startswith(b"\x89PNG")

    script = str(BENCHMARKS / "encode_memory.py")
    command = [sys.executable, script, "--documents", "64", "--shard-size", "16"]
    found = json.loads(subprocess.run(command, stdout=subprocess.PIPE, check=True).stdout)
    assert found["float16"]["stored_bytes"] > found["int8"]["stored_bytes"]
    assert all(found[dtype]["first_texts_per_s"] > 0 for dtype in ("float16", "int8"))
