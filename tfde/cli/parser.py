"""The argument parser of all commands."""

from __future__ import annotations

import dataclasses
import difflib
import re
import sys
from pathlib import Path
from typing import NoReturn

import jsonargparse

# What jsonargparse says -> what says the same to a recipe's author, who does not know our classes.
_PLAIN = (
    (r"Problem with given class_path '[\w.]+': ", ""),
    (
        r"Does not validate against any of the Union subtypes Subtypes: .*? Errors: - (.*?)"
        r" - Expected a <class 'NoneType'>.*",
        r"\1",
    ),
    (r"Expected an? typing\.Literal\[([^\]]*)\]\. Got value: ", r"must be one of \1. Received: "),
    (r"Expected an? <class '(\w+)'>\. Got value: ", r"must be a \1. Received: "),
    (r"Group '(\w+)' does not accept option '([\w.]+)'", r"\1 has no field '\2'"),
    (r"Parser key \"\w+\": Unable to load config '([^']+)' - ", r"\1: "),
)


class CommandParser(jsonargparse.ArgumentParser):
    """A parser whose errors are one line on stderr, with exit code 2."""

    def error(self, message: str, ex: Exception | None = None) -> NoReturn:
        """Prints the message as one line, then exits."""
        if not self.exit_on_error:  # a parser that jsonargparse made for a nested value
            super().error(message, ex)
        line = " ".join(part.strip() for part in message.splitlines() if part.strip())
        for pattern, plain in _PLAIN:
            line = re.sub(pattern, plain, line)
        unread = re.match(r"([^ :]+): (?=Parser key \"(\w+)\": Unable to load)", line)
        if unread and not Path(unread[1]).is_file():
            line = f"{unread[2]} must be a file. Received: '{unread[1]}'"
        line += _suggestion(line, list(self._option_string_actions))
        print(f"{self.prog}: {line} ({self.prog} --help shows the options)", file=sys.stderr)
        raise SystemExit(2)


def _suggestion(line: str, options: list[str]) -> str:
    """Returns the option, or the field of a recipe, that was probably meant by an unknown one."""
    option = re.search(r"unrecognized arguments: (--[^\s=]+)", line)
    field = re.search(r"Option '(\w+)' is not accepted|has no field '(?:\w+\.)*(\w+)'", line)
    if option:
        near = difflib.get_close_matches(option[1], options, n=1)
    elif field:
        near = difflib.get_close_matches(field[1] or field[2], _fields(), n=1)
    else:
        near = []
    return f"; did you mean {near[0]}?" if near else ""


def _fields() -> list[str]:
    """Returns the names of all fields of recipes."""
    from tfde import match_recipe, recipe

    return [
        field.name
        for kind in (*vars(recipe).values(), *vars(match_recipe).values())
        if isinstance(kind, type) and dataclasses.is_dataclass(kind)
        for field in dataclasses.fields(kind)
    ]


def command_parser(command: str, description: str) -> CommandParser:
    """Returns an empty parser.

    Args:
        command: The command's name.
        description: What it does, for `--help`.
    """
    # A recipe's or script's abbreviation would mean another option once one is added.
    return CommandParser(prog=f"tfde {command}", description=description, allow_abbrev=False)
