"""Where queries and documents lie, on points whose place is known; the command on a tiny model."""

import json

import numpy as np
import pytest
import tiny
from google.protobuf import text_format
from tensorboard.plugins.projector import ProjectorConfig

from tfde.cli.main import main
from tfde.data.dataset_directory import DatasetDirectory
from tfde.errors import ConfigError
from tfde.studies.embedding_probe import EmbeddedPairs, measure_space, sample_pairs
from tfde.towers.dual_encoder import DualEncoder


def test_two_spaces_are_told_apart_and_one_is_not():
    rng = np.random.default_rng(1)
    queries, documents = rng.standard_normal((2, 300, 8)).astype(np.float32)
    one = measure_space(EmbeddedPairs(queries, documents))
    assert one.separability == pytest.approx(0.5, abs=0.07)
    apart = documents + np.float32([6.0, 0, 0, 0, 0, 0, 0, 0])
    two = measure_space(EmbeddedPairs(queries, apart))
    assert two.separability > 0.97
    assert two.document_uniformity > one.document_uniformity + 0.5


def test_alignment_and_uniformity_by_hand():
    # Of three orthogonal queries all squared distances are 2; all documents are the first query.
    queries = np.tile(np.eye(3, 4, dtype=np.float32), (4, 1))[:12]
    documents = np.tile(np.float32([2.0, 0, 0, 0]), (12, 1))  # lengths do not count
    found = measure_space(EmbeddedPairs(queries, documents))
    assert found.alignment == pytest.approx(8 * 2 / 12)
    assert found.document_uniformity == pytest.approx(0.0, abs=1e-9)
    # Of 66 pairs of queries, 3 * 6 are equal.
    assert found.query_uniformity == pytest.approx(np.log((18 + 48 * np.exp(-4.0)) / 66))


def test_pairs_have_documents_of_their_own(tmp_path):
    dataset = DatasetDirectory(tiny.write_dataset(tmp_path / "data", documents=60))
    pairs = sample_pairs(dataset, "dev", 12, seed=1)
    assert len({document.doc_id for _, document in pairs}) == 12
    assert all(query.query_id[1:] == document.doc_id[1:] for query, document in pairs)
    assert pairs == sample_pairs(dataset, "dev", 12, seed=1)
    assert pairs != sample_pairs(dataset, "dev", 12, seed=2)
    with pytest.raises(ConfigError, match=r"at most those of .*data, dev, .*: 12\. Received: 13"):
        sample_pairs(dataset, "dev", 13)
    with pytest.raises(ConfigError, match=r"`pairs` must be at least 10\. Received: 9"):
        sample_pairs(dataset, "dev", 9)


def test_a_panel_for_each_model(tmp_path, capsys):
    data = tiny.write_dataset(tmp_path / "data", documents=60)
    arguments = ["probe", "tsne", "--dataset", str(data), "--split", "train", "--pairs", "20"]
    for name in ("one", "two"):
        model = DualEncoder.from_backbone(tiny.BERT, tokenizer=tiny.tokenizer(), seed=1)
        model.save_to_preset(tmp_path / name / "model")
        arguments += ["--model", str(tmp_path / name / "model")]
    arguments += ["--output", str(tmp_path / "map.png"), "--json"]
    arguments += ["--projector", str(tmp_path / "projector")]
    assert main(arguments) == 0
    found = json.loads(capsys.readouterr().out)
    assert list(found) == ["one", "two"]
    assert found["one"] == found["two"]
    assert 0 <= found["one"]["separability"] <= 1
    assert (tmp_path / "map.png").read_bytes().startswith(b"\x89PNG")
    assert_projector(tmp_path / "projector", ["one", "two"], model)


def assert_projector(folder, names, model):
    """As TensorBoard reads it."""
    config = text_format.Parse((folder / "projector_config.pbtxt").read_text(), ProjectorConfig())
    assert [tensor.tensor_name for tensor in config.embeddings] == names
    for tensor in config.embeddings:
        header, *rows = (folder / tensor.metadata_path).read_text().splitlines()
        assert header == "side\tid\ttext"
        vectors = np.loadtxt(folder / tensor.tensor_path, delimiter="\t")
        assert len(vectors) == len(rows) == 40
        side, _, text = rows[3].split("\t")
        assert side == "query"
        np.testing.assert_allclose(vectors[3], model.encode_queries([text])[0], atol=1e-5)
        side, _, text = rows[23].split("\t")
        assert side == "document"
        np.testing.assert_allclose(vectors[23], model.encode_documents([text])[0], atol=1e-5)
