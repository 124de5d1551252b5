"""What the fields of a part of a recipe mean, for `--run.PART.help`."""

from __future__ import annotations

import dataclasses
import json
import re
import textwrap
import typing
from typing import Any

import docstring_parser

from tfde.errors import ConfigError

_WIDTH, _INDENT = 80, 24


def asked_part(option: str) -> list[str] | None:
    """Returns the names in `--run.PART.help`; `None` for another option."""
    found = re.fullmatch(r"--run\.([\w.-]+)\.help", option)
    return found[1].split(".") if found else None


def part_of(run: type, names: list[str]) -> type:
    """Returns the dataclass that a part of a run is.

    Args:
        run: The dataclass of the whole.
        names: As `stages.finetune.validation`, or without the stage's own name.

    Raises:
        ConfigError: there is no such part, or it has no fields of its own.
    """
    part, of_its_own = run, False
    for name in names:
        fields = {field.name for field in dataclasses.fields(part)}
        if name not in fields and of_its_own:
            of_its_own = False
            continue
        hint = typing.get_type_hints(part).get(name)
        inside = [cls for cls in _classes(hint) if dataclasses.is_dataclass(cls)]
        if not inside:
            known = [field for field in fields if _has_parts(part, field)]
            raise ConfigError(
                f"--run.{'.'.join(names)}.help: {name!r} has no fields of its own; those that have:"
                f" {', '.join(sorted(known)) or 'none here'}."
            )
        part, of_its_own = inside[0], typing.get_origin(hint) is dict
    return part


def format_fields(part: type, place: str) -> str:
    """Returns the fields of a dataclass with their defaults and what they mean.

    Args:
        part: The dataclass.
        place: Where it stands in a run.
    """
    abouts = [docstring_parser.parse(cls.__doc__ or "") for cls in reversed(part.__mro__)]
    about = abouts[-1]
    meanings = {param.arg_name: param.description for one in abouts for param in one.params}
    lines = [f"{place}: {about.short_description}", ""]
    for field in dataclasses.fields(part):
        text = " ".join((meanings.get(field.name) or "").split()) + f" ({_default(field)})"
        wrapped = textwrap.wrap(text, _WIDTH - _INDENT)
        name = f"  {field.name}"
        if len(name) >= _INDENT - 1:
            lines.append(name)
            name = ""
        lines += [f"{name:{_INDENT}}{wrapped[0]}", *(" " * _INDENT + more for more in wrapped[1:])]
        if _has_parts(part, field.name):
            lines.append(f"{' ' * _INDENT}Its fields: --run.{place}.{field.name}.help")
    return "\n".join(lines) + "\n"


def _default(field: dataclasses.Field[Any]) -> str:
    value = field.default
    if field.default_factory is not dataclasses.MISSING:
        value = field.default_factory()
    if value is dataclasses.MISSING:
        return "required"
    if dataclasses.is_dataclass(value):
        return "default: its own defaults"
    if isinstance(value, str):
        return f"default: {value}" if value else 'default: ""'
    return f"default: {json.dumps(value)}"  # as YAML has it


def _classes(hint: Any) -> list[type]:
    inside = [cls for part in typing.get_args(hint) for cls in _classes(part)]
    return [*inside, hint] if isinstance(hint, type) else inside


def _has_parts(part: type, name: str) -> bool:
    hint = typing.get_type_hints(part).get(name)
    return any(dataclasses.is_dataclass(cls) for cls in _classes(hint))
