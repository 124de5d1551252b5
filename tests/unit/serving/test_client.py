"""The client finds a server that starts again."""

import socket
import time
from concurrent.futures import ThreadPoolExecutor

import grpc
import pytest

from tfde.errors import ServerError
from tfde.serving.client import Client


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
