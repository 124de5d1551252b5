"""REST's JSON, case by case as TensorFlow Serving 2.20's own tests of json_tensor have it."""

import json
import math

import numpy as np
import pytest
from google.protobuf import text_format
from tensorflow.core.protobuf import meta_graph_pb2
from tensorflow_serving.apis import classification_pb2, input_pb2, regression_pb2

from tfde.serving.server.json_answers import (
    write_classifications,
    write_error,
    write_outputs,
    write_regressions,
)
from tfde.serving.server.json_requests import read_examples, read_inputs
from tfde.serving.server.json_values import parse_body, signature_of
from tfde.serving.server.status import StatusError

NAN, INF = math.nan, math.inf
TYPES = {"float": 1, "double": 2, "int32": 3, "uint8": 4, "int16": 5, "int8": 6, "string": 7,
         "int64": 9, "bool": 10, "half": 19, "uint32": 22, "uint64": 23}  # fmt: skip


def read(body, **inputs):
    signature = meta_graph_pb2.SignatureDef()
    for name, kind in inputs.items():
        signature.inputs[name].dtype = TYPES[kind]
    content = body if isinstance(body, bytes) else body.encode()
    return read_inputs(parse_body(content), signature.inputs)


def examples(body):
    message = input_pb2.Input()
    document = parse_body(body.encode())
    signature_of(document)
    read_examples(document, message)
    return message


@pytest.mark.parametrize(
    ("kind", "body", "values"),
    [
        ("int32", '{"instances": [[1,2],[3,4],[5,6]]}', [[1, 2], [3, 4], [5, 6]]),
        ("float", '{"instances": [1, 2.0, 5.003, 0.007, 0.0]}', [1, 2, 5.003, 0.007, 0]),
        ("double", '{"instances": [1.0, 2, 0.662, 0]}', [1, 2, 0.662, 0]),
        # Whatever float32 cannot hold is rounded, with and without a point.
        ("float", '{"instances": [1435774380]}', [1435774336]),
        ("float", '{"instances": [1435774380.0]}', [1435774336]),
        ("float", '{"instances": [16777217]}', [16777216]),
        ("double", '{"instances": [9007199254740993]}', [9007199254740992]),
        ("float", '{"instances": [18446744073709551616]}', [18446744073709551616]),
        ("float", '{"instances": [1e39, -1e39]}', [INF, -INF]),
        ("float", '{"instances": [1.7976931348623157e308]}', [INF]),
        ("float", '{"instances": [2.2e-308, -2.2e-308]}', [0.0, -0.0]),
        ("float", '{"instances": [NaN, Infinity, -Infinity, Inf, -Inf, -NaN]}',
         [NAN, INF, -INF, INF, -INF, NAN]),
        ("double", '{"inputs": [Inf, 1]}', [INF, 1]),
        ("string", '{"instances": ["Inf -Inf", "\\"Inf"], "and": Inf}', [b"Inf -Inf", b'"Inf']),
        # What follows the document is nobody's business, nor is a byte order mark.
        ("int32", '{"instances": [[1,2]]}X', [[1, 2]]),
        ("int32", ' \r\n\t{"instances": [1]} {"instances": [2]}', [1]),
        ("int32", b'\xef\xbb\xbf{"instances": [1]}', [1]),
        ("int32", '{"instances": [1], "instances": [2]}', [1]),
        ("int32", '{"instances": [1], "nested": ' + "[" * 500 + "]" * 500 + "}", [1]),
        ("string", '{"instances": [{"b64" : "aGVsbG8="}, {"b64": "d29ybGQ="}]}',
         [b"hello", b"world"]),
        ("string", '{"instances": [[{"b64": "aGVsbG8="}], [{"b64": "d29ybGQ="}]]}',
         [[b"hello"], [b"world"]]),
        ("string", '{"inputs": {"x": {"b64": "aGVsbG8="}}}', b"hello"),
        ("string", '{"inputs": {"b64": "aGVsbG8="}}', b"hello"),
        # Padding may be missing, or be of dots; white space may stand anywhere.
        ("string", '{"inputs": [{"b64": "aGVsbG8"}, {"b64": "dA"}, {"b64": "dA.."}]}',
         [b"hello", b"t", b"t"]),
        ("string", '{"inputs": [{"b64": " aGV\\nsbG8 = "}, {"b64": ""}]}', [b"hello", b""]),
        # Text goes through as it came, UTF-8 or not; a pair of surrogates is one character.
        ("string", '{"inputs": ["\\ud83d\\ude00", "\\\\ud83d", "a\\u0000b"]}',
         ["\U0001f600".encode(), b"\\ud83d", b"a\0b"]),
        ("string", b'{"inputs": ["\xff"]}', [b"\xff"]),
        ("uint8", '{"inputs": [255, 256, -1]}', [255, 0, 255]),
        ("int64", '{"inputs": [9223372036854775807]}', [2**63 - 1]),
        ("uint64", '{"inputs": [18446744073709551615]}', [2**64 - 1]),
        ("uint32", '{"inputs": [4294967295]}', [2**32 - 1]),
        ("bool", '{"inputs": [true, false]}', [True, False]),
    ],
)  # fmt: skip
def test_what_one_input_is_read_as(kind, body, values):
    arrays, _ = read(body, x=kind)
    expected = np.array(values, object if kind == "string" else arrays["x"].dtype)
    np.testing.assert_array_equal(arrays["x"], expected)
    assert list(arrays) == ["x"]


def test_named_inputs_in_rows_and_columns():
    rows = """{"instances": [
        {"i": [[1,2],[3,4]], "s": ["foo", "bar"], "f": [1.0, NaN]},
        {"i": [[5,6],[7,8]], "s": ["baz", "bat"], "f": [2, Infinity]}]}"""
    arrays, answer_format = read(rows, i="int32", s="string", f="float")
    assert answer_format == "row"
    assert arrays["i"].tolist() == [[[1, 2], [3, 4]], [[5, 6], [7, 8]]]
    assert arrays["s"].tolist() == [[b"foo", b"bar"], [b"baz", b"bat"]]
    np.testing.assert_array_equal(arrays["f"], np.array([[1, NAN], [2, INF]], np.float32))
    columns = '{"inputs": {"i": [[[1,2]]], "s": ["foo"], "b": {"b64": "aGVsbG8="}}}'
    arrays, answer_format = read(columns, i="int32", s="string", b="string")
    assert answer_format == "column"
    assert arrays["i"].shape == (1, 1, 2)
    assert arrays["b"].shape == ()
    assert arrays["b"].item() == b"hello"


@pytest.mark.parametrize(
    ("inputs", "body", "message"),
    [
        ({"x": "int32"}, "", "document is empty"),
        ({"x": "int32"}, " ", "JSON Parse error: Invalid value."),
        ({"x": "int32"}, "instances = [1, 2]", "JSON Parse error: Invalid value. at offset: 0"),
        ({"x": "int32"}, '{"instances": [1], "inputs": [1]}', "Not formatted correctly"),
        ({"x": "int32"}, '{"instances": 1}', "Expecting 'instances' to be an list/array"),
        ({"x": "int32"}, '{"instances": [[1,2],[3,4,5]]}', "Expecting tensor size: 2 but got: 3"),
        ({"x": "int32"}, '{"instances": [[1,2],[[3,4]]]}', "Expecting shape [2] but got: [1,2]"),
        ({"x": "int32"}, '{"instances": [1, [1]]}', "Expecting shape [] but got: [1]"),
        ({"x": "int32"}, '{"instances": [[1,2],["a", "b"]]}', "not of expected type: int32"),
        ({"x": "int32"}, '{"instances": [1.0]}', "not of expected type: int32"),
        ({"x": "int32"}, '{"instances": [2147483648]}', "not of expected type: int32"),
        ({"x": "int64"}, '{"instances": [9223372036854775808]}', "not of expected type: int64"),
        ({"x": "float"}, '{"instances": [true]}', "Type: True is not of expected type: float"),
        ({"x": "string"}, '{"instances": [1]}', "not of expected type: string"),
        ({"x": "string"}, '{"instances": [{"b64": 1}]}', "does not have named input: b64"),
        ({"x": "string"}, b'{"instances": [{"\xff": 1}]}', "does not have named input: \udcff"),
        ({"x": "string"}, b'{"inputs": {"\xff": 1}}', "Missing named input: x"),
        ({"x": "string"}, '{"inputs": [{"b64": 1}]}', "not formatted correctly for base64 data"),
        ({"x": "string"}, '{"inputs": [{"b64": "aGVsbG8==="}]}', "Unable to base64 decode"),
        ({"x": "string"}, '{"inputs": [{"b64": "aGVsb"}]}', "Unable to base64 decode"),
        ({"x": "string"}, '{"inputs": [{"b64": "a%Vs"}]}', "Unable to base64 decode"),
        # Half a pair of surrogates stands for no character.
        ({"x": "string"}, '{"inputs": ["\\ud83d"]}', "The surrogate pair in string is invalid."),
        ({"x": "string"}, '{"inputs": ["\\ude00 "]}', "The surrogate pair in string is invalid."),
        ({"x": "string"}, '{"inputs": ["\\ud83d\\ud83d"]}', "surrogate pair in string is inval"),
        ({"x": "string"}, '{"inputs": ["\\x"]}', "Invalid escape character in string."),
        ({"x": "string"}, '{"inputs": ["a\nb"]}', "Invalid encoding in string."),
        ({"x": "half"}, '{"inputs": [1]}', "Conversion of JSON Value: 1 to type: half"),
        ({"x": "float"}, f'{{"inputs": [1{"0" * 400}]}}', "Number too big to be stored in double"),
        ({"x": "float"}, '{"inputs": [1.8e308]}', "Number too big to be stored in double"),
        ({"x": "double"}, '{"inputs": [-1e400]}', "Number too big to be stored in double"),
        ({"x": "float"}, '{"inputs": [Info]}', "JSON Parse error"),
        # In time that grows with the length, whatever follows the name of a number.
        ({"x": "float"}, '{"a": Inf, "' + '\\"' * 300_000, "Missing a closing quotation mark"),
        ({"x": "float"}, "[" * 100_000, "Lists or objects are nested too deep."),
        ({"i": "int32", "s": "string"},
         '{"instances": [{"i": [[1]], "s": "a"}, {"i": [[[1]]], "s": "b"}]}', "Expecting shape"),
        ({"i": "int32", "s": "string"},
         '{"instances": [{"i": [1, 2], "s": "a"}, {"i": [1], "s": "b"}]}', "Expecting tensor size"),
        ({"i": "int32", "s": "string"},
         '{"instances": [{"i": 1, "s": "a"}, [1]]}', "Expecting object but got list at item 1"),
        ({"s": "string"},
         '{"instances": ["a", {"s": "b"}]}', "Expecting value/list but got object at item 1"),
    ],
)  # fmt: skip
def test_what_is_refused(inputs, body, message):
    with pytest.raises(StatusError) as caught:
        read(body, **inputs)
    assert message in caught.value.message
    assert caught.value.code.name == ("UNIMPLEMENTED" if "Conversion" in message else
                                      "INVALID_ARGUMENT")  # fmt: skip


def test_an_error_quotes_the_beginning_of_what_is_wrong_with_lists_in_one_line():
    with pytest.raises(StatusError) as caught:
        read('{"a": [1, {"b": []}], "c": {}}', x="int32")
    assert caught.value.message == "Missing 'inputs' or 'instances' key"
    with pytest.raises(StatusError) as caught:
        read('{"a": [1, {"b": []}], "c": {}, "signature_name": "s", "instances": 1}', x="int32")
    assert caught.value.message == (
        'JSON Value: {\n    "a": [1, {\n            "b": []\n        }],\n    "c": {},\n'
        '    "signature_name": "s",\n    "instances": 1\n}'
        " Expecting 'instances' to be an list/array"
    )
    with pytest.raises(StatusError) as caught:
        read(f'{{"instances": {{"a": [{"12345, " * 100_000}0]}}}}', x="int32")
    assert len(caught.value.message) < 350
    with pytest.raises(StatusError, match="key must be a string value"):
        signature_of(parse_body(b'{"signature_name":' + b"[" * 900 + b"]" * 900 + b"}"))


def body_of(arrays, answer_format="row"):
    return write_outputs(arrays, answer_format).decode("utf-8", "surrogateescape")


@pytest.mark.parametrize(
    ("arrays", "rows", "columns"),
    [
        ({"i": np.arange(8, dtype=np.int32).reshape(2, 2, 2)},
         "[[[0, 1], [2, 3]], [[4, 5], [6, 7]]]", None),
        ({"i": np.arange(5)}, "[0, 1, 2, 3, 4]", None),
        ({"s_bytes": np.array([[b"hello"], [b"tf"]], object)},
         '[[{"b64": "aGVsbG8="}], [{"b64": "dGY="}]]', None),
        ({"s": np.array([b'a"\xff', b"\xc3\xa9"], object)}, '["a\\"\udcff", "é"]', None),
        ({"b": np.array([True, False])}, "[true, false]", None),
        ({"u": np.array([2**64 - 1], np.uint64)}, "[18446744073709551615]", None),
        # Six digits where these are the number, else all; a point or an exponent in each.
        ({"f": np.array([[9000000, 999999, 0.5], [0.0003, 0.00003, 555557.5]], np.float32)},
         "[[9e+06, 999999.0, 0.5], [0.0003, 3e-05, 555557.5]]", None),
        ({"f": np.array([0.2, 1 / 3, 16777216], np.float32)},
         "[0.2, 0.333333343, 16777216.0]", None),
        ({"d": np.array([0.2, 1 / 3])}, "[0.2, 0.33333333333333331]", None),
        ({"f": np.array([[NAN, INF], [3, -INF]], np.float32)},
         "[[NaN, Infinity], [3.0, -Infinity]]", None),
        ({"i": np.zeros([0, 2], np.int32)}, "[]", "[]"),
        ({"f": np.zeros([2, 0], np.float32)}, "[[], []]", "[[], []]"),
        ({"f": np.zeros([0, 3, 4]), "s": np.zeros([0, 1], object)},
         "[]", '{"f": [], "s": []}'),
        ({"s": np.array([b"foo", b"bar"], object), "f": np.array([[1], [2]], np.float32)},
         '[{"f": [1.0], "s": "foo"}, {"f": [2.0], "s": "bar"}]',
         '{"f": [[1.0], [2.0]], "s": ["foo", "bar"]}'),
    ],
)  # fmt: skip
def test_how_outputs_are_written(arrays, rows, columns):
    assert body_of(arrays) == f'{{\n    "predictions": {rows}\n}}'
    assert body_of(arrays, "column") == f'{{\n    "outputs": {columns or rows}\n}}'


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({}, "Cannot convert empty tensor map to JSON"),
        ({"c": np.ones(2, np.complex64)}, "Failed to write JSON value for tensor type: complex64"),
        ({"i": np.array(1)}, "Tensor name: i has no shape information"),
        ({"i": np.ones([2, 3]), "s": np.ones([1, 3])}, "inconsistent batch size: 1 expecting: 2"),
        ({"i": np.ones([0, 3]), "s": np.ones([1, 3])}, "inconsistent batch size: 1 expecting: 0"),
    ],
)
def test_outputs_that_cannot_be_written(arrays, message):
    with pytest.raises(StatusError, match=message):
        write_outputs(arrays, "row")


def test_examples_and_their_context():
    message = examples("""{"signature_name": "s", "context": {"query": "pizza", "at": ["sfo"]},
        "examples": [
            {"names": ["foo", "bar"], "ratings": [8.0, 9.0, NaN, Infinity, 1e39], "age": 20},
            {"names": ["baz", {"b64": "aGVsbG8="}], "mix": [1, true, false]},
            {"ratings": -Infinity, "none": [], "huge": 18446744073709551616}]}""")
    expected = input_pb2.Input()
    text_format.Parse(
        """example_list_with_context {
          context { features {
            feature { key: "query" value { bytes_list { value: "pizza" } } }
            feature { key: "at" value { bytes_list { value: "sfo" } } } } }
          examples { features {
            feature { key: "names" value { bytes_list { value: "foo" value: "bar" } } }
            feature { key: "ratings" value { float_list {
              value: 8 value: 9 value: nan value: inf value: inf } } }
            feature { key: "age" value { int64_list { value: 20 } } } } }
          examples { features {
            feature { key: "names" value { bytes_list { value: "baz" value: "hello" } } }
            feature { key: "mix" value { int64_list { value: [1, 1, 0] } } } } }
          examples { features {
            feature { key: "ratings" value { float_list { value: -inf } } }
            feature { key: "none" value {} }
            feature { key: "huge" value { float_list { value: 18446744073709551616 } } } } } }""",
        expected,
    )
    assert str(message) == str(expected)


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ('{"signature_name": ["hello"], "examples": [{}]}',
         "'signature_name' key must be a string value."),
        ('{"context": [{}]}', "Example must be JSON object but got JSON Array"),
        ("{}", "key 'examples' is expected and was not found"),
        ('{"examples": {"a": 1}}', "Expecting 'examples' value to be an list/array"),
        ('{"examples": []}', "'examples' value is an empty array"),
        ('{"examples": [[{}]]}', "Example must be JSON object but got JSON Array"),
        ('{"examples": [{"names": [10, null]}]}',
         "Feature: names has element with unexpected JSON type: Null"),
        ('{"examples": [{"names": [10, 10.0]}]}',
         "Unexpected element type in feature: names expecting type: int64"),
        ('{"examples": [{"names": ["a", 1]}]}', "feature: names expecting type: bytes"),
        ('{"examples": [{"names": [1.0, 1]}]}', "feature: names expecting type: float"),
        ('{"examples": [{"names": [10, {"test": 10}]}]}', "unexpected JSON type: Object"),
        ('{"examples": [{"names": [[10], 20]}]}', "unexpected JSON type: Array"),
        ('{"examples": [{"names": [20, 18446744073709551603]}]}',
         "Feature: names has uint64_t element. Only int64_t is supported."),
    ],
)  # fmt: skip
def test_examples_that_are_refused(body, message):
    with pytest.raises(StatusError) as caught:
        examples(body)
    assert message in caught.value.message


def test_how_classes_regressions_and_errors_are_written():
    classes = classification_pb2.ClassificationResult()
    text_format.Parse(
        """classifications { classes { label: "car" score: 0.2 } classes { label: "b" score: 1 } }
           classifications {}""",
        classes,
    )
    assert write_classifications(classes) == (
        b'{\n    "results": [[["car", 0.2], ["b", 1.0]], []]\n}'
    )
    values = regression_pb2.RegressionResult()
    for value in (0.2, INF, 1.0, -INF, NAN):
        values.regressions.add(value=value)
    assert write_regressions(values) == (
        b'{\n    "results": [0.2, Infinity, 1.0, -Infinity, NaN]\n}'
    )
    assert json.loads(write_error("a\udcff")) == {"error": "a\ufffd"}
    assert json.loads(write_error('Bad key: "key"')) == {"error": 'Bad key: "key"'}
