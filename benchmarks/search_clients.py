"""Who asks a served index and its peer: `await ask(text)` gives the ids of the best documents."""

import json
import sys
from pathlib import Path

import grpc

from tfde.serving import wire

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


class TwoStepAsk:
    """Asks the query encoder for embeddings, and the retriever what is near them.

    Args:
        port: The server's.
        retriever: The model.
        doc_ids: By position.
    """

    def __init__(self, port: int, retriever: str, doc_ids: list[str]) -> None:
        self._encoder = GrpcAsk(f"127.0.0.1:{port}", "query_encoder", timeout_s=TIMEOUT_S)
        self._retriever, self._doc_ids = retriever, doc_ids
        self._channel = grpc.aio.insecure_channel(f"127.0.0.1:{port}")
        stub = wire.prediction_service_pb2_grpc.PredictionServiceStub(self._channel)
        self._predict = stub.Predict

    async def __call__(self, text: str) -> list[str]:
        code, detail, encoded = await self._encoder.answer(text)
        check(code, detail)
        request = wire.predict_pb2.PredictRequest()
        request.model_spec.name = self._retriever
        request.model_spec.signature_name = "search"
        request.inputs["embeddings"].CopyFrom(encoded.outputs["embeddings"])
        wire.put_int32(request.inputs["k"], K)
        found = await self._predict(request, timeout=TIMEOUT_S)
        return [self._doc_ids[position] for position in found.outputs["indices"].int_val]

    async def aclose(self) -> None:
        await self._encoder.close()
        await self._channel.close()


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
