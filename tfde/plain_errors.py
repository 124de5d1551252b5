"""What jsonargparse says of a description, in the words of its author."""

from __future__ import annotations

import dataclasses
import difflib
import re
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any

# Its words -> what says the same without our classes.
_PLAIN = (
    (
        r"Problem with given class_path '[\w.]+': Parser key \"(\w+)\": Unable to load config"
        r" '([^']*)' - Parser key .*",
        r"\1: must be a mapping of its fields. Received: \2",
    ),
    (r"Problem with given class_path '[\w.]+': ", ""),
    (
        r"Does not validate against any of the Union subtypes Subtypes: .*? Errors: - (.*?)"
        r" - Expected a <class 'NoneType'> Given value type: <class '\w+'> Given value: ",
        r"\1. Got value: ",
    ),
    (  # a text that was read as a number, such as 1e3
        r"Does not validate against any of the Union subtypes Subtypes: .*? Errors: - (.*?)\. Got"
        r" value: \S+ - Expected a <class 'NoneType'>\. Got value: \S+ Given value type: <class"
        r" '\w+'> Given value: ",
        r"\1. Got value: ",
    ),
    (
        r"Not a valid subclass of \w+ Subclass types expect one of: .*?\(implicit class_path\)\."
        r" Got value: ",
        "must be a mapping of its fields. Received: ",
    ),
    (
        r"Not a valid subclass of \w+\. Got value: (.*?) Subclass types expect one of: .*?"
        r"\(implicit class_path\)",
        r"must be a mapping of its fields. Received: \1",
    ),
    (
        r"Does not validate against any of the Union subtypes Subtypes: .*? Errors: - Expected a"
        r" <class 'str'> - Expected a <class 'dict'> Given value type: <class '\w+'> Given value: ",
        "must be a string or a mapping. Received: ",
    ),
    (r"Expected an? typing\.Literal\[([^\]]*)\]\. Got value: ", r"must be one of \1. Received: "),
    (r"Expected an? <class 'tuple'>\. Got value: ", r"must be a list. Received: "),
    (
        r"Not of type \w+: (.*?) does not conform to restriction v>0",
        r"must be above 0. Received: \1",
    ),
    (r"Expected an? <class 'int'>\. Got value: ", "must be a whole number. Received: "),
    (r"Expected an? <class 'float'>\. Got value: ", "must be a number. Received: "),
    (r"Expected an? <class 'bool'>\. Got value: ", "must be true or false. Received: "),
    (r"Expected an? <class 'str'>\. Got value: ", "must be a string. Received: "),
    (r"Expected an? <class '(\w+)'>\. Got value: ", r"must be a \1. Received: "),
    (r"Expected a dot import path string: .*?\. Got value: ", "must be a mapping. Received: "),
    (r"is not accepted\. Got value: ", "is not accepted. Received: "),
    (r"Group '(\w+)' does not accept option '([\w.]+)'", r"\1 has no field '\2'"),
    (
        r"Parser key \"[\w.]+\": Unable to load config (['\"])((?:(?!\1).)+)\1 - line (\d+): ",
        r"\2:\3: ",
    ),
    (r"Parser key \"[\w.]+\": Unable to load config '([^']+)' - ", r"\1: "),
    (r"Parser key \"(?:run\.)?([\w.]+)\": ", r"\1: "),
)


def plain_message(message: str, fields: Callable[[], Sequence[str]]) -> str:
    """Returns a parser's message as one line, with the field that was probably meant.

    Args:
        message: The message.
        fields: Gives the names of all fields that there are, if the message is of one.
    """
    line = " ".join(message.split())
    for pattern, plain in _PLAIN:
        line = re.sub(pattern, plain, line)
    nested = re.search(r"has no field '([\w.]+)'", line)
    if nested:  # what an unknown field holds is no field either
        parts, known = nested[1].split("."), fields()
        count = next((n for n, part in enumerate(parts, start=1) if part not in known), len(parts))
        line = line.replace(nested[0], f"has no field '{'.'.join(parts[:count])}'")
    unknown = re.search(r"Option '(\w+)' is not accepted|has no field '(?:\w+\.)*(\w+)'", line)
    if not unknown:
        return line
    name, known = unknown[1] or unknown[2], fields()
    if name in known:
        return line + "; it is a field of another part (--run.PART.help shows those of a part)"
    short = [field for field in known if name == "".join(part[0] for part in field.split("_"))]
    near = short or difflib.get_close_matches(name, known, n=1)  # lr: learning_rate
    return line + (f"; did you mean {near[0]}?" if near else "")


def with_stage(line: str, recipe: Any) -> str:
    """Returns an error of a recipe's stage with the stage's name, which jsonargparse leaves out.

    Args:
        line: Such as `r.yaml: stages: optimizer.steps: must be a whole number. Received: x`.
        recipe: What the recipe holds; the stages meant are those that hold what the line says.
    """
    found = re.search(r"\bstages: (?:([\w.: ]+): )?(?:Option '(\w+)'|.*?Received: (.*))", line)
    stages = recipe.get("stages") if isinstance(recipe, dict) else None
    if not found or not isinstance(stages, dict):
        return line
    path, unknown, received = re.findall(r"\w+", found[1] or ""), found[2], found[3]
    meant = []
    for name, stage in stages.items():
        values = [stage]
        for part in path:
            inner = [v for value in values for v in (value if isinstance(value, list) else [value])]
            values = [value[part] for value in inner if isinstance(value, dict) and part in value]
        if unknown:
            holds = any(isinstance(value, dict) and unknown in value for value in values)
        else:
            found_values = [
                *values,
                *(v for value in values if isinstance(value, list) for v in value),
            ]
            holds = any(received.startswith(str(value)) for value in found_values)
        if holds:
            meant.append(f"stages.{name}")
    return line.replace("stages: ", f"{' and '.join(meant)}: ", 1) if meant else line


def field_names(*modules: ModuleType) -> list[str]:
    """Returns the names of all fields of the dataclasses in modules."""
    return [
        field.name
        for module in modules
        for kind in vars(module).values()
        if isinstance(kind, type) and dataclasses.is_dataclass(kind)
        for field in dataclasses.fields(kind)
    ]
