"""The attacks of `server_faults.py`: each sends something to a server, and says what came back.

    python benchmarks/server_attacks.py NAME '[GRPC, REST, HTTP, PID, "FOLDER"]'

They come from curl, grpc's client and plain sockets, to 127.0.0.1 only, each for some seconds.
"""

from __future__ import annotations

import collections
import contextlib
import gzip
import http.client
import json
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import grpc

MIB = 2**20
KEY = "a key of this campaign alone"
PREDICT = "/tensorflow.serving.PredictionService/Predict"
WORDS = "red green blue apple pear plum cat dog bird river lake road house tree stone".split()  # noqa: SIM905
EMOJI = "\U0001f600"

Outcome = dict[str, int]


class Ports(NamedTuple):
    """Where the server listens, and the folder with requests that were made before."""

    grpc: int
    rest: int
    http: int
    pid: int
    folder: str


def count(outcomes: Any) -> Outcome:
    return dict(collections.Counter(map(str, outcomes)).most_common())


def post(port: int, path: str, body: bytes, *, timeout_s: float = 60, **headers: str) -> str:
    """Returns the status of an answer, or how there was none."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=timeout_s)
    try:
        names = {name.replace("_", "-"): value for name, value in headers.items()}
        connection.request("POST", path, body, names)
        response = connection.getresponse()
        response.read()
        return str(response.status)
    except (OSError, http.client.HTTPException) as error:
        return type(error).__name__
    finally:
        connection.close()


def search(port: int, query: Any, k: int = 5) -> str:
    return post(port, "/v1/search", json.dumps({"query": query, "k": k}).encode())


def curl(*arguments: str) -> str:
    done = subprocess.run(
        ["curl", "-sS", "-o", "/dev/null", "-w", "%{http_code}", "--max-time", "60", *arguments],
        capture_output=True,
        text=True,
        check=False,
    )
    return f"curl {done.stdout or done.stderr.strip()}"


def call(port: int, data: bytes, *, compression: Any = None, timeout_s: float = 60) -> str:
    options = [("grpc.max_send_message_length", -1), ("grpc.max_receive_message_length", -1)]
    with grpc.insecure_channel(f"127.0.0.1:{port}", options) as channel:
        try:
            channel.unary_unary(PREDICT)(data, timeout=timeout_s, compression=compression)
            return "OK"
        except grpc.RpcError as error:
            return str(error.code().name)


def together(asks: list[Callable[[], str]]) -> Outcome:
    with ThreadPoolExecutor(len(asks)) as pool:
        return count(future.result() for future in [pool.submit(ask) for ask in asks])


def emoji_query(ports: Ports) -> Outcome:
    """2 queries of 4 MiB of emoji"""
    return together([lambda: search(ports.http, EMOJI * MIB)] * 2)


def emoji_texts(ports: Ports) -> Outcome:
    """4 requests of 64 texts of 64 KiB of emoji each"""
    texts = [EMOJI * 16_384] * 64
    body = json.dumps({"input": texts}, ensure_ascii=False).encode()
    return together([lambda: post(ports.http, "/v1/embeddings", body)] * 4)


def gzip_bomb(ports: Ports) -> Outcome:
    """8 bodies of 260 kB that unpack to 256 MiB, to REST and application"""
    packed = gzip.compress(b'{"instances": ["' + b" " * (256 * MIB) + b'"]}')
    targets = [(ports.rest, "/v1/models/query_encoder:predict"), (ports.http, "/v1/search")] * 4
    return together(
        [lambda t=t: post(*t, packed, Content_Encoding="gzip") for t in targets]  # type: ignore[misc]
    )


def large_bodies(ports: Ports) -> Outcome:
    """bodies of 40 MiB by curl to REST and application, declared and in chunks"""
    path = Path(ports.folder, "large")
    path.write_bytes(b" " * (40 * MIB))
    found = []
    for port, place in (
        (ports.rest, "/v1/models/query_encoder:predict"),
        (ports.http, "/v1/search"),
    ):
        for extra in ([], ["-H", "Transfer-Encoding: chunked"], ["-H", "Expect:"]):
            url = f"http://127.0.0.1:{port}{place}"
            found.append(curl("-X", "POST", "--data-binary", f"@{path}", *extra, url))
    return count(found)


def many_bodies(ports: Ports) -> Outcome:
    """24 bodies of 30 MiB at a time, twice"""
    body = b'{"query": "' + b" " * (30 * MIB) + b'"}'
    found: collections.Counter[str] = collections.Counter()
    for _ in range(2):
        found.update(together([lambda: post(ports.http, "/v1/search", body)] * 24))
    return dict(found)


def json_lists(ports: Ports) -> Outcome:
    """bodies of 30 MiB of [], and of {}, of 900 levels, of 1 MiB of [, to REST and application"""
    bodies = [
        b"[" + b"[]," * (10 * MIB) + b"0]",
        b"[" + b"{}," * (10 * MIB) + b"0]",
        b"[" + (b"[" * 900 + b"]" * 900 + b",") * (30 * MIB // 1801) + b"0]",
        b"[" * MIB,
    ]
    found: collections.Counter[str] = collections.Counter()
    for body in bodies:
        found[post(ports.rest, "/v1/models/query_encoder:predict", b'{"inputs": %s}' % body)] += 1
        found[post(ports.http, "/v1/search", b'{"query": %s}' % body)] += 1
    return dict(found)


def json_lists_within(ports: Ports) -> Outcome:
    """8 bodies of as many lists, numbers, strings or names as REST may be sent, to both"""
    bodies = [
        b"{" + b",".join(b'"%d":0' % number for number in range(999_000)) + b"}",
        b"[" + b"{}," * 999_000 + b"0]",
        b"[" + b"0.5," * (7 * MIB) + b"0]",
        b"[" + b'"ab",' * (6 * MIB) + b'""]',
    ]
    found: collections.Counter[str] = collections.Counter()
    for body in bodies:
        found[post(ports.rest, "/v1/models/query_encoder:predict", b'{"inputs": %s}' % body)] += 1
        found[post(ports.http, "/v1/search", b'{"query": %s}' % body)] += 1
    return dict(found)


def repeated_value(ports: Ports) -> Outcome:
    """8 Predicts of 70 bytes: one string for the shape [16000000], or [2^62], or [65536, 65536]"""
    found = []
    for name in ("repeated", "huge", "square", "repeated") * 2:
        found.append(call(ports.grpc, Path(ports.folder, name).read_bytes()))
    return count(found)


def many_strings(ports: Ports) -> Outcome:
    """4 Predicts of 100,000 short strings, and one of 16,384"""
    data = Path(ports.folder, "strings").read_bytes()
    found = together([lambda: call(ports.grpc, data)] * 4)
    most = Path(ports.folder, "most_strings").read_bytes()
    return dict(collections.Counter(found) + collections.Counter([call(ports.grpc, most)]))


def large_messages(ports: Ports) -> Outcome:
    """gRPC messages of 40 MiB, and of 256 MiB that gzip makes small"""
    zeros = bytes(40 * MIB)
    packed = bytes(256 * MIB)
    return count(
        [
            call(ports.grpc, zeros),
            call(ports.grpc, zeros, compression=grpc.Compression.Gzip),
            call(ports.grpc, packed, compression=grpc.Compression.Gzip),
        ]
    )


@contextlib.contextmanager
def sockets(ports: Ports, number: int) -> Iterator[list[socket.socket]]:
    """Opens connections, as many to each port."""
    opened: list[socket.socket] = []
    try:
        for port in (ports.grpc, ports.rest, ports.http):
            for _ in range(number):
                with contextlib.suppress(OSError):
                    opened.append(socket.create_connection(("127.0.0.1", port), timeout=5))
        yield opened
    finally:
        for one in opened:
            one.close()


def still_open(opened: list[socket.socket]) -> Outcome:
    """Looks which connections the server has closed."""

    def state(one: socket.socket) -> str:
        one.settimeout(0)
        try:
            while data := one.recv(65536):
                if data.startswith(b"HTTP/1.1 "):
                    return data[9:12].decode()
            return "closed"
        except BlockingIOError:
            return "open"
        except OSError:
            return "closed"

    return count(map(state, opened))


def idle_connections(ports: Ports) -> Outcome:
    """1,200 idle connections to each port, for 15 s"""
    with sockets(ports, 1200) as opened:
        time.sleep(15)
        return still_open(opened)


def slow_heads(ports: Ports) -> Outcome:
    """400 heads to each port at a byte a second, for 15 s"""
    with sockets(ports, 400) as opened:
        head = b"POST /v1/search HTTP/1.1\r\nHost: localhost\r\n"
        for byte in head[:15]:
            for one in opened:
                with contextlib.suppress(OSError):
                    one.send(bytes([byte]))
            time.sleep(1)
        return still_open(opened)


def slow_bodies(ports: Ports) -> Outcome:
    """1,200 bodies of 1 MiB to REST and application at a byte a second, for 15 s"""
    with sockets(ports._replace(grpc=ports.http), 600) as opened:
        head = b"POST /v1/search HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1048576\r\n\r\n"
        for one in opened:
            with contextlib.suppress(OSError):
                one.send(head)
        for _ in range(15):
            for one in opened:
                with contextlib.suppress(OSError):
                    one.send(b" ")
            time.sleep(1)
        return still_open(opened)


def tiny_chunks(ports: Ports) -> Outcome:
    """16 bodies to REST and application in as many chunks of one byte as go, for 10 s"""
    chunks = b"1\r\nx\r\n" * 40_000

    def send(port: int) -> str:
        with socket.create_connection(("127.0.0.1", port), timeout=30) as one:
            one.sendall(
                b"POST /v1/search HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"
            )
            end = time.monotonic() + 10
            try:
                while time.monotonic() < end:
                    one.sendall(chunks)
            except OSError as error:
                return type(error).__name__
            return "taken"

    return together([lambda port=port: send(port) for port in (ports.rest, ports.http) * 8])  # type: ignore[misc]


def calls_without_message(ports: Ports) -> Outcome:
    """300 gRPC calls whose message never comes, for 15 s"""
    end = threading.Event()

    def nothing() -> Iterator[bytes]:
        end.wait(15)
        return iter(())

    with grpc.insecure_channel(f"127.0.0.1:{ports.grpc}") as channel:
        method = channel.stream_unary(PREDICT)
        futures = [method.future(nothing_of(nothing), timeout=20) for _ in range(300)]
        time.sleep(15)
        states = [future.code().name if future.done() else "open" for future in futures]
        end.set()
        for future in futures:
            future.cancel()
    return count(states)


def nothing_of(make: Callable[[], Iterator[bytes]]) -> Iterator[bytes]:
    yield from make()


def unread_answers(ports: Ports) -> Outcome:
    """60 searches for 20,000 hits whose answers nobody reads, for 15 s"""
    body = json.dumps({"query": WORDS * 10, "k": 130}).encode()
    head = b"POST /v1/search HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n"
    opened = []
    for _ in range(60):
        one = socket.socket()
        one.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        one.connect(("127.0.0.1", ports.http))
        one.sendall(head % len(body) + body)
        opened.append(one)
    time.sleep(15)
    for one in opened:
        one.close()
    return {"sent": len(opened)}


def clients_that_leave(ports: Ports) -> Outcome:
    """400 requests to embed 128 long texts, whose clients leave at once"""
    body = json.dumps({"input": ["green red cat " * 4000] * 128}).encode()
    head = b"POST /v1/embeddings HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n"
    for _ in range(400):
        with socket.create_connection(("127.0.0.1", ports.http), timeout=30) as one:
            one.sendall(head % len(body) + body)
    return {"sent": 400}


def lone_surrogates(ports: Ports) -> Outcome:
    """1,600 searches from 8 clients, one in 8 with half a surrogate pair"""

    def ask(number: int) -> str:
        wrong = number % 8 == 0
        status = search(ports.http, "\ud800 red" if wrong else f"red {WORDS[number % 15]}")
        return f"{'wrong' if wrong else 'right'} {status}"

    with ThreadPoolExecutor(8) as pool:
        return count(pool.map(ask, range(1600)))


def wrong_deletes(ports: Ports) -> Outcome:
    """deletions of an id that is there with one that is none, and additions of half pairs"""
    found = []
    key = {"Authorization": f"Bearer {KEY}"}
    before = status_of(ports)
    for ids in (["d1", "\ud800"], ["d1", "a b"], ["d1", 5]):
        found.append(post(ports.http, "/v1/index/delete", json.dumps({"ids": ids}).encode(), **key))
    for field in ("id", "title", "text"):
        document = {"id": "new", "title": "t", "text": "x", field: "\udfff"}
        body = json.dumps({"documents": [{"id": "ok", "text": "x"}, document]}).encode()
        found.append(post(ports.http, "/v1/index/documents", body, **key))
    found.append("nothing changed" if status_of(ports) == before else "CHANGED")
    return count(found)


def status_of(ports: Ports) -> Any:
    url = f"http://127.0.0.1:{ports.http}/v1/index/status"
    request = urllib.request.Request(url, headers={"Authorization": f"Bearer {KEY}"})
    with urllib.request.urlopen(request, timeout=30) as response:
        return json.load(response)


def without_key(ports: Ports) -> Outcome:
    """20 bodies of 30 MiB by curl to /v1/index without the key"""
    path = Path(ports.folder, "unasked")
    path.write_bytes(b" " * (30 * MIB))
    url = f"http://127.0.0.1:{ports.http}/v1/index/documents"
    return together([lambda: curl("-X", "POST", "--data-binary", f"@{path}", url)] * 20)


def nonsense(ports: Ports) -> Outcome:
    """6,000 connections that send what is no HTTP"""
    found: collections.Counter[str] = collections.Counter()
    for number in range(6000):
        port = (ports.rest, ports.http, ports.grpc)[number % 3]
        try:
            with socket.create_connection(("127.0.0.1", port), timeout=10) as one:
                one.sendall(b"\x16\x03\x01 nonsense \r\n\r\n")
                answer = one.recv(64)
                found[answer[9:12].decode() if answer.startswith(b"HTTP") else "closed"] += 1
        except OSError as error:
            found[type(error).__name__] += 1
    return dict(found)


def end_under_load(ports: Ports) -> Outcome:
    """SIGTERM while 16 clients ask for the embeddings of 2,048 long texts"""
    body = json.dumps({"input": ["green red cat " * 500] * 2048}).encode()
    threads = [
        threading.Thread(
            target=post, args=(ports.http, "/v1/embeddings", body), kwargs={"timeout_s": 120}
        )
        for _ in range(16)
    ]
    for thread in threads:
        thread.start()
    time.sleep(3)
    started = time.monotonic()
    subprocess.run(["kill", "-TERM", str(ports.pid)], check=True)
    while Path(f"/proc/{ports.pid}/stat").exists():
        if Path(f"/proc/{ports.pid}/stat").read_text().rsplit(")", 1)[1].split()[0] == "Z":
            break
        if time.monotonic() - started > 120:
            return {"STILL THERE after 120 s": 1}
        time.sleep(0.1)
    return {f"ended after {time.monotonic() - started:.0f} s": 1}


ATTACKS: dict[str, Callable[[Ports], Outcome]] = {
    attack.__name__: attack
    for attack in (
        emoji_query, emoji_texts, gzip_bomb, large_bodies, many_bodies, json_lists,
        json_lists_within, repeated_value, many_strings, large_messages, idle_connections,
        slow_heads, slow_bodies, tiny_chunks, calls_without_message, unread_answers,
        clients_that_leave, lone_surrogates, wrong_deletes, without_key, nonsense, end_under_load,
    )
}  # fmt: skip


if __name__ == "__main__":
    print(json.dumps(ATTACKS[sys.argv[1]](Ports(*json.loads(sys.argv[2])))))
