"""A wrong type is one line: the argument, the rule, the value."""

import inspect

import numpy as np
import pytest

import tfde
from tfde.argument_types import typed
from tfde.errors import ConfigError
from tfde.types import Document

INDEX = tfde.ExactIndex.build(np.eye(3, dtype=np.float32), list("abc"))
BM25 = tfde.Bm25Index.build([Document("a", "", "apple pear"), Document("b", "", "plum")])
QUERY = np.eye(3, dtype=np.float32)[:1]


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: INDEX.search(QUERY, 1.0), "`k` must be an integer. Received: 1.0"),
        (lambda: INDEX.search(QUERY, k=True), "`k` must be an integer. Received: True"),
        (lambda: INDEX.search(QUERY, "3"), "`k` must be an integer. Received: '3'"),
        (lambda: BM25.search(["apple"], 1.0), "`k` must be an integer. Received: 1.0"),
        (
            lambda: tfde.pairs([("q", "a")], batch_size=1.0),
            "`batch_size` must be an integer. Received: 1.0",
        ),
        (
            lambda: tfde.pairs([("q", "a")], batch_size=1, limit="x"),
            "`limit` must be an integer or None. Received: 'x'",
        ),
        (
            lambda: tfde.RetrievalTask(temperature="0.1"),
            "`temperature` must be a number. Received: '0.1'",
        ),
        (
            lambda: tfde.RetrievalTask(bidirectional="yes"),
            "`bidirectional` must be true or false. Received: 'yes'",
        ),
        (
            lambda: tfde.adafactor(decay_steps=1.5),
            "`decay_steps` must be an integer or None. Received: 1.5",
        ),
        (lambda: tfde.DatasetDirectory(None), "`path` must be a text or a path. Received: None"),
        (
            lambda: tfde.Bm25Index.build([Document("a", None, "x")]),
            "`documents` must have texts as title and text. Received: Document(doc_id='a', title=",
        ),
    ],
)
def test_one_line(call, message):
    with pytest.raises(ConfigError) as raised:
        call()
    assert str(raised.value).startswith(message)
    assert "\n" not in str(raised.value)


def test_what_is_right_goes_through():
    for k in (1, np.int64(1), np.int32(1)):
        assert INDEX.search(QUERY, k)[1].tolist() == [["a"]]
    assert tfde.RetrievalTask(np.float32(0.5), bidirectional=np.bool_(True)).temperature == 0.5

    @typed
    def function(a: "int", *rest: "str", b: "list[int] | None" = None) -> "int":
        return a

    assert function(1, "x", 3, b="anything") == 1
    assert list(inspect.signature(function).parameters) == ["a", "rest", "b"]
    with pytest.raises(TypeError, match="missing a required argument: 'a'; its arguments are a, r"):
        function()


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda: INDEX.search(QUERY),
            r"search: missing .* 'k'; its arguments are query_embeddings, k",
        ),
        (
            lambda: INDEX.search(QUERY, top_k=1),
            r"search: missing .* arguments are query_embeddings, k",
        ),
        (
            lambda: tfde.DualEncoder.from_backbone("x", query_max_length_tokens=8),
            r"from_backbone: got an unexpected .*; its arguments are backbone, .* text, ",
        ),
    ],
)
def test_arguments_that_are_not_there_are_told_with_those_that_are(call, message):
    with pytest.raises(TypeError, match=message):
        call()


def test_what_is_wrong_inside_of_a_function_stays_as_it_is():
    @typed
    def function(a: "int") -> "int":
        return a + "1"

    with pytest.raises(TypeError, match="unsupported operand"):
        function(1)


def test_public_functions_are_checked():
    functions = {name for name in tfde.__all__ if inspect.isfunction(getattr(tfde, name))}
    functions = {n for n in functions if inspect.signature(getattr(tfde, n)).parameters}
    assert {name for name in functions if not hasattr(getattr(tfde, name), "__wrapped__")} == set()
