"""What TensorFlow is told about the graphs that a server runs."""

import tensorflow as tf
from tensorflow.core.protobuf.rewriter_config_pb2 import RewriterConfig

from tfde.serving.server.engine_graph import without_passes
from tfde.serving.server.options import ServerOptions
from tfde.serving.server.settings import _session_config


def test_where_there_is_a_gpu_no_layer_norm_becomes_an_op_of_cpus_alone(monkeypatch):
    def remapping():
        return _session_config(ServerOptions()).graph_options.rewrite_options.remapping

    monkeypatch.setattr(tf.config, "get_visible_devices", lambda kind: [])
    assert remapping() == RewriterConfig.DEFAULT
    monkeypatch.setattr(tf.config, "get_visible_devices", lambda kind: [f"{kind}:0"])
    assert remapping() == RewriterConfig.OFF


def test_an_engine_s_graph_gets_few_passes_unless_the_user_chose():
    plain = tf.compat.v1.ConfigProto(intra_op_parallelism_threads=3)
    few = without_passes(plain)
    assert list(few.graph_options.rewrite_options.optimizers) == [
        "pruning",
        "function",
        "dependency",
    ]
    assert few.intra_op_parallelism_threads == 3
    assert not plain.graph_options.rewrite_options.optimizers  # other models still get theirs
    chosen = tf.compat.v1.ConfigProto()
    chosen.graph_options.rewrite_options.optimizers.append("constfold")
    assert without_passes(chosen) == chosen
