"""Which signatures run in the request's own thread."""

import pytest
import tensorflow as tf
from tensorflow.python.saved_model.loader_impl import SavedModelLoader
from toy_models import save_examples, save_toy, save_waiting

from tfde.serving.server.short_graphs import short_signatures


def short(path):
    meta_graph = SavedModelLoader(str(path)).get_meta_graph_def_from_tags(["serve"])
    return short_signatures(meta_graph) - {"__saved_model_init_op"}


def test_loops_and_what_may_wait_are_not_short(tmp_path):
    save_toy(tmp_path / "toy", 2.0)
    # `slow` is a loop, `guarded` an op with a state of its own.
    assert short(tmp_path / "toy") == {"serving_default", "two", "scalar"}
    save_waiting(tmp_path / "waiting", tmp_path / "gate")
    assert short(tmp_path / "waiting") == set()


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
