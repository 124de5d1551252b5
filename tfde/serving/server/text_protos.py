"""Configuration files in protobuf's text format."""

from __future__ import annotations

from typing import TypeVar

import tensorflow as tf
from google.protobuf import text_format
from google.protobuf.message import Message

from tfde.serving.server.status import CODES, StatusError, invalid_argument

AnyMessage = TypeVar("AnyMessage", bound=Message)


def read_text_proto(path: str, message: AnyMessage) -> AnyMessage:
    """Fills a message from a file in protobuf's text format, and returns it.

    Raises:
        StatusError: NOT_FOUND, there is no such file; INVALID_ARGUMENT, it does not parse.
    """
    try:
        with tf.io.gfile.GFile(str(path)) as file:
            return text_format.Parse(file.read(), message)
    except tf.errors.OpError as error:
        raise StatusError(CODES[error.error_code], error.message) from None
    except text_format.ParseError as error:
        # The position stands at the beginning of the text, where there is one.
        reason = str(error).replace(" : ", ": ", 1)
    except UnicodeDecodeError as error:
        reason = str(error)
    # Source: words of protobuf's C++ parser, which TensorFlow Serving logs.
    kind = message.DESCRIPTOR.full_name
    raise invalid_argument(
        f"Invalid protobuf file: '{path}': Error parsing text-format {kind}: {reason}"
    )
