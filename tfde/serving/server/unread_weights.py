"""Weights that nothing in a graph reads any more, since another engine runs its tower.

Else the start copies the constants many times, half of its first run, and reads the variables.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator

from tensorflow.core.framework import function_pb2, graph_pb2, node_def_pb2, tensor_pb2
from tensorflow.core.protobuf import meta_graph_pb2
from tensorflow.python.framework import tensor_util

from tfde.serving.server.short_graphs import CALLS, node_of


def leave_out_unread_weights(meta_graph: meta_graph_pb2.MetaGraphDef) -> None:
    """Empties the constants that no signature reads, and restores no such variable.

    Args:
        meta_graph: A SavedModel's; it is changed in its place, and cannot be saved again.
    """
    graph = meta_graph.graph_def
    read = _read_by_signatures(meta_graph)
    for node in graph.node:
        if node.op == "Const" and node.name not in read:
            empty = tensor_pb2.TensorProto(dtype=node.attr["dtype"].type)
            empty.tensor_shape.dim.add(size=0)
            node.attr["value"].tensor.CopyFrom(empty)
            node.attr.pop("_output_shapes", None)
    library = {function.signature.name: function for function in graph.library.function}
    restores = (n for n in graph.node if n.name == meta_graph.saver_def.restore_op_name)
    for node in restores:
        function = library.get(node.attr["f"].func.name)
        if function is not None:
            given = zip(function.signature.input_arg, node.input, strict=True)
            _restore_less(function, {arg.name for arg, name in given if name not in read})


def _read_by_signatures(meta_graph: meta_graph_pb2.MetaGraphDef) -> set[str]:
    """Returns the names of the nodes that signatures, the restore op's file and assets need."""
    reads = _Reads(meta_graph.graph_def)
    nodes = {node.name: node for node in meta_graph.graph_def.node}
    waiting = [meta_graph.saver_def.filename_tensor_name]
    waiting += [asset.tensor_info.name for asset in meta_graph.asset_file_def]
    for signature in meta_graph.signature_def.values():
        infos = (*signature.inputs.values(), *signature.outputs.values())
        waiting += [info.name for info in infos]
    found: set[str] = set()
    while waiting:
        name = node_of(waiting.pop())
        if name in nodes and name not in found:
            found.add(name)
            waiting += reads.of([nodes[name]])
    return found


class _Reads:
    """What nodes read, without the arguments of functions that nothing in those reads."""

    def __init__(self, graph: graph_pb2.GraphDef) -> None:
        self._library = {function.signature.name: function for function in graph.library.function}
        self._unread = functools.cache(self._find_unread)

    def of(self, nodes: Iterable[node_def_pb2.NodeDef]) -> Iterator[str]:
        """Yields the tensors."""
        for node in nodes:
            called = node.attr["f"].func.name if node.op in CALLS else ""
            unread = self._unread(called) if called in self._library else frozenset()
            for number, given in enumerate(node.input):
                if number not in unread:
                    yield given

    def _find_unread(self, name: str) -> frozenset[int]:
        """Returns the numbers of the arguments of a function that nothing in it reads."""
        function = self._library[name]
        read = {*self.of(function.node_def), *function.ret.values()}
        args = enumerate(function.signature.input_arg)
        return frozenset(number for number, arg in args if arg.name not in read)


def _restore_less(function: function_pb2.FunctionDef, unread: set[str]) -> None:
    """Takes the variables of these arguments out of a function that restores variables."""
    nodes = {node.name: node for node in function.node_def}
    restores = [node for node in function.node_def if node.op == "RestoreV2"]
    assigned = {
        node.name: nodes[node_of(node.input[1])]  # the tensor passes through an Identity
        for node in function.node_def
        if node.op == "AssignVariableOp" and node.input[0] in unread
    }
    if len(restores) != 1 or any(value.op != "Identity" for value in assigned.values()):
        return  # another program's form: all is restored
    gone = {*assigned, *(value.name for value in assigned.values())}
    for node in [node for node in function.node_def if node.name in gone]:
        function.node_def.remove(node)
    for node in function.node_def:
        kept = [given for given in node.input if node_of(given) not in gone]
        node.ClearField("input")
        node.input.extend(kept)
    for name in gone & set(function.control_ret):
        del function.control_ret[name]
    outputs = [name for name in function.signature.control_output if name in function.control_ret]
    function.signature.ClearField("control_output")
    function.signature.control_output.extend(outputs)
    _read_less(restores[0], nodes, function)


def _read_less(
    restore: node_def_pb2.NodeDef,
    nodes: dict[str, node_def_pb2.NodeDef],
    function: function_pb2.FunctionDef,
) -> None:
    """Lets a `RestoreV2` read no tensors but those that a function still uses."""
    prefix = f"{restore.name}:tensors:"
    used = [
        (int(given.removeprefix(prefix)), node, place)
        for node in function.node_def
        for place, given in enumerate(node.input)
        if given.startswith(prefix)
    ]
    numbers = sorted({number for number, _, _ in used})
    if not numbers:  # which the op does not take
        function.node_def.remove(restore)
        return
    for given in restore.input[1:]:  # the tensors' names, and which slices of them
        value = nodes[node_of(given)].attr["value"].tensor
        kept = tensor_util.MakeNdarray(value)[numbers]
        value.CopyFrom(tensor_util.make_tensor_proto(kept))
        nodes[node_of(given)].attr.pop("_output_shapes", None)
    types = restore.attr["dtypes"].list
    kept_types = [types.type[number] for number in numbers]
    types.ClearField("type")
    types.type.extend(kept_types)
    restore.attr.pop("_output_shapes", None)
    for number, node, place in used:
        node.input[place] = f"{prefix}{numbers.index(number)}"
