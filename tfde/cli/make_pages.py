"""`tfde make-pages`: a wiki's dump or a folder of HTML and Markdown -> a file of pages."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jsonargparse.typing import PositiveFloat, PositiveInt

from tfde.cli.parser import CommandParser, command_parser

if TYPE_CHECKING:
    from tfde.data.pages import Page
    from tfde.storage.intake import Intake


def build_parser() -> CommandParser:
    """Returns the command's parser."""
    parser = command_parser(
        "make-pages",
        "Writes the pages of a MediaWiki XML dump, or of a folder of HTML and Markdown files, as"
        " JSON Lines with sections, passages and links.",
    )
    parser.add_argument(
        "--input",
        type=str,
        required=True,
        help="a MediaWiki XML dump (.xml, also .bz2, .gz, .zst) or a folder",
    )
    parser.add_argument(
        "--output", type=str, required=True, help="the file of pages, packed if named .gz or .zst"
    )
    parser.add_argument(
        "--skip_bad", action="store_true", help="skip and count bad pages and links to nowhere"
    )
    parser.add_argument(
        "--workers", type=PositiveInt, default=1, help="processes that parse markup"
    )
    parser.add_argument(
        "--page_seconds",
        type=PositiveFloat,
        default=30.0,
        help="processor time that a page may take; one that takes more is a bad page",
    )
    return parser


def run(args: Any) -> int:
    """Runs the command."""
    from tfde.cli.logs import show_logs
    from tfde.cli.shared_options import hint_of_skip_bad
    from tfde.data.ids import KnownIds
    from tfde.data.pages import (
        LEFT_OUT_LINKS,
        WITHOUT_TEXT,
        read_pages,
        with_links_within,
        write_pages,
    )
    from tfde.errors import ConfigError
    from tfde.pretraining.folder import read_folder
    from tfde.pretraining.mediawiki import read_mediawiki
    from tfde.progress import progress_bar
    from tfde.storage.atomic import atomic_file
    from tfde.storage.intake import Intake

    path = Path(args.input)
    if not path.exists():
        raise ConfigError(f"{path}: `input` must be a file or a folder that exists.")
    show_logs()
    intake = Intake(skip_bad=args.skip_bad)
    options = {"workers": args.workers, "page_seconds": args.page_seconds}
    if path.is_dir():
        pages = read_folder(path, intake, **options)
    else:
        pages = read_mediawiki(path, intake, **options)
    counts = dict.fromkeys(("pages", "sections", "passages", "links"), 0)
    known = KnownIds()

    def counted(pages: Iterator[Page]) -> Iterator[Page]:
        for page in pages:
            counts["pages"] += 1
            counts["sections"] += len(page.sections)
            counts["passages"] += sum(len(section.passages) for section in page.sections)
            counts["links"] += len(page.links)
            known.add(page.page_id)
            yield page

    with atomic_file(args.output) as output:
        with hint_of_skip_bad(intake):
            write_pages(output, progress_bar(counted(pages), desc=path.name, unit=" pages"))
        if intake.skipped or intake.left_out[WITHOUT_TEXT]:  # others may link to them
            write_pages(output, with_links_within(read_pages(output), known, intake))
            counts["links"] -= intake.left_out[LEFT_OUT_LINKS]
    print(f"{args.output}: " + ", ".join(f"{count:,} {what}" for what, count in counts.items()))
    print_left_out(intake)
    return 0


def print_left_out(intake: Intake) -> None:
    """Prints what a reader left out and what it skipped, by kind."""
    for head, kinds in (("left out", intake.left_out), ("skipped as bad", intake.kinds)):
        if kinds:
            parts = (f"{count:,} {kind}" for kind, count in sorted(kinds.items()))
            print(f"{head}: " + ", ".join(parts))
