"""`tfde COMMAND ...`: finds the command's module and turns errors into one line.

A command lives in `tfde/cli/NAME.py` (dashes become underscores) and has `build_parser()`,
which must not import TensorFlow, and `run(args)`, which may. `tfde --help` imports neither.
"""

from __future__ import annotations

import difflib
import importlib
import os
import signal
import sys
import threading
from collections.abc import Callable, Sequence
from typing import Any

from tfde.cli.logs import quiet_libraries
from tfde.cli.quick_imports import lighten_imports

COMMANDS = {
    "doctor": "is everything here that tfde needs, and does it load?",
    "demo": "the whole road on this machine's own documentation",
    "convert": "a dataset of a known format -> dataset directory",
    "make-pages": "a wiki's dump or a folder of HTML and Markdown -> file of pages",
    "make-pairs": "pages -> pre-training pairs, with statistics",
    "generate-queries": "documents -> queries, as training pairs or to expand a corpus",
    "chunk": "long documents -> passages that a model reads whole",
    "split": "few train queries, or other splits, of a dataset",
    "train": "train a dual encoder by a recipe",
    "train-matcher": "train a cross-encoder or a matcher on pairs with labels",
    "phrases": "train, index, search, evaluate: phrases of passages that answer questions",
    "average": "several models of one start -> one, the mean of their weights",
    "mine-negatives": "the pairs of a dataset with hard negatives",
    "cluster-queries": "topics of the train queries, for batches of one topic",
    "encode": "encode a corpus to embedding shards",
    "build-index": "embeddings -> ScaNN index, with its measured recall",
    "index": "add, delete, compact, status, backup, recover: an index that is changed in place",
    "retrieve": "queries -> TREC run",
    "rerank": "a run's best documents in the order of a cross-encoder or a matcher",
    "fuse": "several runs as one, by their ranks",
    "evaluate": "measures of models, runs and BM25 on a dataset",
    "probe": "pictures of what models do: attention between two texts, embeddings by t-SNE",
    "study": "a grid of training runs, each measured, and its table",
    "export": "model (and index) -> bundle of SavedModels",
    "bundle": "install, rollback, list, remove: versions of a bundle that is served",
    "serve": "serve a bundle over gRPC and REST, as TensorFlow Serving does",
    "query": "ask a server and print the answers",
    "verify": "check a bundle's fingerprints and golden queries",
}


def usage() -> str:
    """Returns the help text of `tfde --help`."""
    width = max(map(len, COMMANDS))
    rows = "\n".join(f"  {name:<{width}}  {line}" for name, line in COMMANDS.items())
    return (
        "usage: tfde COMMAND [options]\n\n"
        "Dual-encoder text retrieval on Keras and TensorFlow.\n\n"
        f"commands:\n{rows}\n\n"
        "  tfde COMMAND --help   the options of a command\n"
        "  tfde --version        the version"
    )


# What others call it -> what it is here.
_MEANT = {
    "search": ["retrieve"],
    "report": ["evaluate"],
    "index-build": ["build-index"],
    "finetune": ["train"],
    "embed": ["encode"],
    "predict": ["rerank"],
    "benchmark": ["evaluate"],
}


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one command.

    Args:
        argv: Arguments without the program's name. `None` takes those of the process.

    Returns:
        The exit code: 0 done, 1 the command failed, 2 the command line is wrong.
    """
    argv = list(sys.argv[1:] if argv is None else argv)
    if not argv or argv[0] in ("-h", "--help", "help"):
        print(usage())
        return 0 if argv else 2
    if argv[0] == "--version":
        from tfde.version import __version__

        print(f"tfde {__version__}")
        return 0
    name = argv[0]
    if name not in COMMANDS:
        near = _MEANT.get(name) or difflib.get_close_matches(name, COMMANDS, n=1)
        meant = f"; did you mean {near[0]}?" if near else ";"
        rule = f"unknown command {name!r}{meant} `tfde --help` lists the commands"
        return _fail("tfde", rule, 2)
    quiet_libraries()
    lighten_imports()
    try:
        command = importlib.import_module(f"tfde.cli.{name.replace('-', '_')}")
        parser = command.build_parser()
    except ImportError as error:  # an extra, perhaps
        return failed(f"tfde {name}", error)
    args = parser.parse_args(argv[1:])
    action = getattr(args, "subcommand", None)
    return run_command(f"tfde {name} {action}" if action else f"tfde {name}", command.run, args)


def model_server(argv: Sequence[str] | None = None) -> int:
    """Runs `tfde-model-server`, or says in one line what it lacks."""
    try:
        from tfde.cli.model_server import main as serve
    except ImportError as error:
        return failed("tfde-model-server", error)
    return serve(argv)


def run_command(program: str, run: Callable[[Any], int | None], args: Any) -> int:
    """Calls `run(args)`; an expected error becomes one line on stderr and exit code 1.

    SIGTERM ends the process as it does otherwise, but leaves nothing half-written behind.

    Args:
        program: What the line begins with, such as `tfde train` or a script's name.
        run: The work.
        args: What it takes.
    """
    in_main_thread = threading.current_thread() is threading.main_thread()
    if in_main_thread and signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
        from tfde.storage.atomic import end_by_signal

        signal.signal(signal.SIGTERM, end_by_signal)
    try:
        return run(args) or 0
    except KeyboardInterrupt as error:
        return _fail(program, f"interrupted {error}".strip(), 130)
    except BrokenPipeError:
        # The reader of our output went away (`tfde ... | head`): nothing is left to say.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141
    except (ValueError, OSError, ImportError) as error:
        return failed(program, error)
    except Exception as error:
        from tfde.errors import TfdeError

        if isinstance(error, TfdeError):
            return failed(program, error)
        return failed(program, error, unexpected=True)


def failed(program: str, error: BaseException, *, unexpected: bool = False) -> int:
    """Says in one line on stderr why a command failed; returns its exit code."""
    if os.environ.get("TFDE_TRACEBACK") == "1":
        raise error
    if isinstance(error, OSError) and error.filename and error.strerror:
        return _fail(program, f"{error.filename}: {error.strerror}", 1)
    lines = [line for line in str(error).strip().splitlines() if line.strip()]
    message = lines[0] if lines else type(error).__name__
    if unexpected:
        message = f"{type(error).__name__}: {message} (TFDE_TRACEBACK=1 shows where)"
    return _fail(program, message, 1)


def _fail(program: str, message: str, code: int) -> int:
    print(f"{program}: {message}", file=sys.stderr)
    return code


if __name__ == "__main__":
    sys.exit(main())
