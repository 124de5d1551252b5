"""Classify, Regress and MultiInference over gRPC and REST on a model of TensorFlow 1.

Expected codes and words are TensorFlow Serving's (the wire contract), not our server's.
"""

import json
import urllib.error
import urllib.request

import grpc
import pytest
import tensorflow as tf
from tensorflow.core.example import example_pb2
from tensorflow_serving.apis import (
    classification_pb2,
    inference_pb2,
    predict_pb2,
    prediction_service_pb2_grpc,
    regression_pb2,
)


@pytest.fixture(scope="module")
def prediction(server):
    with grpc.insecure_channel(server.target) as channel:
        yield prediction_service_pb2_grpc.PredictionServiceStub(channel)


def example(**features):
    message = example_pb2.Example()
    for name, value in features.items():
        message.features.feature[name].float_list.value.append(value)
    return message


def request_of(kind, *values, signature="", context=None):
    request = kind()
    request.model_spec.name = "examples"
    request.model_spec.signature_name = signature
    examples = request.input.example_list
    if context is not None:
        examples = request.input.example_list_with_context
        examples.context.CopyFrom(example(**context))
    examples.examples.extend(example(x=value) for value in values)
    return request


def classify(*values, **options):
    return request_of(classification_pb2.ClassificationRequest, *values, **options)


def regress(*values, **options):
    return request_of(regression_pb2.RegressionRequest, *values, **options)


def refusal(call, request):
    with pytest.raises(grpc.RpcError) as caught:
        call(request, timeout=20)
    return caught.value.code().name, caught.value.details()


def test_classify(prediction):
    answer = prediction.Classify(classify(2.0, -3.0), timeout=20)
    assert answer.model_spec.version.value == 1
    assert answer.model_spec.signature_name == "serving_default"
    rows = [[(c.label, c.score) for c in row.classes] for row in answer.result.classifications]
    assert rows == [[("up", 2.0), ("down", -2.0)], [("up", -3.0), ("down", 3.0)]]
    answer = prediction.Classify(classify(1.0, signature="scores"), timeout=20)
    assert [c.label for c in answer.result.classifications[0].classes] == ["", ""]


def test_context_stands_in_every_example(prediction):
    answer = prediction.Classify(classify(2.0, 5.0, context={"bias": 10.0}), timeout=20)
    assert [row.classes[0].score for row in answer.result.classifications] == [12.0, 15.0]


def test_regress(prediction):
    answer = prediction.Regress(regress(2.0, -3.0, signature="sum"), timeout=20)
    assert [value.value for value in answer.result.regressions] == [2.0, -3.0]


def test_an_ops_message_may_quote_bytes_that_are_no_text(prediction, server):
    request = predict_pb2.PredictRequest()
    request.model_spec.name = "examples"
    request.inputs["inputs"].CopyFrom(tf.make_tensor_proto([b"\xff\xfe no example"]))
    code, words = refusal(prediction.Predict, request)
    assert code == "INVALID_ARGUMENT"
    assert "Could not parse example input, value: '\ufffd\ufffd no example'" in words
    body = {"inputs": [{"b64": "//4gbm8gZXhhbXBsZQ=="}]}
    url = f"{server.url}/v1/models/examples:predict"
    with pytest.raises(urllib.error.HTTPError) as refused:
        urllib.request.urlopen(url, json.dumps(body).encode(), timeout=20)
    assert refused.value.code == 400


@pytest.mark.parametrize(
    ("rpc", "request_", "message"),
    [
        ("Classify", classification_pb2.ClassificationRequest(), "Missing ModelSpec"),
        ("Classify", classify(), "Input is empty."),
        (
            "Classify",
            classify(1.0, signature="none"),
            "No signature was found with the name: none",
        ),
        (
            "Classify",
            classify(1.0, signature="sum"),
            "Expected classification signature outputs to contain at least one of",
        ),
        ("Regress", regress(1.0), "Expected one output Tensor."),
        (
            "Regress",
            regress(1.0, signature="wide"),
            "Expected output Tensor shape to be either [batch_size] or [batch_size, 1] but got"
            " [1,2]",
        ),
    ],
)
def test_wrong_requests(prediction, rpc, request_, message):
    code, details = refusal(getattr(prediction, rpc), request_)
    assert code == "INVALID_ARGUMENT"
    assert details.startswith(message)


def multi(*tasks):
    request = inference_pb2.MultiInferenceRequest()
    for method, signature, model in tasks:
        task = request.tasks.add(method_name=f"tensorflow/serving/{method}")
        task.model_spec.name = model
        task.model_spec.signature_name = signature
    request.input.example_list.examples.extend([example(x=4.0), example(x=-1.0)])
    return request


def test_multi_inference(prediction):
    request = multi(("classify", "scores", "examples"), ("regress", "sum", "examples"))
    answer = prediction.MultiInference(request, timeout=20)
    assert [result.model_spec.signature_name for result in answer.results] == ["scores", "sum"]
    rows = answer.results[0].classification_result.classifications
    assert [row.classes[1].score for row in rows] == [-4.0, 1.0]
    values = answer.results[1].regression_result.regressions
    assert [value.value for value in values] == [4.0, -1.0]


@pytest.mark.parametrize(
    ("tasks", "code", "message"),
    [
        (
            [("classify", "", "examples"), ("regress", "sum", "toy")],
            "INVALID_ARGUMENT",
            "All ModelSpecs in a MultiInferenceRequest must access the same model name.",
        ),
        ([("classify", "", "")], "INVALID_ARGUMENT", "Found ModelSpec with an empty model name."),
        (
            [("regress", "sum", "examples")] * 2,
            "INVALID_ARGUMENT",
            "Duplicate evaluation of signature: sum",
        ),
        (
            [("regress", "none", "examples")],
            "INVALID_ARGUMENT",
            "Requested signature not found in model graph: none",
        ),
        (
            [("predict", "sum", "examples")],
            "UNIMPLEMENTED",
            "Unsupported signature method_name: tensorflow/serving/predict",
        ),
    ],
)
def test_wrong_multi_inference(prediction, tasks, code, message):
    assert refusal(prediction.MultiInference, multi(*tasks)) == (code, message)


@pytest.fixture
def ask(server):
    def ask(method, body, model="examples"):
        url = f"{server.url}/v1/models/{model}:{method}"
        request = urllib.request.Request(url, json.dumps(body).encode())
        try:
            with urllib.request.urlopen(request, timeout=20) as response:
                return response.status, json.load(response)
        except urllib.error.HTTPError as error:
            return error.code, json.load(error)

    return ask


def test_rest(ask):
    body = {"examples": [{"x": 0.2}, {"x": [-1.5]}]}
    answer = {"results": [[["up", 0.2], ["down", -0.2]], [["up", -1.5], ["down", 1.5]]]}
    assert ask("classify", body) == (200, answer)
    body = {"signature_name": "sum", "context": {"bias": 1.0}, "examples": [{"x": 0.5}]}
    assert ask("regress", body) == (200, {"results": [1.5]})


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ({}, "When method is classify, key 'examples' is expected and was not found"),
        ({"examples": {"x": 1.0}}, "Expecting 'examples' value to be an list/array"),
        ({"examples": []}, "'examples' value is an empty array"),
        ({"examples": [[1.0]]}, "Example must be JSON object but got JSON Array"),
        ({"context": [], "examples": [{}]}, "Example must be JSON object but got JSON Array"),
        (
            {"examples": [{"x": [1, None]}]},
            "Feature: x has element with unexpected JSON type: Null",
        ),
        ({"examples": [{"x": [1, 1.5]}]}, "Unexpected element type in feature: x expecting type"),
        (
            {"examples": [{"x": 2**63}]},
            "Feature: x has uint64_t element. Only int64_t is supported.",
        ),
        ({"signature_name": 3, "examples": [{}]}, "'signature_name' key must be a string value."),
    ],
)
def test_wrong_rest(ask, body, message):
    status, answer = ask("classify", body)
    assert status == 400
    assert message in answer["error"]


def test_a_wrong_type_of_feature_is_the_clients_fault(ask):
    status, answer = ask("classify", {"examples": [{"x": "text"}]})
    assert status == 400
    assert "x" in answer["error"]
