"""Files that earlier versions wrote load, and give the answers that they gave."""

import dataclasses
import json
import tarfile
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest
import tiny
import yaml

import tfde
from tfde.cli import study, train, train_matcher
from tfde.retrieval.live.load_index import load_index
from tfde.studies.cells import expand_cells

FILES = Path(__file__).parents[1] / "written_before"
DOCUMENTS = [tfde.Document(f"d{i}", "", text) for i, text in enumerate(tiny.document_texts()[:64])]
# Another machine adds up in another order.
CLOSE = {"rtol": 1e-4, "atol": 1e-5}


@pytest.fixture(scope="module")
def before(tmp_path_factory):
    """The files of tfde 0.1.0."""
    folder = tmp_path_factory.mktemp("before")
    with tarfile.open(FILES / "2b3b5a4.tar.xz") as archive:
        archive.extractall(folder, filter="data")
    return folder


@pytest.fixture(scope="module")
def matchers(tmp_path_factory):
    """Matchers of 0.1.0, one of each kind that has had a field more since."""
    folder = tmp_path_factory.mktemp("matchers")
    with tarfile.open(FILES / "matchers_e74417a.tar.xz") as archive:
        archive.extractall(folder, filter="data")
    return folder


@pytest.fixture(scope="module")
def answers(before):
    """What they answered then."""
    return json.loads((before / "answers.json").read_text())


@pytest.mark.parametrize("name", ["sde", "ade", "ade_ste", "ade_fte", "ade_spl", "parts", "t5"])
def test_a_dual_encoder_encodes_as_it_did(before, answers, name):
    model, then = tfde.DualEncoder.from_preset(before / name), answers[name]
    assert model.fingerprint() == then["fingerprint"]
    np.testing.assert_allclose(model.encode_queries(answers["texts"]), then["queries"], **CLOSE)
    np.testing.assert_allclose(model.encode_documents(DOCUMENTS[:3]), then["documents"], **CLOSE)


@pytest.mark.parametrize("name", ["cross_encoder", "siamese", "late_interaction"])
def test_a_pair_model_scores_as_it_did(before, answers, name):
    model_class = tfde.CrossEncoder if name == "cross_encoder" else tfde.Matcher
    model, then = model_class.from_preset(before / name), answers[name]
    pairs = [(query, document) for query in answers["texts"] for document in DOCUMENTS[:2]]
    assert model.fingerprint() == then["fingerprint"]
    np.testing.assert_allclose(model.score(pairs), then["scores"], **CLOSE)
    if name == "late_interaction":
        stored = tfde.StoredTexts.load(before / "stored_texts")
        scores = model.score_stored([(query, "d3") for query in answers["texts"]], stored)
        np.testing.assert_allclose(scores, answers["stored_texts"], **CLOSE)
        index = tfde.MultiVectorIndex.load(before / "multi_vector")
        hits = index.search(*model.encode_first(answers["texts"]), 8, candidates_per_vector=400)
        np.testing.assert_allclose([dict(h)["d3"] for h in hits], scores, **CLOSE)


@pytest.mark.parametrize(
    ("name", "fusion"),
    [("siamese", "difference"), ("deformer", "joint"), ("deformer_t5", "joint"),
     ("dipair", "joint"), ("poly_encoder", "difference"), ("virt_encoder", "difference")],
)  # fmt: skip
def test_a_matcher_of_each_kind_scores_as_it_did(matchers, name, fusion):
    """From the time before the field `fusion`; what they wrote of second texts still fits."""
    answers = json.loads((matchers / "answers.json").read_text())
    model, then = tfde.Matcher.from_preset(matchers / name), answers[name]
    assert (model.config.fusion, model.fingerprint()) == (fusion, then["fingerprint"])
    stored = tfde.StoredTexts.load(matchers / f"{name}_stored")
    texts = [(query, document) for query in answers["texts"] for document in DOCUMENTS[:2]]
    np.testing.assert_allclose(model.score(texts), then["scores"], **CLOSE)
    ids = [(query, document.doc_id) for query, document in texts]
    np.testing.assert_allclose(model.score_stored(ids, stored), then["scores"], **CLOSE)


@pytest.mark.parametrize("dtype", ["float32", "int8"])
def test_embeddings_are_what_they_were(before, answers, dtype):
    embeddings = tfde.Embeddings.open(before / f"embeddings_{dtype}")
    embeddings.verify()
    np.testing.assert_array_equal(embeddings.read(), np.float32(answers[f"embeddings_{dtype}"]))


@pytest.mark.parametrize("form", ["", "live_", "compacted_"])
@pytest.mark.parametrize("kind", ["exact", "scann"])
def test_an_index_finds_what_it_did(before, answers, kind, form):
    index, then = load_index(before / f"{form}{kind}"), answers[f"{form}{kind}"]
    scores, doc_ids = index.search(np.float32(answers["index_queries"]), 5)
    np.testing.assert_allclose(scores, then["scores"], **CLOSE)
    assert doc_ids.tolist() == then["doc_ids"]
    assert index.fingerprint == answers["ade_ste"]["fingerprint"]


@pytest.mark.parametrize("kind", ["exact", "scann"])
def test_an_index_with_changes_takes_more_and_is_compacted(before, answers, kind):
    then = answers[f"live_{kind}"]
    with tfde.LiveIndex.open(before / f"live_{kind}", write=True) as index:
        best = then["doc_ids"][0][0]
        index.delete([best])
        index.compact()
        _, doc_ids = index.search(np.float32(answers["index_queries"]), 5)
        assert doc_ids[0, :4].tolist() == then["doc_ids"][0][1:]
        assert index.documents(["n0"]) == {"n0": tfde.Document("n0", "a title", "red cat")}


def test_a_bundle_answers_as_it_did(before):
    assert tfde.verify_bundle(before / "bundle") == []


@pytest.mark.parametrize(
    ("command", "name"), [(train, "train"), (train_matcher, "match"), (study, "study")]
)
def test_a_recipe_means_what_it_did(command, name):
    file = FILES / f"{name}.yaml"
    parser = command.build_parser()
    run = parser.instantiate(parser.parse_args(["--run", str(file), "--output", "x"])).run
    assert_holds(dataclasses.asdict(run), yaml.safe_load(file.read_text()), name)
    if name == "study":
        assert [cell.name for cell in expand_cells(run)] == [
            "encoder=t5 pretraining=without seed=3",
            "encoder=t5 pretraining=with seed=3",
            "encoder=t5 pretraining=without seed=1",
            "encoder=bm25 pretraining=without seed=1",
            "encoder=t5 pretraining=without seed=2",
            "encoder=bm25 pretraining=without seed=2",
        ]


def assert_holds(found, written, where: str) -> None:
    """Asserts that each value that was written is there, under its name."""
    if isinstance(written, Mapping) and written:
        for name, value in written.items():
            assert_holds(found[name], value, f"{where}.{name}")
    elif isinstance(written, list):
        assert len(found) == len(written), where
        for place, value in enumerate(written):
            assert_holds(found[place], value, f"{where}[{place}]")
    else:
        assert found == written, where
