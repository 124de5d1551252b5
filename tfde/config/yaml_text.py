"""YAML of users: read within bounds, with names that are text, and faults told by their line."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import jsonargparse
import yaml

from tfde.errors import DataError, shorten

MAX_YAML_BYTES = 1 << 20
MAX_YAML_VALUES = 100_000
_MAX_DEPTH = 64
_TOO_LARGE = f"YAML must be at most {MAX_YAML_BYTES >> 20} MiB."
_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_READ_AS = {"bool": "a truth value", "int": "a number", "float": "a number", "null": "nothing"}
_AS_ITSELF = ("str", "merge")  # `<<` merges mappings


class _Resolver(yaml.resolver.Resolver):
    """Tells what a plain scalar is; 1e-3 is a number to jsonargparse, not to YAML 1.1."""


_Resolver.add_implicit_resolver(
    "tag:yaml.org,2002:float", re.compile(r"[-+]?[0-9][0-9_]*[eE][-+]?[0-9]+$"), [*"-+0123456789"]
)


class YamlTextError(yaml.YAMLError):
    """A text is no YAML that is taken; the message is `line N: the rule. Received: the value`."""

    def __init__(self, line: int, rule: str, value: object) -> None:
        super().__init__(f"line {line}: {rule} Received: {shorten(value)}")


def check_yaml_file(path: str | Path) -> str:
    """Returns the text of a file that is small enough to be read as YAML, and in UTF-8.

    Raises:
        DataError: why.
        OSError: it cannot be read.
    """
    with open(path, "rb") as file:
        content = file.read(MAX_YAML_BYTES + 1)
    if len(content) > MAX_YAML_BYTES:
        raise DataError(path, None, _TOO_LARGE, f"{Path(path).stat().st_size} bytes")
    try:
        return content.decode()
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise DataError(path, line, "must be UTF-8.", content[error.start : error.end]) from error


def load_yaml(text: str) -> Any:
    """Returns the value that a text in YAML stands for, numbers such as 1e-3 among it.

    Raises:
        YamlTextError: it is no YAML, too large, too deep, or has aliases for more values than may
            be; a name in it is given twice, or is read as something else than text.
    """
    if len(text) > MAX_YAML_BYTES:
        raise YamlTextError(1, _TOO_LARGE, f"{len(text)} characters")
    try:
        _check(text)
        return jsonargparse.get_loader("yaml")(text)
    except yaml.reader.ReaderError as error:
        line = text.count("\n", 0, error.position) + 1
        raise YamlTextError(line, "must be text.", chr(error.character)) from error
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line = mark.line if mark else 0
        shown = (text.splitlines() or [""])[line : line + 1]
        value = shown[0] if shown else "the end of the text"
        indent = value[: len(value) - len(value.lstrip())]
        rule = f"must be YAML ({error.problem})."
        if "\t" in indent:
            rule = "must be indented with blanks, not with tabs."
        raise YamlTextError(line + 1, rule, value) from error
    except ValueError as error:  # of a number
        raise YamlTextError(1, f"must have shorter numbers ({error}).", text) from error


@dataclass
class _Open:
    """A mapping or list whose end has not come yet."""

    is_mapping: bool
    anchor: str | None
    values: int = 1  # itself and what is in it, aliases written out
    at_name: bool = True
    names: set[str] = field(default_factory=set)


def _check(text: str) -> None:
    """Refuses what would cost more than the text, or mean something else than it says.

    Events are looked at, one after the other: nothing is built, and nothing recurses.
    """
    opened = [_Open(is_mapping=False, anchor=None)]  # the document
    anchors: dict[str | None, int] = {}  # values that an alias stands for
    resolve = _Resolver().resolve
    for event in yaml.parse(text, Loader=_LOADER):
        mark = event.start_mark
        line = mark.line + 1 if mark else 1
        place = opened[-1]
        if isinstance(event, yaml.CollectionEndEvent):
            done = opened.pop()
            _count(opened[-1], done.values, line)
            if done.anchor is not None:
                anchors[done.anchor] = done.values
            continue
        if not isinstance(event, yaml.NodeEvent):
            continue
        if place.is_mapping and place.at_name:
            _check_name(event, place.names, resolve, line)
        place.at_name = not place.at_name
        if isinstance(event, yaml.CollectionStartEvent):
            if len(opened) > _MAX_DEPTH:
                raise YamlTextError(line, f"at most {_MAX_DEPTH} levels may be nested.", text)
            opened.append(_Open(isinstance(event, yaml.MappingStartEvent), event.anchor))
        elif isinstance(event, yaml.AliasEvent):
            if any(event.anchor == outer.anchor for outer in opened):
                raise YamlTextError(line, "an alias must not stand in itself.", f"*{event.anchor}")
            _count(place, anchors.get(event.anchor, 1), line)
        else:
            _count(place, 1, line)
            if event.anchor is not None:
                anchors[event.anchor] = 1


def _count(place: _Open, values: int, line: int) -> None:
    place.values += values
    if place.values > MAX_YAML_VALUES:
        rule = f"YAML must hold at most {MAX_YAML_VALUES} values, aliases written out."
        raise YamlTextError(line, rule, place.values)


def _check_name(event: yaml.NodeEvent, names: set[str], resolve: Any, line: int) -> None:
    if not isinstance(event, yaml.ScalarEvent):
        raise YamlTextError(line, "a name must be text.", "a list, a mapping or an alias")
    name = event.value
    kind = (event.tag or resolve(yaml.ScalarNode, name, event.implicit)).rpartition(":")[2]
    if kind not in _AS_ITSELF:
        meant = _READ_AS.get(kind, f"a {kind}")
        rule = f'a name must be text, and YAML takes this for {meant}; write "{name}" in quotes.'
        raise YamlTextError(line, rule, name)
    if name in names:
        raise YamlTextError(line, "a name must be given once.", name)
    names.add(name)


# What the parsers of recipes and studies take as their `parser_mode`. jsonargparse's own mode is
# left as it is, for others who use it in the same process.
PARSER_MODE = "tfde"
jsonargparse.set_loader(PARSER_MODE, load_yaml, (yaml.YAMLError,))
