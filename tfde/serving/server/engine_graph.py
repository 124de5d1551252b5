"""A SavedModel of which another engine runs a function, where its file lies beside.

A version's directory may hold `openvino/NAME.xml` or `onnx/NAME.onnx`: the function NAME of its
graph, from the token ids and the padding mask of texts to a vector each. Wherever the graph calls
the function, one op calls the engine instead; signatures, checks, batching and errors stay those of
every model. TensorFlow Serving passes over such files.
"""

from __future__ import annotations

from typing import Any

import tensorflow as tf
from tensorflow.core.framework import function_pb2, node_def_pb2
from tensorflow.core.protobuf import meta_graph_pb2
from tensorflow.python.ops import script_ops
from tensorflow.python.saved_model.loader_impl import SavedModelLoader

from tfde.engines.tower_engine import open_tower, tower_file

_INPUTS = 2  # token ids and padding mask, before what the function captures


def has_engine_file(engine: str, path: str) -> bool:
    """Whether a version's directory holds a function for an engine."""
    return tower_file(engine, path).is_file()


def load_with_engine(
    session: tf.compat.v1.Session, tags: list[str], path: str, engine: str
) -> tuple[meta_graph_pb2.MetaGraphDef, Any]:
    """Loads a SavedModel as `tf.compat.v1.saved_model.loader.load`, with an engine in its graph.

    Args:
        session: Its graph is added to.
        tags: Of the meta graph.
        path: The version's directory.
        engine: `openvino` or `onnxruntime`.

    Returns:
        The meta graph, and what must live as long as the session.

    Raises:
        MissingExtraError: the engine is not installed.
        ValueError: the graph has no function of the file's name.
    """
    runner = open_tower(engine, path)
    token = script_ops._py_funcs.insert(runner)
    name = tower_file(engine, path).stem
    loader = SavedModelLoader(path)
    library = loader.get_meta_graph_def_from_tags(tags).graph_def.library
    functions = [f for f in library.function if f.signature.name.startswith(f"__inference_{name}_")]
    if not functions:
        raise ValueError(f"{tower_file(engine, path)}: the graph has no function {name!r}")
    for function in functions:
        _call_instead(function, token)
    return loader.load(session, tags), runner


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
