"""The parts of the comparison of served search: clients, figures, and the peer's batching."""

import asyncio
import functools
import importlib
import json
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest
from benchmark_script import BENCHMARKS


def load(name):
    sys.path.insert(0, str(BENCHMARKS))  # as `python benchmarks/served_search.py` has it
    try:
        return importlib.import_module(name)
    finally:
        sys.path.remove(str(BENCHMARKS))


@pytest.fixture(scope="module")
def script():
    return load("served_search")


class Slow:
    """An HTTP server that answers a text by itself after 50 ms."""

    def __init__(self, status="200 OK"):
        self.status, self.connections, self.running, self.most, self.texts = status, 0, 0, 0, []

    async def __call__(self, reader, writer):
        self.connections += 1
        while not reader.at_eof():
            try:
                head = await reader.readuntil(b"\r\n\r\n")
            except asyncio.IncompleteReadError:  # the client has closed
                break
            length = int(head.lower().partition(b"content-length:")[2].split()[0])
            question = json.loads(await reader.readexactly(length))
            self.texts.append(question["text"])
            self.running += 1
            self.most = max(self.most, self.running)
            await asyncio.sleep(0.05)
            self.running -= 1
            body = json.dumps({"doc_ids": [question["text"]] * question["k"]}).encode()
            writer.write(f"HTTP/1.1 {self.status}\r\nContent-Length: {len(body)}\r\n\r\n".encode())
            writer.write(body)


def ask(script, slow, texts, clients):
    async def run():
        async with await asyncio.start_server(slow, "127.0.0.1", 0) as server:
            port = server.sockets[0].getsockname()[1]
            side = script.Side("slow", functools.partial(script.PeerAsk, port))
            return await script.turn(side, texts, clients, seconds=0.5)

    return asyncio.run(run())


def test_each_client_waits_for_its_answer(script):
    slow, texts = Slow(), [f"t{number}" for number in range(7)]
    figures, found = ask(script, slow, texts, clients=3)
    assert (slow.most, slow.connections) == (3, 3)
    counted = slow.texts[3:]  # after the first answers, which open the connections
    assert found == {text: [text] * 10 for text in counted}
    assert all(len(counted) // 7 <= counted.count(text) <= len(counted) // 7 + 1 for text in texts)
    assert 50 <= figures["p50_ms"] <= figures["p99_ms"]
    # The last answers come after the half second.
    assert figures["queries_per_s"] * 0.5 <= len(counted)
    assert figures["queries_per_s"] <= 3 / 0.05
    assert figures["client_cpu_ms"] > 0


def test_a_failed_question_ends_the_measurement(script):
    with pytest.raises(RuntimeError, match=r"the server answered HTTP 500: .*doc_ids"):
        ask(script, Slow("500 No"), ["t"], clients=1)


def test_ratios_are_of_turns(script):
    rates = {"tfde": [10.0, 30.0, 20.0], "peer": [10.0, 10.0, 40.0]}
    turns = {name: [{"queries_per_s": rate} for rate in row] for name, row in rates.items()}
    assert script.summary(turns) == {
        "tfde": {"queries_per_s": 20.0},
        "peer": {"queries_per_s": 10.0},
        "tfde against peer": {
            "ratio": 1.0, "ratio_lowest": 0.5, "ratio_highest": 3.0, "pairs": 3,
        },
    }  # fmt: skip


def test_ids_are_compared_where_both_answered(script):
    found = {
        "tfde": {"a": ["1", "2"], "b": ["3", "4"], "c": ["5", "6"]},
        "peer": {"a": ["2", "1"], "b": ["4", "7"], "d": ["8", "9"]},
        "peer_batched": {"b": ["3"]},
    }
    assert script.equal_ids(found) == {
        "tfde, peer": 0.75,
        "tfde, peer_batched": 0.5,
        "peer, peer_batched": 0.0,
    }


@pytest.mark.peers
def test_the_peer_joins_waiting_questions():
    peer, batches = load("peer_server"), []

    def search(texts, k):
        batches.append(len(texts))
        if "bad" in texts:
            raise ValueError("a bad text")
        return [([text] * k, [1.0] * k) for text in texts]

    async def run():
        with ThreadPoolExecutor(1) as pool:
            batcher = peer.Batcher(search, pool)
            task = asyncio.create_task(batcher.run())
            found = await asyncio.gather(*(batcher.ask(str(n), 1 + n % 3) for n in range(40)))
            with pytest.raises(ValueError, match="a bad text"):
                await batcher.ask("bad", 1)
            found.append(await batcher.ask("after", 1))
            task.cancel()
        return found

    *found, last = asyncio.run(run())
    assert found == [([str(n)] * (1 + n % 3), [1.0] * (1 + n % 3)) for n in range(40)]
    assert last == (["after"], [1.0])
    assert batches == [32, 8, 1, 1]
