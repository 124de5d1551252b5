"""Options that several commands have: lengths of texts, passages and their documents."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jsonargparse.typing import PositiveFloat, PositiveInt

from tfde.cli.parser import CommandParser
from tfde.config.engines import ENGINE_CHOICES, EngineChoice
from tfde.errors import ConfigError, DataError, require, shorten

if TYPE_CHECKING:
    from tfde.config.model import ParentConfig
    from tfde.export.saved_encoder import SavedEncoder
    from tfde.storage.intake import Intake
    from tfde.towers.dual_encoder import DualEncoder
    from tfde.types import Run

PARENT_SEPARATOR, _MAX_LENGTH = ".", 256
# So many passages are looked at for each document that is asked for.
_PASSAGES_A_DOCUMENT = 10


def fields_of(parts: Mapping[str, type]) -> str:
    """Returns, for the end of a help text, the fields of each part of a recipe."""
    listed = {
        what: ", ".join(f.name for f in dataclasses.fields(cls)) for what, cls in parts.items()
    }
    return "; ".join(f"fields of {what}: {names}" for what, names in listed.items())


def add_parents(parser: CommandParser) -> None:
    """Adds the options `--parent_weight`, `--parent_separator`, `--parent_max_length_tokens`."""
    parser.add_argument(
        "--parent_weight",
        type=PositiveFloat,
        help="add so much of the embedding of its parent to that of each document, whose id is"
        " PARENT.PART; a parent is all its documents in a row. 0.5 is a good start",
    )
    add_separator(parser)
    parser.add_argument(
        "--parent_max_length_tokens", type=PositiveInt, default=_MAX_LENGTH, help="longest parent"
    )


def add_separator(parser: CommandParser) -> None:
    """Adds the option `--parent_separator`."""
    parser.add_argument(
        "--parent_separator",
        default=PARENT_SEPARATOR,
        help="what stands between PARENT and PART (.)",
    )


def add_max_passage(parser: CommandParser) -> None:
    """Adds the option `--max_passage`."""
    parser.add_argument(
        "--max_passage",
        action="store_true",
        help="the corpus holds passages with ids PARENT.PART (`tfde chunk`): give their parents,"
        " each with the score of its best passage",
    )


def passages_wanted(args: Any, documents: int) -> int:
    """Returns how many of a corpus to ask for, so that there are so many documents."""
    return documents * _PASSAGES_A_DOCUMENT if args.max_passage else documents


def fold_passages(args: Any, run: Run, documents: int | None) -> Run:
    """Returns the run of parents, if the options ask for it; tells where there are too few.

    Args:
        args: With `max_passage` and `parent_separator`.
        run: Of passages; as many of them as `passages_wanted` said.
        documents: How many documents a query was to have; `None` for a run that is what it is.

    Raises:
        ConfigError: an id is not of the form PARENT.PART.
    """
    from tfde.data.ranking import best_passages

    if not args.max_passage:
        return run
    folded = {q: best_passages(found, args.parent_separator, documents) for q, found in run.items()}
    if documents is not None:
        wanted = passages_wanted(args, documents)
        few = sum(len(folded[q]) < documents and len(run[q]) == wanted for q in run)
        if few:
            print(
                f"tfde: {few:,} of {len(run):,} queries have fewer than {documents:,} documents"
                f" among their best {wanted:,} passages; a larger -k looks at more",
                file=sys.stderr,
            )
    return folded


def parent_config(args: Any) -> ParentConfig | None:
    """Returns what the options ask for; `None` without `--parent_weight`."""
    from tfde.config.model import ParentConfig

    if args.parent_weight is None:
        given: dict[str, object] = {"max_length_tokens": _MAX_LENGTH}
        if not getattr(args, "max_passage", False):
            given["separator"] = PARENT_SEPARATOR
        for name, default in given.items():
            value = getattr(args, f"parent_{name}")
            require(value == default, f"parent_{name}", "left out without `parent_weight`", value)
        return None
    return ParentConfig(args.parent_weight, args.parent_separator, args.parent_max_length_tokens)


def add_lengths(parser: CommandParser) -> None:
    """Adds the options `--query_max_length_tokens` and `--document_max_length_tokens`."""
    for side in ("query", "document"):
        parser.add_argument(
            f"--{side}_max_length_tokens",
            type=PositiveInt,
            help=f"longest {side} in place of the model's own, special tokens included; embeddings,"
            " indexes and queries go together only where all were made with the same lengths",
        )


def add_engine(parser: CommandParser, *, default: str, option: str = "--engine") -> None:
    """Adds the option `--engine`, or another name for it."""
    parser.add_argument(
        option,
        choices=list(ENGINE_CHOICES),
        default=default,
        help="what runs the towers on CPUs: openvino and onnxruntime need their extras; auto takes"
        " the fastest",
    )


def load_encoder(
    path: str, args: Any, *, engine: EngineChoice = "tensorflow"
) -> DualEncoder | SavedEncoder:
    """Returns as `load_model` what only encodes: a bundle or another SavedModel may be it too.

    Raises:
        ConfigError: as `load_model` and `SavedEncoder`; lengths or parents are asked of a
            SavedModel.
    """
    from tfde.export.bundle_directory import is_saved_encoder

    if not is_saved_encoder(path):
        return load_model(path, args, engine=engine)

    from tfde.export.saved_encoder import SavedEncoder

    for name in ("query_max_length_tokens", "document_max_length_tokens", "parent_weight"):
        value = getattr(args, name, None)
        require(
            value is None, name, "left out for a SavedModel, which has lengths of its own", value
        )
    return SavedEncoder(path, engine=engine)


def load_model(
    path: str, args: Any, *, dtype: str | None = None, engine: EngineChoice = "tensorflow"
) -> DualEncoder:
    """Returns the model at `path`, with the lengths that `args` gives.

    Raises:
        ConfigError: as `DualEncoder.load` and `DualEncoder.set_max_lengths`.
    """
    from tfde.checkpoints.checkpoint_files import check_checkpoint

    check_checkpoint(path)  # before TensorFlow is imported

    from tfde.towers.dual_encoder import DualEncoder

    model = DualEncoder.load(path, dtype=dtype, engine=engine)
    model.set_max_lengths(
        query_max_length_tokens=args.query_max_length_tokens,
        document_max_length_tokens=args.document_max_length_tokens,
    )
    return model


def tell_cut_texts(model: DualEncoder | SavedEncoder) -> None:
    """Says in one line on stderr how many texts the model cut, if any, and how much they lost."""
    from tfde.text.cut_texts import cut_line

    counts = model.cut_texts()
    if any(part.cut for part in counts):
        print(f"tfde: {cut_line(counts)}", file=sys.stderr)


def short_name(path: str, known: Sequence[str]) -> str:
    """Returns the last part of a path that says something, and no name twice.

    Args:
        path: A model directory, a run file, or a name.
        known: Names that are taken.
    """
    parts = [part for part in Path(path).parts if part not in ("model", "best_model")]
    return _once(parts[-1] if parts else path, known)


def name_and_path(text: str, known: Sequence[str]) -> tuple[str, str]:
    """Returns what `[NAME=]PATH` calls a model, and its path.

    Args:
        text: What was given.
        known: Names that are taken.
    """
    name, path = split_name(text)
    return short_name(path, known) if name is None else _once(name, known), path


def options_of(rules: type, args: Any) -> dict[str, Any]:
    """Returns the options of a command that are fields of a dataclass of rules, by their names."""
    names = [field.name for field in dataclasses.fields(rules)]
    return {name: getattr(args, name) for name in names if name in args}


def split_name(text: str) -> tuple[str | None, str]:
    """Reads `[NAME=]PATH`; a path may hold "=" where it exists, or after a "/"."""
    name, separator, path = text.partition("=")
    if not separator or "/" in name or Path(text).exists():
        return None, text
    return name, path


@contextmanager
def hint_of_skip_bad(intake: Intake) -> Iterator[None]:
    """Adds to what stopped a reader that `--skip_bad` would leave it out."""
    try:
        yield
    except DataError as error:
        if error is not intake.stopped_by:
            raise
        raise ConfigError(f"{error} (--skip_bad leaves out and counts such)") from error


def tell_garbled(intake: Intake) -> None:
    """Says on stderr how many texts are UTF-8 that was read as something else, if any are."""
    if intake.garbled:
        print(
            f"note: {intake.garbled:,} texts are UTF-8 that was once read as Latin-1 or"
            " Windows-1252 and saved so; mend the file first (ftfy does)."
            f" The first: {shorten(intake.first_garbled)}",
            file=sys.stderr,
        )


def named_datasets(option: str, texts: Sequence[str]) -> dict[str, str]:
    """Returns name -> path of what `[NAME=]DATASET` gave; without a name it is the folder's.

    Raises:
        ConfigError: two of one name.
    """
    found: dict[str, str] = {}
    for text in texts:
        name, path = split_name(text)
        name = name or Path(path).name
        require(name not in found, option, "NAME=DATASET, each name once", text)
        found[name] = path
    return found


def _once(name: str, known: Sequence[str]) -> str:
    free, number = name, 2
    while free in known:
        free, number = f"{name} ({number})", number + 1
    return free


def add_bm25(parser: CommandParser) -> None:
    """Adds what `bm25_options` reads."""
    parser.add_argument("--bm25_k1", type=float, default=0.9, help="saturation of frequencies")
    parser.add_argument("--bm25_b", type=float, default=0.4, help="weight of the length")
    parser.add_argument(
        "--bm25_language", default="english", help="stemmer and stop words, or none"
    )


def bm25_options(args: Any) -> dict[str, Any]:
    """Returns `k1`, `b` and `language` of BM25, as given."""
    language = None if args.bm25_language == "none" else args.bm25_language
    return {"k1": args.bm25_k1, "b": args.bm25_b, "language": language}
