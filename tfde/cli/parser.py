"""The argument parser of all commands."""

from __future__ import annotations

import dataclasses
import difflib
import re
import sys
from typing import NoReturn

import jsonargparse


class CommandParser(jsonargparse.ArgumentParser):
    """A parser whose errors are one line on stderr, with exit code 2."""

    def error(self, message: str, ex: Exception | None = None) -> NoReturn:
        """Prints the message as one line, then exits."""
        if not self.exit_on_error:  # a parser that jsonargparse made for a nested value
            super().error(message, ex)
        line = " ".join(part.strip() for part in message.splitlines() if part.strip())
        # Where our dataclasses live is nothing that a recipe's author knows.
        line = re.sub(r"Problem with given class_path '[\w.]+': ", "", line)
        line = re.sub(
            r"Expected an? typing\.Literal\[([^\]]*)\]\. Got value: ",
            r"must be one of \1. Received: ",
            line,
        )
        line += _suggestion(line)
        print(f"{self.prog}: {line} ({self.prog} --help shows the options)", file=sys.stderr)
        raise SystemExit(2)


def _suggestion(line: str) -> str:
    """Returns the field of a recipe that was probably meant, where there is no such field."""
    unknown = re.search(r"Option '(\w+)' is not accepted", line)
    if unknown is None:
        return ""

    from tfde import recipe

    known = [
        field.name
        for kind in vars(recipe).values()
        if isinstance(kind, type) and dataclasses.is_dataclass(kind)
        for field in dataclasses.fields(kind)
    ]
    near = difflib.get_close_matches(unknown[1], known, n=1)
    return f"; did you mean {near[0]}?" if near else ""


def command_parser(command: str, description: str) -> CommandParser:
    """Returns an empty parser.

    Args:
        command: The command's name.
        description: What it does, for `--help`.
    """
    return CommandParser(prog=f"tfde {command}", description=description)
