"""gRPC against a server in a process of its own, through tensorflow-serving-api's stubs.

Expected codes and words are TensorFlow Serving's (the wire contract), not our server's.
"""

import concurrent.futures

import grpc
import numpy as np
import pytest
import tensorflow as tf
from tensorflow_serving.apis import (
    get_model_metadata_pb2,
    get_model_status_pb2,
    model_service_pb2_grpc,
    predict_pb2,
    prediction_service_pb2_grpc,
)


@pytest.fixture(scope="module")
def channel(server):
    options = [("grpc.max_receive_message_length", -1)]
    with grpc.insecure_channel(server.target, options=options) as channel:
        yield channel


@pytest.fixture(scope="module")
def prediction(channel):
    return prediction_service_pb2_grpc.PredictionServiceStub(channel)


@pytest.fixture(scope="module")
def models(channel):
    return model_service_pb2_grpc.ModelServiceStub(channel)


def request_of(model="toy", signature="", version=None, label="", output_filter=(), **inputs):
    request = predict_pb2.PredictRequest(output_filter=output_filter)
    request.model_spec.name = model
    request.model_spec.signature_name = signature
    request.model_spec.version_label = label
    if version is not None:
        request.model_spec.version.value = version
    for name, value in inputs.items():
        request.inputs[name].CopyFrom(tf.make_tensor_proto(value))
    return request


def refusal(call, request, timeout=20):
    with pytest.raises(grpc.RpcError) as caught:
        call(request, timeout=timeout)
    return caught.value.code().name, caught.value.details()


def test_predict_answers_with_the_latest_version(prediction):
    response = prediction.Predict(request_of(x=np.array([1, 2.5], np.float32)), timeout=20)
    assert list(response.outputs["y"].float_val) == [10.0, 25.0]  # typed field, as TFS fills it
    assert not response.outputs["y"].tensor_content
    assert response.model_spec.name == "toy"
    assert response.model_spec.version.value == 10
    assert response.model_spec.signature_name == "serving_default"


def test_predict_answers_in_bytes_where_that_is_asked(toy_config, start_server):
    server = start_server(toy_config, enable_serialization_as_tensor_content=True)
    with grpc.insecure_channel(server.target) as channel:
        stub = prediction_service_pb2_grpc.PredictionServiceStub(channel)
        output = stub.Predict(request_of(x=np.array([1, 2.5], np.float32)), timeout=20).outputs["y"]
    assert not output.float_val
    assert tf.make_ndarray(output).tolist() == [10.0, 25.0]


@pytest.mark.parametrize(("version", "factor"), [(2, 2.0), (10, 10.0)])
def test_predict_a_version(prediction, version, factor):
    request = request_of("both", version=version, x=np.array([3], np.float32))
    response = prediction.Predict(request, timeout=20)
    assert tf.make_ndarray(response.outputs["y"]).tolist() == [3 * factor]
    assert response.model_spec.version.value == version


@pytest.mark.parametrize("rows", [0, 1, 3, 17])
def test_predict_other_batch_sizes(prediction, rows):
    x = np.arange(rows, dtype=np.float32)
    response = prediction.Predict(request_of(x=x), timeout=20)
    np.testing.assert_array_equal(tf.make_ndarray(response.outputs["y"]), x * 10)


def test_predict_types_and_shapes(prediction):
    request = request_of(
        signature="two",
        text=np.array([b"\xff\x00", "é".encode()], object),
        count=np.array([-1, 7], np.int32),
    )
    outputs = prediction.Predict(request, timeout=20).outputs
    assert list(outputs["repeated"].string_val) == [b"\xff\x00\xff\x00", "éé".encode()]
    assert list(outputs["next"].int_val) == [0, 8]
    assert list(outputs["positive"].bool_val) == [False, True]
    outputs = prediction.Predict(
        request_of(signature="scalar", x=np.float32(4)), timeout=20
    ).outputs
    assert tf.make_ndarray(outputs["root"]).shape == ()
    assert tf.make_ndarray(outputs["matrix"]).tolist() == [[4.0] * 3] * 2
    assert tf.make_ndarray(outputs["word"]).item() == b"v1"


def test_predict_reads_typed_fields_and_content_alike(prediction):
    request = request_of()
    proto = request.inputs["x"]
    proto.dtype = 1
    proto.tensor_shape.dim.add(size=3)
    proto.float_val.append(2.0)  # one value stands for all, as in TensorFlow
    response = prediction.Predict(request, timeout=20)
    assert list(response.outputs["y"].float_val) == [20.0] * 3


def test_output_filter(prediction):
    inputs = {"text": np.array(["a"], object), "count": np.array([1], np.int32)}
    request = request_of(signature="two", output_filter=["next"], **inputs)
    assert list(prediction.Predict(request, timeout=20).outputs) == ["next"]
    request = request_of(signature="two", output_filter=["none"], **inputs)
    assert refusal(prediction.Predict, request) == (
        "INVALID_ARGUMENT",
        "output tensor alias not found in signature: none Outputs expected to be in the set"
        " {next,positive,raw_bytes,repeated}.",
    )
    request = request_of(signature="two", output_filter=["next", "next"], **inputs)
    assert refusal(prediction.Predict, request) == (
        "INVALID_ARGUMENT",
        "duplicate output tensor alias: next",
    )


X = np.array([1], np.float32)


@pytest.mark.parametrize(
    ("request_", "code", "message"),
    [
        (predict_pb2.PredictRequest(), "INVALID_ARGUMENT", "Missing ModelSpec"),
        (request_of("", x=X), "INVALID_ARGUMENT", "ModelSpec has no name specified."),
        (request_of("m", x=X), "NOT_FOUND", "Servable not found for request: Latest(m)"),
        (
            request_of(version=3, x=X),
            "NOT_FOUND",
            "Servable not found for request: Specific(toy, 3)",
        ),
        (
            request_of(label="stable", x=X),
            "INVALID_ARGUMENT",
            "Unrecognized servable version label: stable",
        ),
        (
            request_of(signature="x", x=X),
            "FAILED_PRECONDITION",
            'Serving signature key "x" not found.',
        ),
        (
            request_of(),
            "INVALID_ARGUMENT",
            "input size does not match signature: 0!=1 len({}) != len({x})."
            " Sent extra: {}. Missing but required: {x}.",
        ),
        (
            request_of(x=X, z=X),
            "INVALID_ARGUMENT",
            "input size does not match signature: 2!=1 len({x,z}) != len({x})."
            " Sent extra: {z}. Missing but required: {}.",
        ),
        (
            request_of(z=X),
            "INVALID_ARGUMENT",
            "Signature input alias: x(feed name: serving_default_x:0) not found in request and no"
            " default value provided. Inputs expected to be in the request {z}, or default input"
            " alias set: ",
        ),
        (
            request_of(x=np.array(["a"], object)),
            "INVALID_ARGUMENT",
            "Expects arg[0] to be float but string is provided",
        ),
        (
            request_of(x=np.array([1], np.int64)),
            "INVALID_ARGUMENT",
            "Expects arg[0] to be float but int64 is provided",
        ),
    ],
)
def test_wrong_predict_requests(prediction, request_, code, message):
    assert refusal(prediction.Predict, request_) == (code, message)


def test_a_tensor_that_is_none(prediction):
    request = request_of()
    request.inputs["x"].dtype = 1
    request.inputs["x"].tensor_shape.dim.add(size=2)
    request.inputs["x"].tensor_content = b"123"
    assert refusal(prediction.Predict, request) == ("INVALID_ARGUMENT", "tensor parsing error: x")
    request.inputs["x"].dtype = 0
    assert refusal(prediction.Predict, request) == ("INVALID_ARGUMENT", "tensor parsing error: x")


@pytest.mark.parametrize(("dtype", "value"), [(tf.uint8, 300), (tf.uint8, -1), (tf.int8, 300)])
def test_a_number_that_its_type_cannot_hold_wraps_around(prediction, dtype, value):
    """As in TensorFlow: what is wrong is the type alone."""
    request = request_of()
    request.inputs["x"].dtype = dtype.as_datatype_enum
    request.inputs["x"].tensor_shape.dim.add(size=1)
    request.inputs["x"].int_val.append(value)
    code, message = refusal(prediction.Predict, request)
    assert (code, message.split(" but ")[0]) == ("INVALID_ARGUMENT", "Expects arg[0] to be float")


def test_the_signature_that_initializes_a_model_cannot_be_asked(prediction):
    request = request_of()
    request.model_spec.signature_name = "__saved_model_init_op"
    request.inputs.clear()
    code, message = refusal(prediction.Predict, request)
    assert code == "INVALID_ARGUMENT"
    assert "is no tensor but an operation" in message


def test_a_shape_that_the_graph_runs_is_not_the_signature_s_to_refuse(prediction):
    answer = prediction.Predict(request_of(x=np.ones([2, 2], np.float32)), timeout=20)
    assert tf.make_ndarray(answer.outputs["y"]).tolist() == [[10, 10], [10, 10]]


def test_an_error_of_the_models_own_ops(prediction):
    request = request_of(signature="guarded", k=np.array([0], np.int32))
    code, message = refusal(prediction.Predict, request)
    assert code == "INVALID_ARGUMENT"
    assert message.startswith("assertion failed: [`k` is bad] [0]")
    assert "must have the shape" not in message


def test_an_op_that_fails_over_a_shape_names_the_input(prediction):
    request = request_of(signature="guarded", k=np.array([[0]], np.int32))
    code, message = refusal(prediction.Predict, request)
    assert code == "INVALID_ARGUMENT"
    assert message.startswith("In[0] should be a scalar: [1]\n")
    assert message.endswith("; k must have the shape (any). Received: (1, 1)")


def test_long_messages_are_cut(prediction):
    code, message = refusal(prediction.Predict, request_of("m" * 2000, x=X))
    assert code == "NOT_FOUND"
    assert message == ("Servable not found for request: Latest(" + "m" * 2000)[:1024] + (
        "...TRUNCATED"
    )


@pytest.mark.parametrize("timeout", [None, 1e8])
def test_no_deadline_or_a_very_late_one(prediction, timeout):
    answer = prediction.Predict(request_of(x=X), timeout=timeout)
    assert answer.outputs["y"].float_val[0] == 10


def test_the_deadline_holds(prediction):
    request = request_of(signature="slow", steps=np.array([10**9], np.int32))
    assert refusal(prediction.Predict, request, timeout=0.3)[0] == "DEADLINE_EXCEEDED"
    # The run behind it was given up too: the server still answers at once.
    assert prediction.Predict(request_of(x=X), timeout=20).outputs["y"].float_val[0] == 10


def test_concurrent_requests_keep_their_answers(prediction):
    def ask(number):
        x = np.full([50], number, np.float32)
        response = prediction.Predict(request_of(x=x), timeout=60)
        return set(tf.make_ndarray(response.outputs["y"]).tolist()) == {number * 10.0}

    with concurrent.futures.ThreadPoolExecutor(16) as pool:
        assert all(pool.map(ask, range(200)))


def test_large_messages(prediction):
    x = np.ones([3_000_000], np.float32)  # 12 MB; gRPC's own limit would be 4 MB
    response = prediction.Predict(request_of(x=x), timeout=60)
    assert len(response.outputs["y"].float_val) == 3_000_000


def metadata_request(model="toy", fields=("signature_def",)):
    request = get_model_metadata_pb2.GetModelMetadataRequest(metadata_field=fields)
    request.model_spec.name = model
    return request


def test_metadata(prediction):
    response = prediction.GetModelMetadata(metadata_request(), timeout=20)
    signatures = get_model_metadata_pb2.SignatureDefMap()
    assert response.metadata["signature_def"].Unpack(signatures)
    assert response.model_spec.version.value == 10
    names = {"serving_default", "two", "scalar", "slow", "guarded", "__saved_model_init_op"}
    assert set(signatures.signature_def) == names
    signature = signatures.signature_def["serving_default"]
    assert signature.method_name == "tensorflow/serving/predict"
    assert signature.inputs["x"].dtype == 1


@pytest.mark.parametrize(
    ("request_", "code", "message"),
    [
        (
            get_model_metadata_pb2.GetModelMetadataRequest(metadata_field=["signature_def"]),
            "INVALID_ARGUMENT",
            "Missing ModelSpec",
        ),
        (
            metadata_request(fields=()),
            "INVALID_ARGUMENT",
            "GetModelMetadataRequest must specify at least one metadata_field",
        ),
        (
            metadata_request(fields=["weights"]),
            "INVALID_ARGUMENT",
            "Metadata field weights is not supported",
        ),
        (metadata_request("m"), "NOT_FOUND", "Servable not found for request: Latest(m)"),
    ],
)
def test_wrong_metadata_requests(prediction, request_, code, message):
    assert refusal(prediction.GetModelMetadata, request_) == (code, message)


def status_request(model="both", version=None, label=""):
    request = get_model_status_pb2.GetModelStatusRequest()
    request.model_spec.name = model
    request.model_spec.version_label = label
    if version is not None:
        request.model_spec.version.value = version
    return request


@pytest.mark.parametrize("label", ["", "anything"])  # a label is ignored here, as in TFS
def test_status(models, label):
    response = models.GetModelStatus(status_request(label=label), timeout=20)
    states = [(s.version, s.state, s.status.error_code) for s in response.model_version_status]
    assert states == [(10, 30, 0), (2, 30, 0)]


@pytest.mark.parametrize(
    ("request_", "code", "message"),
    [
        (
            get_model_status_pb2.GetModelStatusRequest(),
            "INVALID_ARGUMENT",
            "Missing ModelSpec",
        ),
        (status_request("m"), "NOT_FOUND", "Could not find any versions of model m"),
        (status_request("toy", 2), "NOT_FOUND", "Could not find version 2 of model toy"),
    ],
)
def test_wrong_status_requests(models, request_, code, message):
    assert refusal(models.GetModelStatus, request_) == (code, message)
