"""The whole way out: model and index to a bundle, a server in its own process, an answer."""

import base64
import json
import os
import re
import shutil
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf
import tiny
from google.protobuf import text_format
from tensorflow_serving.apis import prediction_log_pb2
from tensorflow_serving.config import model_server_config_pb2
from toy_models import save_toy

from tfde.cli.main import main
from tfde.config import T5Config, TextConfig
from tfde.errors import ConfigError, CorruptError, MismatchError, ServerError
from tfde.export.bundle import export_bundle
from tfde.export.verify import verify_bundle
from tfde.retrieval.exact_index import ExactIndex
from tfde.retrieval.scann_index import ScannIndex
from tfde.retrieval.scann_parameters import ScannParameters
from tfde.serving.client import Client
from tfde.text.sentence_piece_tokenizer import SentencePieceTokenizer
from tfde.text.train_sentencepiece import train_sentencepiece
from tfde.towers.dual_encoder import DualEncoder
from tfde.types import Document, Query

DOCUMENTS = [
    Document(f"d{i}", f"Title {i % 9}" if i % 3 else "", text)
    for i, text in enumerate(tiny.document_texts()[:150])
]
QUERIES = ["green red", "", "cat", "stone tree house " * 9, "naïve ☃", "river lake"]


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    path = tmp_path_factory.mktemp("vocabulary") / "spiece.model"
    train_sentencepiece((document.text for document in DOCUMENTS), path, vocabulary_size=50)
    backbone = T5Config(
        vocabulary_size=120, num_layers=2, num_heads=2, hidden_dim=8, intermediate_dim=12,
        key_value_dim=3, relative_buckets=8, relative_max_distance=16, dropout=0.1,
    )  # fmt: skip
    return DualEncoder.from_backbone(
        backbone,
        sharing="ade_spl",
        tokenizer=SentencePieceTokenizer.from_file(path),
        text=TextConfig(query_max_length_tokens=12, document_max_length_tokens=16),
        embedding_dim=6,
        seed=3,
    )


@pytest.fixture(scope="module")
def index(model):
    embeddings = model.encode_documents(DOCUMENTS)
    return ScannIndex.build(
        embeddings,
        [document.doc_id for document in DOCUMENTS],
        fingerprint=model.fingerprint(),
        # All leaves, and all scores computed again: at a boundary between leaves the rounding of
        # a random model's embeddings would decide which documents are seen at all.
        parameters=ScannParameters(kind="tree", num_leaves=8, num_leaves_to_search=8, reorder=150),
    )


@pytest.fixture(scope="module")
def exact(model, index):
    return ExactIndex.build(index.vectors(), list(index.doc_ids), fingerprint=model.fingerprint())


@pytest.fixture(scope="module")
def bundle(model, index, tmp_path_factory):
    return export_bundle(
        model,
        index,
        tmp_path_factory.mktemp("out") / "bundle",
        documents=[*DOCUMENTS, Document("other", "not", "in the index")],
        golden_queries=[Query("q", "green red"), *QUERIES[1:]],
        measures={"P@1": 0.5},
    )


class BundleServer:
    """`tfde serve BUNDLE` in a process of its own."""

    def __init__(self, bundle, *options):
        command = [sys.executable, "-m", "tfde.cli.main", "serve", str(bundle), *map(str, options)]
        self.process = subprocess.Popen(
            [*command, "--port", "0", "--rest_api_port", "0", "--http_port", "0"],
            stdout=subprocess.PIPE,
            text=True,
        )
        self.ready = self.process.stdout.readline()
        self.target = re.search(r"gRPC (\S+),", self.ready)[1]
        self.url = re.search(r"REST (\S+),", self.ready)[1]
        self.search_url = re.search(r"search (http\S+);", self.ready)[1]


@pytest.fixture(scope="module")
def server(bundle):
    server = BundleServer(bundle)
    yield server
    server.process.terminate()
    assert server.process.wait(30) == 0


def assert_same_ranking(found, expected, scores_of_all):
    """Equal rankings; documents whose scores differ by rounding alone may change places."""
    assert len(found) == len(expected)
    for row, expected_row, scores in zip(found, expected, scores_of_all, strict=True):
        assert len(set(row)) == len(row) == len(expected_row)
        for doc_id, expected_id in zip(row, expected_row, strict=True):
            assert abs(scores[int(doc_id[1:])] - scores[int(expected_id[1:])]) < 1e-6


def test_layout(bundle, model):
    manifest = json.loads((bundle / "manifest.json").read_text())
    assert manifest["models"] == [
        "query_encoder", "document_encoder", "retriever", "retriever_scann", "documents",
    ]  # fmt: skip
    for name in manifest["models"]:
        assert (bundle / "models" / name / "1" / "saved_model.pb").is_file()
    assert manifest["towers_fingerprint"] == manifest["index_fingerprint"] == model.fingerprint()
    assert manifest["embedding_dim"] == 6
    assert manifest["documents"] == 150
    assert manifest["measures"] == {"P@1": 0.5}
    assert manifest["text"]["query_max_length_tokens"] == 12
    assert [query["text"] for query in manifest["golden_queries"]] == QUERIES
    assert str(bundle) not in (bundle / "manifest.json").read_text()
    assert not list(bundle.parent.glob(".bundle*"))


def test_configuration_files_parse(bundle):
    def names(file):
        config = text_format.Parse(
            (bundle / file).read_text(), model_server_config_pb2.ModelServerConfig()
        )
        return {m.name: m.base_path for m in config.model_config_list.config}

    everywhere = names("models.config")
    assert everywhere["retriever"] == "/models/retriever"
    assert "retriever_scann" not in everywhere
    assert set(names("models.scann.config")) - set(everywhere) == {"retriever_scann"}
    path = bundle / "models/retriever/1/assets.extra/tf_serving_warmup_requests"
    logs = [prediction_log_pb2.PredictionLog.FromString(r.numpy()) for r in
            tf.data.TFRecordDataset(str(path))]  # fmt: skip
    request = logs[0].predict_log.request
    assert request.model_spec.name == "retriever"
    assert request.inputs["text"].string_val[0] == b"green red"


RELOAD = """
import json, sys
import tensorflow as tf
import tensorflow_text
if sys.argv[3] == "scann":
    from scann.scann_ops.py import scann_ops
bundle, sizes = sys.argv[1], json.loads(sys.argv[2])
texts = json.loads(sys.stdin.read())
query = tf.saved_model.load(bundle + "/models/query_encoder/1")
document = tf.saved_model.load(bundle + "/models/document_encoder/1")
name = "retriever_scann" if sys.argv[3] == "scann" else "retriever"
retriever = tf.saved_model.load(bundle + f"/models/{name}/1")
result = []
for size in sizes:
    text = tf.constant((texts * size)[:size], tf.string)
    q = query.signatures["serving_default"](text=text)["embeddings"]
    d = document.signatures["serving_default"](title=text, text=text)["embeddings"]
    r = retriever.signatures["serving_default"](text=text, k=tf.constant(4))
    ids = [[x.decode() for x in row] for row in r["doc_ids"].numpy()]
    result.append([q.numpy().tolist(), d.numpy().tolist(), ids, r["scores"].numpy().tolist()])
assert "tfde" not in sys.modules
print("RESULT" + json.dumps(result))
"""


@pytest.mark.parametrize("kind", ["exact", "scann"])
def test_reload_in_a_fresh_process(bundle, model, index, exact, kind):
    sizes = [0, 1, 3, 17]
    done = subprocess.run(
        [sys.executable, "-c", RELOAD, str(bundle), json.dumps(sizes), kind],
        input=json.dumps(QUERIES), capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout.split("RESULT")[1])
    for size, (queries, documents, doc_ids, scores) in zip(sizes, result, strict=True):
        texts = (QUERIES * size)[:size]
        expected = model.encode_queries(texts)
        np.testing.assert_allclose(np.reshape(queries, [size, 6]), expected, atol=1e-5)
        pairs = [{"title": text, "text": text} for text in texts]
        np.testing.assert_allclose(
            np.reshape(documents, [size, 6]), model.encode_documents(pairs), atol=1e-5
        )
        expected_scores, expected_ids = (index if kind == "scann" else exact).search(expected, 4)
        assert_same_ranking(doc_ids, expected_ids.tolist(), expected @ index.vectors().T)
        np.testing.assert_allclose(np.reshape(scores, [size, 4]), expected_scores, atol=1e-5)


@pytest.mark.parametrize("name", ["retriever", "retriever_scann"])
@pytest.mark.parametrize("k", [1, 7, 1000])
def test_ranking_through_the_server_equals_keras(server, model, index, exact, name, k):
    embeddings = model.encode_queries(QUERIES)
    scores, doc_ids = (exact if name == "retriever" else index).search(embeddings, k)
    by_id = {document.doc_id: document for document in DOCUMENTS}
    with Client(server.target, model=name) as client:
        answers = client.search(QUERIES, k)
    found = [[hit.doc_id for hit in hits] for hits in answers]
    assert_same_ranking(found, doc_ids.tolist(), embeddings @ index.vectors().T)
    for hits, row in zip(answers, scores, strict=True):
        assert [hit.rank for hit in hits] == list(range(1, min(k, 150) + 1))
        np.testing.assert_allclose([hit.score for hit in hits], row, atol=1e-5)
        for hit in hits:
            assert Document(hit.doc_id, hit.title, hit.text) == by_id[hit.doc_id]


def test_client_encodes(server, model):
    with Client(server.target) as client:
        np.testing.assert_allclose(
            client.encode_queries(QUERIES), model.encode_queries(QUERIES), atol=1e-5
        )
        texts = [document.text for document in DOCUMENTS[:5]]
        titles = [document.title for document in DOCUMENTS[:5]]
        np.testing.assert_allclose(
            client.encode_documents(texts, titles=titles),
            model.encode_documents(DOCUMENTS[:5]),
            atol=1e-5,
        )
        np.testing.assert_allclose(
            client.encode_documents(texts), model.encode_documents(texts), atol=1e-5
        )
        assert client.encode_queries([]).shape == (0, 6)
        assert client.search([], 3) == []
        assert client.status() == {1: "AVAILABLE"}
        assert client.status("documents") == {1: "AVAILABLE"}


def test_client_errors(server):
    with Client(server.target) as client:
        with pytest.raises(
            ServerError, match=r"refused the request to 'retriever': INVALID_ARGUMENT: .*`k` must"
        ):
            client.search(["a"], 0)
        with pytest.raises(ServerError, match="serves no model 'm': Could not find any versions"):
            client.status("m")
        with pytest.raises(ValueError, match="`texts` must be a list of strings"):
            client.search("a")
        with pytest.raises(ValueError, match="`titles` must be as many as `texts`"):
            client.encode_documents(["a"], titles=[])
    with (
        Client(server.target, model="m") as client,
        pytest.raises(ServerError, match="serves no model 'm': Servable not found for request"),
    ):
        client.search(["a"])
    with (
        Client("localhost:1", timeout_s=5) as client,
        pytest.raises(
            ServerError, match=r"cannot connect to localhost:1 \(is the server running\?\)"
        ),
    ):
        client.search(["a"])
    with (
        Client(server.target, timeout_s=1e-4) as client,
        pytest.raises(ServerError, match=r"did not answer within 0.0001 s \(model 'retriever'\)"),
    ):
        client.search(["a"])


def test_query_command(server, capsys, exact, model):
    assert main(["query", "--target", server.target, "green red", "cat", "-k", "2"]) == 0
    out = capsys.readouterr().out
    scores, doc_ids = exact.search(model.encode_queries(["green red"]), 2)
    assert out.startswith("green red\n")
    assert re.search(rf"^  1  {scores[0, 0]:.4f}  .*\b{doc_ids[0, 0]}\b", out, re.MULTILINE)
    assert DOCUMENTS[int(doc_ids[0, 0][1:])].text in out
    assert main(["query", "--target", server.target, "--json", "cat", "-k", "3"]) == 0
    row = json.loads(capsys.readouterr().out)
    assert row["query"] == "cat"
    assert [hit["rank"] for hit in row["hits"]] == [1, 2, 3]
    assert set(row["hits"][0]) == {"rank", "score", "doc_id", "title", "text"}
    assert main(["query", "--target", "localhost:1", "--timeout_s", "3", "cat"]) == 1
    assert capsys.readouterr().err.startswith("tfde: query: cannot connect to localhost:1")
    assert main(["query", "--target", server.target, "cat", "-k", "0"]) == 1
    assert "`-k` must be at least 1. Received: 0" in capsys.readouterr().err


def http(url, body=None, *, key=None):
    data = body if isinstance(body, bytes | None) else json.dumps(body).encode()
    headers = {"Content-Type": "application/json"}
    if key is not None:
        headers["Authorization"] = f"Bearer {key}"
    request = urllib.request.Request(url, data, headers)
    try:
        with urllib.request.urlopen(request, timeout=30) as response:
            return response.status, response.read()
    except urllib.error.HTTPError as error:
        return error.code, error.read()


def test_search_over_http(server, exact, model):
    queries = ["green red", "naïve ☃"]
    status, body = http(f"{server.search_url}/v1/search", {"query": queries, "k": 7})
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
            assert (hit["title"], hit["text"]) == (document.title, document.text)
    # As `curl -d` sends it: called a form.
    request = urllib.request.Request(f"{server.search_url}/v1/search", b'{"query": "green red"}')
    with urllib.request.urlopen(request, timeout=30) as response:
        one = json.load(response)
    assert len(one["results"][0]["hits"]) == 10


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


@pytest.mark.parametrize(
    ("path", "body", "status", "message"),
    [
        ("search", {"query": "x", "k": 0}, 400, "`k`: Input should be greater than or equal to 1"),
        ("search", {"query": []}, 400, "`query`: Input should be a valid string, or List should"),
        ("search", {}, 400, "`query`: Field required"),
        ("search", b"{", 400, "the body must be JSON: "),
        ("search", {"query": "x", "kk": 3}, 400, "`kk`: Extra inputs are not permitted"),
        ("embeddings", {"input": "x", "dimensions": 3}, 400, "`dimensions`: Extra inputs"),
        ("nothing", {}, 404, "POST /v1/nothing: Not Found"),
        ("embeddings", {"input": "x", "model": "../retriever"}, 404, "`model` must be query_enc"),
        ("embeddings", {"input": [1]}, 400, "`input"),
    ],
)
def test_wrong_requests_over_http(server, path, body, status, message):
    found, answer = http(f"{server.search_url}/v1/{path}", body)
    assert found == status
    error = json.loads(answer)["error"]
    assert message in error["message"]
    assert "\n" not in error["message"]


KEY = "0123456789abcdef"


def search_ids(server, query, k):
    status, body = http(f"{server.search_url}/v1/search", {"query": query, "k": k})
    assert status == 200, body
    return [hit["doc_id"] for hit in json.loads(body)["results"][0]["hits"]]


def test_an_index_that_changes_while_it_is_served(bundle, exact, model, tmp_path):
    exact.save(tmp_path / "index")
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
        replaced = {"id": "d3", "text": "stone"}
        added = {"documents": [new, replaced]}
        status, body = http(f"{url}/documents", added, key=KEY)
        assert (status, json.loads(body)["documents"]) == (200, 2)
        status, body = http(f"{url}/delete", {"ids": ["d5", "none"]}, key=KEY)
        answer = json.loads(body)
        assert (status, answer["deleted"], answer["unknown"]) == (200, ["d5"], ["none"])

        query = "green red river"
        body = json.loads(http(f"{server.search_url}/v1/search", {"query": query, "k": 200})[1])
        hits = {hit["doc_id"]: hit for hit in body["results"][0]["hits"]}
        assert hits.keys() == {d.doc_id for d in DOCUMENTS} - {"d5"} | {"new"}
        assert (hits["new"]["title"], hits["new"]["text"]) == (new["title"], new["text"])
        assert (hits["d3"]["title"], hits["d3"]["text"]) == ("", "stone")
        assert hits["d7"]["text"] == DOCUMENTS[7].text
        score = model.encode_queries([query])[0] @ model.encode_documents([Document(**{
            "doc_id": "new", "title": new["title"], "text": new["text"]})])[0]  # fmt: skip
        assert hits["new"]["score"] == pytest.approx(score, abs=1e-5)
        assert body["index_version"] == "1.3"

        for wrong, message in (
            ({"documents": [{"id": "x y", "text": "t"}]}, "white space"),
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


def test_health_and_description(server):
    assert http(f"{server.search_url}/healthz") == (200, b"ok\n")
    assert http(f"{server.search_url}/readyz") == (200, b"ready\n")
    description = json.loads(http(f"{server.search_url}/openapi.json")[1])
    # Calls that change the index are off unless they are asked for.
    assert {"/v1/search", "/v1/embeddings", "/healthz", "/readyz"} == set(description["paths"])
    assert http(f"{server.search_url}/v1/index/status")[0] == 404
    status, page = http(f"{server.search_url}/")
    assert status == 200
    assert b'<form role="search">' in page
    assert http(f"{server.search_url}/..%2f..%2fetc/passwd")[0] == 404
    status, metrics = http(f"{server.url}/monitoring/prometheus/metrics")
    assert status == 200
    assert b":tensorflow:serving:request_count" in metrics


def test_serve_can_start_a_tensorflow_serving(bundle, exact, model, tmp_path):
    # In its place on the PATH: our own, which takes the same flags.
    program = tmp_path / "tensorflow_model_server"
    code = "import sys; from tfde.cli.model_server import main; sys.exit(main())"
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -c "{code}" "$@"\n')
    program.chmod(0o755)
    with socket.create_server(("127.0.0.1", 0)) as one, socket.create_server(("", 0)) as two:
        port, rest_port = one.getsockname()[1], two.getsockname()[1]
    command = [sys.executable, "-m", "tfde.cli.main", "serve", str(bundle)]
    ports = ["--port", str(port), "--rest_api_port", str(rest_port)]
    with subprocess.Popen(
        [*command, *ports, "--engine", "tensorflow_model_server"],
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"},
    ) as process:
        log = []
        for line in process.stderr:
            log.append(line)
            if "Exporting HTTP/REST API at:" in line:
                break
        assert any("without retriever_scann: tensorflow_model_server has no" in x for x in log)
        with Client(f"127.0.0.1:{port}") as client:
            (hits,) = client.search(["green red"], 5)
        status, metrics = http(f"http://127.0.0.1:{rest_port}/monitoring/prometheus/metrics")
        process.terminate()
        process.stderr.read()
    _, expected = exact.search(model.encode_queries(["green red"]), 5)
    scores = model.encode_queries(["green red"]) @ exact.vectors().T
    assert_same_ranking([[hit.doc_id for hit in hits]], expected.tolist(), scores)
    assert status == 200
    assert b':tensorflow:serving:request_count{model_name="retriever",status="OK"}' in metrics


def test_serve_says_what_it_cannot_start(bundle, tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    assert main(["serve", str(bundle), "--engine", "tensorflow_model_server"]) == 1
    assert "no such program on the PATH" in capsys.readouterr().err
    assert main(["serve", str(bundle), "--retriever", "other"]) == 1
    error = capsys.readouterr().err
    assert "`--retriever` must be one of the bundle's: retriever, retriever_scann." in error


@pytest.mark.browser
def test_the_page_in_a_browser(server, exact, model, tmp_path):
    from selenium import webdriver
    from selenium.webdriver.common.by import By
    from selenium.webdriver.common.keys import Keys
    from selenium.webdriver.support.ui import WebDriverWait

    options = webdriver.ChromeOptions()
    for argument in ("--headless=new", "--no-sandbox", "--disable-dev-shm-usage"):
        options.add_argument(argument)
    options.add_argument(f"--user-data-dir={tmp_path}")
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    with webdriver.Chrome(options=options) as browser:
        browser.get(server.search_url)
        box = browser.find_element(By.NAME, "query")
        box.send_keys("green <b>red", Keys.ENTER)
        wait = WebDriverWait(browser, 30)
        wait.until(lambda b: len(b.find_elements(By.CSS_SELECTOR, "#hits li")) == 10)
        about = browser.find_element(By.ID, "about").text
        assert about.startswith("10 passages in ")
        assert about.endswith("retriever, version 1, index 1")
        hits = browser.find_elements(By.CSS_SELECTOR, "#hits li")
        where = [hit.find_element(By.CLASS_NAME, "where").text for hit in hits]
        found = [line.split(" · ")[2] for line in where]
        scores = model.encode_queries(["green <b>red"]) @ exact.vectors().T
        _, expected = exact.search(model.encode_queries(["green <b>red"]), 10)
        assert_same_ranking([found], expected.tolist(), scores)
        marked = {mark.text.lower() for mark in browser.find_elements(By.TAG_NAME, "mark")}
        assert marked
        assert marked <= {"green", "red"}
        # The address holds the question: opened again, it is asked again.
        browser.get(browser.current_url.replace("k=10", "k=5"))
        wait.until(lambda b: len(b.find_elements(By.CSS_SELECTOR, "#hits li")) == 5)
        assert not [entry for entry in browser.get_log("browser") if entry["level"] == "SEVERE"]
        browser.save_screenshot(str(tmp_path / "page.png"))


def test_concurrent_clients(server):
    with Client(server.target) as client:
        expected = [[hit.doc_id for hit in client.search([q], 3)[0]] for q in QUERIES]
    faults = []

    def ask(number):
        with Client(server.target) as client:
            for _ in range(5):
                hits = client.search([QUERIES[number]], 3)[0]
                if [hit.doc_id for hit in hits] != expected[number]:
                    faults.append((number, hits))

    threads = [threading.Thread(target=ask, args=(i % len(QUERIES),)) for i in range(12)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not faults


def test_verify(bundle, capsys):
    assert verify_bundle(bundle) == []
    assert main(["verify", str(bundle)]) == 0
    assert capsys.readouterr().out == f"{bundle}: as exported\n"


@pytest.fixture
def copy(bundle, tmp_path):
    return Path(shutil.copytree(bundle, tmp_path / "copy"))


def test_verify_names_changed_files(copy, capsys):
    (copy / "models.config").write_text("")
    (copy / "models/documents/1/saved_model.pb").unlink()
    (copy / "extra").write_text("")
    assert main(["verify", str(copy)]) == 1
    assert capsys.readouterr().out.splitlines() == [
        "models.config: differs from what was exported",
        "models/documents/1/saved_model.pb: is missing",
        "extra: was not exported",
    ]


def edit_manifest(bundle, edit):
    manifest = json.loads((bundle / "manifest.json").read_text())
    edit(manifest)
    (bundle / "manifest.json").write_text(json.dumps(manifest))


def test_verify_names_other_answers(copy):
    def edit(manifest):
        first, second = manifest["golden_queries"][:2]
        first["embedding"][0] += 0.5
        first["retriever"]["scores"][0] += 0.01
        second["retriever_scann"]["scores"][1] += 0.01
        for query in manifest["golden_queries"][2:]:
            query["retriever_scann"]["doc_ids"] = [f"x{i}" for i in range(10)]
        manifest["index_fingerprint"] = "0" * 16

    edit_manifest(copy, edit)
    lines = verify_bundle(copy)
    assert len(lines) == 5
    assert lines[0].startswith("fingerprints: towers ")
    assert lines[1] == "query_encoder: query 'green red': embedding differs by 0.5"
    assert lines[2].startswith("retriever: query 'green red': rank 1: score ")
    assert re.match(r"retriever_scann: query '': document 'd\d+': score ", lines[3])
    assert lines[4] == "retriever_scann: finds 20 of the 60 documents expected"


def test_verify_what_is_no_bundle(copy, tmp_path, capsys):
    with pytest.raises(FileNotFoundError, match=r"no manifest.json there, so no bundle"):
        verify_bundle(tmp_path / "none")
    edit_manifest(copy, lambda manifest: manifest.pop("files"))
    with pytest.raises(CorruptError, match=r"manifest.json: has no 'files'; expected format 1"):
        verify_bundle(copy)
    edit_manifest(copy, lambda manifest: manifest.update(files={}, format=9))
    with pytest.raises(CorruptError, match=r"manifest.json: has another format"):
        verify_bundle(copy)
    assert main(["serve", str(tmp_path / "none")]) == 1
    assert "no models.config there, so no bundle" in capsys.readouterr().err


def test_export_refuses(model, index, bundle, tmp_path):
    with pytest.raises(ConfigError, match="the output exists and is not empty"):
        export_bundle(model, index, bundle)
    with pytest.raises(ConfigError, match=r"`version` must be at least 1. Received: 0"):
        export_bundle(model, index, tmp_path / "b", version=0)
    vectors, doc_ids = index.vectors(), list(index.doc_ids)
    other = ExactIndex.build(vectors, doc_ids, fingerprint="0" * 16)
    with pytest.raises(MismatchError, match=r"`index` must come from this model \(\w{16}\)"):
        export_bundle(model, other, tmp_path / "b")
    short = ExactIndex.build(vectors[:, :4], doc_ids, fingerprint=model.fingerprint())
    with pytest.raises(MismatchError, match="must hold vectors of 6 dimensions"):
        export_bundle(model, short, tmp_path / "b")
    with pytest.raises(MismatchError, match=r"2 are missing. Received: none with id 'd0'"):
        export_bundle(model, index, tmp_path / "b", documents=DOCUMENTS[2:])
    assert not list(tmp_path.iterdir())  # nor anything half written


def test_command_exports_encoders_alone(model, tmp_path, capsys):
    model.save_to_preset(tmp_path / "model")
    output = tmp_path / "bundle"
    assert main(["export", "--model", str(tmp_path / "model"), "--output", str(output)]) == 0
    assert f"tfde serve {output}" in capsys.readouterr().out
    manifest = json.loads((output / "manifest.json").read_text())
    assert manifest["models"] == ["query_encoder", "document_encoder"]
    assert verify_bundle(output) == []


def test_command_exports_from_directories(model, index, tmp_path, capsys):
    model.save_to_preset(tmp_path / "model")
    index.save(tmp_path / "index")
    dataset = tmp_path / "dataset"
    dataset.mkdir()
    with (dataset / "corpus.jsonl").open("w") as file:
        for doc_id, title, text in DOCUMENTS:
            file.write(json.dumps({"_id": doc_id, "title": title, "text": text}) + "\n")
    with (dataset / "queries.jsonl").open("w") as file:
        for number in range(20):
            file.write(json.dumps({"_id": str(number), "text": f"query {number}"}) + "\n")
    output = tmp_path / "bundle"
    arguments = ["export", "--model", str(tmp_path / "model"), "--output", str(output)]
    both = ["--index", "i", "--embeddings", "e"]
    assert main([*arguments, *both]) == 1
    assert "exclude each other" in capsys.readouterr().err
    arguments += ["--index", str(tmp_path / "index"), "--dataset", str(dataset), "--version", "7"]
    assert main(arguments) == 0
    manifest = json.loads((output / "manifest.json").read_text())
    assert manifest["version"] == 7
    assert len(manifest["models"]) == 5
    assert len(manifest["golden_queries"]) == 8
    assert verify_bundle(output) == []
    assert main(arguments) == 1
    assert "the output exists and is not empty" in capsys.readouterr().err
