"""`tfde query`: asks a server and prints the answers."""

from __future__ import annotations

import json
import socket
import ssl
import sys
import textwrap
from pathlib import Path
from typing import Any

from tfde.cli.parser import CommandParser, command_parser
from tfde.data.metadata import metadata_line
from tfde.errors import ServerError
from tfde.serving.hit import Hit, snippet_of

_TIMEOUT_S = 2.0


def build_parser() -> CommandParser:
    """Returns the parser of the command."""
    parser = command_parser("query", "Asks a server and prints the answers.")
    parser.add_argument("text", nargs="+", help="a query; several are asked in one request")
    parser.add_argument(
        "--target",
        default="localhost:8500",
        help="HOST:PORT of the gRPC port; several with commas are shards of one index;"
        " http://HOST:PORT asks tfde serve's --http_port, which searches its --index too",
    )
    parser.add_argument("-k", type=int, default=5, help="documents a query")
    parser.add_argument("--model", default="retriever", help="the retriever")
    parser.add_argument("--timeout_s", type=float, default=30.0, help="seconds to wait")
    parser.add_argument("--tls_ca", help="PEM file of who signed the server's certificate: TLS")
    parser.add_argument("--tls_cert", help="PEM file of a certificate of your own: mutual TLS")
    parser.add_argument("--tls_key", help="PEM file of its key")
    parser.add_argument("--json", action="store_true", help="one JSON object a query and line")
    return parser


def run(args: Any) -> int:
    """Prints rank, score, title and passage of each answer."""
    if args.k < 1:
        raise ValueError(f"`-k` must be at least 1. Received: {args.k}")
    if not all(text.strip() for text in args.text):
        raise ValueError(f"a query must not be empty. Received: {args.text}")
    targets = args.target.split(",")
    failed: dict[str, str] = {}
    if args.target.startswith(("http://", "https://")):
        answers = _ask_over_http(args)
    elif len(targets) == 1:
        answers = _ask_one(args)
    else:
        answers, failed = _ask_shards(args, targets)
    for text, hits in zip(args.text, answers, strict=True):
        if args.json:
            row = {"query": text, "hits": [hit.record() for hit in hits]}
            print(json.dumps(row, ensure_ascii=False))
            continue
        print(text)
        for hit in hits:
            name = f"{hit.title} [{hit.doc_id}]" if hit.title else hit.doc_id
            print(f"{hit.rank:>3}  {hit.score:.4f}  {name}")
            passage = snippet_of(hit.text, text)
            if hit.metadata:
                known = textwrap.shorten(metadata_line(hit.metadata), 300, placeholder=" ...")
                print(textwrap.indent(textwrap.fill(known, 92), " " * 13))
            if passage:
                lines = [textwrap.fill(line, 92) for line in passage.splitlines()]
                print(textwrap.indent("\n".join(lines), " " * 13))
        sys.stdout.flush()
    for target, reason in failed.items():
        print(f"tfde query: without the shard {target}: {reason}", file=sys.stderr)
    return 1 if failed else 0


def _options(args: Any) -> dict[str, Any]:
    """Returns what the clients are made with."""
    import grpc

    if (args.tls_cert is None) != (args.tls_key is None):
        raise ValueError("`--tls_cert` and `--tls_key` must be given together.")
    if args.tls_cert is not None and args.tls_ca is None:
        raise ValueError("`--tls_cert` must be given with `--tls_ca`.")
    files = (args.tls_ca, args.tls_key, args.tls_cert)
    pems = [None if file is None else Path(file).read_bytes() for file in files]
    credentials = None if args.tls_ca is None else grpc.ssl_channel_credentials(*pems)
    return {"timeout_s": args.timeout_s, "model": args.model, "credentials": credentials}


def _ask_one(args: Any) -> list[list[Hit]]:
    from tfde.serving.client import Client

    with Client(args.target, **_options(args)) as client:
        try:
            return client.search(args.text, args.k)
        except ServerError as error:
            hint = what_listens(args.target) if "cannot connect" in str(error) else ""
            if not hint:
                raise
            raise ServerError(f"{error}; {hint}") from error


def _ask_over_http(args: Any) -> list[list[Hit]]:
    from tfde.serving.http_client import search_over_http

    for name in ("tls_ca", "tls_cert", "tls_key"):
        if args[name] is not None:
            raise ValueError(f"`--{name}` is for gRPC. Received: --target {args.target}")
    return search_over_http(args.target, args.text, args.k, timeout_s=args.timeout_s)


def _ask_shards(args: Any, targets: list[str]) -> tuple[list[list[Hit]], dict[str, str]]:
    """Returns the hits, and why a target did not answer."""
    from tfde.serving.sharded_client import ShardedClient

    with ShardedClient(targets, **_options(args)) as client:
        answer = client.search(args.text, args.k)
    return answer.hits, answer.failed


def what_listens(target: str) -> str:
    """Returns what to give in place of a target, or "" where gRPC, or nothing, is spoken.

    Args:
        target: `HOST:PORT`, to which a client could not connect.
    """
    host, _, port = target.rpartition(":")
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE  # only asked what it is
    try:
        address = (host.strip("[]"), int(port))
        with socket.create_connection(address, _TIMEOUT_S) as plain:
            plain.sendall(b"GET / HTTP/1.0\r\n\r\n")
            if plain.recv(5) == b"HTTP/":
                return f"HTTP is spoken there: --target http://{target}, if it is the --http_port"
        with socket.create_connection(address, _TIMEOUT_S) as plain, context.wrap_socket(plain):
            return "TLS is spoken there: --tls_ca FILE"
    except (OSError, ValueError):
        return ""
