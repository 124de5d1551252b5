"""What holds for every engine of `ENGINES`; a new one is tested by its line there."""

import json

import numpy as np
import pytest

from tfde.cli import build_index
from tfde.config.model import ParentConfig
from tfde.errors import ConfigError, CorruptError, MismatchError
from tfde.retrieval.embeddings import Embeddings
from tfde.retrieval.encode_corpus import encode_corpus
from tfde.retrieval.index import ENGINES, index_class, open_index
from tfde.retrieval.index_directory import copy_index, remove_index

VECTORS = np.random.default_rng(0).standard_normal((60, 8)).astype(np.float32)
VECTORS /= np.linalg.norm(VECTORS, axis=1, keepdims=True)  # each is nearest to itself
IDS = [f"d{i}" for i in range(60)]
PARENTS = ParentConfig()


@pytest.fixture(params=ENGINES)
def engine(request):
    return index_class(request.param)


def test_the_command_knows_every_engine():
    (action,) = (a for a in build_index.build_parser()._actions if a.dest == "engine")
    assert sorted(action.choices) == sorted(ENGINES)


def test_what_is_saved_comes_back(engine, tmp_path):
    """Small indexes of all engines are exact; expected are NumPy's products."""
    index = engine.build(VECTORS, IDS, fingerprint="f", parents=PARENTS)
    index.save(tmp_path / "i")
    products = VECTORS[:5] @ VECTORS.T
    wanted = np.argsort(-products, axis=1)[:, :7]
    for form in (index, open_index(tmp_path / "i"), index.saved_at(tmp_path / "i")):
        assert (type(form), form.kind, form.shape) == (engine, index.kind, (60, 8))
        assert (form.fingerprint, form.parents) == ("f", PARENTS)
        assert form.parameters == index.parameters
        assert str(form).startswith(form.kind)
        scores, doc_ids = form.search(VECTORS[:5], 7)
        assert doc_ids.tolist() == [[IDS[p] for p in row] for row in wanted]
        np.testing.assert_allclose(scores, np.take_along_axis(products, wanted, 1), atol=1e-6)
        np.testing.assert_array_equal(form.search_positions(VECTORS[:5], 7)[1], wanted)
        np.testing.assert_array_equal(form.vectors(), VECTORS)
        assert form.recall(3, sample=20).recall == 1


def test_embeddings_on_the_disk_give_the_same_as_memory(engine, tmp_path, encoder, documents):
    encode_corpus(encoder, documents, tmp_path / "e", shard_size=10, dtype="int8")
    embeddings = Embeddings.open(tmp_path / "e")
    index = engine.from_embeddings(embeddings)
    assert (index.fingerprint, list(index.doc_ids)) == ("hashing", list(embeddings.doc_ids))
    np.testing.assert_array_equal(index.vectors(), embeddings.read())


def test_it_is_rebuilt_of_other_vectors(engine):
    index = engine.build(VECTORS, IDS, fingerprint="f", parents=PARENTS)
    other = index.rebuilt([VECTORS[40:], VECTORS[:10]], [*IDS[40:], *IDS[:10]])
    assert (type(other), other.fingerprint, other.parents) == (engine, "f", PARENTS)
    np.testing.assert_array_equal(other.vectors(), VECTORS[[*range(40, 60), *range(10)]])
    assert other.search(VECTORS[:1], 1)[1].tolist() == [["d0"]]
    assert other.search(VECTORS[20:21], 50)[1].shape == (1, 30)


def test_what_does_not_fit_is_named(engine):
    index = engine.build(VECTORS, IDS)
    with pytest.raises(ConfigError, match=r"`k` must be at least 1\. Received: 0"):
        index.search(VECTORS, 0)
    with pytest.raises(MismatchError, match=r"must be \(queries, 8\).* Received: shape \(1, 2\)"):
        index.search(np.ones((1, 2)), 1)
    with pytest.raises(ConfigError, match=r"`query_embeddings` must be finite\. Received: row 0"):
        index.search(np.full((1, 8), np.nan), 1)
    with pytest.raises(ConfigError, match=r"`embeddings` must be finite\. Received: row 0"):
        engine.build(np.full((1, 8), np.inf), ["a"])
    with pytest.raises(MismatchError, match=r"each of the 60 vectors\. Received: 1 ids"):
        engine.build(VECTORS, ["a"])
    with pytest.raises(ConfigError, match=r"`parameters` must be a \w+\. Received: 'fast'"):
        engine.build(VECTORS, IDS, parameters="fast")
    with pytest.raises(ConfigError, match=rf"`speed` must be an option of {engine.kind}, which"):
        engine.parameters_of({"speed": 1})


def test_options_become_parameters():
    assert index_class("exact").parameters_of({}) is None
    assert index_class("scann").parameters_of({"reorder": 7}).reorder == 7
    assert index_class("faiss").parameters_of({"factory": "SQ8"}).factory == "SQ8"


def test_damaged_manifests_are_named(engine, tmp_path):
    engine.build(VECTORS, IDS).save(tmp_path / "i")
    manifest = tmp_path / "i/index.json"
    fields = json.loads(manifest.read_text())

    def write(**changes):
        manifest.write_text(json.dumps({**fields, **changes}))

    write(kind="annoy")
    rule = "must be an index of kind exact or scann or faiss. Received: 'annoy'"
    with pytest.raises(MismatchError, match=rule):
        open_index(tmp_path / "i")
    write(parameters={"speed": 1})
    with pytest.raises(CorruptError, match=r"index\.json: `speed` must be an option of"):
        open_index(tmp_path / "i")
    for name in ("../precious", str(tmp_path / "precious")):
        write(files={**fields["files"], name: {"bytes": 0, "sha256": ""}})
        for use in (open_index, remove_index, lambda path: copy_index(path, tmp_path / "c")):
            with pytest.raises(CorruptError, match="names a file outside of"):
                use(tmp_path / "i")
    with pytest.raises(FileNotFoundError, match=r"no index\.json there"):
        open_index(tmp_path)
    with pytest.raises(ConfigError, match="`engine` must be one of exact, scann, faiss"):
        index_class("annoy")


def test_copying_and_removing_touch_no_other_file(engine, tmp_path):
    engine.build(VECTORS, IDS).save(tmp_path / "i")
    (tmp_path / "i/notes.txt").write_text("mine")
    (tmp_path / "copy").mkdir()
    copy_index(tmp_path / "i", tmp_path / "copy")
    remove_index(tmp_path / "i")
    assert [file.name for file in (tmp_path / "i").iterdir()] == ["notes.txt"]
    assert not (tmp_path / "copy/notes.txt").exists()
    assert open_index(tmp_path / "copy").search(VECTORS[:1], 1)[1].tolist() == [["d0"]]
