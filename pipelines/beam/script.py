"""What the Beam scripts beside this file have in common."""

from __future__ import annotations

import argparse
import difflib
import logging
from argparse import Namespace
from collections.abc import Callable, Sequence

# Beam logs about libraries that we do not use while it is imported.
logging.getLogger().addHandler(logging.NullHandler())

from apache_beam.options.pipeline_options import PipelineOptions  # noqa: E402

from tfde.beam.dead_letters import count_dead_letters, dead_letter_file  # noqa: E402
from tfde.cli.logs import show_logs  # noqa: E402
from tfde.cli.main import run_command  # noqa: E402

EPILOG = """
All other options are Beam's:
  (none)                                          this process does all the work
  --direct_running_mode multi_processing --direct_num_workers N
                                                  N processes of this machine
  --runner DataflowRunner | FlinkRunner | SparkRunner ...
                                                  a cluster; docs/beam.md names the options
Files must have the same path on all workers. An interrupted job goes on when the same command is
given again.
"""

_NEAR = 0.85  # no option of Beam's is as near to one of ours

Run = Callable[[Namespace, PipelineOptions], None]


class _Help(argparse.RawDescriptionHelpFormatter):
    """Tells defaults."""

    def _get_help_string(self, action: argparse.Action) -> str | None:
        nothing = action.default in (None, False, argparse.SUPPRESS)
        return action.help if nothing else f"{action.help} (%(default)s by default)"


def job_parser(description: str) -> argparse.ArgumentParser:
    """Returns a parser that leaves Beam's options alone."""
    return argparse.ArgumentParser(
        description=description,
        epilog=EPILOG,
        formatter_class=_Help,
        allow_abbrev=False,
    )


def run_script(parser: argparse.ArgumentParser, run: Run) -> int:
    """Runs a job; an expected error becomes one line on stderr and exit code 1."""
    args, flags = parser.parse_known_args()
    refuse_misspelled(parser, flags)
    show_logs()
    # An error comes as one line at the end; an option that nobody knows is a warning.
    logging.getLogger("apache_beam").setLevel(logging.CRITICAL)
    logging.getLogger("apache_beam.options").setLevel(logging.WARNING)
    logging.getLogger().addHandler(logging.StreamHandler())
    return run_command(parser.prog, lambda options: run(args, options), PipelineOptions(flags))


def refuse_misspelled(parser: argparse.ArgumentParser, flags: Sequence[str]) -> None:
    """Refuses an option that is nearly one of the script's; Beam drops what it does not know."""
    own = [option for action in parser._actions for option in action.option_strings]
    for flag in flags:
        name = flag.partition("=")[0]
        near = difflib.get_close_matches(name, own, n=1, cutoff=_NEAR)
        if name.startswith("--") and near:
            parser.error(f"unrecognized arguments: {name}; did you mean {near[0]}?")


def print_skipped(output: str) -> None:
    """Prints how many bad records were left out."""
    for kind, count in count_dead_letters(output).items():
        print(f"left out: {count:,} x {kind} ({dead_letter_file(output)})")
