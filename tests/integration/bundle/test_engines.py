"""A bundle with towers for OpenVINO: the same answers, from the server too; others pass over it."""

import json
import shutil

import numpy as np
import pytest
import tensorflow as tf
from bundle_server import DOCUMENTS
from grpc import StatusCode

from tfde.cli.main import main
from tfde.engines.tower_engine import note_times
from tfde.errors import ConfigError, CorruptError
from tfde.export.bundle import export_bundle
from tfde.export.bundle_directory import read_manifest
from tfde.export.bundle_engines import engine_of
from tfde.export.saved_encoder import SavedEncoder
from tfde.export.verify import verify_bundle
from tfde.serving.server.signature_runner import SignatureRunner
from tfde.serving.server.status import StatusError
from tfde.storage.files import sha256
from tfde.towers.dual_encoder import DualEncoder
from tfde.towers.engines import write_engine

TEXTS = ["green red", "", "a very long question about many things " * 4]


@pytest.fixture(scope="module")
def engine_bundle(model, exact, tmp_path_factory):
    return export_bundle(
        model,
        exact,
        tmp_path_factory.mktemp("engines") / "bundle",
        golden_queries=TEXTS,
        scann=False,
        engines=["openvino"],
    )


def runner(bundle, name, engine):
    return SignatureRunner(bundle / "models" / name / "1", engine=engine)


def test_the_manifest_says_what_was_checked_and_measured(engine_bundle):
    manifest = read_manifest(engine_bundle)
    assert list(manifest["engines"]) == ["openvino"]
    for name in ("query_encoder", "document_encoder"):
        about = manifest["engines"]["openvino"]["models"][name]
        assert 0 <= about["max_difference"] <= 1e-5
        assert min(about.values()) >= 0 < about["query_ms"]
    for name in ("query_encoder", "document_encoder", "retriever"):
        assert f"models/{name}/1/openvino/encode_tokens.xml" in manifest["files"]
    assert verify_bundle(engine_bundle) == []


def test_a_saved_encoder_runs_them(engine_bundle, model):
    encoder = SavedEncoder(engine_bundle, engine="openvino")
    plain = SavedEncoder(engine_bundle)
    np.testing.assert_allclose(
        encoder.encode_queries(TEXTS), plain.encode_queries(TEXTS), atol=1e-5
    )
    documents = DOCUMENTS[:40]
    found = encoder.encode_documents(documents)
    np.testing.assert_allclose(found, model.encode_documents(documents), atol=1e-5)


@pytest.mark.parametrize("name", ["query_encoder", "document_encoder", "retriever"])
def test_the_server_gives_the_same_answers(engine_bundle, name):
    inputs = {"text": np.array(TEXTS, object)}
    if name == "document_encoder":
        inputs["title"] = np.array(["", "title", ""], object)
    if name == "retriever":
        inputs["k"] = np.array(5, np.int32)
    expected, found = (runner(engine_bundle, name, e).run("", inputs) for e in ("", "openvino"))
    for key, value in expected.items():
        if value.dtype.kind == "f":
            np.testing.assert_allclose(found[key], value, atol=1e-5)
        else:
            assert found[key].tolist() == value.tolist()


def test_a_bad_request_is_refused_and_leaves_the_model_to_others(engine_bundle, model):
    server = runner(engine_bundle, "query_encoder", "openvino")
    for shape, token in (((1, 4), 10**6), ((9, 4), -1), ((4,), 7)):
        bad = {"token_ids": np.full(shape, token, np.int32), "padding_mask": np.ones(shape, "i")}
        with pytest.raises(StatusError, match="`token_ids` ") as caught:
            server.run("encode_tokens", bad)
        assert caught.value.code == StatusCode.INVALID_ARGUMENT
    for texts in (TEXTS[:1], TEXTS * 3):
        found = server.run("", {"text": np.array(texts, object)})["embeddings"]
        np.testing.assert_allclose(found, model.encode_queries(texts), atol=1e-5)


def test_it_is_openvino_that_runs(engine_bundle, model, tmp_path):
    """With another tower's file the answers are the other tower's."""
    bundle = tmp_path / "bundle"
    shutil.copytree(engine_bundle, bundle)
    other = DualEncoder.from_backbone(
        model.config.backbone,
        sharing="ade_spl",
        tokenizer=model.preprocessor.tokenizer,
        text=model.preprocessor.text_config,
        embedding_dim=6,
        seed=4,
    )
    folder = bundle / "models" / "query_encoder" / "1"
    shutil.rmtree(folder / "openvino")
    write_engine("openvino", other.query_tower, folder)
    inputs = {"text": np.array(TEXTS, object)}
    found = runner(bundle, "query_encoder", "openvino").run("", inputs)["embeddings"]
    np.testing.assert_allclose(found, other.encode_queries(TEXTS), atol=1e-5)
    # TensorFlow Serving and TensorFlow pass over it.
    loaded = tf.saved_model.load(str(folder))
    found = loaded.signatures["serving_default"](text=tf.constant(TEXTS))["embeddings"]
    np.testing.assert_allclose(found, model.encode_queries(TEXTS), atol=1e-5)


def test_weights_that_tensorflow_does_not_run_are_not_in_its_graph(engine_bundle):
    def constants(engine):
        folder = engine_bundle / "models" / "retriever" / "1"
        graph = SignatureRunner(folder, engine=engine)._session.graph.as_graph_def()
        return [node.ByteSize() for node in graph.node if node.op == "Const"]

    whole, emptied = constants(""), constants("openvino")
    assert len(whole) == len(emptied)
    assert sum(emptied) < sum(whole) / 2


def test_weights_that_tensorflow_does_not_run_are_not_read(
    model, exact, engine_bundle, tmp_path, monkeypatch
):
    # As a tower of more than 100 MB is written: its weights are variables.
    monkeypatch.setattr("tfde.towers.saved_models.MAX_CONSTANT_BYTES", 0)
    large = export_bundle(
        model, exact, tmp_path / "large", golden_queries=TEXTS, scann=False, engines=["openvino"]
    )

    def restored(name, engine):
        loaded = runner(large, name, engine)
        session = loaded._session
        variables = [op for op in session.graph.get_operations() if op.type == "VarHandleOp"]
        with session.graph.as_default():
            there = [tf.raw_ops.VarIsInitializedOp(resource=op.outputs[0]) for op in variables]
        found = session.run(there)
        return [op.name for op, is_there in zip(variables, found, strict=True) if is_there]

    assert len(restored("query_encoder", "")) > 10
    assert restored("query_encoder", "openvino") == []
    assert sorted(restored("retriever", "openvino")) == ["doc_ids", "embeddings"]
    assert len(restored("retriever", "")) > 12
    for name, inputs in {
        "query_encoder": {"text": np.array(TEXTS, object)},
        "retriever": {"text": np.array(TEXTS, object), "k": np.array(2, np.int32)},
    }.items():
        found = runner(large, name, "openvino").run("", inputs)
        expected = runner(engine_bundle, name, "").run("", inputs)
        for alias, array in expected.items():
            if array.dtype == object:
                np.testing.assert_array_equal(found[alias], array)
            else:
                np.testing.assert_allclose(found[alias], array, atol=1e-5)


def empty_xml(folder):
    (folder / "encode_tokens.xml").write_text("nothing")


def short_bin(folder):
    file = folder / "encode_tokens.bin"
    file.write_bytes(file.read_bytes()[:100])


def no_bin(folder):
    (folder / "encode_tokens.bin").unlink()


def no_facts(folder):
    (folder / "encode_tokens.json").unlink()


def old_facts(folder):
    (folder / "encode_tokens.json").write_text('{"precision": "float32"}')


@pytest.fixture
def fast_folder(engine_bundle, tmp_path):
    """A copy of the query encoder's version, in which OpenVINO was faster."""
    folder = tmp_path / "1"
    shutil.copytree(engine_bundle / "models" / "query_encoder" / "1", folder)
    note_times("openvino", folder, ms=1.0, tensorflow_ms=2.0)
    return folder


@pytest.mark.parametrize("damage", [empty_xml, short_bin, no_bin, no_facts, old_facts])
def test_a_damaged_file_is_an_error_or_left_to_tensorflow(fast_folder, model, caplog, damage):
    damage(fast_folder / "openvino")
    with pytest.raises(CorruptError, match=r"/1/openvino/encode_tokens\.\S+: .* Received: "):
        SignatureRunner(fast_folder, engine="openvino")
    runner = SignatureRunner(fast_folder, engine="auto")
    found = runner.run("", {"text": np.array(TEXTS, object)})["embeddings"]
    np.testing.assert_allclose(found, model.encode_queries(TEXTS), atol=1e-5)
    (line,) = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert f"{fast_folder}/openvino/encode_tokens." in line
    assert line.endswith("TensorFlow runs the tower instead.")


def test_a_version_without_a_file(fast_folder, bundle):
    shutil.rmtree(fast_folder / "openvino")
    with pytest.raises(FileNotFoundError, match=r"openvino/encode_tokens.xml: no such file; `tfde"):
        SignatureRunner(fast_folder, engine="openvino")
    SignatureRunner(fast_folder, engine="auto").close()
    documents = bundle / "models" / "documents" / "1"  # has no tower that an engine could run
    SignatureRunner(documents, engine="openvino").close()


@pytest.mark.parametrize(("ms", "engine"), [(1.0, "openvino"), (3.0, "tensorflow")])
def test_each_version_gets_what_was_fastest_for_it(fast_folder, caplog, ms, engine):
    caplog.set_level("INFO")
    note_times("openvino", fast_folder, ms=ms, tensorflow_ms=2.0)
    SignatureRunner(fast_folder, engine="auto").close()
    assert f"{fast_folder}: the tower runs in {engine}" in caplog.messages


def test_which_engine_is_taken(engine_bundle, bundle):
    manifest = read_manifest(engine_bundle)
    tower = manifest["engines"]["openvino"]["models"]["query_encoder"]
    tower |= {"query_ms": 1.0, "tensorflow_query_ms": 2.0}
    assert engine_of(manifest, "auto", use="query") == "openvino"
    tower["query_ms"] = 3.0
    assert engine_of(manifest, "auto", use="query") == "tensorflow"
    assert engine_of(manifest, "openvino", use="query") == "openvino"
    rule = r"`engine` must be one of auto, tensorflow, openvino: what .*Received: 'onnxruntime'"
    with pytest.raises(ConfigError, match=rule):
        engine_of(manifest, "onnxruntime", use="query")
    plain = read_manifest(bundle)
    assert engine_of(plain, "auto", use="document") == "tensorflow"
    with pytest.raises(ConfigError, match="`engine` must be one of auto, tensorflow: what"):
        SavedEncoder(bundle, engine="openvino")


def test_what_the_format_excludes_is_refused_before_any_work(engine_bundle, tmp_path, capsys):
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text("{}")  # never read
    for model, options, rule in (
        (
            "model",
            "openvino --precision int8",
            "`--precision` must be one of as_loaded, float32, b",
        ),
        (
            "model",
            "onnx --precision bfloat16",
            "`--precision` must be one of as_loaded, float32 beside --format onnx. Received: 'bfl",
        ),
        ("model", "openvino --tpu", "`--tpu` must be absent beside --format openvino."),
        (engine_bundle, "onnx", "`--model` must be a model beside --format onnx, not a bundle"),
    ):
        line = ["export", "--model", str(tmp_path / model), "--output", str(tmp_path / "out")]
        assert main([*line, "--format", *options.split()]) != 0
        assert rule in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_verify_asks_the_engines(engine_bundle, tmp_path):
    """A tower that was another's from the beginning, by the checksums, answers otherwise."""
    bundle = tmp_path / "bundle"
    shutil.copytree(engine_bundle, bundle)
    name = "models/query_encoder/1/openvino/encode_tokens.bin"
    weights = np.frombuffer((bundle / name).read_bytes(), np.uint8).copy()
    floats = weights[: len(weights) // 4 * 4].view(np.float32)
    floats[(np.abs(floats) > 1e-3) & (np.abs(floats) < 1)] *= 1.5  # else integers
    (bundle / name).write_bytes(weights.tobytes())
    manifest = read_manifest(bundle)
    manifest["files"][name] = sha256(bundle / name)
    for file in bundle.rglob("manifest.json"):
        file.write_text(json.dumps(manifest))
    lines = verify_bundle(bundle)
    assert lines
    assert all(line.startswith("query_encoder: query ") for line in lines)
    assert all(line.endswith(" in openvino") for line in lines)
    (bundle / name).write_bytes(weights.tobytes()[:100])
    manifest["files"][name] = sha256(bundle / name)
    for file in bundle.rglob("manifest.json"):
        file.write_text(json.dumps(manifest))
    (line,) = verify_bundle(bundle)
    assert line.startswith(f"{bundle / name}".replace(".bin", ".xml: openvino cannot read it."))
