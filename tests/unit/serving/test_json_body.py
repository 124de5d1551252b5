"""The application's JSON: what is large is read in a thread, and within bounds."""

import asyncio
import json
import threading

import pytest
from fastapi import FastAPI

from tfde.serving.application import json_body
from tfde.serving.application.http_api import SearchRequest
from tfde.serving.application.json_body import JsonRoute

MIB = 2**20


def ask(body):
    """Status and answer of an application that tells what it was asked."""
    app = FastAPI()
    app.router.route_class = JsonRoute

    @app.post("/")
    def tell(request: SearchRequest):
        return [len(request.query), request.k]

    sent = []

    async def receive():
        return {"type": "http.request", "body": body, "more_body": False}

    async def send(message):
        sent.append(message)

    headers = [(b"content-type", b"application/json")]
    scope = {
        "type": "http", "method": "POST", "path": "/", "query_string": b"", "headers": headers,
    }  # fmt: skip
    asyncio.run(app(scope, receive, send))
    return sent[0]["status"], json.loads(sent[1]["body"])


def test_large_bodies_are_read_in_a_thread(monkeypatch):
    threads = []
    parse = json_body.parse_json

    def noted(body):
        threads.append(threading.current_thread() is threading.main_thread())
        return parse(body)

    monkeypatch.setattr(json_body, "parse_json", noted)
    assert ask(b'{"query": "green", "k": 3}') == (200, [5, 3])
    # Quotes and backslashes that are escaped end no string.
    text = '\\" [{,:' * 3 * MIB
    assert ask(json.dumps({"query": [text]}).encode()) == (200, [1, 10])
    assert threads == [True, False]


def test_what_no_call_takes_is_refused():
    bodies = {
        "numbers": b"[" + b"0.5," * 7 * MIB + b"0]",
        "names": b"{" + b'"a":0,' * 70_000 + b'"a":0}',
        "strings": b"[" + b'"a",' * 70_000 + b"0]",
        "escaped": b"[" + b'"\\\\",' * 70_000 + b"0]",
        "lists": b"[" + b"[]," * 400_000 + b"0]",
    }
    for name, body in bodies.items():
        status, answer = ask(b'{"query": %s}' % body)
        rule = "32768 strings" if name in ("names", "strings", "escaped") else "1048576 bytes besi"
        assert status == 400
        assert f"the body's JSON must have at most {rule}" in answer["detail"]


@pytest.mark.parametrize("size", [10, 100_000])
def test_faults_are_told_whatever_the_size(size):
    space = b" " * size
    status, answer = ask(space + b"{")
    assert (status, answer["detail"][0]["type"]) == (422, "json_invalid")
    status, answer = ask(space + b"[" * 30_000)
    assert (status, answer["detail"]) == (400, "the body must be JSON: nested too deep")
    status, answer = ask(space + b'{"k": ' + b"1" * 5000 + b"}")
    assert (status, answer["detail"]) == (400, "the body must be JSON: a number is too long")
