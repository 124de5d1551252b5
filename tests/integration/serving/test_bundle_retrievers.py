"""The retrievers of ordinary ops: what TensorFlow alone answers equals a search in NumPy."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import tiny
from google.protobuf import text_format
from tensorflow_serving.config import model_server_config_pb2

from tfde.cli.main import main
from tfde.config.model import TextConfig
from tfde.errors import ConfigError
from tfde.export.bundle import export_bundle
from tfde.export.verify import verify_bundle
from tfde.retrieval.exact_index import ExactIndex
from tfde.text.sentence_piece.tokenizer import SentencePieceTokenizer
from tfde.text.sentence_piece.train import train_sentencepiece
from tfde.towers.dual_encoder import DualEncoder

QUERIES = ["green red", "", "cat", "stone tree house " * 9, "river lake"]
DIM = 12


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    path = tmp_path_factory.mktemp("vocabulary") / "spiece.model"
    train_sentencepiece(tiny.document_texts(), path, vocabulary_size=50)
    return DualEncoder.from_backbone(
        tiny.BAG_OF_WORDS,
        tokenizer=SentencePieceTokenizer.from_file(path),
        text=TextConfig(query_max_length_tokens=12, document_max_length_tokens=16),
        embedding_dim=DIM,
        seed=3,
    )


@pytest.fixture(scope="module")
def index(model):
    documents = tiny.document_texts()[:300]
    vectors = model.encode_documents(documents)
    doc_ids = [f"d{i}" for i in range(len(vectors))]
    return ExactIndex.build(vectors, doc_ids, fingerprint=model.fingerprint())


@pytest.fixture(scope="module")
def bundle(model, index, tmp_path_factory):
    return export_bundle(
        model,
        index,
        tmp_path_factory.mktemp("out") / "bundle",
        golden_queries=QUERIES,
        scann=False,
        retriever_dtype="int8",
        # So that the rounding of an embedding cannot decide which leaves are searched.
        target_recall=1.0,
    )


RELOAD = """
import json, sys
import numpy as np
import tensorflow as tf
from tensorflow.core.protobuf import saved_model_pb2
from tensorflow.python.framework import op_def_registry
bundle = sys.argv[1]
queries, embeddings = json.loads(sys.stdin.read())
names, answers = ["retriever", "retriever_partitioned"], {}
def foreign_ops(name):
    content = open(f"{bundle}/models/{name}/1/saved_model.pb", "rb").read()
    (graph,) = saved_model_pb2.SavedModel.FromString(content).meta_graphs
    functions = graph.graph_def.library.function
    nodes = [*graph.graph_def.node, *(node for f in functions for node in f.node_def)]
    ops = {node.op for node in nodes} - {f.signature.name for f in functions}
    return {op for op in ops if op_def_registry.get(op) is None}
# TensorFlow itself knows every op but those that tokenize.
tokenizing = foreign_ops("query_encoder")
assert len(tokenizing) < 5, tokenizing
for name in names:
    assert foreign_ops(name) == tokenizing, foreign_ops(name)
import tensorflow_text
for name in names:
    model = tf.saved_model.load(f"{bundle}/models/{name}/1")
    answers[name] = []
    for size in (0, 1, 5):
        for k in (1, 10, 1000):
            text = tf.constant(queries[:size], tf.string)
            found = model.signatures["serving_default"](text=text, k=tf.constant(k))
            vectors = tf.constant(np.reshape(embeddings[:size], [size, 12]), tf.float32)
            searched = model.signatures["search"](embeddings=vectors, k=tf.constant(k))
            ids = [[x.decode() for x in row] for row in found["doc_ids"].numpy()]
            results = [found["scores"], searched["indices"], searched["scores"]]
            answers[name].append([size, k, ids, *(x.numpy().tolist() for x in results)])
assert not {"tfde", "scann", "keras_hub"} & set(sys.modules)
print("RESULT" + json.dumps(answers))
"""


def test_tensorflow_alone_gives_the_same_answers(bundle, model, index, tmp_path):
    embeddings = model.encode_queries(QUERIES)
    done = subprocess.run(
        [sys.executable, "-c", RELOAD, str(bundle)],
        input=json.dumps([QUERIES, embeddings.tolist()]),
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    answers = json.loads(done.stdout.split("RESULT")[1])
    vectors = index.vectors().astype(np.float64)
    for rows in answers.values():
        for size, k, doc_ids, scores, indices, searched in rows:
            exact = embeddings[:size].astype(np.float64) @ vectors.T
            expected = -np.sort(-exact, axis=1)[:, :k]
            assert np.shape(doc_ids)[0] == np.shape(indices)[0] == size
            if not size:
                continue
            np.testing.assert_allclose(scores, expected, atol=1e-4)
            np.testing.assert_allclose(searched, expected, atol=1e-4)
            assert doc_ids == [[f"d{i}" for i in row] for row in indices]
            assert all(len(set(row)) == min(k, 300) for row in doc_ids)
            # Documents whose scores differ by rounding alone may change places.
            found = np.take_along_axis(exact, np.array(indices), 1)
            np.testing.assert_allclose(found, expected, atol=1e-4)


def test_manifest_and_configuration(bundle):
    retrievers = json.loads((bundle / "manifest.json").read_text())["retrievers"]
    assert retrievers["retriever"] == {"exact": False, "dtype": "int8"}
    about = retrievers["retriever_partitioned"]
    assert (about["exact"], about["dtype"], about["target_recall"]) == (False, "int8", 1.0)
    assert 0.9 < about["recall_at_10"] <= 1
    assert about["recall_queries"] == 150  # half of as many as there are documents
    assert about["sampled_queries"]
    for file in ("models.config", "models.scann.config"):
        text = (bundle / file).read_text()
        config = text_format.Parse(text, model_server_config_pb2.ModelServerConfig())
        names = {model.name for model in config.model_config_list.config}
        assert {"retriever", "retriever_partitioned"} <= names
    place = bundle / "models/retriever_partitioned/1"
    assert (place / "assets.extra/tf_serving_warmup_requests").stat().st_size > 0
    assert not (place / "batching_params.pbtxt").exists()


def test_verify_names_other_answers(bundle, tmp_path):
    copy = Path(shutil.copytree(bundle, tmp_path / "copy"))
    manifest = json.loads((copy / "manifest.json").read_text())
    manifest["golden_queries"][0]["retriever_partitioned"]["scores"][2] += 0.01
    for query in manifest["golden_queries"][1:]:
        query["retriever_partitioned"]["doc_ids"] = [f"x{i}" for i in range(10)]
    (copy / "manifest.json").write_text(json.dumps(manifest))
    first, second = verify_bundle(copy)
    assert first.startswith("retriever_partitioned: query 'green red': document 'd")
    assert second == "retriever_partitioned: finds 10 of the 50 documents expected"


def test_impossible_exports(model, index, tmp_path):
    def refused(match, index=index, **options):
        with pytest.raises(ConfigError, match=match):
            export_bundle(model, index, tmp_path / "out", **options)
        assert not (tmp_path / "out").exists()

    refused(r"`retriever_dtype` must be one of float32, .* Received: 'f8'", retriever_dtype="f8")
    refused(r"`target_recall` must be above 0 and at most 1\. Received: 0", target_recall=0)
    refused(
        r"`index` must be given where `target_recall` is\. Received: None",
        index=None,
        target_recall=0.9,
    )


def test_command(model, index, tmp_path, capsys):
    model.save_to_preset(tmp_path / "model")
    index.save(tmp_path / "index")
    dataset = tiny.write_dataset(tmp_path / "dataset", documents=300)
    arguments = ["export", "--model", tmp_path / "model", "--index", tmp_path / "index"]
    arguments += ["--dataset", dataset, "--golden", "2", "--output", tmp_path / "bundle"]
    arguments += ["--scann", "false", "--retriever_dtype", "bfloat16", "--target_recall", "0.95"]
    assert main([*map(str, arguments)]) == 0
    retrievers = json.loads((tmp_path / "bundle/manifest.json").read_text())["retrievers"]
    assert retrievers["retriever"] == {"exact": True, "dtype": "bfloat16"}
    about = retrievers["retriever_partitioned"]
    assert (
        f"retriever_partitioned: searches {about['leaves_to_search']} of {about['leaves']} leaves;"
        f" recall@10 {about['recall_at_10']:.4f} on 150 queries of the dataset\n"
    ) in capsys.readouterr().out
    assert verify_bundle(tmp_path / "bundle") == []
