"""Other engines give the embeddings of TensorFlow, or say in one line why they cannot."""

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import tensorflow as tf
import tiny
from without_packages import without_packages

from tfde.config.engines import ENGINES
from tfde.engines.tower_engine import is_installed, lengths_of, open_tower
from tfde.errors import ConfigError, MismatchError, MissingExtraError
from tfde.towers.engines import check_engine, precision_of, write_engine

TEXTS = ["red apple", "", "cat dog bird fish horse cow " * 5, "zzz é", "one"]
BACKBONES = [tiny.T5, tiny.BERT, tiny.BAG_OF_WORDS]


def batch(rows):
    return [TEXTS[number % len(TEXTS)] for number in range(rows)]


@pytest.mark.parametrize("backbone", BACKBONES)
@pytest.mark.parametrize("engine", ENGINES)
def test_embeddings_are_those_of_tensorflow(backbone, engine):
    model = tiny.dual_encoder(backbone, sharing="ade", embedding_dim=5)
    for weight in model.document_tower.trainable_weights:
        weight.assign_add(np.random.default_rng(1).normal(0, 0.1, weight.shape))
    texts = [[text] for text in TEXTS] + [batch(32)]
    queries = [model.encode_queries(part) for part in texts]
    documents = [model.encode_documents(part) for part in texts]
    model.set_engine(engine)
    for part, query, document in zip(texts, queries, documents, strict=True):
        np.testing.assert_allclose(model.encode_queries(part), query, atol=1e-5)
        np.testing.assert_allclose(model.encode_documents(part), document, atol=1e-5)
    assert sum(count.texts for count in model.cut_texts()) == 2 * (len(TEXTS) + 32)


def test_every_pooling():
    poolings = ("max", "first", "last", "weighted_mean", "mean_sqrt_length")
    model = tiny.dual_encoder(tiny.BERT, pooling=poolings, normalize=False)
    expected = model.encode_documents(batch(9))
    model.set_engine("openvino")
    np.testing.assert_allclose(model.encode_documents(batch(9)), expected, atol=1e-4)


def test_bfloat16_is_the_engines_precision(tmp_path):
    model = tiny.dual_encoder(tiny.BERT, dtype="mixed_bfloat16")
    assert precision_of(model.query_tower) == "bfloat16"
    expected = model.encode_documents(TEXTS)
    model.set_engine("openvino")
    found = model.encode_documents(TEXTS)
    assert np.sum(found * expected, 1).min() > 0.999
    with pytest.raises(
        ConfigError, match=r"`dtype` must be float32 in ONNX Runtime\. Received: 'b"
    ):
        write_engine("onnxruntime", model.query_tower, tmp_path)


def test_another_tower_is_no_equal(tmp_path):
    one, other = tiny.dual_encoder(tiny.BERT), tiny.dual_encoder(tiny.BERT, seed=2)
    write_engine("openvino", other.query_tower, tmp_path)

    def run(token_ids, padding_mask):
        tokens = {"token_ids": tf.constant(token_ids), "padding_mask": tf.constant(padding_mask)}
        return one.query_tower(tokens).numpy()

    with pytest.raises(MismatchError, match=r"within 1e-05\. Received: a difference of \d"):
        check_engine("openvino", tmp_path, one.query_tower, one.preprocessor, run)


def test_new_weights_are_seen():
    model, other = tiny.dual_encoder(tiny.BERT), tiny.dual_encoder(tiny.BERT, seed=2)
    model.set_engine("openvino")
    before = model.encode_queries(TEXTS)
    model.set_weights(other.get_weights())
    np.testing.assert_allclose(model.encode_queries(TEXTS), other.encode_queries(TEXTS), atol=1e-5)
    assert np.abs(model.encode_queries(TEXTS) - before).max() > 1e-2


def test_a_model_in_another_engine_does_not_train():
    model = tiny.dual_encoder()
    model.set_engine("openvino")
    model.compile("adam")
    rule = r"`engine` must be tensorflow in a model that trains: `set_engine\('tensorflow'\)`\. Re"
    with pytest.raises(ConfigError, match=rule):
        model.train_on_batch(["red"], ["apple"])
    model.set_engine("tensorflow")
    model.train_on_batch(["red"], ["apple"])


def test_engines_that_are_not_there(monkeypatch, tmp_path, written):
    model = tiny.dual_encoder()
    with pytest.raises((ConfigError, TypeError), match=r"`engine` must be .*Received: 'onnx'"):
        model.set_engine("onnx")
    with pytest.raises(FileNotFoundError, match=r"encode_tokens.xml: no such file; `tfde export"):
        open_tower("openvino", tmp_path)
    without_packages(monkeypatch, "tf2onnx")
    with pytest.raises(MissingExtraError, match=r"engine onnxruntime needs .*: tf2onnx not"):
        model.set_engine("onnxruntime")
    open_tower("onnxruntime", written)  # which needs no converter
    without_packages(monkeypatch, "openvino", "onnxruntime")
    with pytest.raises(
        MissingExtraError, match=r"^engine openvino needs the extra 'openvino': pip"
    ):
        model.set_engine("openvino")
    model.set_engine("auto")  # TensorFlow is always there
    assert model.encode_query("red").shape == (model.embedding_dim,)


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    """A directory with a tower of BERT for each engine."""
    directory = tmp_path_factory.mktemp("engines")
    model = tiny.dual_encoder(tiny.BERT, embedding_dim=5)
    for engine in ENGINES:
        write_engine(engine, model.query_tower, directory)
    return directory


def tokens(rows, length, token=7):
    return np.full((rows, length), token, np.int32), np.ones((rows, length), np.int32)


@pytest.mark.parametrize("engine", ENGINES)
def test_many_threads_get_the_answers_of_one(written, engine):
    runner, rng = open_tower(engine, written), np.random.default_rng(0)
    calls = []
    for rows in rng.integers(1, 14, 80):
        lengths = rng.integers(1, 9, (rows, 1))
        token_ids = rng.integers(5, 60, (rows, 8)).astype(np.int32)
        calls.append((token_ids, (np.arange(8) < lengths).astype(np.int32)))
    expected = [runner(*call) for call in calls]
    with ThreadPoolExecutor(12) as threads:
        for found in [threads.map(lambda call: runner(*call), calls) for _ in range(10)]:
            np.testing.assert_allclose(np.concatenate(list(found)), np.concatenate(expected), 1e-4)


def test_one_caller_does_not_wait_for_all_of_another(written):
    runner, ended = open_tower("openvino", written), []
    with ThreadPoolExecutor(2) as threads:
        for name, rows in (("large", 8000), ("small", 1)):
            run = threads.submit(runner, *tokens(rows, 32))
            run.add_done_callback(lambda _, name=name: ended.append(name))
    assert ended == ["small", "large"]


BAD_TOKENS = [
    (tokens(2, 33), r"`token_ids` must have at most 32 tokens a row\. Received: \(2, 33\)"),
    (tokens(9, 4, 120), r"`token_ids` must be in \[0, 120\)\. Received: 120"),
    (tokens(1, 4, -3), r"`token_ids` must be in \[0, 120\)\. Received: -3"),
    ((tokens(2, 4)[0], tokens(2, 6)[1]), r"one shape \(B, L\)\. Received: \(2, 4\) and \(2, 6\)"),
    ((tokens(3, 4)[0], tokens(2, 4)[1]), r"one shape \(B, L\)\. Received: \(3, 4\) and \(2, 4\)"),
    ((tokens(1, 4)[0][0], tokens(1, 4)[1][0]), r"one shape \(B, L\)\. Received: \(4,\) and \(4,\)"),
]


@pytest.mark.parametrize("engine", ENGINES)
def test_a_bad_call_is_refused_and_good_ones_go_on(written, engine):
    runner = open_tower(engine, written)
    expected = [runner(*tokens(rows, 4)) for rows in (1, 9)]
    for bad, rule in BAD_TOKENS:
        with pytest.raises(ValueError, match=rule):
            runner(*bad)
    # What the engine itself cannot do; on one core OpenVINO's own request says nothing of it.
    if engine != "openvino" or len(os.sched_getaffinity(0)) > 1:
        with pytest.raises(Exception, match="Add"):
            runner.run([tokens(1, 33)] * 9)
    for _ in range(20):
        for rows, embeddings in zip((1, 9), expected, strict=True):
            np.testing.assert_array_equal(runner(*tokens(rows, 4)), embeddings)


@pytest.mark.parametrize("engine", ENGINES)
def test_texts_without_tokens(written, engine):
    runner = open_tower(engine, written)
    np.testing.assert_array_equal(runner(*tokens(2, 0)), np.zeros((2, 5)))
    assert runner(*tokens(0, 4)).shape == runner(*tokens(0, 0)).shape == (0, 5)


def test_a_package_without_its_code_is_not_installed(monkeypatch):
    assert is_installed("openvino")
    monkeypatch.setattr("tfde.engines.tower_engine.find_spec", lambda name: None)
    assert not is_installed("openvino")


def test_rows_end_after_their_last_token():
    mask = np.array([[1, 1, 0, 0], [0, 0, 0, 0], [1, 0, 1, 0], [1, 1, 1, 1]], np.int32)
    assert lengths_of(mask).tolist() == [2, 1, 3, 4]


def test_openvino_tells_nobody_that_it_is_used():
    code = (
        "import sys, tfde.engines.openvino_tower, openvino.tools.ovc.telemetry_utils as t\n"
        "print(t.tm.__name__, [m for m in sys.modules if 'openvino_telemetry.' in m])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "openvino.tools.ovc.telemetry_stub []"


def test_a_signal_is_survived_after_towers_are_gone(written):
    """With a Core each, the thread was left a stack for signals that was freed: exit by SIGSEGV."""
    code = (
        "import gc, signal, sys\n"
        "from tfde.engines.tower_engine import open_tower\n"
        "first, second = [open_tower('openvino', sys.argv[1]) for _ in range(2)]\n"
        "del first; gc.collect()\n"
        "del second; gc.collect()\n"
        "signal.signal(signal.SIGUSR1, lambda *_: print('heard'))\n"
        "signal.raise_signal(signal.SIGUSR1)\n"
    )
    command = [sys.executable, "-c", code, str(written)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "heard\n"), done.stderr
