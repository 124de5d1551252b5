"""A session's run by tensors that were looked up before.

`Session.run` finds names, checks structures and converts anew at each call, which costs more than
a small model. It has no public form without that which takes feeds.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.python.client import pywrap_tf_session

_IN_THIS_THREAD = tf.compat.v1.RunOptions(inter_op_thread_pool=-1).SerializeToString()
_TIME_IS_OVER = "Timed out waiting for notification"  # the runtime's words


def prepare(session: tf.compat.v1.Session) -> None:
    """Hands the graph to the runtime; once, when nothing more will be added to it."""
    session._extend_graph()


def run(
    session: tf.compat.v1.Session,
    fetches: Sequence[tf.Tensor],
    feeds: Mapping[tf.Tensor, np.ndarray],
    *,
    timeout_s: float | None,
    in_this_thread: bool = False,
) -> list[np.ndarray]:
    """Runs a prepared session.

    Args:
        session: From many threads at once, if wanted.
        fetches: What is computed.
        feeds: Arrays of exactly these tensors' types; of their shapes the graph's ops judge.
        timeout_s: Seconds after which the run is given up; `None` for never.
        in_this_thread: Whether the ops run one by one here, not in the session's threads; then
            a run that takes too long fails at its end.

    Returns:
        An array for each of `fetches`.

    Raises:
        tf.errors.OpError: an op failed; the message is the runtime's.
    """
    options: Any = None
    begun = time.monotonic()
    if in_this_thread:
        options = pywrap_tf_session.TF_NewBufferFromString(_IN_THIS_THREAD)
    elif timeout_s is not None:
        limit = tf.compat.v1.RunOptions(timeout_in_ms=max(1, int(timeout_s * 1000)))
        options = pywrap_tf_session.TF_NewBufferFromString(limit.SerializeToString())
    try:
        arrays = session._call_tf_sessionrun(
            options,
            {tensor._as_tf_output(): array for tensor, array in feeds.items()},
            [tensor._as_tf_output() for tensor in fetches],
            [],
            None,
        )
    except UnicodeDecodeError as error:
        # The op's message quotes bytes of the request that are no text; its code is lost with it.
        message = error.object.decode("utf-8", "replace")
        raise tf.errors.InvalidArgumentError(None, None, message) from error
    finally:
        if options is not None:
            pywrap_tf_session.TF_DeleteBuffer(options)
    if in_this_thread and timeout_s is not None and time.monotonic() - begun > timeout_s:
        raise tf.errors.DeadlineExceededError(None, None, _TIME_IS_OVER)
    # A string without dimensions comes as bytes, which have no shape.
    return [np.asarray(a, object) if isinstance(a, bytes) else a for a in arrays]
