"""The client: what it takes as a target, and that it finds a server that starts again."""

import contextlib
import socket
import time
from concurrent.futures import ThreadPoolExecutor

import grpc
import pytest

from tfde.errors import ConfigError, ServerError
from tfde.serving.client import Client
from tfde.serving.http_client import search_over_http
from tfde.serving.sharded_client import ShardedClient


@pytest.mark.parametrize(
    "target", ["http://localhost:8500", "https://search.example/v1", "localhost"]
)
def test_a_url_or_a_host_alone_is_no_target(target):
    with pytest.raises(ConfigError, match=rf"`target` must be HOST:PORT.* Received: '{target}'"):
        Client(target)


def test_a_server_that_starts_again_is_found_at_once():
    with socket.create_server(("127.0.0.1", 0)) as one:
        target = f"127.0.0.1:{one.getsockname()[1]}"
    with Client(target) as client:

        def answers():
            with pytest.raises(ServerError) as caught:
                client.status()
            return "UNIMPLEMENTED" in str(caught.value)  # by a server that knows no model

        begun = time.monotonic()
        while time.monotonic() < begun + 3:  # by default the next try would be 2 s later
            assert not answers()
            time.sleep(0.02)
        server = grpc.server(ThreadPoolExecutor(1))
        assert server.add_insecure_port(target)
        server.start()
        begun = time.monotonic()
        while not answers():
            assert time.monotonic() < begun + 1
            time.sleep(0.02)
        server.stop(0)


def test_half_a_surrogate_pair_is_told_before_it_is_sent():
    with Client("127.0.0.1:1") as client:
        calls = [client.search, client.encode_queries, client.encode_documents]
        for call in calls:
            with pytest.raises(ConfigError, match="`texts` must be texts that UTF-8 can write"):
                call(["caf\ud83d"])


def test_a_shard_that_hangs_keeps_nobody_from_the_others():
    """Each of the hanging shard's calls takes a second."""
    with socket.create_server(("127.0.0.1", 0)) as hangs, socket.socket() as free:
        free.bind(("127.0.0.1", 0))  # nobody listens: UNAVAILABLE at once
        targets = [f"127.0.0.1:{one.getsockname()[1]}" for one in (hangs, free)]
        with ShardedClient(targets, timeout_s=1) as client, ThreadPoolExecutor(20) as threads:
            running = [threads.submit(client.search, ["text"]) for _ in range(20)]
            time.sleep(0.5)
            assert client._pools[1]._work_queue.qsize() == 0
            for one in running:
                with pytest.raises(ServerError, match="0 of 2 shards answered"):
                    one.result()


def test_an_address_that_is_none_is_told(monkeypatch):
    with pytest.raises(
        ServerError, match=r"http://localhost:85O2 is no address such as http://loc"
    ):
        search_over_http("http://localhost:85O2", ["x"], 1)
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")  # where nobody answers
    with contextlib.closing(socket.create_server(("127.0.0.1", 0))) as listening:
        port = listening.getsockname()[1]
        with pytest.raises(
            ServerError, match=r"did not answer within 0\.5 s"
        ):  # it was asked itself
            search_over_http(f"http://127.0.0.1:{port}", ["x"], 1, timeout_s=0.5)
