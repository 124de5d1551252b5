"""Who asks a served index and its peer: `await ask(text)` gives the ids of the best documents."""

import json
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "serving"))
from load_client import GrpcAsk, RestAsk

K = 10
TIMEOUT_S = 60.0
NOT_THERE = ("UNAVAILABLE", "NO ANSWER")  # gRPC's word, and what RestAsk says of HTTP


class TfdeAsk:
    """Asks a retriever by one Predict."""

    def __init__(self, port: int, retriever: str) -> None:
        self._ask = GrpcAsk(f"127.0.0.1:{port}", retriever, k=K, timeout_s=TIMEOUT_S)

    async def __call__(self, text: str) -> list[str]:
        code, detail, response = await self._ask.answer(text)
        check(code, detail)
        return [doc_id.decode() for doc_id in response.outputs["doc_ids"].string_val]

    async def aclose(self) -> None:
        await self._ask.close()


class PeerAsk:
    """Asks the peer over connections that are kept."""

    def __init__(self, port: int) -> None:
        self._ask = RestAsk(f"127.0.0.1:{port}", timeout_s=TIMEOUT_S)

    async def __call__(self, text: str) -> list[str]:
        code, detail, body = await self._ask.answer("/search", {"text": text, "k": K})
        check(code, detail)
        return json.loads(body)["doc_ids"]

    async def aclose(self) -> None:
        await self._ask.close()


def check(code: str, detail: str) -> None:
    """Ends the measurement where a question was not answered."""
    if code in NOT_THERE:
        raise ConnectionError(detail)
    if code != "OK":
        raise RuntimeError(f"the server answered {code}: {detail}")
