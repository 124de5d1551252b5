"""Requests of several clients joined in one run, by the parameters of a batching file."""

import concurrent.futures
import contextvars
import gc
import threading
import time
import urllib.request
import weakref
from functools import partial

import grpc
import numpy as np
import pytest
import tensorflow as tf
from google.protobuf import text_format
from tensorflow_serving.apis import predict_pb2, prediction_service_pb2_grpc

from tfde.protos.batching_parameters_pb2 import BatchingParameters
from tfde.serving.server.batching import check_batching_parameters
from tfde.serving.server.calls import Call, begin_call
from tfde.serving.server.signature_runner import SignatureRunner
from tfde.serving.server.status import StatusError


class Counting(tf.Module):
    """Tells how many rows ran together; the rows of each request must stay apart."""

    def __init__(self):
        self.weight = tf.Variable(np.eye(3, dtype=np.float32) * 2)
        keys, values = tf.constant(["a", "b"]), tf.constant([7, 8], tf.int64)
        self.table = tf.lookup.StaticHashTable(
            tf.lookup.KeyValueTensorInitializer(keys, values), -1
        )

    @tf.function(
        input_signature=[
            tf.TensorSpec([None, None], tf.float32, name="x"),
            tf.TensorSpec([None], tf.string, name="word"),
        ]
    )
    def serve(self, x, word):
        rows = tf.shape(x)[0]
        return {
            "y": tf.matmul(x, self.weight),
            "number": self.table.lookup(word),
            "rows": tf.fill([rows], rows),
        }

    @tf.function(input_signature=[tf.TensorSpec([], tf.float32, name="x")])
    def scalar(self, x):
        return {"y": x + 1}

    @tf.function(
        input_signature=[
            tf.TensorSpec([None], tf.float32, name="x"),
            tf.TensorSpec([], tf.int32, name="k"),
        ]
    )
    def first(self, x, k):
        tf.debugging.assert_positive(k)
        rows = tf.shape(x)[0]
        return {"y": tf.tile(x[:, tf.newaxis], [1, k]), "rows": tf.fill([rows], rows)}

    @tf.function(input_signature=[tf.TensorSpec([None], tf.float32, name="x")])
    def finite(self, x):
        rows = tf.shape(x)[0]
        with tf.control_dependencies([tf.debugging.Assert(tf.reduce_all(x < 9), ["too much"])]):
            return {"y": tf.identity(x), "rows": tf.fill([rows], rows)}

    @tf.function(input_signature=[tf.TensorSpec([None], tf.float32, name="x")])
    def total(self, x):
        return {"y": tf.reduce_sum(x)}


@pytest.fixture(scope="module")
def counting(tmp_path_factory):
    path = tmp_path_factory.mktemp("counting") / "1"
    module = Counting()
    signatures = {
        "serving_default": module.serve,
        "one": module.scalar,
        "first": module.first,
        "finite": module.finite,
        "total": module.total,
    }
    tf.saved_model.save(module, str(path), signatures)
    return path


def parameters(text):
    return text_format.Parse(text, BatchingParameters())


@pytest.fixture
def load(counting):
    made = []

    def load(text, path=counting, **options):
        made.append(SignatureRunner(path, batching=parameters(text), **options))
        return made[-1]

    yield load
    for runner in made:
        runner.close()


def together(asks):
    """Asks at the same time; returns what came of each."""
    barrier = threading.Barrier(len(asks))

    def run(ask):
        barrier.wait()
        try:
            return ask()
        except StatusError as error:
            return error

    with concurrent.futures.ThreadPoolExecutor(len(asks)) as pool:
        return list(pool.map(run, asks))


def run(runner, number, rows):
    x = np.full([rows, 3], number, np.float32)
    return runner.run("", {"x": x, "word": np.array([b"a", b"b", b"c"] * rows, object)[:rows]})


def test_requests_run_together_and_get_their_own_rows(load):
    runner = load(
        "max_batch_size { value: 8 } batch_timeout_micros { value: 2000000 }"
        " num_batch_threads { value: 1 } allowed_batch_sizes: 4 allowed_batch_sizes: 8"
    )
    with concurrent.futures.ThreadPoolExecutor(6) as pool:
        answers = list(pool.map(lambda number: run(runner, number, 1 + number % 2), range(6)))
    for number, answer in enumerate(answers):
        rows = 1 + number % 2
        np.testing.assert_array_equal(answer["y"], np.full([rows, 3], 2.0 * number))
        assert answer["number"].tolist() == [7, 8][:rows]
        assert set(answer["rows"].tolist()) <= {4, 8}  # as long as an allowed size
    assert max(answer["rows"][0] for answer in answers) == 8


def test_a_model_of_tensorflow_1_is_batched_too(load, examples_base_path):
    runner = load("batch_timeout_micros { value: 100000 }", examples_base_path / "1")
    example = tf.train.Example()
    example.features.feature["x"].float_list.value.append(3.0)
    serialized = np.array([example.SerializeToString()], object)
    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        answers = list(pool.map(lambda _: runner.run("", {"inputs": serialized}), range(4)))
    assert all(answer["scores"].tolist() == [[3.0, -3.0]] for answer in answers)
    assert all(answer["classes"].tolist() == [[b"up", b"down"]] for answer in answers)


def test_what_cannot_be_batched_is_said(load):
    runner = load("max_batch_size { value: 8 }")
    one = {"x": np.float32(1)}
    with pytest.raises(StatusError, match="input tensors must have at least one dimension"):
        runner.run("one", one)
    unequal = {"x": np.ones([2, 3], np.float32), "word": np.array([b"a"], object)}
    with pytest.raises(StatusError, match="must have equal 0th-dimension size"):
        runner.run("", unequal)
    with pytest.raises(StatusError, match="Task size 9 is larger than maximum") as caught:
        run(runner, 1, 9)
    assert caught.value.code.name == "INVALID_ARGUMENT"
    # What only some outputs are asked of runs by itself, as in TensorFlow Serving.
    nine = {"x": np.ones([9, 3], np.float32), "word": np.array([b"a"] * 9, object)}
    assert runner.run("", nine, output_filter=["number"])["number"].tolist() == [7] * 9


def wide(runner, number, width):
    x = np.full([1, width], number, np.float32)
    return runner.run("", {"x": x, "word": np.array([b"a"], object)})


def test_unequal_shapes_in_a_batch(load):
    runner = load("max_batch_size { value: 2 } batch_timeout_micros { value: 20000000 }")
    errors = together([partial(wide, runner, 1, width) for width in (3, 4)])
    assert [error.code.name for error in errors] == ["FAILED_PRECONDITION"] * 2
    assert "different shapes and padding is turned off" in str(errors[0])


def test_a_shape_that_is_not_the_signature_s_fails_alone(load):
    runner = load(
        "max_batch_size { value: 4 } batch_timeout_micros { value: 500000 }"
        " num_batch_threads { value: 1 }"
    )
    unfit = {"x": np.ones([1, 3, 1], np.float32), "word": np.array([b"a"], object)}
    good, bad = together([partial(run, runner, 1, 1), partial(runner.run, "", unfit)])
    assert good["y"].tolist() == [[2, 2, 2]]
    assert bad.code.name == "INVALID_ARGUMENT"


@pytest.mark.parametrize("lenient", [False, True])
def test_a_value_that_the_model_refuses_costs_nobody_else(load, lenient):
    text = "batch_timeout_micros { value: 2000000 } num_batch_threads { value: 1 }"
    runner = load(text, lenient_batching=lenient)
    inputs = [{"x": np.array(row, np.float32)} for row in ([1], [np.nan, 2], [3, 4], [9])]
    one, bad, two, other = together([partial(runner.run, "finite", each) for each in inputs])
    assert (one["y"].tolist(), two["y"].tolist()) == ([1], [3, 4])
    assert [error.code.name for error in (bad, other)] == ["INVALID_ARGUMENT"] * 2
    together_again = together([partial(runner.run, "finite", each) for each in inputs[::2]])
    assert [answer["rows"].tolist() for answer in together_again] == [[3], [3, 3]]


def test_unequal_shapes_are_padded_with_a_request_s_first_number(load):
    runner = load(
        "batch_timeout_micros { value: 2000000 } num_batch_threads { value: 1 }"
        " pad_variable_length_inputs: true"
    )
    # The model takes three columns: a request of two becomes one of three beside one of three.
    two, three = together([partial(wide, runner, 5, 2), partial(wide, runner, 1, 3)])
    assert two["y"].tolist() == [[10, 10, 10]]
    assert three["y"].tolist() == [[2, 2, 2]]
    assert isinstance(together([partial(wide, runner, 5, 2)])[0], StatusError)


def first(runner, rows, k):
    return runner.run("first", {"x": np.arange(rows, dtype=np.float32), "k": np.int32(k)})


def test_requests_of_equal_scalars_run_together(load):
    text = "batch_timeout_micros { value: 2000000 } num_batch_threads { value: 1 }"
    runner = load(text, lenient_batching=True)
    answers = together([partial(first, runner, 1 + k % 2, k) for k in (1, 2, 3, 1, 2, 0)])
    for answer, k in zip(answers, (1, 2, 3, 1, 2), strict=False):
        assert answer["y"].tolist() == [[row] * k for row in range(1 + k % 2)]
    # One of a wrong value fails alone.
    assert answers[-1].code.name == "INVALID_ARGUMENT"
    assert [answer["rows"][0] for answer in answers[:5]] == [4, 2, 2, 4, 2]
    # Nothing to batch by, no rows, or too many: by itself.
    assert runner.run("one", {"x": np.float32(1)})["y"] == 2
    assert first(runner, 0, 2)["y"].shape == (0, 2)
    assert first(runner, 1001, 2)["rows"].tolist() == [1000] * 1000 + [1]  # in parts


def test_large_requests_of_some_outputs_run_in_parts_too(load):
    runner = load("max_batch_size { value: 8 }", lenient_batching=True)
    inputs = {"x": np.ones([20, 3], np.float32), "word": np.array([b"a"] * 20, object)}
    answer = runner.run("", inputs, output_filter=["rows"])
    assert answer["rows"].tolist() == [8] * 16 + [4] * 4


def test_requests_of_some_outputs_run_beside_others(load):
    text = "batch_timeout_micros { value: 2000000 } num_batch_threads { value: 1 }"
    runner = load(text, lenient_batching=True)
    inputs = {"x": np.arange(2, dtype=np.float32), "k": np.int32(1)}
    filters = [["rows"], ["y"], []]
    asked = [partial(runner.run, "first", inputs, output_filter=names) for names in filters]
    rows, y, both = together(asked)
    assert set(rows) == {"rows"}
    assert rows["rows"].tolist() == [6, 6]
    assert set(y) == {"y"}
    assert y["y"].tolist() == [[0], [1]] == both["y"].tolist()
    assert set(both) == {"rows", "y"}


def test_who_has_left_is_not_computed(load):
    runner = load("batch_timeout_micros { value: 1000000 } num_batch_threads { value: 1 }")
    inputs = {"x": np.ones([2, 3], np.float32), "word": np.array([b"a", b"b"], object)}
    here, left = Call(), Call()

    def ask(call):
        begin_call(call)
        return runner.run("", inputs)

    def leaves():
        time.sleep(0.3)  # both wait for others by now
        left.leave()

    answers = together([partial(ask, here), partial(ask, left), leaves])
    assert answers[0]["rows"].tolist() == [2, 2]
    assert answers[1].code is grpc.StatusCode.CANCELLED
    with pytest.raises(StatusError, match="the client has left"):
        contextvars.copy_context().run(ask, left)


def test_text_without_utf8_fails_alone(load):
    runner = load("batch_timeout_micros { value: 500000 } num_batch_threads { value: 1 }")

    def ask(word):
        return runner.run("", {"x": np.ones([1, 3], np.float32), "word": np.array([word], object)})

    answers = together([partial(ask, word) for word in ("a", "\ud800", b"b", "c\udfff")])
    assert [answers[0]["number"][0], answers[2]["number"][0]] == [7, 8]
    assert answers[0]["rows"].tolist() == [2]  # those without a fault ran together
    for wrong, where in ((answers[1], 0), (answers[3], 1)):
        assert wrong.code is grpc.StatusCode.INVALID_ARGUMENT
        assert "`word` must hold texts that UTF-8 can write" in wrong.message
        assert wrong.message.endswith(f"at character {where}")


def test_a_request_larger_than_a_batch_is_split(load):
    runner = load(
        "max_batch_size { value: 8 } enable_large_batch_splitting { value: true }"
        " allowed_batch_sizes: 4 allowed_batch_sizes: 8",
        lenient_batching=True,
    )
    answers = together([partial(first, runner, rows, 2) for rows in (7, 5, 8, 3)])
    for answer, rows in zip(answers, (7, 5, 8, 3), strict=True):
        assert answer["y"].tolist() == [[row, row] for row in range(rows)]


def one_thread_each():
    return tf.compat.v1.ConfigProto(intra_op_parallelism_threads=1, inter_op_parallelism_threads=-1)


def test_a_batch_alone_is_shared_among_cores_where_ops_have_one_thread(load, monkeypatch):
    monkeypatch.setenv("TFDE_CORES", "3")
    text = "max_batch_size { value: 64 }"
    runner = load(text, session_config=one_thread_each(), lenient_batching=True)
    for rows, shares in ((40, 3), (25, 3), (16, 2), (15, 1), (1, 1)):
        found = first(runner, rows, 2)
        assert found["y"].tolist() == [[row, row] for row in range(rows)]
        assert len(set(found["rows"].tolist())) <= 2
        assert rows / shares - 1 < found["rows"].min() <= rows / shares
    with pytest.raises(StatusError, match="assertion failed"):
        first(runner, 40, 0)
    assert first(runner, 40, 1)["y"].shape == (40, 1)
    for whole in (  # as TensorFlow Serving, batches of chosen sizes, ops of more threads
        load(text, session_config=one_thread_each()),
        load(f"{text} allowed_batch_sizes: 40, allowed_batch_sizes: 64",
             session_config=one_thread_each(), lenient_batching=True),
        load(text, lenient_batching=True),
    ):  # fmt: skip
        x = np.ones([40, 3], np.float32)
        found = whole.run("", {"x": x, "word": np.array([b"a"] * 40, object)})
        assert set(found["rows"].tolist()) == {40}


def test_outputs_without_rows_are_refused_as_ever(tmp_path, load, monkeypatch):
    class Sums(tf.Module):
        @tf.function(input_signature=[tf.TensorSpec([None], tf.float32, name="x")])
        def total(self, x):
            tf.debugging.assert_greater(tf.size(x), 0)
            return {"y": tf.reduce_sum(x)}

        @tf.function(input_signature=[tf.TensorSpec([None], tf.float32, name="x")])
        def half(self, x):
            tf.debugging.assert_greater(tf.size(x), 0)
            return {"y": tf.ones([5])}

        @tf.function(input_signature=[tf.TensorSpec([32], tf.float32, name="x")])
        def fixed(self, x):
            tf.debugging.assert_greater(x[0], 0.0)
            return {"y": x + 1}

    module = Sums()
    signatures = {"total": module.total, "half": module.half, "fixed": module.fixed}
    tf.saved_model.save(module, str(tmp_path / "1"), signatures)
    monkeypatch.setenv("TFDE_CORES", "2")
    runner = load(
        "max_batch_size { value: 64 }",
        path=tmp_path / "1",
        session_config=one_thread_each(),
        lenient_batching=True,
    )
    x = {"x": np.ones(32, np.float32)}
    with pytest.raises(StatusError, match="Batched output tensor has 0 dimensions"):
        runner.run("total", x)
    with pytest.raises(StatusError, match="0th dimension does not equal the sum"):
        runner.run("half", x)
    assert runner.run("fixed", x)["y"].tolist() == [2.0] * 32


def test_shares_of_other_shapes_run_as_one(tmp_path, load, monkeypatch):
    class Words(tf.Module):
        @tf.function(input_signature=[tf.TensorSpec([None], tf.string, name="text")])
        def serve(self, text):
            tf.debugging.assert_rank(tf.strings.length(text), tf.size(tf.shape(text)))
            tf.debugging.assert_none_equal(tf.size(text), 99)  # no short graph: those stay whole
            return {"letters": tf.strings.unicode_decode(text, "UTF-8").to_tensor()}

    module = Words()
    tf.saved_model.save(module, str(tmp_path / "1"), {"serving_default": module.serve})
    monkeypatch.setenv("TFDE_CORES", "2")
    runner = load(
        "max_batch_size { value: 64 }",
        path=tmp_path / "1",
        session_config=one_thread_each(),
        lenient_batching=True,
    )
    texts = np.array([b"a" * (1 + row // 10) for row in range(20)], object)
    assert runner.run("", {"text": texts})["letters"].tolist() == [[97, 0]] * 10 + [[97, 97]] * 10


def test_outputs_without_rows_cannot_be_batched(load):
    runner = load("max_batch_size { value: 8 }")
    with pytest.raises(StatusError, match="Batched output tensor has 0 dimensions"):
        runner.run("total", {"x": np.ones(2, np.float32)})


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "max_batch_size { value: 8 } allowed_batch_sizes: 4",
            "Last entry in allowed_batch_sizes must match max_batch_size; last entry was 4;"
            " expected 8",
        ),
        (
            "max_batch_size { value: 4 } allowed_batch_sizes: 4 allowed_batch_sizes: 4",
            "allowed_batch_sizes entries must be monotonically increasing",
        ),
        ("max_batch_size { value: 0 }", "max_batch_size must be positive; was 0"),
        ("num_batch_threads { value: -1 }", "num_batch_threads must be positive; was -1"),
        ("batch_timeout_micros { value: -1 }", "batch_timeout_micros must be >= 0; was -1"),
    ],
)
def test_impossible_parameters(text, message):
    with pytest.raises(StatusError, match=message):
        check_batching_parameters(parameters(text))


@pytest.fixture
def stub(start_server, toy_config, tmp_path):
    file = tmp_path / "batching.config"
    file.write_text(
        "max_batch_size { value: 1 } batch_timeout_micros { value: 0 }"
        " max_enqueued_batches { value: 2 } num_batch_threads { value: 1 }"
    )
    server = start_server(
        toy_config, enable_batching=True, batching_parameters_file=str(file), grpc_max_threads=32
    )
    with grpc.insecure_channel(server.target) as channel:
        yield prediction_service_pb2_grpc.PredictionServiceStub(channel)


def slow(steps):
    request = predict_pb2.PredictRequest()
    request.model_spec.name = "toy"
    request.model_spec.signature_name = "slow"
    request.inputs["steps"].CopyFrom(tf.make_tensor_proto(np.array([steps], np.int32)))
    return request


def test_a_full_queue_refuses_at_once(stub):
    stub.Predict(slow(1), timeout=60)
    calls = [stub.Predict.future(slow(300), timeout=60) for _ in range(12)]
    codes = [call.code().name for call in calls if call.exception() is not None]
    assert set(codes) == {"UNAVAILABLE"}
    assert 0 < len(codes) < 12
    assert stub.Predict(slow(1), timeout=60).model_spec.version.value == 10


@pytest.fixture
def narrow(start_server, toy_config, tmp_path):
    """A server with one thread and one place to wait."""
    (tmp_path / "monitoring").write_text("prometheus_config { enable: true }")
    server = start_server(
        toy_config,
        enable_batching=True,
        grpc_max_threads=1,
        grpc_max_waiting=1,
        monitoring_config_file=str(tmp_path / "monitoring"),
    )
    with grpc.insecure_channel(server.target) as channel:
        yield prediction_service_pb2_grpc.PredictionServiceStub(channel), server


def test_who_finds_no_place_to_wait_is_refused_at_once(narrow):
    stub, server = narrow
    stub.Predict(slow(1), timeout=60)
    calls = [stub.Predict.future(slow(300), timeout=60) for _ in range(12)]
    codes = [call.code().name for call in calls]
    assert codes.count("OK") == 2
    assert codes.count("RESOURCE_EXHAUSTED") == 10
    assert stub.Predict(slow(1), timeout=60).model_spec.version.value == 10
    with urllib.request.urlopen(f"{server.url}/monitoring/prometheus/metrics") as response:
        metrics = response.read().decode()
    name = ":tensorflow:serving:batching_session:queuing_latency_count"
    assert f'{name}{{thread_pool_name="batch_threads"}} 4\n' in metrics


def test_a_batched_model_that_is_closed_leaves_nothing(counting):
    gc.collect()
    gc.disable()  # else an unloaded version would stay until a collection comes by
    try:
        runner = SignatureRunner(counting, batching=parameters(""))
        run(runner, 1, 2)
        reference = weakref.ref(runner)
        runner.close()
        del runner
        assert reference() is None
    finally:
        gc.enable()


def test_so_many_rows_of_a_batch_run_at_once(load):
    text = "max_batch_size { value: 8 } enable_large_batch_splitting { value: true }"
    runner = load(text + " max_execution_batch_size { value: 3 }")

    def ask(rows):
        return runner.run("finite", {"x": np.arange(rows, dtype=np.float32)})

    found = ask(8)
    assert found["y"].tolist() == list(range(8))
    assert found["rows"].tolist() == [3, 3, 3, 3, 3, 3, 2, 2]
    asked = (2, 5, 1, 4)
    for answer, rows in zip(together([partial(ask, n) for n in asked]), asked, strict=True):
        assert answer["y"].tolist() == list(range(rows))
        assert max(answer["rows"]) <= 3
    with pytest.raises(StatusError, match="max_execution_batch_size must be positive, and at most"):
        load(text + " max_execution_batch_size { value: 9 }")
