"""A SavedModel of which another engine runs a function, where its file lies beside.

A version's directory may hold `openvino/encode_tokens.xml` or `onnx/encode_tokens.onnx`: the
function `encode_tokens` of its graph, from the token ids and the padding mask of texts to a vector
each. Wherever the graph calls the function, one op calls the engine instead; signatures, checks,
batching and errors stay those of every model. Models with the same tower share it. TensorFlow
Serving passes over such files.

Where `native_queries.json` lies beside, `encode` asks one op first: for a few plain queries it
gives their vectors, tokenization included. All others go the graph's way.
"""

from __future__ import annotations

import logging
import re
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf
from tensorflow.core.framework import function_pb2, node_def_pb2, types_pb2
from tensorflow.core.protobuf import meta_graph_pb2
from tensorflow.python.ops import script_ops
from tensorflow.python.saved_model.loader_impl import SavedModelLoader

from tfde.engines.shared_towers import shared_tower
from tfde.engines.tower_engine import TowerRunner, fastest_engine, tower_file
from tfde.errors import CorruptError
from tfde.serving.server.short_graphs import CALLS
from tfde.serving.server.unread_weights import leave_out_unread_weights
from tfde.text.native_queries import NATIVE_QUERIES, NativeQueries, read_native_queries

FASTEST = "auto"
_FUNCTION = "__inference_encode_tokens_"
_INPUTS = 2  # token ids and padding mask, before what the function captures
_ENCODE = re.compile(r"__inference_encode_\d+")
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
    library = meta_graph.graph_def.library
    towers = [f for f in library.function if f.signature.name.startswith(_FUNCTION)]
    if not towers:
        return loader.load(session, tags), None
    engine, runner, native = _open(path, engine)
    _log.info("%s: the tower runs in %s", path, engine)
    if runner is None:
        return loader.load(session, tags), None
    held: list[Any] = [runner]
    token = script_ops._py_funcs.insert(runner)
    for function in towers:
        _call_instead(function, token)
    leave_out_unread_weights(meta_graph)
    if native is not None:
        held.append(_PlainQueries(native, runner))
        token = script_ops._py_funcs.insert(held[-1])
        for function in [f for f in library.function if _encodes_queries(f)]:
            _ask_first(library, function, token)
    return loader.load(session, tags), held


class _Opened(NamedTuple):
    """What runs a version: an engine with the tower, and perhaps its own tokenization."""

    engine: str
    runner: TowerRunner | None = None
    native: NativeQueries | None = None


def _open(path: str, engine: str) -> _Opened:
    """Returns what runs a version; no runner for TensorFlow."""
    if engine != FASTEST:
        return _open_with(path, engine)
    try:
        engine = fastest_engine(path)
        return _Opened(engine) if engine == "tensorflow" else _open_with(path, engine)
    except (CorruptError, OSError) as error:
        _log.warning("%s TensorFlow runs the tower instead.", error)
        return _Opened("tensorflow")


def _open_with(path: str, engine: str) -> _Opened:
    native = read_native_queries(tower_file(engine, path).with_name(NATIVE_QUERIES))
    return _Opened(engine, shared_tower(engine, path), native)


class _PlainQueries:
    """Queries to vectors without a graph, where they are few and plain."""

    def __init__(self, native: NativeQueries, runner: TowerRunner) -> None:
        self._native, self._runner = native, runner

    def __call__(self, texts: np.ndarray) -> tuple[np.bool, np.ndarray]:
        """Returns whether they are, and (B, D) float32, else of no rows.

        Args:
            texts: (B,) bytes.
        """
        plain = len(texts) > 0 and all(map(bytes.isascii, texts))
        rows = self._native([text.decode() for text in texts]) if plain else None
        if rows is None:
            return np.False_, np.zeros((0, 0), np.float32)
        return np.True_, self._runner(rows.token_ids, rows.padding_mask)


def _encodes_queries(function: function_pb2.FunctionDef) -> bool:
    """Whether it makes vectors of one column of texts, by the function that the engine runs."""
    args = function.signature.input_arg
    return (
        _ENCODE.fullmatch(function.signature.name) is not None
        and [arg.type for arg in args].count(types_pb2.DT_STRING) == 1
        and args[0].type == types_pb2.DT_STRING
        and any(
            node.op in CALLS and node.attr["f"].func.name.startswith(_FUNCTION)
            for node in function.node_def
        )
    )


def _ask_first(
    library: function_pb2.FunctionDefLibrary, function: function_pb2.FunctionDef, token: str
) -> None:
    """Puts one op before a function's body, which runs where the op says that it has no answer."""
    name = function.signature.name
    body = library.function.add()
    body.CopyFrom(function)
    body.signature.name = f"{name}_in_graph"
    args, (made,) = function.signature.input_arg, function.signature.output_arg
    types = [arg.type for arg in args]

    ask = _one_node(function, "ask", "PyFuncStateless", [args[0].name])
    ask.attr["token"].s = token.encode()
    ask.attr["Tin"].list.type.append(args[0].type)
    ask.attr["Tout"].list.type.extend([types_pb2.DT_BOOL, made.type])

    answered, asked = library.function.add(), library.function.add()
    for branch, suffix in ((answered, "answered"), (asked, "asked")):
        branch.signature.CopyFrom(function.signature)
        branch.signature.name = f"{name}_{suffix}"
        branch.signature.ClearField("control_output")
        branch.signature.input_arg.add(name="answer", type=made.type)
    answered.ret[made.name] = "answer"
    call = _one_node(asked, "call", "StatefulPartitionedCall", [arg.name for arg in args])
    call.attr["f"].func.name = body.signature.name
    call.attr["Tin"].list.type.extend(types)
    call.attr["Tout"].list.type.append(made.type)
    asked.ret[made.name] = "call:output:0"

    choose = function.node_def.add(name="choose", op="If")
    choose.input.extend(["ask:output:0", *(arg.name for arg in args), "ask:output:1"])
    choose.attr["Tcond"].type = types_pb2.DT_BOOL
    choose.attr["Tin"].list.type.extend([*types, made.type])
    choose.attr["Tout"].list.type.append(made.type)
    choose.attr["then_branch"].func.name = answered.signature.name
    choose.attr["else_branch"].func.name = asked.signature.name
    function.ret[made.name] = "choose:output:0"
    function.signature.is_stateful = True


def _call_instead(function: function_pb2.FunctionDef, token: str) -> None:
    """Makes one op that calls a Python function of a function's whole body."""
    given = function.signature.input_arg[:_INPUTS]
    (made,) = function.signature.output_arg
    node = _one_node(function, "engine", "PyFuncStateless", [arg.name for arg in given])
    node.attr["token"].s = token.encode()
    node.attr["Tin"].list.type.extend(arg.type for arg in given)
    node.attr["Tout"].list.type.append(made.type)
    function.ret[made.name] = "engine:output:0"


def _one_node(
    function: function_pb2.FunctionDef, name: str, op: str, given: list[str]
) -> node_def_pb2.NodeDef:
    """Empties a function but for one new node, and returns that."""
    del function.node_def[:]
    function.ret.clear()
    function.control_ret.clear()
    del function.signature.control_output[:]
    return function.node_def.add(name=name, op=op, input=given)
