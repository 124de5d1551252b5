"""What a person should give where a port speaks another language than gRPC without TLS."""

from __future__ import annotations

import socket
import ssl

_TIMEOUT_S = 2.0


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
                return f"HTTP is spoken there: --target http://{target}"
        with socket.create_connection(address, _TIMEOUT_S) as plain, context.wrap_socket(plain):
            return "TLS is spoken there: --tls_ca FILE"
    except (OSError, ValueError):
        return ""
