"""`tfde make-pairs`: a file of pages -> pre-training pairs and their statistics."""

from __future__ import annotations

from argparse import ArgumentParser
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jsonargparse.typing import NonNegativeInt, PositiveInt

from tfde.cli.parser import CommandParser, command_parser

if TYPE_CHECKING:
    from tfde.pretraining.page_store import PageStore
    from tfde.pretraining.write_pair_file import CountTokens

_TEXTS_A_BATCH = 1024


def build_parser() -> CommandParser:
    """Returns the command's parser."""
    parser = command_parser(
        "make-pairs",
        "Draws pre-training pairs from a file of pages: inverse cloze task (ict), body first"
        " selection (bfs), wiki link prediction (wlp), span cropping (span_crop), headings that"
        " are questions (question). The same seed gives the same file.",
    )
    parser.add_argument("--pages", type=str, required=True, help="the file of pages")
    add_task_options(parser)
    parser.add_argument("--output", type=str, required=True, help="the pair file")
    parser.add_argument(
        "--limit", type=PositiveInt, help="how many pairs; by default those of --epochs"
    )
    parser.add_argument(
        "--epochs", type=PositiveInt, default=1, help="how often all places are gone through"
    )
    parser.add_argument("--seed", type=NonNegativeInt, default=0, help="decides all draws")
    parser.add_argument("--workers", type=PositiveInt, default=1, help="processes")
    parser.add_argument(
        "--language", type=str, default="en", help="ISO 639 code of the pages, for sentences"
    )
    parser.add_argument(
        "--store",
        type=str,
        help="directory where the pages cut into sentences are kept, and found the next time",
    )
    parser.add_argument(
        "--tokenizer",
        type=str,
        help="what the statistics count with: a tokenizer, as `tfde train` takes it; words"
        " between white space by default",
    )
    parser.add_argument(
        "--skip_bad", action="store_true", help="skip and count bad pages and links to nowhere"
    )
    return parser


def run(args: Any) -> int:
    """Runs the command."""
    from tfde.cli.logs import show_logs
    from tfde.cli.make_pages import print_left_out
    from tfde.cli.shared_options import hint_of_skip_bad
    from tfde.errors import ConfigError
    from tfde.pretraining.build_store import page_store
    from tfde.pretraining.pair_stream import PairStream, check_tasks
    from tfde.pretraining.write_pair_file import format_statistics, write_pair_file
    from tfde.storage.atomic import refuse_unwritable, temporary_directory
    from tfde.storage.intake import Intake

    if not Path(args.pages).is_file():
        raise ConfigError(f"{args.pages}: `pages` must be a file that exists.")
    weights, titles = tasks_of(args)
    check_tasks(weights, titles)
    refuse_unwritable(args.output)
    count_tokens = _tokens(args.tokenizer) if args.tokenizer else None
    show_logs()
    intake = Intake(skip_bad=args.skip_bad)
    output = Path(args.output)
    output.parent.mkdir(parents=True, exist_ok=True)
    with temporary_directory(output) as folder:
        with hint_of_skip_bad(intake):
            store = page_store(
                args.pages,
                args.store or folder / "store",
                language=args.language,
                workers=args.workers,
                intake=intake,
            )
        stream = PairStream(store, weights, seed=args.seed, titles=titles)
        statistics = write_pair_file(
            stream,
            output,
            limit=args.limit or args.epochs * len(stream),
            workers=args.workers,
            count_tokens=count_tokens,
        )
        print(_about(args.pages, store))
        print_left_out(intake)
        for task, without in stream.without_pair.items():
            parts = ", ".join(f"{count:,} {what}" for what, count in without.items())
            print(f"{task}: {stream.places[task]:,} places; no pair from {parts}")
        if "wlp" in weights:
            print(_about_links(store))
    print(f"{output}:")
    print(format_statistics(statistics, "tokens" if args.tokenizer else "words"))
    return 0


def _about(pages: str, store: PageStore) -> str:
    names = ("pages", "sections", "passages", "sentences", "links")
    return f"{pages}: " + ", ".join(f"{store.about[name]:,} {name}" for name in names)


def _about_links(store: PageStore) -> str:
    by_passage, by_title = store.about["links_in_passages"], store.about["links_by_title"]
    rest = store.about["links"] - by_passage - by_title
    return (
        f"wlp: the document is the passage with the link for {by_passage:,} links, one that names"
        f" the linked page for {by_title:,}, any of the linking page for {rest:,}"
    )


def add_task_options(parser: ArgumentParser) -> None:
    """Adds the options that `tasks_of` reads."""
    parser.add_argument(
        "--task",
        type=str,
        default="ict,bfs,wlp",
        help="one or several of ict, bfs, wlp, span_crop, question, with commas between",
    )
    parser.add_argument(
        "--weights", type=str, help="the tasks' weights, with commas between; evenly by default"
    )
    parser.add_argument(
        "--titles",
        type=str,
        default="ict",
        help="the tasks whose documents have the title of their page, or none",
    )


def tasks_of(args: Any) -> tuple[dict[str, float], list[str]]:
    """Returns the weights of `--task` by name, and the tasks of `--titles`.

    Raises:
        ConfigError: a task stands twice, or weights are no numbers or not as many as tasks.
    """
    from tfde.errors import require

    names = args.task.split(",")
    require(len(set(names)) == len(names), "task", "of different tasks", args.task)
    weights = ",".join("1" for _ in names) if args.weights is None else args.weights
    try:
        values = [float(weight) for weight in weights.split(",")]
    except ValueError:
        values = []
    rule = f"{len(names)} numbers with commas between, one for each task"
    require(len(values) == len(names), "weights", rule, weights)
    titles = [] if args.titles == "none" else args.titles.split(",")
    return dict(zip(names, values, strict=True)), titles


def _tokens(path: str) -> CountTokens:
    import tensorflow as tf

    from tfde.text.read_tokenizer import read_tokenizer

    tokenizer = read_tokenizer(path)

    def count(texts: list[str]) -> list[int]:
        lengths: list[int] = []
        for start in range(0, len(texts), _TEXTS_A_BATCH):
            batch = tf.constant(texts[start : start + _TEXTS_A_BATCH], tf.string)
            lengths += tokenizer.tokenize(batch).row_lengths().numpy().tolist()
        return lengths

    return count
