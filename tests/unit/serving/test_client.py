"""The client: what it takes as a target, and that it finds a server that starts again."""

import socket
import time
from concurrent.futures import ThreadPoolExecutor

import grpc
import pytest

from tfde.errors import ConfigError, ServerError
from tfde.serving.client import Client


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
