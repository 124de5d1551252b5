"""The documents of a small bundle, `tfde serve` on it, and how its answers are compared."""

import json
import re
import subprocess
import sys
import urllib.error
import urllib.request

import tiny

from tfde.types import Document

DOCUMENTS = [
    Document(
        f"d{i}",
        f"Title {i % 9}" if i % 3 else "",
        text,
        {"row": i, "tags": ["é", None]} if i % 4 else None,
    )
    for i, text in enumerate(tiny.document_texts()[:150])
]
QUERIES = ["green red", "", "cat", "stone tree house " * 9, "naïve ☃", "river lake"]


class BundleServer:
    """`tfde serve BUNDLE` in a process of its own."""

    def __init__(self, bundle, *options):
        command = [sys.executable, "-m", "tfde.cli.main", "serve", str(bundle), *map(str, options)]
        self.process = subprocess.Popen(
            [*command, "--port", "0", "--rest_api_port", "0", "--http_port", "0"],
            stdout=subprocess.PIPE,
            text=True,
        )
        self.ready = self.process.stdout.readline()
        self.target = re.search(r"gRPC (\S+),", self.ready)[1]
        self.url = re.search(r"REST (\S+),", self.ready)[1]
        self.search_url = re.search(r"search (http\S+);", self.ready)[1]


def http(url, body=None, *, key=None):
    data = body if isinstance(body, bytes | None) else json.dumps(body).encode()
    headers = {"Content-Type": "application/json"}
    if key is not None:
        headers["Authorization"] = f"Bearer {key}"
    request = urllib.request.Request(url, data, headers)
    try:
        with urllib.request.urlopen(request, timeout=30) as response:
            return response.status, response.read()
    except urllib.error.HTTPError as error:
        return error.code, error.read()


def assert_same_ranking(found, expected, scores_of_all):
    """Equal rankings; documents whose scores differ by rounding alone may change places."""
    assert len(found) == len(expected)
    for row, expected_row, scores in zip(found, expected, scores_of_all, strict=True):
        assert len(set(row)) == len(row) == len(expected_row)
        for doc_id, expected_id in zip(row, expected_row, strict=True):
            assert abs(scores[int(doc_id[1:])] - scores[int(expected_id[1:])]) < 1e-6
