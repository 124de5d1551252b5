"""The argument parser of all commands."""

from __future__ import annotations

import difflib
import os
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

import jsonargparse

from tfde.cli.field_help import asked_part, format_fields, part_of
from tfde.config.yaml_text import PARSER_MODE, check_yaml_file, load_yaml
from tfde.errors import ConfigError, DataError
from tfde.plain_errors import field_names, plain_message, with_stage


class _Help(jsonargparse.DefaultHelpFormatter):
    """Help texts without the default of what may be left out and then is not there."""

    def _expand_help(self, action: Any) -> str:
        return re.sub(
            r" \(default: null\)$|, default: null(?=\)$)", "", super()._expand_help(action)
        )


class CommandParser(jsonargparse.ArgumentParser):
    """A parser whose errors are one line on stderr, with exit code 2.

    Attributes:
        alternatives: Option -> what makes the parser that takes over where it is given.
        stage_fields: Name -> place in a recipe's stage, for whoever gives a field as an option.
    """

    alternatives: Mapping[str, Callable[[], CommandParser]] = {}
    stage_fields: Mapping[str, str] = {}
    _given: Sequence[Any] = ()
    _recipe = ""  # what the file given holds

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        # argparse's own has no exponents: -1e-3 would be an option.
        self._negative_number_matcher = re.compile(r"-(\d+\.?\d*|\.\d+)([eE][-+]?\d+)?$")

    def parse_args(self, args: Any = None, *rest: Any, **options: Any) -> Any:
        """Parses arguments; files of recipes and studies are looked at before they are read."""
        self._given = given = list(sys.argv[1:] if args is None else args)
        for option, make in self.alternatives.items():
            if any(str(word).partition("=")[0] == option for word in given):
                return make().parse_args(given, *rest, **options)
        run: Any = next((action for action in self._actions if action.dest == "run"), None)
        for place, option in enumerate(given):
            if run is not None and (names := asked_part(str(option))):
                self._show_fields(run.basetype, names)  # what jsonargparse keeps of `type=`
            if re.match(r"--run(\.\w+)?(=|$)", option):
                _, _, value = option.partition("=")
                file = value or " ".join(given[place + 1 : place + 2])
                if os.path.isfile(file):
                    try:
                        self._recipe = check_yaml_file(file)
                    except (DataError, OSError) as error:
                        self.error(str(error))
        return super().parse_args(args, *rest, **options)

    def _show_fields(self, run: type, names: Sequence[str]) -> NoReturn:
        """Prints the fields of a part of a run, then exits."""
        try:
            part = part_of(run, list(names))
        except ConfigError as error:
            self.error(str(error))
        self._print_message(format_fields(part, ".".join(names)), sys.stdout)
        raise SystemExit(0)

    def instantiate(self, namespace: Any, *rest: Any, **options: Any) -> Any:
        """Returns the dataclasses that parsed arguments describe."""
        try:
            return super().instantiate(namespace, *rest, **options)
        except TypeError as error:  # of a part that jsonargparse does not look into before
            found = re.search(r"must be a mapping, not (\w+)", str(error))
            if found is None or not self.exit_on_error:
                raise
            self.error(f"an `optimizer` must be a mapping of its fields. Received: {found[1]}")

    def error(self, message: str, ex: Exception | None = None) -> NoReturn:
        """Prints the message as one line, then exits."""
        if not self.exit_on_error:  # a parser that jsonargparse made for a nested value
            super().error(message, ex)
        line = plain_message(message, _fields)
        if "stages: " in line:
            line = with_stage(line, load_yaml(self._recipe))
        missing = re.match(r"the following arguments are required: (.*)", line)
        if missing:  # jsonargparse names what is kept, not what is given
            options = dict.fromkeys(map(self._option, missing[1].split(", ")))
            line = line.replace(missing[1], ", ".join(options))
        if line.startswith("run has no field") and self._run_class() == "TrainRun":
            line += "; those of a stage stand at stages.NAME"
        unread = re.match(r"(.*: )?([^ :]+): (\w+): Unable to load", line)
        if unread and not Path(unread[2]).is_file():
            what = "a mapping of its fields, or a file of them" if unread[1] else "a file"
            line = f"{unread[1] or ''}{unread[3]} must be {what}. Received: '{unread[2]}'"
        line = self._meant_alternative() or line + self._suggestion(line)
        action = self._action(str(next(iter(self._given), "")))
        prog = self.prog if action is None else action.prog
        print(f"{prog}: {line} ({prog} --help shows the options)", file=sys.stderr)
        raise SystemExit(2)

    def _option(self, dest: str) -> str:
        """Returns what is given for what is kept: an option, or a field of a recipe."""
        named = {a.dest: a.option_strings[0] for a in self._actions if a.option_strings}
        whole, dot, rest = dest.partition(".")
        action = self._action(whole)
        if action is not None:
            return action._option(rest)
        if dot and any(str(word).startswith(f"--{whole}") for word in self._given):
            return f"--{dest}"
        return named.get(whole, dest)

    def _meant_alternative(self) -> str:
        """Returns the error of an option that was probably meant to choose another parser."""
        given = [str(word).partition("=")[0] for word in self._given]
        for word in given if "--run" not in given else ():
            if word.startswith("--") and word not in self._option_string_actions:
                near = difflib.get_close_matches(word, list(self.alternatives), n=1)
                if near:
                    return f"unrecognized arguments: {word}; did you mean {near[0]}?"
        return ""

    def _suggestion(self, line: str) -> str:
        """Returns the option that was probably meant by an unknown one, or by a word without."""
        bare = re.search(r"unrecognized arguments: ([^-\s]\S*)", line)
        if bare and self.alternatives:
            return f"; did you mean {next(iter(self.alternatives))} {bare[1]}?"
        required = [a.option_strings[0] for a in self._actions if a.required and a.option_strings]
        if bare and required:
            return f"; a value follows its option, such as {', '.join(required)}"
        unknown = re.search(r"unrecognized arguments: (--[^\s=]+)", line)
        field = self.stage_fields.get(unknown[1][2:].replace("-", "_")) if unknown else None
        if field:
            recipe = load_yaml(self._recipe) if self._recipe else {}
            stages = recipe.get("stages") if isinstance(recipe, dict) else None
            names = list(stages) if isinstance(stages, dict) and stages else ["NAME"]
            return f"; did you mean {' or '.join(f'--run.stages.{n}.{field}' for n in names)}?"
        options = list(self._option_string_actions)
        near = difflib.get_close_matches(unknown[1], options, n=1) if unknown else []
        return f"; did you mean {near[0]}?" if near else ""

    def _action(self, name: str) -> CommandParser | None:
        """Returns the parser of an action, as of `tfde index add`; `None` where it is none."""
        actions: Any = getattr(self, "_subcommands_action", None)
        parser: CommandParser | None = actions and actions.choices.get(name)
        return parser

    def _run_class(self) -> str:
        run: Any = next((action for action in self._actions if action.dest == "run"), None)
        return "" if run is None else str(run.basetype.__name__)


def _fields() -> list[str]:
    """Returns the names of all fields of recipes and studies."""
    from tfde.config import matching, phrases, study, training

    return field_names(training, matching, phrases, study)


def command_parser(
    command: str,
    description: str,
    *,
    usage: Sequence[str] = (),
    cls: type[CommandParser] = CommandParser,
) -> CommandParser:
    """Returns an empty parser.

    Args:
        command: The command's name.
        description: What it does, for `--help`.
        usage: The ways to give it, where a list of all options would hide them.
        cls: A parser that takes more than its options.
    """
    # A recipe's or script's abbreviation would mean another option once one is added.
    return cls(
        prog=f"tfde {command}",
        usage="\n       ".join(f"tfde {command} {way}" for way in usage) or None,
        description=description,
        allow_abbrev=False,
        parser_mode=PARSER_MODE,
        formatter_class=_Help,
    )


Action = tuple[Callable[[str, str], CommandParser], str, Callable[[Any], None]]


def actions_parser(command: str, description: str, actions: Mapping[str, Action]) -> CommandParser:
    """Returns the parser of a command that has actions, as `tfde index add`.

    Args:
        command: The command's name.
        description: What it does, for `--help`.
        actions: By name: what makes the action's parser of its full name and description, its
            help in one line, and what runs it.
    """
    parser = command_parser(command, description)
    added = parser.add_subcommands(metavar="ACTION", description=f"tfde {command} ACTION --help")
    for name, (make, help_text, _) in actions.items():
        action = make(f"{command} {name}", f"{help_text[0].upper()}{help_text[1:]}.")
        prog = action.prog
        added.add_subcommand(name, action, help=help_text)
        action.prog = prog  # without jsonargparse's "[options]" in it
    return parser


def run_action(actions: Mapping[str, Action], args: Any) -> int:
    """Runs the action that was given."""
    actions[args.subcommand][2](args[args.subcommand])
    return 0
