"""Functions that are traced once for all objects that do the same."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

import tensorflow as tf

_FUNCTIONS: weakref.WeakValueDictionary[tuple[str, bytes], Any] = weakref.WeakValueDictionary()


def traced(method: Callable[..., Any], *, strings: int, content: bytes) -> Any:
    """Returns a `tf.function` of strings that does what `method` does.

    Two towers, a model that is loaded again, a stage of training: all have the same tokenization,
    and tracing it takes longer than anything else that a small model does.

    Args:
        method: Bound method of a tokenizer or preprocessor, on tensors of strings, (B,) each.
        strings: How many tensors it takes.
        content: Equal for objects whose methods do the same.
    """
    key = f"{method.__module__}.{method.__qualname__}", content
    function = _FUNCTIONS.get(key)
    if function is None:
        # Holds its object. A decorated method would hold it weakly, so that
        # `TextPreprocessor.load(directory).queries(texts)` would fail.
        signature = [tf.TensorSpec([None], tf.string)] * strings
        function = tf.function(method, input_signature=signature, autograph=False)
        _FUNCTIONS[key] = function
    return function
