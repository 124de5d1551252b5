"""One loaded SavedModel and the running of its signatures.

The SavedModel is loaded into a session, as TensorFlow Serving does: signatures are found by the
tensor names in the SignatureDef, only the outputs asked for are computed, and a run can be
given a time limit.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

# Registers the text ops, which TensorFlow Serving links in.
import tensorflow_text  # noqa: F401
from grpc import StatusCode
from tensorflow.core.protobuf import meta_graph_pb2

from tfde.serving.server.status import CODES, StatusError, invalid_argument
from tfde.serving.server.tensors import dtype_name

DEFAULT_SIGNATURE = "serving_default"


class SignatureRunner:
    """Loads a SavedModel and runs its signatures; safe to call from many threads.

    Args:
        path: Directory of the SavedModel (a version's directory).
        tags: Tags of the meta graph to load.
    """

    def __init__(self, path: Path, *, tags: Sequence[str] = ("serve",)) -> None:
        self._session = tf.compat.v1.Session(graph=tf.Graph())
        logger = tf.get_logger()
        level = logger.level
        logger.setLevel("ERROR")  # the loader of TensorFlow 1 announces that it is deprecated
        try:
            with self._session.graph.as_default():
                meta_graph = tf.compat.v1.saved_model.loader.load(
                    self._session, list(tags), str(path)
                )
        finally:
            logger.setLevel(level)
        self.signature_defs = dict(meta_graph.signature_def)

    def inputs(self, signature_name: str) -> Mapping[str, meta_graph_pb2.TensorInfo]:
        """Returns what the signature takes, by name.

        Raises:
            StatusError: FAILED_PRECONDITION, the model has no such signature.
        """
        return self._signature(signature_name).inputs

    def output_dtype(self, signature_name: str, alias: str) -> tf.DType:
        """Returns the type of one output of the signature."""
        return tf.dtypes.as_dtype(self._signature(signature_name).outputs[alias].dtype)

    def run(
        self,
        signature_name: str,
        inputs: Mapping[str, np.ndarray],
        *,
        output_filter: Sequence[str] = (),
        timeout_s: float | None = None,
    ) -> dict[str, np.ndarray]:
        """Runs one signature.

        Args:
            signature_name: The signature; "" is `serving_default`.
            inputs: Arrays by input name.
            output_filter: The outputs to compute; none named means all.
            timeout_s: Seconds after which the run is given up.

        Returns:
            Arrays by output name.

        Raises:
            StatusError: FAILED_PRECONDITION for an unknown signature, INVALID_ARGUMENT for
                wrong inputs or a wrong filter, else what the model's ops raise.
        """
        signature = self._signature(signature_name)
        _check_names(signature, inputs)
        feeds = {signature.inputs[alias].name: array for alias, array in inputs.items()}
        dtypes = {info.name: info.dtype for info in signature.inputs.values()}
        for position, name in enumerate(sorted(feeds)):
            _check_dtype(position, feeds[name], tf.dtypes.as_dtype(dtypes[name]))
        fetches = {
            alias: signature.outputs[alias].name for alias in _outputs(signature, output_filter)
        }
        options = None
        if timeout_s is not None:
            options = tf.compat.v1.RunOptions(timeout_in_ms=max(1, int(timeout_s * 1000)))
        return self._run(fetches, feeds, options)

    def _run(self, fetches: dict[str, str], feeds: dict[str, np.ndarray], options: Any) -> Any:
        try:
            return self._session.run(fetches, feeds, options=options)
        except tf.errors.OpError as error:
            # Python's session puts the exporter's stack trace in front of the runtime's words.
            raw = error.__context__ if isinstance(error.__context__, tf.errors.OpError) else error
            raise StatusError(CODES[error.error_code], raw.message) from error
        except ValueError as error:  # a shape that the signature does not take
            raise invalid_argument(error) from error

    def close(self) -> None:
        """Gives back the memory."""
        self._session.close()

    def _signature(self, name: str) -> meta_graph_pb2.SignatureDef:
        name = name or DEFAULT_SIGNATURE
        if name not in self.signature_defs:
            raise StatusError(
                StatusCode.FAILED_PRECONDITION, f'Serving signature key "{name}" not found.'
            )
        return self.signature_defs[name]


def _check_names(signature: meta_graph_pb2.SignatureDef, inputs: Mapping[str, Any]) -> None:
    sent, expected = set(inputs), set(signature.inputs)
    if len(sent) != len(expected):
        raise invalid_argument(
            f"input size does not match signature: {len(sent)}!={len(expected)}"
            f" len({{{_join(sent)}}}) != len({{{_join(expected)}}})."
            f" Sent extra: {{{_join(sent - expected)}}}."
            f" Missing but required: {{{_join(expected - sent)}}}."
        )
    for alias in sorted(expected - sent):
        raise invalid_argument(
            f"Signature input alias: {alias}(feed name: {signature.inputs[alias].name})"
            " not found in request and no default value provided. Inputs expected to be in the"
            f" request {{{_join(sent)}}}, or default input alias set: "
        )


def _check_dtype(position: int, array: np.ndarray, expected: tf.DType) -> None:
    # The session would cast; TensorFlow Serving refuses, with these words.
    received = tf.string if array.dtype.kind in "OSU" else tf.dtypes.as_dtype(array.dtype)
    if received != expected:
        raise invalid_argument(
            f"Expects arg[{position}] to be {dtype_name(expected)}"
            f" but {dtype_name(received)} is provided"
        )


def _outputs(signature: meta_graph_pb2.SignatureDef, output_filter: Sequence[str]) -> list[str]:
    for position, alias in enumerate(output_filter):
        if alias not in signature.outputs:
            raise invalid_argument(
                f"output tensor alias not found in signature: {alias}"
                f" Outputs expected to be in the set {{{_join(signature.outputs)}}}."
            )
        if alias in output_filter[:position]:
            raise invalid_argument("duplicate output tensor alias: ", alias)
    return list(output_filter) or sorted(signature.outputs)


def _join(names: Any) -> str:
    return ",".join(sorted(names))
