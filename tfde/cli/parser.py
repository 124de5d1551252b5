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
        line += _suggestion(line)
        print(f"{self.prog}: {line} ({self.prog} --help shows the options)", file=sys.stderr)
        raise SystemExit(2)


def _suggestion(line: str) -> str:
    """Returns the field of a recipe that was probably meant, where there is no such field."""
    unknown = re.search(r"Option '(\w+)' is not accepted|has no field '(?:\w+\.)*(\w+)'", line)
    if unknown is None:
        return ""

    from tfde import match_recipe, recipe

    known = [
        field.name
        for kind in (*vars(recipe).values(), *vars(match_recipe).values())
        if isinstance(kind, type) and dataclasses.is_dataclass(kind)
        for field in dataclasses.fields(kind)
    ]
    near = difflib.get_close_matches(unknown[1] or unknown[2], known, n=1)
    return f"; did you mean {near[0]}?" if near else ""


def command_parser(command: str, description: str) -> CommandParser:
    """Returns an empty parser.

    Args:
        command: The command's name.
        description: What it does, for `--help`.
    """
    return CommandParser(prog=f"tfde {command}", description=description)
