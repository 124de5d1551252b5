"""Asks the application of `tfde serve` for passages, over HTTP."""

from __future__ import annotations

import http.client
import json
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Sequence
from typing import Any

from tfde.errors import ServerError, shorten
from tfde.serving.hit import Hit

_MAX_BYTES = 1 << 28  # 20,000 hits of 13 kB each


def search_over_http(
    url: str, texts: Sequence[str], k: int, *, timeout_s: float = 30.0
) -> list[list[Hit]]:
    """Finds the best documents for each query, in a bundle or in an index that changes.

    Args:
        url: Of the application, such as `http://localhost:8502`.
        texts: The queries.
        k: How many documents a query gets, at most.
        timeout_s: Seconds to wait for the answer.

    Returns:
        One list a query, best first.

    Raises:
        ServerError: the server does not answer, refuses, or is no application of `tfde serve`.
    """
    asked = json.dumps({"query": list(texts), "k": k, "texts": True}).encode()
    request = urllib.request.Request(
        f"{url.rstrip('/')}/v1/search", asked, {"Content-Type": "application/json"}
    )
    try:
        with _opener(url).open(request, timeout=timeout_s) as response:
            body = response.read(_MAX_BYTES + 1)
        if len(body) > _MAX_BYTES:
            raise ServerError(f"{url}: its answer must have at most {_MAX_BYTES} bytes.")
        answer = json.loads(body)
        return [[_hit(hit) for hit in result["hits"]] for result in answer["results"]]
    except urllib.error.HTTPError as error:
        raise ServerError(f"{url} refused the request: {_reason(error)}") from error
    except TimeoutError as error:
        raise ServerError(f"{url} did not answer within {timeout_s:g} s") from error
    except http.client.InvalidURL as error:
        raise ServerError(f"{url} is no address such as http://localhost:8502: {error}") from error
    except http.client.HTTPException as error:
        raise ServerError(
            f"{url} speaks no HTTP (gRPC's port?); the search is at --http_port (8502)"
        ) from error
    except OSError as error:
        reason = getattr(error, "reason", None) or error
        raise ServerError(
            f"cannot connect to {url} (is the server running, and this its --http_port?): {reason}"
        ) from error
    except (ValueError, KeyError, TypeError) as error:
        raise ServerError(f"{url}: its answer is none of tfde serve's: {error}") from error


def _opener(url: str) -> urllib.request.OpenerDirector:
    """Returns what opens the address; this machine is never asked through a proxy."""
    host = urllib.parse.urlsplit(url).hostname or ""
    here = host == "localhost" or host == "::1" or host.startswith("127.")
    proxies = urllib.request.ProxyHandler({} if here else None)
    return urllib.request.build_opener(proxies)


def _hit(fields: dict[str, Any]) -> Hit:
    rank, score, doc_id = fields["rank"], fields["score"], fields["doc_id"]
    return Hit(rank, score, doc_id, fields["title"], fields["text"], fields.get("metadata"))


def _reason(error: urllib.error.HTTPError) -> str:
    """What the body says, or its beginning where the server is another one."""
    body = error.read(4096).decode("utf-8", "replace")
    try:
        return f"HTTP {error.code}: {json.loads(body)['error']['message']}"
    except (ValueError, KeyError, TypeError):  # another server's, such as the REST port's
        said = shorten(body.strip() or error.reason)
        return f"HTTP {error.code}: {said}; the search is at --http_port (8502)"
