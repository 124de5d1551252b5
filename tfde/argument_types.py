"""The types of simple arguments, checked where people call: one rule for all public functions."""

from __future__ import annotations

import functools
import inspect
import numbers
import os
from collections.abc import Callable
from typing import Any, TypeVar

from tfde.errors import require

Function = TypeVar("Function", bound=Callable[..., Any])

# What annotations say -> what a value must be, and how that is called. NumPy's numbers are such.
_SIMPLE: dict[str, tuple[type, str]] = {
    "int": (numbers.Integral, "an integer"),
    "float": (numbers.Real, "a number"),
    "str": (str, "a text"),
    "Path": (os.PathLike, "a path"),
    "None": (type(None), "None"),
}
_PLAIN = {"int": int, "float": float, "str": str, "bool": bool, "None": type(None)}


def typed(function: Function) -> Function:
    """Makes a function refuse arguments of a wrong type before it does anything.

    Looked at are arguments that are annotated with numbers, truth values, texts, paths, `None` or
    several of these, in the words of the source (`from __future__ import annotations`).

    Raises:
        ConfigError: by the function that comes back, for such an argument.
        TypeError: by it, for one too few or too many; it says which there are.
    """
    signature = inspect.signature(function)
    names = list(signature.parameters)
    annotations = {name: str(text) for name, text in function.__annotations__.items()}
    checks = {
        name: _check_of(annotations[name]) for name in names if _is_simple(annotations.get(name))
    }

    in_order = [(name, checks.get(name)) for name in names]

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        for (name, check), value in zip(in_order, args, strict=False):
            if check is not None:
                check(name, value)
        for name in kwargs:
            if name in checks:
                checks[name](name, kwargs[name])
        try:
            return function(*args, **kwargs)
        except TypeError:
            _check_names(function, signature, args, kwargs)
            raise

    return call  # type: ignore[return-value]


def _check_names(
    function: Callable[..., Any], signature: inspect.Signature, args: Any, kwargs: Any
) -> None:
    """Says which arguments a function takes, where it was given others.

    Raises:
        TypeError: as Python does.
    """
    try:
        signature.bind(*args, **kwargs)
    except TypeError as error:
        own = [name for name in signature.parameters if name not in ("self", "cls")]
        raise TypeError(
            f"{function.__qualname__}: {error}; its arguments are {', '.join(own)}"
        ) from None


def _is_simple(annotation: str | None) -> bool:
    parts = [part.strip() for part in (annotation or "").split("|")]
    return all(part in _SIMPLE or part == "bool" for part in parts)


def _check_of(annotation: str) -> Callable[[str, Any], None]:
    parts = [part.strip() for part in annotation.split("|")]
    kinds = tuple(_SIMPLE[part][0] for part in parts if part != "bool")
    rule = " or ".join(_SIMPLE[part][1] if part != "bool" else "true or false" for part in parts)
    # Most values are plainly of such a type, which takes no look at abstract classes.
    plain = {_PLAIN[part] for part in parts if part in _PLAIN}

    def check(name: str, value: Any) -> None:
        if type(value) in plain:
            return
        if type(value).__name__ in ("bool", "bool_"):  # an integer to Python
            require("bool" in parts, name, rule, value)
        else:
            require(isinstance(value, kinds), name, rule, value)

    return check
