"""What TensorFlow Serving's tests ask of signatures, on models of TensorFlow 2."""

import numpy as np
import pytest
import tensorflow as tf
from tensorflow_serving.apis import (
    classification_pb2,
    inference_pb2,
    predict_pb2,
    regression_pb2,
)

from tfde.protos.batching_parameters_pb2 import BatchingParameters
from tfde.serving.server.inference import (
    Servable,
    run_classify,
    run_multi_inference,
    run_predict,
    run_regress,
)
from tfde.serving.server.signature_runner import SignatureRunner
from tfde.serving.server.status import StatusError

EXAMPLES = [tf.TensorSpec([None], tf.string, name="inputs")]


class Half(tf.Module):
    """y = x / 2 + 2, each signature with an input of its own."""

    @tf.function(input_signature=[tf.TensorSpec([None, 1], tf.float32, name="x")])
    def predict(self, x):
        return {"y": x * 0.5 + 2}

    @tf.function(
        input_signature=[
            tf.TensorSpec([None, 2], tf.float32, name="x"),
            tf.TensorSpec([], tf.float32, name="times"),
        ]
    )
    def weigh(self, x, times=tf.constant(3.0)):  # noqa: B008
        return {"y": tf.matmul(x, [[1.0], [10.0]]) * times}

    def _of_examples(self, inputs):
        return self.predict(
            tf.io.parse_example(inputs, {"x": tf.io.FixedLenFeature([1], "float32")})["x"]
        )["y"]

    @tf.function(input_signature=EXAMPLES)
    def regress(self, inputs):
        return {"outputs": self._of_examples(inputs)}

    @tf.function(input_signature=EXAMPLES)
    def classify(self, inputs):
        return {"scores": self._of_examples(inputs)}


@pytest.fixture(scope="module")
def half(tmp_path_factory):
    path = tmp_path_factory.mktemp("half") / "00000123"
    model = Half()
    signatures = {
        "serving_default": model.predict,
        "weigh": model.weigh,
        "regress": model.regress,
        "classify": model.classify,
    }
    tf.saved_model.save(model, str(path), signatures)
    runner = SignatureRunner(path)
    yield Servable("half", 123, runner)
    runner.close()


def predict(half, signature="", **inputs):
    request = predict_pb2.PredictRequest()
    request.model_spec.signature_name = signature
    for name, value in inputs.items():
        request.inputs[name].CopyFrom(tf.make_tensor_proto(value))
    return tf.make_ndarray(run_predict(half, request).outputs["y"]).tolist()


def test_shapes_are_for_the_ops_to_judge(half):
    floats = np.array([2, 3, 4], np.float32)
    assert predict(half, x=floats) == [3.0, 3.5, 4.0]  # the signature's x is a column
    assert predict(half, x=np.float32(2)) == 3.0
    with pytest.raises(StatusError, match="Matrix size-incompatible") as caught:
        predict(half, "weigh", x=np.ones([1, 3], np.float32), times=np.float32(1))
    assert caught.value.code.name == "INVALID_ARGUMENT"


def test_inputs_with_a_default_may_be_left_out(half):
    x = np.array([[1, 2]], np.float32)
    assert predict(half, "weigh", x=x) == [[63.0]]
    assert predict(half, "weigh", x=x, times=np.float32(1)) == [[21.0]]
    with pytest.raises(StatusError, match=r"alias: x\(.*or default input alias set: times$"):
        predict(half, "weigh", times=np.float32(1))
    with pytest.raises(StatusError, match=r"alias: x\("):
        predict(half, "weigh", z=x)
    with pytest.raises(StatusError, match=r"3!=2 .*Sent extra: \{z\}"):
        predict(half, "weigh", x=x, times=np.float32(1), z=x)


def test_multi_inference_on_signatures_with_inputs_of_their_own(half):
    request = inference_pb2.MultiInferenceRequest()
    for method in ("regress", "classify"):
        task = request.tasks.add(method_name=f"tensorflow/serving/{method}")
        task.model_spec.name, task.model_spec.signature_name = "half", method
    example = request.input.example_list.examples.add()
    example.features.feature["x"].float_list.value.append(2.0)
    regression, classification = run_multi_inference(half, request).results
    assert regression.regression_result.regressions[0].value == 3.0
    assert classification.classification_result.classifications[0].classes[0].score == 3.0
    assert regression.model_spec.version.value == 123


def test_methods_are_compared_where_that_is_asked_for(half):
    # TensorFlow 2 calls every signature a prediction.
    predict_request = predict_pb2.PredictRequest()
    predict_request.inputs["x"].CopyFrom(tf.make_tensor_proto(np.float32(2)))
    assert run_predict(half, predict_request, check_method=True).outputs["y"].float_val == [3.0]
    half.runner.signature_defs["other"] = type(half.runner.signature_defs["weigh"])()
    half.runner.signature_defs["other"].CopyFrom(half.runner.signature_defs["serving_default"])
    half.runner.signature_defs["other"].method_name = "not/supported"
    predict_request.model_spec.signature_name = "other"
    assert run_predict(half, predict_request).outputs["y"].float_val == [3.0]
    with pytest.raises(StatusError, match=r"to be one of \{tensorflow/serving/predict, ") as caught:
        run_predict(half, predict_request, check_method=True)
    assert caught.value.code.name == "INTERNAL"
    for run, kind, name in (
        (run_regress, regression_pb2.RegressionRequest, "regress"),
        (run_classify, classification_pb2.ClassificationRequest, "classify"),
    ):
        request = kind()
        request.model_spec.signature_name = name
        example = request.input.example_list.examples.add()
        example.features.feature["x"].float_list.value.append(2.0)
        run(half, request)
        with pytest.raises(StatusError, match=f"method_name to be tensorflow/serving/{name}. Was"):
            run(half, request, check_method=True)


def test_a_tflite_model_is_served_like_any_other(tmp_path):
    @tf.function(input_signature=[tf.TensorSpec([None, 2], tf.float32, name="x")])
    def weigh(x):
        return tf.matmul(x, [[1.0], [10.0]], name="y")

    converter = tf.lite.TFLiteConverter.from_concrete_functions(
        [weigh.get_concrete_function()], trackable_obj=tf.Module()
    )
    (tmp_path / "model.tflite").write_bytes(converter.convert())
    tf.saved_model.save(Half(), str(tmp_path))
    batching = BatchingParameters()
    batching.batch_timeout_micros.value = 1000
    for options in ({}, {"batching": batching}):
        runner = SignatureRunner(tmp_path, prefer_tflite=True, **options)
        signature = runner.signature_defs["serving_default"]
        (x,), (output,) = signature.inputs, signature.outputs
        for rows in (1, 3, 1):
            answer = runner.run("", {x: np.ones([rows, 2], np.float32)})
            assert answer[output].tolist() == [[11.0]] * rows
        with pytest.raises(StatusError, match=r"failed to prepare\.$"):
            runner.run("", {x: np.ones([1, 3], np.float32)})
        with pytest.raises(StatusError, match="to be float but double is provided"):
            runner.run("", {x: np.ones([1, 2])})
        assert runner.run("", {x: np.ones([1, 2], np.float32)})[output].tolist() == [[11.0]]
        runner.close()
    (tmp_path / "model.tflite").write_bytes(b"none")
    with pytest.raises(ValueError, match="not a valid Flatbuffer"):
        SignatureRunner(tmp_path, prefer_tflite=True)
    SignatureRunner(tmp_path).close()
