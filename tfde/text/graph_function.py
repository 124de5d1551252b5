"""`tf.function`s of which a program has one for each of its models."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import tensorflow as tf


def graph_function(function: Callable[..., Any], **options: Any) -> Any:
    """Returns `tf.function(function, autograph=False, **options)`, counted by itself.

    TensorFlow counts tracings by the line of the source and warns at the fifth: of five models each
    traced once, too. A partial has no line.

    Args:
        function: What is traced.
        **options: As of `tf.function`.
    """
    return tf.function(functools.partial(function), autograph=False, **options)
