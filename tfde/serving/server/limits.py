"""What a client may ask for at most, on every port: one record, a flag for each field."""

from __future__ import annotations

import dataclasses
import logging
import resource
from dataclasses import dataclass
from typing import Any

from tfde.errors import require

_PORTS = 3  # gRPC, REST, application
BACKLOG = 512  # connections that a port may accept at once, before it looks how many it has
# Files of models, index and log, event loops, and what is accepted at once on two ports.
_OWN_DESCRIPTORS = 512 + 2 * BACKLOG

_log = logging.getLogger(__name__)


def _flag(default: Any, text: str) -> Any:
    return dataclasses.field(default=default, metadata={"help": text})


@dataclass(frozen=True)
class Limits:
    """Bounds of requests; each field's help stands beside it, and docs/security.md has them all.

    The defaults are those of `tfde serve`, whose models read texts (`MODEL_SERVER` for others).

    Raises:
        ConfigError: a number is below what it can be.
    """

    max_request_bytes: int = _flag(
        32 * 2**20, "bytes of a request as sent, unpacked, and as tensors; beyond them HTTP 413"
    )
    max_bytes_in_hand: int = _flag(
        256 * 2**20, "bytes of all bodies that an HTTP port holds at a time; beyond them HTTP 503"
    )
    max_json_lists: int = _flag(
        1_000_000, "brackets [ and { in a JSON body, and names, which the parser is slow at"
    )
    max_texts: int = _flag(16_384, "strings in a request; 0 for no bound but that of its bytes")
    max_text_bytes: int = _flag(65_536, "bytes of a string in a request; 0 for no bound of its own")
    max_connections: int = _flag(
        1000, "connections of a port; a further one takes the place of one that waits longest"
    )
    head_timeout_s: float = _flag(10.0, "seconds in which the head of a request must have come")
    body_timeout_s: float = _flag(
        60.0, "seconds in which its body must have come, and its answer must have been taken"
    )
    request_timeout_s: float = _flag(
        600.0, "seconds after which the application gives a request up, its wait included"
    )
    stalled_after_s: float = _flag(
        60.0, "seconds after which /readyz is 503 while models run and none of them ends"
    )
    drain_timeout_s: float = _flag(60.0, "seconds that running requests get when the server stops")

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            smallest = 0 if field.name in ("max_texts", "max_text_bytes", "drain_timeout_s") else 1
            value = getattr(self, field.name)
            require(value >= smallest, f"--{field.name}", f"at least {smallest}", value)


# Strings may be images or examples there, and rows of a table many.
MODEL_SERVER = Limits(max_texts=0, max_text_bytes=0)
# For requests that come from no client: a model's own warm-up.
NO_LIMITS = Limits(max_request_bytes=2**62, max_texts=0, max_text_bytes=0)


def with_descriptors(limits: Limits) -> Limits:
    """Lets the process have a descriptor for every connection, or fewer connections.

    Returns:
        The limits, with no more connections than the system gives descriptors for.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _PORTS * limits.max_connections + _OWN_DESCRIPTORS
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        return limits
    given = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, given), hard))
    if given == wanted:
        return limits
    connections = max(1, (max(soft, given) - _OWN_DESCRIPTORS) // _PORTS)
    _log.warning(
        "--max_connections is %d, not %d: the system gives this process %d descriptors"
        " (ulimit -Hn)",
        connections,
        limits.max_connections,
        max(soft, given),
    )
    return dataclasses.replace(limits, max_connections=connections)
