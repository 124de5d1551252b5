"""A bundle whose documents are sentences with their passages: served, searched, changed."""

import json

import numpy as np
import pytest
import tiny
from bundle_server import BundleServer, http

from tfde.config.model import TextConfig
from tfde.errors import ServerError
from tfde.export.bundle import export_bundle
from tfde.export.saved_encoder import SavedEncoder
from tfde.retrieval.exact_index import ExactIndex
from tfde.serving.client import Client
from tfde.types import Document

KEY = "a key of some length"
TEXTS = tiny.document_texts()[:20]
DOCUMENTS = [
    Document(f"p{n // 5}.{n % 5}", "", text, {"context": " ".join(TEXTS[n // 5 * 5 :][:5])})
    for n, text in enumerate(TEXTS)
]


def test_contexts_go_where_documents_go(tmp_path):
    text = TextConfig(8, 32, document_template="{title} {text} [SEP] {context}")
    model = tiny.dual_encoder(tiny.BERT, text=text, second_segment=True, embedding_dim=4)
    embeddings = model.encode_documents(DOCUMENTS)
    ids = [document.doc_id for document in DOCUMENTS]
    index = ExactIndex.build(embeddings, ids, fingerprint=model.fingerprint())
    index.save(tmp_path / "index")
    bundle = export_bundle(model, index, tmp_path / "bundle", documents=DOCUMENTS)
    found = SavedEncoder(bundle).encode_documents(DOCUMENTS)
    np.testing.assert_allclose(found, embeddings, atol=1e-5)
    (tmp_path / "key").write_text(KEY)
    options = ("--index", tmp_path / "index", "--admin_key_file", tmp_path / "key")
    server = BundleServer(bundle, *options)
    try:
        texts = [document.text for document in DOCUMENTS]
        contexts = [document.context for document in DOCUMENTS]
        with Client(server.target) as client:
            found = client.encode_documents(texts, contexts=contexts)
            np.testing.assert_allclose(found, embeddings, atol=1e-5)
            with pytest.raises(ValueError, match=r"`contexts` must be as many as `texts`\. Rec.*1"):
                client.encode_documents(texts, contexts=["one"])
            with pytest.raises(ServerError, match="context"):
                client.encode_documents(texts)
        url = f"{server.search_url}/v1/embeddings"
        status, body = http(url, {"input": "red cat", "model": "document_encoder"})
        expected = model.encode_documents({"text": "red cat", "context": ""})
        assert status == 200
        (row,) = json.loads(body)["data"]
        np.testing.assert_allclose(row["embedding"], expected, atol=1e-5)
        url = f"{server.search_url}/v1/index/documents"
        new = {"id": "new", "text": "red cat", "context": "one red cat"}
        assert http(url, {"documents": [new]}, key=KEY)[0] == 200
        status, body = http(url, {"documents": [{"id": "x", "text": "red"}]}, key=KEY)
        assert status == 400
        assert "a document must have a context" in body.decode()
        asked = {"query": "red cat", "k": len(DOCUMENTS) + 1}
        _, body = http(f"{server.search_url}/v1/search", asked)
        hits = {hit["doc_id"]: hit for hit in json.loads(body)["results"][0]["hits"]}
        expected = {d.doc_id: d.metadata for d in DOCUMENTS}
        expected["new"] = {"context": "one red cat"}
        assert {doc_id: hit["metadata"] for doc_id, hit in hits.items()} == expected
        query = model.encode_queries("red cat")
        score = float(query @ model.encode_documents(new))
        assert hits["new"]["score"] == pytest.approx(score, abs=1e-5)
    finally:
        server.process.terminate()
        server.process.wait(30)
