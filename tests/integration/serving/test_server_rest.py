"""REST against a server in a process of its own; expected bodies are TensorFlow Serving's."""

import base64
import gzip
import json
import math
import urllib.error
import urllib.request

import pytest


@pytest.fixture
def ask(server):
    def ask(path, body=None, method=None):
        data = body if isinstance(body, bytes) or body is None else json.dumps(body).encode()
        request = urllib.request.Request(server.url + path, data, method=method)
        try:
            with urllib.request.urlopen(request, timeout=20) as response:
                return response.status, response.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode()

    return ask


def predict(ask, body, path="/v1/models/toy:predict"):
    status, text = ask(path, body)
    return status, json.loads(text)


@pytest.mark.parametrize(
    ("body", "answer"),
    [
        ({"instances": [1, 2.5]}, {"predictions": [10.0, 25.0]}),
        ({"instances": [{"x": 1}, {"x": 2}]}, {"predictions": [10.0, 20.0]}),
        ({"inputs": [1]}, {"outputs": [10.0]}),
        ({"inputs": {"x": [1, 2]}}, {"outputs": [10.0, 20.0]}),
        ({"inputs": []}, {"outputs": []}),
        (
            {"signature_name": "scalar", "inputs": {"x": 4}},
            {"outputs": {"matrix": [[4.0] * 3] * 2, "root": 2.0, "word": "v1"}},
        ),
        (
            {"signature_name": "two", "instances": [{"text": "é", "count": 1}]},
            {
                "predictions": [
                    {
                        "next": 2,
                        "positive": True,
                        "raw_bytes": {"b64": base64.b64encode("é".encode()).decode()},
                        "repeated": "éé",
                    }
                ]
            },
        ),
        (
            {
                "signature_name": "two",
                "inputs": {"text": [{"b64": base64.b64encode(b"\xff\x01").decode()}], "count": [1]},
            },
            {
                "outputs": {
                    "next": [2],
                    "positive": [True],
                    "raw_bytes": [{"b64": base64.b64encode(b"\xff\x01").decode()}],
                    "repeated": ["\udcff\x01\udcff\x01"],
                }
            },
        ),
    ],
)
def test_predict(server, body, answer):
    request = urllib.request.Request(
        server.url + "/v1/models/toy:predict", json.dumps(body).encode()
    )
    with urllib.request.urlopen(request, timeout=20) as response:
        assert response.headers["Content-Type"] == "application/json"
        # Strings go out as raw bytes, whether they are UTF-8 or not.
        assert json.loads(response.read().decode("utf-8", "surrogateescape")) == answer


@pytest.mark.parametrize(
    "path",
    [
        "/v1/models/toy/versions/10:predict",
        "/V1/Models/toy:PREDICT",
        "/v1/models/%74oy:predict",
        "/v1/models/toy:predict?pretty=1",
    ],
)
def test_paths_that_mean_the_same(ask, path):
    assert predict(ask, {"instances": [1]}, path) == (200, {"predictions": [10.0]})


def test_bodies_compressed_by_gzip(server):
    def ask(body, encoding="gzip"):
        headers = {"Content-Encoding": encoding}
        request = urllib.request.Request(server.url + "/v1/models/toy:predict", body, headers)
        try:
            with urllib.request.urlopen(request, timeout=20) as response:
                return response.status, json.load(response)
        except urllib.error.HTTPError as error:
            return error.code, json.load(error)

    body = gzip.compress(b'{"instances": [1]')
    assert ask(body + gzip.compress(b"}")) == (200, {"predictions": [10.0]})
    for damaged in (body[:-1], b"{}", body[:20] + b"\xff" * 9):
        status, answer = ask(damaged)
        assert status == 400
        assert answer["error"].startswith("The body cannot be uncompressed by gzip: ")
    assert ask(b'{"instances": [1]}', "identity")[0] == 200


def test_floats_keep_a_point_and_their_own_digits(ask):
    _, text = ask("/v1/models/toy:predict", {"instances": [0.07, 100, 1e-6]})
    assert "[0.7, 1000.0, 1e-05]" in text  # float32: not 0.69999998808


def test_nan_and_infinity_pass_both_ways(ask):
    status, text = ask("/v1/models/toy:predict", b'{"instances": [NaN, Infinity, -Infinity]}')
    values = json.loads(text)["predictions"]
    assert status == 200
    assert math.isnan(values[0])
    assert values[1:] == [math.inf, -math.inf]
    assert "NaN, Infinity, -Infinity" in text


@pytest.mark.parametrize(
    ("path", "body", "status", "message"),
    [
        ("toy:predict", b"", 400, "JSON Parse error: The document is empty"),
        ("toy:predict", b"{", 400, "JSON Parse error: Missing a name for object member."),
        ("toy:predict", b"[1]", 400, "JSON Value: [1] Is not object"),
        ("toy:predict", {}, 400, "Missing 'inputs' or 'instances' key"),
        ("toy:predict", {"instances": 1}, 400, "Expecting 'instances' to be an list/array"),
        ("toy:predict", {"instances": []}, 400, "No values in 'instances' array"),
        (
            "toy:predict",
            {"instances": [1], "inputs": [1]},
            400,
            "Not formatted correctly expecting only one of 'inputs' or 'instances' keys to exist",
        ),
        (
            "toy:predict",
            {"signature_name": 1, "instances": [1]},
            400,
            "not formatted correctly. 'signature_name' key must be a string value.",
        ),
        (
            "toy:predict",
            {"signature_name": "x", "instances": [1]},
            400,
            'Serving signature name: "x" not found in signature def',
        ),
        (
            "toy:predict",
            {"instances": ["a"]},
            400,
            "Failed to process element: 0 of 'instances' list. Error: INVALID_ARGUMENT: JSON"
            ' Value: "a" Type: String is not of expected type: float',
        ),
        (
            "toy:predict",
            {"instances": [{"z": 1}]},
            400,
            "Failed to process element: 0 key: z of 'instances' list. Error: INVALID_ARGUMENT:"
            " JSON object: does not have named input: z",
        ),
        (
            "toy:predict",
            {"instances": [1, [2]]},
            400,
            "Expecting shape [] but got: [1]",
        ),
        (
            "toy:predict",
            {"instances": [{"x": 1}, 2]},
            400,
            "Expecting object but got list at item 1 of input list",
        ),
        (
            "toy:predict",
            {"signature_name": "two", "instances": [1]},
            400,
            "instances is a plain list, but expecting list of objects as multiple input tensors"
            " required as per tensorinfo_map",
        ),
        (
            "toy:predict",
            {"signature_name": "two", "instances": [{"text": "a"}]},
            400,
            "keys must be equal to: count,text",
        ),
        (
            "toy:predict",
            {"signature_name": "two", "inputs": {"text": ["a"]}},
            400,
            "Missing named input: count in 'inputs' object.",
        ),
        (
            "toy:predict",
            {"signature_name": "two", "inputs": {"text": ["a"], "count": [1.5]}},
            400,
            "JSON Value: 1.5 Type: Number is not of expected type: int32",
        ),
        (
            "toy:predict",
            {"inputs": [[1, 2], [3]]},
            400,
            "Encountered list at unexpected size: 1 at level: 1 expected size: 2",
        ),
        (
            "toy:predict",
            {"inputs": [1, [2]]},
            400,
            "Encountered list at unexpected level: 1 expected < 1",
        ),
        (
            "toy:predict",
            b'{"inputs": ' + b"[" * 500 + b"1" + b"]" * 500 + b"}",
            400,
            "Encountered list at unexpected level: 499",
        ),
        (
            "toy:predict",
            b"[" * 100_000,
            400,
            "JSON Parse error: Lists or objects are nested too deep. at offset: 0",
        ),
        (
            "toy:predict",
            {"signature_name": "two", "inputs": {"text": [{"b64": "%"}], "count": [1]}},
            400,
            "Unable to base64 decode",
        ),
        (
            "toy:predict",
            {"signature_name": "scalar", "instances": [1]},
            400,
            None,
        ),
        ("m:predict", {"instances": [1]}, 404, "Servable not found for request: Latest(m)"),
        (
            "toy/versions/3:predict",
            {"instances": [1]},
            404,
            "Servable not found for request: Specific(toy, 3)",
        ),
        (
            "toy/labels/stable:predict",
            {"instances": [1]},
            400,
            "Unrecognized servable version label: stable",
        ),
        (
            "toy/versions/99999999999999999999:predict",
            {"instances": [1]},
            400,
            "Failed to convert version: 99999999999999999999 to numeric.",
        ),
        (
            f"toy/versions/{'9' * 5000}:predict",
            {"instances": [1]},
            400,
            "Failed to convert version: 9999",
        ),
        (
            "toy:predict",
            {"signature_name": "\ud800", "instances": [1]},
            400,
            "JSON Parse error: The surrogate pair in string is invalid.",
        ),
        (
            "toy:predict",
            b'{"signature_name": "\xff", "instances": [1]}',
            400,
            'Serving signature name: "\ufffd" not found in signature def',
        ),
        (
            "toy:predict",
            b'{"instances": [' + b"7" * 5000 + b"]}",
            400,
            "JSON Parse error: Number too big to be stored in double.",
        ),
        (
            "toy:predict",
            {"signature_name": "slow", "instances": [1000000000]},
            504,
            "Timed out",
        ),
    ],
)
def test_wrong_predict_requests(ask, path, body, status, message):
    received = predict(ask, body, "/v1/models/" + path)
    assert received[0] == status
    assert list(received[1]) == ["error"]
    if message:
        assert message in received[1]["error"]


def test_status(ask):
    status, text = ask("/v1/models/both")
    assert status == 200
    row = {"state": "AVAILABLE", "status": {"error_code": "OK", "error_message": ""}}
    assert json.loads(text) == {
        "model_version_status": [{"version": "10", **row}, {"version": "2", **row}]
    }
    assert text.startswith('{\n "model_version_status": [\n  {')


def test_status_of_a_version(ask):
    status, text = ask("/v1/models/both/versions/2")
    assert [row["version"] for row in json.loads(text)["model_version_status"]] == ["2"]
    assert ask("/v1/models/toy/labels/ignored")[0] == status == 200


def test_metadata(ask):
    status, text = ask("/v1/models/toy/metadata")
    body = json.loads(text)
    assert status == 200
    assert body["model_spec"] == {"name": "toy", "signature_name": "", "version": "10"}
    signature = body["metadata"]["signature_def"]["signature_def"]["serving_default"]
    assert signature["method_name"] == "tensorflow/serving/predict"
    assert signature["inputs"]["x"]["dtype"] == "DT_FLOAT"
    assert signature["inputs"]["x"]["tensor_shape"]["dim"] == [{"name": "", "size": "-1"}]


@pytest.mark.parametrize(
    ("method", "path", "status", "message"),
    [
        ("GET", "/v1/models", 400, "Missing model name in request."),
        ("GET", "/v1/models/m", 404, "Could not find any versions of model m"),
        ("GET", "/v1/models/toy/versions/3", 404, "Could not find version 3 of model toy"),
        ("GET", "/v1/models/m/metadata", 404, "Servable not found for request: Latest(m)"),
        ("GET", "/v1/other", 400, "Malformed request: GET /v1/other"),
        ("PUT", "/v1/models/toy", 400, "Malformed request: PUT /v1/models/toy"),
        (
            "GET",
            "/v1/models/toy:predict",
            400,
            "Malformed request: GET /v1/models/toy:predict",
        ),
        ("POST", "/v1/models/toy", 400, "Malformed request: POST /v1/models/toy"),
        ("GET", "/v1/models/a/b", 400, "Malformed request: GET /v1/models/a/b"),
        *(
            ("POST", path, 400, f"Malformed request: POST {path}")
            for path in (
                "/v1/models",
                "/v1/models/toy/metadata",
                "/v1/models/toy/version/10:regress",
                "/v1/models/toy/versions/HELLO:regress",
                "/v1/models/toy/label/stable:regress",
                "/v1/models/toy/versions/10/labels/stable:regress",
            )
        ),
        (
            "GET",
            "/v1/models/m%21%2F%3A%40%5B%5D/labels/a%2Fb",
            404,
            "Could not find any versions of model m!/:@[]",
        ),
    ],
)
def test_wrong_paths(ask, method, path, status, message):
    received, text = ask(path, b"{}" if method == "POST" else None, method)
    assert (received, json.loads(text)) == (status, {"error": message})


def test_outside_the_api(ask):
    assert ask("/")[0] == 404
    assert ask("/v2/models/toy")[0] == 404


@pytest.mark.parametrize(
    ("path", "origin", "status"),
    [
        ("/v1/models/toy:predict", "https://page.example", 200),
        ("/v1/any", "http://localhost:3000", 200),
        ("/v1/models/toy:predict", None, 400),
        ("/v1/models/toy:predict", "file://page", 400),
        ("/monitoring/other", "https://page.example", 404),
    ],
)
def test_a_page_of_another_origin_asks_first(server, path, origin, status):
    headers = {"Origin": origin} if origin else {}
    request = urllib.request.Request(server.url + path, headers=headers, method="OPTIONS")
    try:
        with urllib.request.urlopen(request, timeout=20) as response:
            found = response.status
    except urllib.error.HTTPError as error:
        found = error.code
    assert found == status
