"""A SavedModel of which another engine runs a function, where its file lies beside.

A version's directory may hold `openvino/encode_tokens.xml` or `onnx/encode_tokens.onnx`: the
function `encode_tokens` of its graph, from the token ids and the padding mask of texts to a vector
each. Wherever the graph calls the function, one op calls the engine instead; signatures, checks,
batching and errors stay those of every model. Models with the same tower share it. TensorFlow
Serving passes over such files.
"""

from __future__ import annotations

import logging
from typing import Any

import tensorflow as tf
from tensorflow.core.framework import function_pb2, node_def_pb2
from tensorflow.core.protobuf import meta_graph_pb2
from tensorflow.core.protobuf.rewriter_config_pb2 import RewriterConfig
from tensorflow.python.ops import script_ops

from tfde.engines.shared_towers import shared_tower
from tfde.engines.tower_engine import TowerRunner, fastest_engine
from tfde.errors import CorruptError
from tfde.serving.server.unread_weights import leave_out_unread_weights

_FUNCTION = "__inference_encode_tokens_"
_INPUTS = 2  # token ids and padding mask, before what the function captures
FASTEST = "auto"
# Calls of functions are put in line, and what nothing depends on goes: a question takes as long as
# after all passes, the first run half a second of processor time less.
_PASSES = ("pruning", "function", "dependency")
_log = logging.getLogger(__name__)


def put_in_engine(
    meta_graph: meta_graph_pb2.MetaGraphDef, path: str, engine: str
) -> TowerRunner | None:
    """Lets an engine run the tower of a graph; one without the function stays TensorFlow's.

    Args:
        meta_graph: A SavedModel's; it is changed in its place.
        path: The version's directory.
        engine: `openvino` or `onnxruntime`; `FASTEST`: what was fastest where the file was
            written, of those that are installed here and can read it.

    Returns:
        What must live as long as the graph's session; `None` where TensorFlow runs it all.

    Raises:
        MissingExtraError: the engine is not installed.
        FileNotFoundError: the graph has the function, but there is no file of it for the engine.
        CorruptError: the engine cannot read the file.
    """
    library = meta_graph.graph_def.library.function
    functions = [f for f in library if f.signature.name.startswith(_FUNCTION)]
    if not functions:
        return None
    engine, runner = _open(path, engine)
    _log.info("%s: the tower runs in %s", path, engine)
    if runner is not None:
        token = script_ops._py_funcs.insert(runner)
        for function in functions:
            _call_instead(function, token)
        leave_out_unread_weights(meta_graph)
    return runner


def without_passes(session_config: Any) -> Any:
    """Returns a session's settings for a graph whose tower an engine runs.

    TensorFlow goes over a graph a dozen times before it first runs it, to fuse and fold what is in
    a tower. Without the tower most of that finds nothing.

    Args:
        session_config: ConfigProto, or `None`. A choice of passes in it stays.
    """
    config = tf.compat.v1.ConfigProto()
    if session_config is not None:
        config.CopyFrom(session_config)
    rewriting = config.graph_options.rewrite_options
    if not rewriting.optimizers:
        rewriting.optimizers.extend(_PASSES)
        rewriting.meta_optimizer_iterations = RewriterConfig.ONE
    return config


def _open(path: str, engine: str) -> tuple[str, TowerRunner | None]:
    """Returns which engine runs a version, and the function in it; `None` for TensorFlow."""
    if engine != FASTEST:
        return engine, shared_tower(engine, path)
    try:
        engine = fastest_engine(path)
        return engine, None if engine == "tensorflow" else shared_tower(engine, path)
    except (CorruptError, OSError) as error:
        _log.warning("%s TensorFlow runs the tower instead.", error)
        return "tensorflow", None


def _call_instead(function: function_pb2.FunctionDef, token: str) -> None:
    """Makes one op that calls a Python function of a function's whole body."""
    given = function.signature.input_arg[:_INPUTS]
    (made,) = function.signature.output_arg
    node = node_def_pb2.NodeDef(name="engine", op="PyFuncStateless")
    node.input.extend(arg.name for arg in given)
    node.attr["token"].s = token.encode()
    node.attr["Tin"].list.type.extend(arg.type for arg in given)
    node.attr["Tout"].list.type.append(made.type)
    del function.node_def[:]
    function.node_def.append(node)
    function.ret.clear()
    function.ret[made.name] = "engine:output:0"
    function.control_ret.clear()
    del function.signature.control_output[:]
