"""Signatures of so few ops that handing them to other threads takes longer than they do."""

from __future__ import annotations

from typing import Any

from tensorflow.core.protobuf import meta_graph_pb2
from tensorflow.python.framework import op_def_registry

_MOST_OPS = 100
CALLS = ("PartitionedCall", "StatefulPartitionedCall")
# Of all ops that have a state, or share one by a name, those that wait for nothing; the others may.
_READS = ("VarHandleOp", "ReadVariableOp", "HashTableV2", "LookupTableFindV2")
_LOOPS = ("Enter", "NextIteration")
_FILES = ("ReadFile", "MatchingFiles")  # of a network, or a pipe


class _TooLongError(Exception):
    pass


def short_signatures(meta_graph: meta_graph_pb2.MetaGraphDef) -> set[str]:
    """Returns the signatures of at most 100 ops, in no loop, of which none waits for anything.

    Args:
        meta_graph: A SavedModel's, as it was loaded.
    """
    graph = _Graph(meta_graph)
    return {
        name
        for name, signature in meta_graph.signature_def.items()
        if graph.is_short([info.name for info in signature.outputs.values()])
    }


class _Graph:
    """Counts the ops behind tensors, those of called functions too."""

    def __init__(self, meta_graph: meta_graph_pb2.MetaGraphDef) -> None:
        self._nodes = {node.name: node for node in meta_graph.graph_def.node}
        self._functions = {f.signature.name: f for f in meta_graph.graph_def.library.function}
        self._ops_of_function: dict[str, int] = {}

    def is_short(self, tensors: list[str]) -> bool:
        """Whether what computes these tensors is."""
        try:
            return self._count_behind(tensors) <= _MOST_OPS
        except _TooLongError:
            return False

    def _count_behind(self, tensors: list[str]) -> int:
        ops, seen, waiting = 0, set(), [node_of(tensor) for tensor in tensors]
        while waiting:
            name = waiting.pop()
            if name not in seen and name in self._nodes:
                seen.add(name)
                ops += self._count(self._nodes[name])
                waiting += map(node_of, self._nodes[name].input)
        return ops

    def _count(self, node: Any) -> int:
        """Returns how many ops a node stands for."""
        if node.op in CALLS:
            return self._count_function(node.attr["f"].func.name)
        known = op_def_registry.get(node.op)
        if known is None or node.op in (*_LOOPS, *_FILES):
            raise _TooLongError
        shares = any(arg.name == "shared_name" for arg in known.attr)  # `Batch` waits for others
        if (known.is_stateful or shares) and node.op not in _READS:
            raise _TooLongError
        if any(arg.type in ("func", "list(func)") for arg in known.attr):
            raise _TooLongError
        return 1

    def _count_function(self, name: str) -> int:
        if name not in self._ops_of_function:
            if name not in self._functions:
                raise _TooLongError
            nodes = self._functions[name].node_def
            if len(nodes) > _MOST_OPS:
                raise _TooLongError
            self._ops_of_function[name] = sum(map(self._count, nodes))
        return self._ops_of_function[name]


def node_of(tensor: str) -> str:
    """Returns the name of the node that makes a tensor, or that a control input waits for."""
    return tensor.removeprefix("^").partition(":")[0]
