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
from tensorflow.python.ops import script_ops
from tensorflow.python.saved_model.loader_impl import SavedModelLoader

from tfde.engines.shared_towers import shared_tower
from tfde.engines.tower_engine import TowerRunner, fastest_engine
from tfde.errors import CorruptError
from tfde.serving.server.unread_weights import leave_out_unread_weights

FASTEST = "auto"
_FUNCTION = "__inference_encode_tokens_"
_INPUTS = 2  # token ids and padding mask, before what the function captures
_log = logging.getLogger(__name__)


def load_with_engine(
    session: tf.compat.v1.Session, tags: list[str], path: str, engine: str
) -> tuple[meta_graph_pb2.MetaGraphDef, Any]:
    """Loads a SavedModel as `tf.compat.v1.saved_model.loader.load`, with an engine in its graph.

    A graph without the function stays TensorFlow's.

    Args:
        session: Its graph is added to.
        tags: Of the meta graph.
        path: The version's directory.
        engine: `openvino` or `onnxruntime`; `FASTEST`: what was fastest where the file was
            written, of those that are installed here and can read it.

    Returns:
        The meta graph, and what must live as long as the session.

    Raises:
        MissingExtraError: the engine is not installed.
        FileNotFoundError: the graph has the function, but there is no file of it for the engine.
        CorruptError: the engine cannot read the file.
    """
    loader = SavedModelLoader(path)
    meta_graph = loader.get_meta_graph_def_from_tags(tags)
    graph = meta_graph.graph_def
    functions = [f for f in graph.library.function if f.signature.name.startswith(_FUNCTION)]
    runner = None
    if functions:
        engine, runner = _open(path, engine)
        _log.info("%s: the tower runs in %s", path, engine)
    if runner is not None:
        token = script_ops._py_funcs.insert(runner)
        for function in functions:
            _call_instead(function, token)
        leave_out_unread_weights(meta_graph)
    return loader.load(session, tags), runner


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
