"""The whole way out: model and index to a bundle, a server in its own process, an answer."""

import json
import os
import re
import shutil
import socket
import subprocess
import sys
import threading
from pathlib import Path

import grpc
import numpy as np
import pytest
import tensorflow as tf
from bundle_server import DOCUMENTS, QUERIES, BundleServer, assert_same_ranking, http
from google.protobuf import text_format
from grpc_health.v1 import health_pb2, health_pb2_grpc
from tensorflow_serving.apis import prediction_log_pb2
from tensorflow_serving.config import model_server_config_pb2

from tfde.cli.main import main
from tfde.data.metadata import document_record
from tfde.errors import ConfigError, CorruptError, MismatchError, ServerError
from tfde.export.bundle import export_bundle
from tfde.export.verify import verify_bundle
from tfde.retrieval.exact_index import ExactIndex
from tfde.serving.client import Client
from tfde.types import Document


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
            assert Document(*hit[2:]) == by_id[hit.doc_id]


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
        assert client.search("red apple", 3) == client.search(["red apple"], 3)[0]
        one = client.encode_queries("red apple")
        np.testing.assert_array_equal(one, client.encode_queries(["red apple"])[0])
        assert client.status() == {1: "AVAILABLE"}
        assert client.status("documents") == {1: "AVAILABLE"}


def test_grpc_s_health_service_answers(server):
    with grpc.insecure_channel(server.target) as channel:
        answer = health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest())
    assert answer.status == health_pb2.HealthCheckResponse.SERVING


def test_client_errors(server):
    with Client(server.target) as client:
        with pytest.raises(
            ServerError, match=r"refused the request to 'retriever': INVALID_ARGUMENT: .*`k` must"
        ):
            client.search(["a"], 0)
        with pytest.raises(ServerError, match="serves no model 'm': Could not find any versions"):
            client.status("m")
        with pytest.raises(ValueError, match="`texts` must be a list of strings"):
            client.encode_documents("a")
        with pytest.raises(
            ConfigError, match=r"`texts` must be a text or a list of texts\. Rec.*5"
        ):
            client.search(5)
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
        socket.create_server(("localhost", 0)) as silent,
        Client(f"localhost:{silent.getsockname()[1]}", timeout_s=0.5) as client,
        pytest.raises(ServerError, match=r"did not answer within 0.5 s \(model 'retriever'\)"),
    ):
        client.search(["a"])


def test_query_command(server, capsys, exact, model):
    assert main(["query", "--target", server.target, "green red", "cat", "-k", "2"]) == 0
    out = capsys.readouterr().out
    scores, doc_ids = exact.search(model.encode_queries(["green red"]), 2)
    assert out.startswith("green red\n")
    assert re.search(rf"^  1  {scores[0, 0]:.4f}  .*\b{doc_ids[0, 0]}\b", out, re.MULTILINE)
    best = DOCUMENTS[int(doc_ids[0, 0][1:])]
    assert best.text in out
    assert (f'row: {best.doc_id[1:]}; tags: ["é", null]' in out) == bool(best.metadata)
    assert main(["query", "--target", server.target, "--json", "cat", "-k", "3"]) == 0
    row = json.loads(capsys.readouterr().out)
    assert row["query"] == "cat"
    assert [hit["rank"] for hit in row["hits"]] == [1, 2, 3]
    for hit in row["hits"]:
        known = DOCUMENTS[int(hit["doc_id"][1:])].metadata
        fields = {"rank", "score", "doc_id", "title", "text", *(["metadata"] if known else [])}
        assert (set(hit), hit.get("metadata")) == (fields, known)
    assert main(["query", "--target", server.search_url, "--json", "cat", "-k", "3"]) == 0
    assert json.loads(capsys.readouterr().out) == row  # over HTTP the same
    for target, message in (
        (server.search_url.removeprefix("http://"), "; HTTP is spoken there: --target http://"),
        (server.url, "the search is at --http_port (8502)"),
        ("http://localhost:1", "cannot connect to http://localhost:1 (is the server running"),
    ):
        assert main(["query", "--target", target, "--timeout_s", "5", "cat"]) == 1
        assert message in capsys.readouterr().err
    assert main(["query", "--target", server.search_url, " "]) == 1
    assert "a query must not be empty" in capsys.readouterr().err
    assert main(["query", "--target", "localhost:1", "--timeout_s", "3", "cat"]) == 1
    assert capsys.readouterr().err.startswith("tfde query: cannot connect to localhost:1")
    assert main(["query", "--target", server.target, "cat", "-k", "0"]) == 1
    assert "`-k` must be at least 1. Received: 0" in capsys.readouterr().err


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
    assert "`--retriever` must be one of those served: retriever, retriever_scann." in error
    assert main(["serve", str(bundle), "--models", "documents", "other"]) == 1
    error = capsys.readouterr().err
    assert "`--models` must be of the bundle's: query_encoder," in error
    assert "Received: 'other'" in error
    for option, value, message in (
        ("--index", "i", "`--index` must be absent for tensorflow_model_server. Received: 'i'"),
        ("--http_port", "80", "`--http_port` must be absent for tensorflow_model_server."),
        ("--rest_api_port", "0", "`--rest_api_port` must be above 0 for tensorflow_model_server."),
        ("--host", "0.0.0.0", "`--host` must be absent: tensorflow_model_server listens every"),
    ):
        stock = ["serve", str(bundle), "--engine", "tensorflow_model_server", option, value]
        assert main(stock) == 1
        assert message in capsys.readouterr().err
    index = ["serve", str(bundle), "--index", "i"]
    assert main([*index, "--retriever", "retriever"]) == 1
    assert "`--retriever` must be absent beside --index." in capsys.readouterr().err
    assert main([*index, "--models", "retriever", "documents"]) == 1
    assert (
        "`--models` must hold query_encoder, which --index needs. Received: retriever documents"
    ) in capsys.readouterr().err


def test_serve_only_some_models(bundle):
    server = BundleServer(bundle, "--models", "retriever", "documents")
    try:
        with Client(server.target) as client:
            assert client.search(["green red"], 3)[0][0].text
        with (
            Client(server.target, model="retriever_scann") as client,
            pytest.raises(ServerError, match="retriever_scann"),
        ):
            client.search(["green red"], 3)
        assert http(f"{server.search_url}/readyz")[0] == 200
    finally:
        server.process.terminate()
        assert server.process.wait(60) == 0


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


@pytest.mark.parametrize("gone", ["models/documents", "models/documents/1"])
def test_a_bundle_that_lacks_a_model_is_not_served(copy, gone, capsys):
    """A server would wait for it, and no model could be asked."""
    shutil.rmtree(copy / gone)
    ports = ["--port", "0", "--rest_api_port", "0", "--http_port", "0"]
    assert main(["serve", str(copy), *ports]) == 1
    said = capsys.readouterr().err.splitlines()[-1]
    assert said == (
        f"tfde serve: {copy}/models/documents: holds no version to serve, and a bundle is served"
        f" whole or not at all; `tfde verify {copy}` names what is missing."
    )
    assert main(["verify", str(copy)]) == 1
    assert "models/documents/1/saved_model.pb: is missing\n" in capsys.readouterr().out


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
    assert (
        "no models.config there, so no bundle; `tfde export` makes one" in capsys.readouterr().err
    )


def test_export_refuses(model, index, bundle, tmp_path):
    with pytest.raises(ConfigError, match="the output exists and is not empty"):
        export_bundle(model, index, bundle)
    with pytest.raises(ConfigError, match=r"`version` must be at least 1. Received: 0"):
        export_bundle(model, index, tmp_path / "b", version=0)
    vectors, doc_ids = index.vectors(), list(index.doc_ids)
    other = ExactIndex.build(vectors, doc_ids, fingerprint="0" * 16)
    with pytest.raises(
        MismatchError, match=r"index or embeddings must be of this model \(\w{16}\)"
    ):
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
        for document in DOCUMENTS:
            file.write(json.dumps(document_record(document)) + "\n")
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
