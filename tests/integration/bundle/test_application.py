"""What `tfde serve` has beside TensorFlow Serving's protocol: search, embeddings, a live index."""

import base64
import contextlib
import hashlib
import http.client as http_client
import json
import shutil
import signal
import socket
import sqlite3
import time
import urllib.error
import urllib.parse
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import openai
import pytest
import tensorflow as tf
from bundle_server import DOCUMENTS, BundleServer, assert_same_ranking, http
from toy_models import save_toy

from tfde.cli.main import main
from tfde.errors import ServerError
from tfde.retrieval.exact_index import ExactIndex
from tfde.retrieval.faiss_index import FaissIndex
from tfde.serving.client import Client
from tfde.serving.server.limits import Limits
from tfde.types import Document


def test_search_over_http(server, exact, model):
    queries = ["green red", "naïve ☃"]
    status, body = http(f"{server.search_url}/v1/search", {"query": queries, "k": 7, "texts": True})
    answer = json.loads(body)
    assert (status, answer["retriever"], answer["version"]) == (200, "retriever", 1)
    assert [result["query"] for result in answer["results"]] == queries
    _, expected = exact.search(model.encode_queries(queries), 7)
    texts = {document.doc_id: document for document in DOCUMENTS}
    found = [[hit["doc_id"] for hit in result["hits"]] for result in answer["results"]]
    scores = model.encode_queries(queries) @ exact.vectors().T
    assert_same_ranking(found, expected.tolist(), scores)
    for result in answer["results"]:
        assert [hit["rank"] for hit in result["hits"]] == list(range(1, 8))
        for hit in result["hits"]:
            document = texts[hit["doc_id"]]
            found = (hit["title"], hit["text"], hit.get("metadata"))
            assert found == document[1:]
            assert ("metadata" in hit) == bool(document.metadata)
    # As `curl -d` sends it: called a form.
    request = urllib.request.Request(f"{server.search_url}/v1/search", b'{"query": "green red"}')
    with urllib.request.urlopen(request, timeout=30) as response:
        one = json.load(response)
    assert len(one["results"][0]["hits"]) == 10
    hit = one["results"][0]["hits"][0]
    assert "text" not in hit  # unless it is asked for
    assert hit["snippet"] == texts[hit["doc_id"]].text  # which is short


def test_embeddings_as_openais_clients_read_them(server, model):
    url = f"{server.search_url}/v1/embeddings"
    texts = ["green red", ""]
    status, body = http(url, {"input": texts, "model": "query_encoder"})
    answer = json.loads(body)
    assert (status, answer["object"], answer["model"]) == (200, "list", "query_encoder")
    assert [row["index"] for row in answer["data"]] == [0, 1]
    expected = model.encode_queries(texts)
    found = np.array([row["embedding"] for row in answer["data"]])
    np.testing.assert_allclose(found, expected, atol=1e-6)
    _, mask = model.preprocessor.queries(tf.constant(texts))
    assert answer["usage"]["prompt_tokens"] == int(tf.reduce_sum(mask))
    packed = {"input": texts[0], "model": "document_encoder", "encoding_format": "base64"}
    (row,) = json.loads(http(url, packed)[1])["data"]
    found = np.frombuffer(base64.b64decode(row["embedding"]), "<f4")
    expected = model.encode_documents([Document("d", "", texts[0])])[0]
    np.testing.assert_allclose(found, expected, atol=1e-6)


def test_openais_clients_as_they_come(server, model):
    base_url = f"{server.search_url}/v1"
    client = openai.OpenAI(base_url=base_url, api_key="-")
    assert [each.id for each in client.models.list()] == ["query_encoder", "document_encoder"]
    expected = model.encode_queries(["green red", "blue"])
    found = client.embeddings.create(
        model="query_encoder", input=["green red", "blue"], dimensions=6, user="someone"
    )
    np.testing.assert_allclose([row.embedding for row in found.data], expected, atol=1e-6)
    # The first numbers that the model was trained for, of unit length as the whole.
    for tower, whole in (
        ("query_encoder", expected),
        ("document_encoder", model.encode_documents(["green red", "blue"])),
    ):
        found = client.embeddings.create(model=tower, input=["green red", "blue"], dimensions=3)
        cut = whole[:, :3] / np.linalg.norm(whole[:, :3], axis=1, keepdims=True)
        np.testing.assert_allclose([row.embedding for row in found.data], cut, atol=1e-6)
    # As langchain-openai sends by default.
    with pytest.raises(openai.BadRequestError, match=r"check_embedding_ctx_length=False"):
        client.embeddings.create(model="query_encoder", input=[[4719, 2579]])


@pytest.mark.peers
def test_langchains_client_as_it_comes(server, tmp_path, monkeypatch):
    """It sends token ids of cl100k_base, which tiktoken would fetch: a package has them."""
    import langchain_openai
    import tiktoken_ext

    (folder,) = (path for path in tiktoken_ext.__path__ if Path(path, "data").is_dir())
    address = "https://openaipublic.blob.core.windows.net/encodings/cl100k_base.tiktoken"
    cached = tmp_path / hashlib.sha1(address.encode()).hexdigest()  # whose sha256 tiktoken knows
    shutil.copyfile(Path(folder, "data", "cl100k_base.tiktoken"), cached)
    monkeypatch.setenv("TIKTOKEN_CACHE_DIR", str(tmp_path))
    client = langchain_openai.OpenAIEmbeddings(
        base_url=f"{server.search_url}/v1", api_key="-", model="query_encoder"
    )
    line = r"token ids are another model's; .*check_embedding_ctx_length=False"
    for ask in (lambda: client.embed_documents(["green red"]), lambda: client.embed_query("red")):
        with pytest.raises(openai.BadRequestError, match=line):
            ask()


@pytest.mark.peers
def test_langchains_client(server, model):
    import langchain_openai

    client = langchain_openai.OpenAIEmbeddings(
        base_url=f"{server.search_url}/v1", api_key="-", model="query_encoder",
        check_embedding_ctx_length=False,
    )  # fmt: skip
    found = client.embed_documents(["green red", "blue"])
    np.testing.assert_allclose(found, model.encode_queries(["green red", "blue"]), atol=1e-6)
    assert client.embed_query("green red") == pytest.approx(found[0], abs=1e-6)


def test_openais_client_within_the_limits_and_beyond(server):
    client = openai.OpenAI(base_url=f"{server.search_url}/v1", api_key="-")
    # As many texts as OpenAI's own takes: 16 MiB, of which this model reads the beginnings.
    text = ("green red " * 820)[:8192]
    answer = client.embeddings.create(model="query_encoder", input=[text] * 2048)
    assert [row.index for row in answer.data] == list(range(2048))
    one = client.embeddings.create(model="query_encoder", input=text, encoding_format="float")
    np.testing.assert_allclose(answer.data[2047].embedding, one.data[0].embedding, atol=1e-6)
    for given, kind, message in (
        (["x" * 17_000] * 2048, openai.APIStatusError, r"at most 33554432 .*--max_request_bytes"),
        (["x" * 65_537], openai.BadRequestError, r"at most 65536 bytes \(--max_text_bytes\)"),
        (["x"] * 2049, openai.BadRequestError, "at most 2048 items"),
    ):
        with pytest.raises(kind, match=message):
            client.embeddings.create(model="query_encoder", input=given)


@pytest.mark.parametrize(
    ("path", "body", "status", "message"),
    [
        ("search", {"query": "x", "k": 0}, 400, "`k`: Input should be greater than or equal to 1"),
        (
            "search",
            {"query": "x", "k": True},
            400,
            "`k`: Input should be a valid integer. Received",
        ),
        ("search", {"query": " "}, 400, "`query`: Value error, a query must not be empty. Rec"),
        ("embeddings", {"input": [[9906]]}, 400, "`input`: Value error, token ids are another"),
        (
            "embeddings",
            {"input": "x", "dimensions": 5},
            400,
            "`dimensions` must be 3 or 6, which the model w",
        ),
        ("search", {"query": []}, 400, "`query`: Input should be a valid string, or List should"),
        ("search", {}, 400, "`query`: Field required"),
        ("search", b"{", 400, "the body must be JSON: "),
        ("search", {"query": "x", "kk": 3}, 400, "`kk`: Extra inputs are not permitted"),
        ("nothing", {}, 404, "POST /v1/nothing: Not Found"),
        ("n" * 5000, {}, 404, f"POST /v1/{'n' * 196}: Not Found"),
        ("embeddings", {"input": "x", "model": "../retriever"}, 404, "`model` must be query_enc"),
        ("embeddings", {"input": [1]}, 400, "`input"),
        ("search", {"query": ["x"] * 21, "k": 1000}, 400, "`k` must be at most 952 for 21 queries"),
    ],
)
def test_wrong_requests_over_http(server, path, body, status, message):
    found, answer = http(f"{server.search_url}/v1/{path}", body)
    assert found == status
    error = json.loads(answer)["error"]
    assert message in error["message"]
    assert "\n" not in error["message"]


def test_many_texts_at_once_are_encoded_as_few(server, model):
    texts = [" ".join(["green", "red", "cat"][: 1 + i % 3] * (1 + i % 5)) for i in range(300)]
    body = {"input": texts, "model": "query_encoder"}
    status, answer = http(f"{server.search_url}/v1/embeddings", body)
    assert status == 200
    found = np.array([row["embedding"] for row in json.loads(answer)["data"]])
    np.testing.assert_allclose(found, model.encode_queries(texts), atol=1e-6)
    _, mask = model.preprocessor.queries(tf.constant(texts))
    assert json.loads(answer)["usage"]["total_tokens"] == int(tf.reduce_sum(mask))


def test_texts_without_utf8_are_refused_alone(server):
    def ask(number):
        body = {"query": "green \ud800" if number % 4 == 0 else "green red", "k": 2}
        return http(f"{server.search_url}/v1/search", body)

    with ThreadPoolExecutor(8) as threads:
        answers = list(threads.map(ask, range(64)))
    assert [status for status, _ in answers] == [400, 200, 200, 200] * 16
    error = json.loads(answers[0][1])["error"]
    assert error["type"] == "INVALID_ARGUMENT"
    assert error["message"].startswith("`query` must be text that UTF-8 can write.")
    for model in ("query_encoder", "document_encoder"):
        body = {"input": ["a", "b\udfff"], "model": model}
        status, answer = http(f"{server.search_url}/v1/embeddings", body)
        assert status == 400
        assert "`input.1`" in json.loads(answer)["error"]["message"]


def test_texts_are_bounded(server):
    url = f"{server.search_url}/v1/embeddings"
    assert http(url, {"input": "x" * 65_536})[0] == 200
    status, body = http(url, {"input": ["", "\U0001f600" * 16_385]})
    assert status == 400
    assert "`input.1` must have at most 65536 bytes" in json.loads(body)["error"]["message"]


@pytest.mark.parametrize("declared", [True, False], ids=["declared", "in chunks"])
def test_bodies_are_bounded(server, declared):
    largest = Limits().max_request_bytes
    address = urllib.parse.urlsplit(server.search_url)
    connection = http_client.HTTPConnection(address.hostname, address.port, timeout=30)
    if declared:  # is refused before any of it is sent
        connection.putrequest("POST", "/v1/search")
        connection.putheader("Content-Length", str(largest + 1))
        connection.endheaders()
    else:
        mebibyte = b" " * 2**20
        chunks = (mebibyte for _ in range(largest // 2**20 + 1))
        connection.request("POST", "/v1/search", chunks, encode_chunked=True)
    response = connection.getresponse()
    assert response.status == 413
    error = json.loads(response.read())["error"]
    assert error["type"] == "INVALID_ARGUMENT"
    rule = f"the body must have at most {largest} bytes (--max_request_bytes)."
    assert error["message"].startswith(rule)
    connection.close()


def test_requests_under_way_are_answered_before_the_server_ends(bundle):
    server = BundleServer(bundle)
    body = {"input": ["green red cat " * 500] * 800, "model": "document_encoder"}
    with ThreadPoolExecutor(4) as threads:
        http(f"{server.search_url}/v1/embeddings", {"input": "x"})  # the first one takes longer
        asked = [threads.submit(http, f"{server.search_url}/v1/embeddings", body) for _ in range(4)]
        time.sleep(1.0)
        server.process.send_signal(signal.SIGTERM)
        assert not any(answer.done() for answer in asked)  # else nothing was under way
        assert [answer.result()[0] for answer in asked] == [200] * 4
    assert server.process.wait(60) == 0


def test_ipv6(bundle):
    server = BundleServer(bundle, "--host", "::1", "--models", "query_encoder")
    try:
        with Client(server.target) as client:
            assert client.encode_queries(["green red"]).shape == (1, 6)
        assert http(f"{server.search_url}/healthz")[0] == 200
        assert http(f"{server.url}/v1/models/query_encoder")[0] == 200
    finally:
        server.process.terminate()
        server.process.wait(60)


KEY = "0123456789abcdef"


def search_ids(server, query, k):
    status, body = http(f"{server.search_url}/v1/search", {"query": query, "k": k})
    assert status == 200, body
    return [hit["doc_id"] for hit in json.loads(body)["results"][0]["hits"]]


def test_an_index_that_changes_while_it_is_served(bundle, exact, model, tmp_path):
    ids, fingerprint = list(exact.doc_ids), exact.fingerprint
    index = FaissIndex.build(exact.vectors(), ids, fingerprint=fingerprint)
    index.save(tmp_path / "index")
    # Versions that came later know nothing of this index: they must not take over.
    bundle = shutil.copytree(bundle, tmp_path / "bundle")
    for name in ("query_encoder", "document_encoder"):
        save_toy(bundle / "models" / name / "2", 2.0)
    key_file = tmp_path / "key"
    key_file.write_text(KEY + "\n")
    options = ("--index", tmp_path / "index", "--admin_key_file", key_file)
    server = BundleServer(bundle, *options)
    url = f"{server.search_url}/v1/index"
    try:
        with Client(server.target) as client, pytest.raises(ServerError, match="serves no model"):
            client.search(["green"])  # gRPC must not answer from what was exported
        for wrong in (None, "", KEY[:-1], "é" * 16):
            assert http(f"{url}/status", key=wrong)[0] == 401
        assert set(search_ids(server, "green red", 200)) == {d.doc_id for d in DOCUMENTS}
        new = {"id": "new", "title": "A title", "text": "green red river"}
        new |= {"url": "u", "metadata": {"year": [2004]}}
        replaced = {"id": "d3", "text": "stone"}
        added = {"documents": [new, replaced]}
        status, body = http(f"{url}/documents", added, key=KEY)
        assert (status, json.loads(body)["documents"]) == (200, 2)
        status, body = http(f"{url}/delete", {"ids": ["d5", "none"]}, key=KEY)
        answer = json.loads(body)
        assert (status, answer["deleted"], answer["unknown"]) == (200, ["d5"], ["none"])

        query = "green red river"
        body = json.loads(
            http(f"{server.search_url}/v1/search", {"query": query, "k": 200, "texts": True})[1]
        )
        hits = {hit["doc_id"]: hit for hit in body["results"][0]["hits"]}
        assert hits.keys() == {d.doc_id for d in DOCUMENTS} - {"d5"} | {"new"}
        assert (hits["new"]["title"], hits["new"]["text"]) == (new["title"], new["text"])
        assert (hits["d3"]["title"], hits["d3"]["text"]) == ("", "stone")
        assert hits["new"]["metadata"] == {"url": "u", "year": [2004]}
        assert "metadata" not in hits["d3"]
        assert (hits["d7"]["text"], hits["d7"]["metadata"]) == DOCUMENTS[7][2:]
        score = model.encode_queries([query])[0] @ model.encode_documents([Document(**{
            "doc_id": "new", "title": new["title"], "text": new["text"]})])[0]  # fmt: skip
        assert hits["new"]["score"] == pytest.approx(score, abs=1e-5)
        assert body["index_version"] == "1.3"

        before = json.loads(http(f"{url}/status", key=KEY)[1])
        for ids in (["d1", "\ud800"], ["d1", "a b"], ["d1", ""], ["d1"] * 16_385):
            status, body = http(f"{url}/delete", {"ids": ids}, key=KEY)
            assert status == 400
            assert json.loads(body)["error"]["type"] == "INVALID_ARGUMENT"
        assert json.loads(http(f"{url}/status", key=KEY)[1]) == before  # d1 is there
        with socket.create_connection(
            (urllib.parse.urlsplit(url).hostname, urllib.parse.urlsplit(url).port), timeout=20
        ) as one:  # the key is looked at before a body is there
            one.sendall(b"POST /v1/%69ndex/delete HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n\r\n")
            assert one.recv(4096).startswith(b"HTTP/1.1 401 ")
        half = {"id": "half", "text": "\ud800"}
        for wrong, message in (
            (
                {"documents": [new | {"id": "y"}, half]},
                "`text.1` must be text that UTF-8 can",
            ),
            (
                {"documents": [{"id": "\udfff", "text": ""}]},
                "`documents.0.id`: Input should be a valid",
            ),
            ({"documents": [{"id": "x", "text": "t" * 65_537}]}, "at most 65536 bytes"),
            ({"documents": [{"id": "x y", "text": "t"}]}, "white space"),
            ({"documents": [{"id": "x", "_id": "y", "text": "t"}]}, "one of `id` and `_id`"),
            ({"documents": [{"text": "t"}]}, "`documents.0.id`: Field required"),
            ({"documents": [new, new]}, "new"),
            ({"documents": []}, "at least 1 item"),
        ):
            status, body = http(f"{url}/documents", wrong, key=KEY)
            assert status == 400
            assert message in json.loads(body)["error"]["message"]
        assert http(f"{url}/compact", b"", key=KEY)[0] == 202
        deadline = time.monotonic() + 30
        while json.loads(http(f"{url}/status", key=KEY)[1])["compacting"]:
            assert time.monotonic() < deadline
            assert "new" in search_ids(server, query, 200)
        sizes = json.loads(http(f"{url}/status", key=KEY)[1])
        assert (sizes["generation"], sizes["added"], sizes["documents"]) == (2, 0, 150)
        assert sizes["compaction_error"] == ""
        assert http(f"{url}/delete", {"ids": ["d7"]}, key=KEY)[0] == 200
    finally:
        server.process.kill()  # at any moment: what was answered is on the disk
        server.process.wait()
    # Without a key it is read alone, and there is nothing to call.
    reader = BundleServer(bundle, "--index", tmp_path / "index")
    try:
        left = {d.doc_id for d in DOCUMENTS} - {"d5", "d7"} | {"new"}
        assert set(search_ids(reader, query, 200)) == left
        assert http(f"{reader.search_url}/v1/index/status", key=KEY)[0] == 404
        with contextlib.closing(sqlite3.connect(tmp_path / "index/changes.sqlite")) as database:
            database.execute("UPDATE documents SET text = 'damaged' WHERE doc_id = 'new'")
            database.commit()
        status, body = http(
            f"{reader.search_url}/v1/search", {"query": query, "k": 200, "texts": True}
        )
        assert (status, json.loads(body)["error"]["type"]) == (500, "DATA_LOSS")
    finally:
        reader.process.terminate()
        assert reader.process.wait(30) == 0


def test_an_index_of_another_model_is_not_served(bundle, exact, tmp_path, capsys):
    index = ExactIndex.build(exact.vectors(), list(exact.doc_ids), fingerprint="0" * 16)
    index.save(tmp_path / "index")
    ports = ["--port", "0", "--rest_api_port", "0", "--http_port", "0"]
    command = ["serve", str(bundle), "--index", str(tmp_path / "index"), *ports]
    assert main(command) == 1
    assert "must be made by the bundle's model" in capsys.readouterr().err
    (tmp_path / "key").write_text("short")
    assert main([*command, "--admin_key_file", str(tmp_path / "key")]) == 1
    assert "the key must be at least 16 ASCII characters" in capsys.readouterr().err
    assert main(["serve", str(bundle), "--admin_key_file", "k", *ports]) == 1
    assert "`--admin_key_file` must be beside --index" in capsys.readouterr().err


@pytest.mark.parametrize("path", ["/healthz", "/readyz", "/"])
def test_a_head_asks_for_no_body(server, path):
    """As load balancers and `wget --spider` look whether a server lives."""
    request = urllib.request.Request(f"{server.search_url}{path}", method="HEAD")
    with urllib.request.urlopen(request, timeout=30) as answer:
        assert (answer.status, answer.read()) == (200, b"")


def test_what_a_path_does_not_take_is_told(server):
    request = urllib.request.Request(f"{server.search_url}/v1/models", method="DELETE")
    with pytest.raises(urllib.error.HTTPError) as found:
        urllib.request.urlopen(request, timeout=30)
    assert (found.value.code, found.value.headers["Allow"]) == (405, "GET")
    assert json.loads(found.value.read())["error"]["type"] == "UNIMPLEMENTED"


def test_one_model_is_told_of(server):
    status, body = http(f"{server.search_url}/v1/models/query_encoder")
    assert (status, json.loads(body)["id"]) == (200, "query_encoder")
    status, body = http(f"{server.search_url}/v1/models/other")
    assert status == 404
    assert "`model` must be one of" in json.loads(body)["error"]["message"]


def test_health_and_description(server):
    assert http(f"{server.search_url}/healthz") == (200, b"ok\n")
    assert http(f"{server.search_url}/readyz") == (200, b"ready\n")
    description = json.loads(http(f"{server.search_url}/openapi.json")[1])
    # Calls that change the index are off unless they are asked for.
    models = {"/v1/models", "/v1/models/{name}"}
    assert {"/v1/search", "/v1/embeddings", *models, "/healthz", "/readyz"} == set(
        description["paths"]
    )
    assert http(f"{server.search_url}/v1/index/status")[0] == 404
    status, page = http(f"{server.search_url}/")
    assert status == 200
    assert b'<form role="search">' in page
    assert http(f"{server.search_url}/..%2f..%2fetc/passwd")[0] == 404
    assert http(f"{server.search_url}/v1/search", {"query": "green red"})[0] == 200
    status, metrics = http(f"{server.url}/monitoring/prometheus/metrics")
    assert status == 200
    assert b":tensorflow:serving:request_count" in metrics
