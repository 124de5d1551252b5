"""`tfde query`: asks a server and prints the answers."""

from __future__ import annotations

import json
import sys
import textwrap
from typing import Any

from tfde.cli.parser import CommandParser, command_parser


def build_parser() -> CommandParser:
    """Returns the parser of the command."""
    parser = command_parser("query", "Asks a server and prints the answers.")
    parser.add_argument("text", nargs="+", help="a query; several are asked in one request")
    parser.add_argument("--target", default="localhost:8500", help="HOST:PORT of the gRPC port")
    parser.add_argument("-k", type=int, default=5, help="documents a query")
    parser.add_argument("--model", default="retriever", help="the retriever")
    parser.add_argument("--timeout_s", type=float, default=30.0, help="seconds to wait")
    parser.add_argument("--json", action="store_true", help="one JSON object a query and line")
    return parser


def run(args: Any) -> int:
    """Prints rank, score, title and passage of each answer."""
    from tfde.serving.client import Client

    if args.k < 1:
        raise ValueError(f"`-k` must be at least 1. Received: {args.k}")
    with Client(args.target, timeout_s=args.timeout_s, model=args.model) as client:
        answers = client.search(args.text, args.k)
    for text, hits in zip(args.text, answers, strict=True):
        if args.json:
            row = {"query": text, "hits": [hit._asdict() for hit in hits]}
            print(json.dumps(row, ensure_ascii=False))
            continue
        print(text)
        for hit in hits:
            name = f"{hit.title} [{hit.doc_id}]" if hit.title else hit.doc_id
            print(f"{hit.rank:>3}  {hit.score:.4f}  {name}")
            passage = textwrap.shorten(hit.text, 300, placeholder=" ...")
            if passage:
                print(textwrap.indent(textwrap.fill(passage, 92), " " * 13))
        sys.stdout.flush()
    return 0
