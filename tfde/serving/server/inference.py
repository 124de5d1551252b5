"""Predict, Classify, Regress and MultiInference on a loaded model, with TensorFlow Serving's words.

Source: behaviour of TensorFlow Serving's predict_util.cc, classifier.cc, regressor.cc and
multi_inference.cc.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import tensorflow as tf
from grpc import StatusCode
from tensorflow.core.protobuf import meta_graph_pb2
from tensorflow_serving.apis import (
    classification_pb2,
    inference_pb2,
    input_pb2,
    model_pb2,
    predict_pb2,
    regression_pb2,
)

from tfde.serving.server.limits import NO_LIMITS, Limits
from tfde.serving.server.request_size import check_examples, check_protos, check_strings
from tfde.serving.server.signature_runner import DEFAULT_SIGNATURE, SignatureRunner
from tfde.serving.server.status import StatusError, invalid_argument
from tfde.serving.server.tensors import dtype_name, to_array, to_proto

PREDICT = "tensorflow/serving/predict"
CLASSIFY = "tensorflow/serving/classify"
REGRESS = "tensorflow/serving/regress"


class Servable(NamedTuple):
    """One version of a model, ready to run."""

    name: str
    version: int
    runner: SignatureRunner


def run_predict(
    servable: Servable,
    request: predict_pb2.PredictRequest,
    *,
    limits: Limits = NO_LIMITS,
    timeout_s: float | None = None,
    as_content: bool = False,
    check_method: bool = False,
) -> predict_pb2.PredictResponse:
    """Answers a Predict request.

    Args:
        servable: The model.
        request: A signature and its inputs.
        limits: How large the inputs may be.
        timeout_s: Seconds after which the run is given up.
        as_content: Whether numbers are answered as bytes.
        check_method: Refuse a signature of a method that TensorFlow Serving does not know.

    Raises:
        StatusError: the request cannot be answered.
    """
    signature_name = request.model_spec.signature_name or DEFAULT_SIGNATURE
    servable.runner.inputs(signature_name)  # an unknown signature goes before wrong tensors
    if check_method:
        check_predict_method(servable.runner.signature_defs[signature_name])
    check_protos(request.inputs, limits)
    inputs = {alias: to_array(alias, proto) for alias, proto in request.inputs.items()}
    check_strings(inputs, limits)
    outputs = servable.runner.run(
        signature_name,
        inputs,
        output_filter=request.output_filter,
        timeout_s=timeout_s,
    )
    response = predict_pb2.PredictResponse()
    fill_spec(response.model_spec, servable, signature_name)
    for alias, array in outputs.items():
        dtype = servable.runner.output_dtype(signature_name, alias)
        response.outputs[alias].CopyFrom(to_proto(array, dtype, as_content=as_content))
    return response


def run_classify(
    servable: Servable,
    request: classification_pb2.ClassificationRequest,
    *,
    limits: Limits = NO_LIMITS,
    timeout_s: float | None = None,
    check_method: bool = False,
) -> classification_pb2.ClassificationResponse:
    """Answers a Classify request.

    Args:
        servable: The model.
        request: Examples and a signature from them to `classes`, `scores` or both.
        limits: How large the examples may be.
        timeout_s: Seconds after which the run is given up.
        check_method: Refuse a signature that does not call itself a classification.

    Raises:
        StatusError: the request cannot be answered.
    """
    name, signature = _signature(servable, request.model_spec)
    if check_method:
        _check_method(signature, CLASSIFY, "classification")
    _check_classification(signature)
    examples = _examples(request.input, limits)
    outputs = servable.runner.run(name, {"inputs": examples}, timeout_s=timeout_s)
    response = classification_pb2.ClassificationResponse()
    fill_spec(response.model_spec, servable, name)
    _fill_classes(response.result, outputs, len(examples))
    return response


def run_regress(
    servable: Servable,
    request: regression_pb2.RegressionRequest,
    *,
    limits: Limits = NO_LIMITS,
    timeout_s: float | None = None,
    check_method: bool = False,
) -> regression_pb2.RegressionResponse:
    """Answers a Regress request.

    Args:
        servable: The model.
        request: Examples and a signature from them to `outputs`.
        limits: How large the examples may be.
        timeout_s: Seconds after which the run is given up.
        check_method: Refuse a signature that does not call itself a regression.

    Raises:
        StatusError: the request cannot be answered.
    """
    name, signature = _signature(servable, request.model_spec)
    if check_method:
        _check_method(signature, REGRESS, "regression")
    _check_regression(signature)
    examples = _examples(request.input, limits)
    outputs = servable.runner.run(name, {"inputs": examples}, timeout_s=timeout_s)
    response = regression_pb2.RegressionResponse()
    fill_spec(response.model_spec, servable, name)
    _fill_values(response.result, outputs["outputs"], len(examples))
    return response


def run_multi_inference(
    servable: Servable,
    request: inference_pb2.MultiInferenceRequest,
    *,
    limits: Limits = NO_LIMITS,
    timeout_s: float | None = None,
    check_method: bool = False,
) -> inference_pb2.MultiInferenceResponse:
    """Answers several Classify and Regress tasks on the same examples, in one run.

    Args:
        servable: The model of all tasks.
        request: Examples and tasks.
        limits: How large the examples may be.
        timeout_s: Seconds after which the run is given up.
        check_method: Refuse a signature of another method than its task's.

    Raises:
        StatusError: a task cannot be answered, or two are the same.
    """
    names: list[str] = []
    for task in request.tasks:
        name = task.model_spec.signature_name or DEFAULT_SIGNATURE
        if name in names:
            raise invalid_argument("Duplicate evaluation of signature: ", name)
        names.append(name)
        signature = servable.runner.signature_defs.get(name)
        if signature is None:
            raise invalid_argument("Requested signature not found in model graph: ", name)
        if task.method_name not in (CLASSIFY, REGRESS):
            raise StatusError(
                StatusCode.UNIMPLEMENTED, f"Unsupported signature method_name: {task.method_name}"
            )
        classifies = task.method_name == CLASSIFY
        if check_method:
            kind = "classification" if classifies else "regression"
            _check_method(signature, task.method_name, kind)
        (_check_classification if classifies else _check_regression)(signature)
    examples = _examples(request.input, limits)
    found = servable.runner.run_together(names, {"inputs": examples}, timeout_s=timeout_s)
    response = inference_pb2.MultiInferenceResponse()
    for task, name, outputs in zip(request.tasks, names, found, strict=True):
        result = response.results.add()
        fill_spec(result.model_spec, servable, name)
        if task.method_name == CLASSIFY:
            _fill_classes(result.classification_result, outputs, len(examples))
        else:
            _fill_values(result.regression_result, outputs["outputs"], len(examples))
    return response


def check_predict_method(signature: meta_graph_pb2.SignatureDef) -> None:
    """Refuses a signature of a method that TensorFlow Serving does not know.

    Raises:
        StatusError: INTERNAL, the method.
    """
    methods = (PREDICT, CLASSIFY, REGRESS)
    if signature.method_name not in methods:
        raise StatusError(
            StatusCode.INTERNAL,
            "Expected prediction signature method_name to be one of"
            f" {{{', '.join(methods)}}}. Was: {signature.method_name}",
        )


def common_model_spec(request: inference_pb2.MultiInferenceRequest) -> model_pb2.ModelSpec:
    """Returns the model that all tasks of a MultiInference ask.

    Raises:
        StatusError: INVALID_ARGUMENT, a task names none or another one.
    """
    if not request.tasks:
        raise invalid_argument("Inference request must have at least one task")
    for task in request.tasks:
        if not task.model_spec.name:
            raise invalid_argument("Found ModelSpec with an empty model name.")
        if task.model_spec.name != request.tasks[0].model_spec.name:
            raise invalid_argument(
                "All ModelSpecs in a MultiInferenceRequest must access the same model name."
            )
    return request.tasks[0].model_spec


def fill_spec(spec: model_pb2.ModelSpec, servable: Servable, signature_name: str = "") -> None:
    """Says which model, version and signature answered."""
    spec.name = servable.name
    spec.version.value = servable.version
    spec.signature_name = signature_name


def _signature(
    servable: Servable, spec: model_pb2.ModelSpec
) -> tuple[str, meta_graph_pb2.SignatureDef]:
    name = spec.signature_name or DEFAULT_SIGNATURE
    if name not in servable.runner.signature_defs:
        raise invalid_argument("No signature was found with the name: ", name)
    return name, servable.runner.signature_defs[name]


def _check_method(signature: meta_graph_pb2.SignatureDef, method: str, kind: str) -> None:
    if signature.method_name != method:
        raise invalid_argument(
            f"Expected {kind} signature method_name to be {method}. Was: {signature.method_name}"
        )


def _check_classification(signature: meta_graph_pb2.SignatureDef) -> None:
    _check_input(signature, "classification")
    if len(signature.outputs) not in (1, 2):
        raise invalid_argument("Expected one or two output Tensors, found ", len(signature.outputs))
    if not {"classes", "scores"} & set(signature.outputs):
        raise invalid_argument(
            "Expected classification signature outputs to contain at least one of"
            f' "classes" or "scores". Signature was: {signature}'
        )


def _check_regression(signature: meta_graph_pb2.SignatureDef) -> None:
    _check_input(signature, "regression")
    if len(signature.outputs) != 1:
        raise invalid_argument("Expected one output Tensor.")
    if "outputs" not in signature.outputs:
        raise invalid_argument(f"No regression outputs found in SignatureDef: {signature}")


def _check_input(signature: meta_graph_pb2.SignatureDef, kind: str) -> None:
    if len(signature.inputs) != 1:
        raise invalid_argument("Expected one input Tensor.")
    if "inputs" not in signature.inputs:
        raise invalid_argument(f"No {kind} inputs found in SignatureDef: {signature}")


def _examples(given: input_pb2.Input, limits: Limits) -> np.ndarray:
    """Returns serialized examples, (B,) object; a context is merged into each."""
    kind = given.WhichOneof("kind")
    examples = [] if kind is None else getattr(given, kind).examples
    if not examples:
        raise invalid_argument("Input is empty.")
    context = b""
    if kind == "example_list_with_context":
        context = given.example_list_with_context.context.SerializeToString()
    check_examples(len(examples), given.ByteSize(), len(context), limits)
    # Messages merge by standing one behind the other; what comes later counts.
    return np.array([context + example.SerializeToString() for example in examples], object)


def _fill_classes(
    result: classification_pb2.ClassificationResult,
    outputs: dict[str, np.ndarray],
    examples: int,
) -> None:
    classes, scores = outputs.get("classes"), outputs.get("scores")
    _check_matrix("classes", classes, examples, tf.string)
    _check_matrix("scores", scores, examples, tf.float32)
    if classes is not None and scores is not None and classes.shape != scores.shape:
        raise invalid_argument(
            "Tensors class and score should match in dim_size(1). Got "
            f"{classes.shape[1]} vs. {scores.shape[1]}"
        )
    given = classes if classes is not None else scores
    for row in range(examples):
        classifications = result.classifications.add()
        for column in range(0 if given is None else given.shape[1]):
            entry = classifications.classes.add()
            if classes is not None:
                entry.label = classes[row, column]
            if scores is not None:
                entry.score = scores[row, column]


def _check_matrix(name: str, array: np.ndarray | None, examples: int, dtype: tf.DType) -> None:
    if array is None:
        return
    if array.ndim != 2:
        raise invalid_argument(
            "Expected Tensor shape: [batch_size num_classes] but got ", _shape(array.shape)
        )
    found = tf.string if array.dtype.kind in "OSU" else tf.dtypes.as_dtype(array.dtype)
    if found != dtype:
        names = [f"DT_{dtype_name(kind).upper()}" for kind in (dtype, found)]
        raise invalid_argument(f"Expected {name} Tensor of {names[0]}. Got: {names[1]}")
    if len(array) != examples:
        raise invalid_argument(
            f"Expected {name} output batch size of {examples}. Got: {len(array)}"
        )


def _fill_values(
    result: regression_pb2.RegressionResult, values: np.ndarray, examples: int
) -> None:
    if values.ndim != 1 and values.shape[1:] != (1,):
        raise invalid_argument(
            "Expected output Tensor shape to be either [batch_size] or [batch_size, 1] but got ",
            _shape(values.shape),
        )
    if len(values) != examples:
        raise invalid_argument(
            f"Input batch size did not match output batch size: {examples} vs. {len(values)}"
        )
    if values.dtype != np.float32:
        name = dtype_name(tf.dtypes.as_dtype(values.dtype)).upper()
        raise invalid_argument("Expected output Tensor of DT_FLOAT.  Got: DT_", name)
    for value in values.ravel():
        result.regressions.add(value=value)


def _shape(shape: Sequence[int]) -> str:
    return f"[{','.join(map(str, shape))}]"
