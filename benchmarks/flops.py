"""How many floating point operations a graph takes, counted op by op."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tensorflow as tf
from tensorflow.core.protobuf.rewriter_config_pb2 import RewriterConfig
from tensorflow.python.framework.convert_to_constants import convert_variables_to_constants_v2


def count_flops(function: Callable[..., Any], inputs: dict[str, tf.Tensor]) -> int:
    """Returns the floating point operations of one call, multiplications and additions apart.

    The graph is run once, for its shapes follow from what is in a batch: padding costs nothing in
    our encoders but in attention. Nothing is fused or folded. Ops are counted by TensorFlow's own
    table, which has the products and what is computed number by number, not tables looked up or
    data moved.

    Args:
        function: Such as a functional model.
        inputs: What it is called with, as one argument.
    """
    traced = tf.function(lambda values: function(values)).get_concrete_function(inputs)
    frozen = convert_variables_to_constants_v2(traced)
    graph = tf.Graph()
    with graph.as_default():
        tf.graph_util.import_graph_def(frozen.graph.as_graph_def(), name="")
    flat = tf.nest.flatten(inputs)
    feeds = dict(zip((x.name for x in frozen.inputs), flat, strict=True))
    options = tf.compat.v1.RunOptions(trace_level=tf.compat.v1.RunOptions.FULL_TRACE)
    metadata = tf.compat.v1.RunMetadata()
    with tf.compat.v1.Session(graph=graph, config=_as_written()) as session:
        session.run(
            [x.name for x in frozen.outputs],
            {name: value.numpy() for name, value in feeds.items()},
            options=options,
            run_metadata=metadata,
        )
    profile = tf.compat.v1.profiler.profile(
        graph,
        run_meta=metadata,
        cmd="op",
        options={
            **tf.compat.v1.profiler.ProfileOptionBuilder.float_operation(),
            "output": "none",
        },
    )
    return int(profile.total_float_ops)


def _as_written() -> tf.compat.v1.ConfigProto:
    """No op is replaced by another: what is not there under its name is not counted."""
    config = tf.compat.v1.ConfigProto()
    config.graph_options.optimizer_options.opt_level = -1
    rewrites = config.graph_options.rewrite_options
    rewrites.disable_meta_optimizer = True
    rewrites.constant_folding = RewriterConfig.OFF
    return config
