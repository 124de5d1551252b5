"""Which signatures run in the request's own thread."""

import numpy as np
import pytest
import tensorflow as tf
from tensorflow.python.saved_model.loader_impl import SavedModelLoader
from toy_models import save_examples, save_toy, save_waiting

from tfde.serving.server.short_graphs import short_signatures
from tfde.serving.server.signature_runner import SignatureRunner
from tfde.serving.server.status import StatusError


def short(path):
    meta_graph = SavedModelLoader(str(path)).get_meta_graph_def_from_tags(["serve"])
    return short_signatures(meta_graph) - {"__saved_model_init_op"}


def test_loops_and_what_may_wait_are_not_short(tmp_path):
    save_toy(tmp_path / "toy", 2.0)
    # `slow` is a loop, `guarded` an op with a state of its own.
    assert short(tmp_path / "toy") == {"serving_default", "two", "scalar"}
    save_waiting(tmp_path / "waiting", tmp_path / "gate")
    assert short(tmp_path / "waiting") == set()


def joined(x):
    batch, index, key = tf.raw_ops.Batch(
        in_tensors=[x], num_batch_threads=1, max_batch_size=8, batch_timeout_micros=8_000_000,
        grad_timeout_micros=0, shared_name="joined",
    )  # fmt: skip
    return tf.raw_ops.Unbatch(
        batched_tensor=batch[0], batch_index=index, id=key, timeout_micros=8_000_000
    )


@pytest.mark.parametrize(
    "waiting",
    [
        joined,
        lambda x: tf.io.read_file(tf.strings.as_string(x[0])),
        lambda x: tf.io.matching_files(tf.strings.as_string(x)),
    ],
)
def test_what_waits_without_a_state_of_its_own_is_not_short(tmp_path, waiting):

    @tf.function(input_signature=[tf.TensorSpec([None], name="x")], autograph=False)
    def wait(x):
        return {"y": waiting(x)}

    tf.saved_model.save(tf.Module(), str(tmp_path / "m"), {"serving_default": wait})
    assert short(tmp_path / "m") == set()


@pytest.mark.parametrize("threads", [0, 1])  # whoever chooses threads gets them
def test_an_answer_that_comes_too_late_is_none(tmp_path, threads):

    @tf.function(input_signature=[tf.TensorSpec([], tf.int32, name="n")], autograph=False)
    def square(n):
        x = tf.fill([n, n], 0.5)
        return {"y": tf.reduce_sum(tf.matmul(x, x))}

    tf.saved_model.save(tf.Module(), str(tmp_path / "m"), {"serving_default": square})
    config = tf.compat.v1.ConfigProto(inter_op_parallelism_threads=threads)
    runner = SignatureRunner(tmp_path / "m", session_config=config)
    assert runner._short - {"__saved_model_init_op"} == (set() if threads else {"serving_default"})
    assert runner.run("", {"n": np.array(2, np.int32)}, timeout_s=60)["y"] == 2
    with pytest.raises(StatusError, match="Timed out waiting for notification") as caught:
        runner.run("", {"n": np.array(1500, np.int32)}, timeout_s=0.001)
    assert caught.value.code.name == "DEADLINE_EXCEEDED"


def test_graphs_of_tensorflow_1(tmp_path):
    save_examples(tmp_path / "examples")
    assert "sum" not in short(tmp_path / "examples")  # reference variables


@pytest.mark.parametrize(("ops", "expected"), [(90, {"serving_default"}), (110, set())])
def test_the_number_of_ops_counts_those_of_functions(tmp_path, ops, expected):

    @tf.function(autograph=False)
    def half(x):
        for _ in range(ops // 2):
            x = tf.sqrt(x)
        return x

    @tf.function(input_signature=[tf.TensorSpec([None], name="x")], autograph=False)
    def twice(x):
        return {"y": half(half(x))}

    tf.saved_model.save(tf.Module(), str(tmp_path / "m"), {"serving_default": twice})
    assert short(tmp_path / "m") == expected
