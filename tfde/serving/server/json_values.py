"""JSON values of requests, with TensorFlow Serving's rules and words.

Source: behaviour of TensorFlow Serving's util/json_tensor.cc.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Iterator, Mapping
from math import inf, isinf
from typing import Any

from tfde.serving.server.status import StatusError, invalid_argument

_PARSE_ERRORS = {
    "Expecting value": "Invalid value.",
    "Expecting property name enclosed in double quotes": "Missing a name for object member.",
    "Expecting ':' delimiter": "Missing a colon after a name of object member.",
    "Expecting ',' delimiter": "Missing a comma or } after an object member.",
    "Unterminated string starting at": "Missing a closing quotation mark in string.",
    "Invalid \\escape": "Invalid escape character in string.",
    "Invalid \\uXXXX escape": "Incorrect hex digit after \\u escape in string.",
    "Invalid control character at": "Invalid encoding in string.",
}
_TOO_BIG = "JSON Parse error: Number too big to be stored in double."
_SPACE = re.compile(r"[ \t\n\r]*")
# What Python's parser does not take for a number; strings are matched to be left alone, those
# without an end too, lest each of their quotes be tried as a beginning.
_NAMED_NUMBER = re.compile(r'"(?:[^"\\]++|\\.)*+(?:"|\\?\Z)|-?(?:Infinity|Inf|NaN)', re.DOTALL)
# Escapes one by one, a pair of surrogates as one; the group is half a pair.
_ESCAPE = re.compile(
    r"\\(?:u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}|(u[dD][89a-fA-F]..)|.)",
    re.DOTALL,
)
_BASE64 = re.compile(r"([A-Za-z0-9+/]*)([=.]*)")
_MAX_QUOTED = 256  # characters of a value that an error message quotes


def parse_body(body: bytes) -> dict[str, Any]:
    """Returns the JSON object at the beginning of a request's body; what follows is ignored.

    Bytes that are no UTF-8 pass through strings as they are (`string_bytes`).

    Raises:
        StatusError: INVALID_ARGUMENT, no JSON object.
    """
    if not body:
        raise invalid_argument("JSON Parse error: The document is empty")
    text = body.decode("utf-8-sig", "surrogateescape")
    if "\\ud" in text or "\\uD" in text:
        for escape in _ESCAPE.finditer(text):
            if escape[1]:
                raise invalid_argument(
                    "JSON Parse error: The surrogate pair in string is invalid. at offset: ",
                    escape.start(),
                )
    try:
        value = _parse(text)
    except json.JSONDecodeError as error:
        reason = _PARSE_ERRORS.get(error.msg, f"{error.msg}.")
        raise invalid_argument(f"JSON Parse error: {reason} at offset: {error.pos}") from None
    except RecursionError:
        raise invalid_argument(
            "JSON Parse error: Lists or objects are nested too deep. at offset: 0"
        ) from None
    except ValueError:  # more digits than Python makes an integer of
        raise invalid_argument(f"{_TOO_BIG} at offset: 0") from None
    if not isinstance(value, dict):
        raise invalid_argument("JSON Value: ", to_text(value), " Is not object")
    return value


def signature_of(document: Mapping[str, Any]) -> str:
    """Returns the `signature_name` of a request, "" where it names none.

    Raises:
        StatusError: INVALID_ARGUMENT, it is no string.
    """
    name = document.get("signature_name", "")
    if not isinstance(name, str):
        raise invalid_argument(
            f"JSON Value: {to_text(document)} not formatted correctly."
            " 'signature_name' key must be a string value."
        )
    return proto_name(name)


def string_bytes(value: str) -> bytes:
    """Returns the bytes of a JSON string, those that came in."""
    return value.encode("utf-8", "surrogateescape")


def proto_name(value: str) -> str:
    """Returns a JSON string as a name in a message, which holds only what has UTF-8."""
    return string_bytes(value).decode("utf-8", "replace")


def to_float(value: float) -> float:
    """Returns a JSON number, rounded to the nearest double.

    Raises:
        StatusError: INVALID_ARGUMENT, a number beyond every double.
    """
    try:
        number = float(value)
    except OverflowError:
        number = inf
    # Infinity is a number by name only, never by its digits.
    if isinf(number) and type(value) is not _ByName:
        raise invalid_argument(_TOO_BIG)
    return number


def decode_base64(value: dict[str, Any]) -> bytes:
    """Returns the bytes of `{"b64": ...}`; padding may be missing, white space may be in it.

    Raises:
        StatusError: INVALID_ARGUMENT, it is none.
    """
    if not is_base64(value):
        raise invalid_argument(
            f"JSON Value: {to_text(value)} not formatted correctly for base64 data"
        )
    match = _BASE64.fullmatch(re.sub(r"[ \t\n\v\f\r]", "", value["b64"]))
    if match:
        digits, padding = match.groups()
        missing = -len(digits) % 4
        if missing < 3 and len(padding) in (0, missing):
            return base64.b64decode(digits + "=" * missing)
    raise invalid_argument("Unable to base64 decode")


def is_object(value: Any) -> bool:
    """Whether a value is an object that names things."""
    return isinstance(value, dict) and not is_base64(value)


def is_base64(value: Any) -> bool:
    """Whether a value is the object that stands for bytes."""
    return isinstance(value, dict) and set(value) == {"b64"} and isinstance(value["b64"], str)


def format_error(document: Mapping[str, Any], rule: str) -> StatusError:
    """Returns the error that quotes a request."""
    return invalid_argument("JSON Value: ", to_text(document), " ", rule)


def to_text(value: Any) -> str:
    """Returns a value as an error message quotes it: its beginning, where it is long."""
    pieces: list[str] = []
    length = 0
    for token in _tokens(value, 0):
        pieces.append(token[:_MAX_QUOTED])
        length += len(pieces[-1])
        if length >= _MAX_QUOTED:
            break
    return "".join(pieces)


def kind_of(value: Any) -> str:
    """Returns the name of a value's JSON type."""
    if value is None or isinstance(value, bool):
        return {None: "Null", True: "True", False: "False"}[value]
    kinds: dict[type, str] = {dict: "Object", list: "Array", str: "String"}
    return kinds.get(type(value), "Number")


class _ByName(float):
    """Infinity and NaN where they were written so."""


def _parse(text: str) -> Any:
    decoder = json.JSONDecoder(object_pairs_hook=_first_of_each, parse_constant=_ByName)
    start = _SPACE.match(text).end()  # type: ignore[union-attr]
    try:
        return decoder.raw_decode(text, start)[0]
    except json.JSONDecodeError as error:
        if not text.startswith(("Inf", "-Inf", "-NaN"), error.pos):
            raise
        return decoder.raw_decode(_NAMED_NUMBER.sub(_number_python_reads, text), start)[0]


def _number_python_reads(match: re.Match[str]) -> str:
    names = {"Inf": "Infinity", "-Inf": "-Infinity", "-NaN": "NaN"}
    return names.get(match[0], match[0])


def _first_of_each(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Returns an object; of a name that comes twice the first value counts, as upstream."""
    found = dict(pairs)
    return found if len(found) == len(pairs) else dict(reversed(pairs))


def _tokens(value: Any, level: int) -> Iterator[str]:
    """Yields the text of a value, lists in one line, as TensorFlow Serving writes it."""
    separator = ""
    if isinstance(value, list):
        yield "["
        for element in value:
            yield separator
            yield from _tokens(element, level + 1)
            separator = ", "
        yield "]"
    elif isinstance(value, dict):
        yield "{"
        for name, element in value.items():
            yield f"{separator}\n{'    ' * (level + 1)}{json.dumps(name, ensure_ascii=False)}: "
            yield from _tokens(element, level + 1)
            separator = ","
        yield f"\n{'    ' * level}}}" if value else "}"
    else:
        yield json.dumps(value, ensure_ascii=False)
