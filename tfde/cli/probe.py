"""`tfde probe attention|tsne`: what models do, as pictures."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from jsonargparse.typing import PositiveInt

from tfde.cli.parser import Action, CommandParser, actions_parser, command_parser, run_action
from tfde.cli.shared_options import name_and_path, split_name


def build_parser() -> CommandParser:
    """Returns the parser of the command."""
    about = "Pictures of what models do (pip install 'tfde[figures]')."
    return actions_parser("probe", about, _KINDS)


def run(args: Any) -> int:
    """Draws."""
    from tfde.checkpoints.checkpoint_files import check_checkpoint
    from tfde.errors import require
    from tfde.storage.atomic import refuse_unwritable

    options = args[args.subcommand]
    for text in options.model:
        check_checkpoint(split_name(text)[1])
    require(Path(options.output).suffix == ".png", "output", "a file *.png", options.output)
    refuse_unwritable(options.output)
    return run_action(_KINDS, args)


def _parser(command: str, description: str) -> CommandParser:
    parser = command_parser(command, description)
    parser.add_argument("--output", required=True, help="PNG to write")
    return parser


def _attention_parser(command: str, description: str) -> CommandParser:
    parser = _parser(command, description)
    parser.add_argument(
        "--model",
        action="append",
        required=True,
        metavar="[NAME=]PATH",
        help="model directory; repeated: a row each",
    )
    parser.add_argument("--first", required=True, help="first text of the pair")
    parser.add_argument("--second", required=True, help="second text of the pair")
    parser.add_argument(
        "--layer", type=int, default=-1, help="number of the layer, from 0; negative from the last"
    )
    parser.add_argument("--head", type=int | None, help="number of the head; by default their mean")
    return parser


def _tsne_parser(command: str, description: str) -> CommandParser:
    parser = _parser(command, description)
    parser.add_argument(
        "--model",
        action="append",
        required=True,
        metavar="[NAME=]PATH",
        help="dual encoder: directory, preset or checkpoint; repeated: a panel each",
    )
    parser.add_argument("--dataset", required=True, help="dataset directory")
    parser.add_argument("--split", default="test", help="whose queries and relevant documents")
    parser.add_argument("--pairs", type=PositiveInt, default=400, help="queries, and documents")
    parser.add_argument("--seed", type=int, default=0, help="of the sample and the picture")
    parser.add_argument("--batch_size", type=PositiveInt, default=64, help="texts a batch")
    parser.add_argument("--json", action="store_true", help="JSON in place of the table")
    parser.add_argument(
        "--projector", help="new directory for TensorBoard's projector: the embeddings, and texts"
    )
    return parser


def _attention(args: Any) -> None:
    from tfde.environment import require_extra
    from tfde.errors import naming
    from tfde.matching.load import load_pair_scorer
    from tfde.studies.attention_probe import draw_attention, pair_attention

    require_extra("figures", "tfde probe")
    found: dict[str, Any] = {}
    for given in args.model:
        name, path = name_and_path(given, list(found))
        with naming("model"):
            model = load_pair_scorer(path)
        found[name] = pair_attention(
            model, args.first, args.second, layer=args.layer, head=args.head
        )
    head = "mean of the heads" if args.head is None else f"head {args.head}"
    draw_attention(found, args.output, title=f"attention, {head}")
    print(f"{args.output}: {', '.join(found)}")


def _tsne(args: Any) -> None:
    import json
    import sys

    from tfde.config.optimizer import check_seed
    from tfde.data.dataset_directory import DatasetDirectory
    from tfde.environment import require_extra
    from tfde.evaluation.report import align_table
    from tfde.storage.atomic import refuse_existing
    from tfde.studies.embedding_probe import (
        draw_spaces,
        embed_pairs,
        measure_space,
        sample_pairs,
        write_projector,
    )
    from tfde.towers.dual_encoder import DualEncoder

    require_extra("figures", "tfde probe")
    check_seed(args.seed)
    if args.projector:
        refuse_existing(args.projector, overwrite=False)
    dataset = DatasetDirectory(args.dataset)
    dataset.validate([args.split])
    pairs = sample_pairs(dataset, args.split, args.pairs, seed=args.seed)
    found: dict[str, Any] = {}
    for given in args.model:
        name, path = name_and_path(given, list(found))
        found[name] = embed_pairs(DualEncoder.load(path), pairs, batch_size=args.batch_size)
    measures = {name: measure_space(one, seed=args.seed) for name, one in found.items()}
    captions = {
        name: f"classifier {one.separability:.2f}, alignment {one.alignment:.2f}"
        for name, one in measures.items()
    }
    draw_spaces(found, args.output, captions=captions, seed=args.seed)
    if args.projector:
        write_projector(found, pairs, args.projector)
    if args.json:
        print(json.dumps({name: one._asdict() for name, one in measures.items()}, indent=2))
    else:
        fields = next(iter(measures.values()))._fields
        rows = [[name, *(f"{value:.3f}" for value in one)] for name, one in measures.items()]
        print(align_table([["model", *fields], *rows], text_columns=1))
    print(args.output, file=sys.stderr)


_KINDS: dict[str, Action] = {
    "attention": (
        _attention_parser,
        "each token's attention over the other text's, of cross-encoders as they have it, of"
        " matchers as their queries and keys would give it",
        _attention,
    ),
    "tsne": (
        _tsne_parser,
        "queries and their documents as points, by t-SNE, and how far apart the two lie in numbers",
        _tsne,
    ),
}
