"""A live index answers as one that is built anew of the documents that are there."""

import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from live_indexes import DIM, add, assert_answers_like, documents_of, exact, whole_numbers

from tfde.errors import ConfigError, DataError, MismatchError
from tfde.retrieval.exact_index import ExactIndex
from tfde.retrieval.faiss_index import FaissIndex, FaissParameters
from tfde.retrieval.live import live_index
from tfde.retrieval.live.base_indexes import index_version
from tfde.retrieval.live.live_index import LiveIndex
from tfde.retrieval.live.load_index import load_index
from tfde.retrieval.scann_index import ScannIndex
from tfde.retrieval.scann_parameters import ScannParameters
from tfde.types import Document

KINDS = ["add", "replace", "delete", "compact", "reopen"]


@pytest.mark.parametrize("seed", range(8))
def test_random_changes_equal_an_index_built_anew(tmp_path, seed):
    generator = np.random.default_rng(seed)
    expected = exact(tmp_path / "i", rows=int(generator.integers(3, 80)), seed=seed)
    queries = whole_numbers(generator, 5)
    index = LiveIndex.open(tmp_path / "i", write=True)
    generation = 1
    for step in range(40):
        kind = generator.choice(KINDS, p=[0.35, 0.25, 0.3, 0.05, 0.05])
        some = generator.permutation(list(expected))[: int(generator.integers(1, 12))].tolist()
        if kind == "delete" and len(some) < len(expected):
            result = index.delete([*some, "nobody", some[0]])
            assert (sorted(result.deleted), result.unknown) == (sorted(some), ["nobody"])
            for doc_id in some:
                del expected[doc_id]
        elif kind in ("add", "replace"):
            if kind == "add":
                some = [f"n{step}-{i}" for i in range(len(some))]
            vectors = dict(zip(some, whole_numbers(generator, len(some)), strict=True))
            add(index, vectors)
            for doc_id in some:
                expected.pop(doc_id, None)
            expected.update(vectors)
        elif kind == "compact":
            generation += index.compact()
        elif kind == "reopen":
            index.close()
            index = LiveIndex.open(tmp_path / "i", write=True)
        assert_answers_like(index, expected, queries)
        assert index.shape == (len(expected), DIM)
        np.testing.assert_array_equal(index.vectors(), np.stack(list(expected.values())))
    assert index.status().generation == generation
    assert_answers_like(LiveIndex.open(tmp_path / "i"), expected, queries)  # a reader beside it
    index.close()
    assert_answers_like(LiveIndex.open(tmp_path / "i"), expected, queries)


PARAMETERS = [
    (ScannIndex, ScannParameters(), "scann, exact"),
    (ScannIndex, ScannParameters(kind="hash", reorder=50), "scann, hash"),
    (
        ScannIndex,
        ScannParameters(kind="tree", num_leaves=12, num_leaves_to_search=12, reorder=300),
        "scann, tree (12 of 12 leaves)",
    ),
    (FaissIndex, None, "faiss, Flat"),
    (
        FaissIndex,
        FaissParameters("HNSW32", search="efSearch=300"),
        "faiss, HNSW32 efConstruction=200 efSearch=300",
    ),
    (FaissIndex, FaissParameters("IVF12,Flat", search="nprobe=12"), "faiss, IVF12,Flat nprobe=12"),
]


@pytest.mark.parametrize(
    ("engine", "parameters", "form"), PARAMETERS, ids=[form for _, _, form in PARAMETERS]
)
def test_an_engine_finds_what_is_there_and_never_what_is_not(tmp_path, engine, parameters, form):
    generator = np.random.default_rng(1)

    def unit(rows):
        vectors = generator.standard_normal((rows, 16)).astype(np.float32)
        return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)

    first = unit(600)
    expected = {f"d{i}": vector for i, vector in enumerate(first)}
    built = engine.build(first, list(expected), fingerprint="f", parameters=parameters)
    built.save(tmp_path / "i")
    with LiveIndex.open(tmp_path / "i", write=True) as index:
        for round_ in range(3):
            gone = generator.permutation(list(expected))[:150].tolist()
            index.delete(gone)
            replaced = dict(zip(gone[:40], unit(40), strict=True))
            new = {f"n{round_}-{i}": vector for i, vector in enumerate(unit(60))}
            add(index, {**replaced, **new})
            for doc_id in gone:
                del expected[doc_id]
            expected |= replaced | new
            for _ in range(2):  # before and after the compaction
                scores, doc_ids = index.search(np.stack(list(expected.values())), 1)
                assert doc_ids[:, 0].tolist() == list(expected)
                np.testing.assert_allclose(scores, 1, atol=1e-5)
                everything = index.search(first[:3], 5000)[1]
                assert all(sorted(row) == sorted(expected) for row in everything)
                assert set(index.search(first, 20)[1].ravel()) <= set(expected)
                index.compact()
        status = index.status()
        assert (status.kind, status.dim, status.fingerprint) == (engine.kind, 16, "f")
        assert status.generation == 4
        assert str(load_index(tmp_path / "i")) == form
        assert not (tmp_path / "i/index.json").exists()  # the first of the indexes is gone


def test_a_neighbourhood_of_deleted_documents_is_looked_through(tmp_path):
    vectors = whole_numbers(np.random.default_rng(2), 3000)
    vectors[:, 0] = 1
    vectors[:1000, 0] = 100 + np.arange(1000)
    ExactIndex.build(vectors, [f"d{i}" for i in range(3000)]).save(tmp_path / "i")
    queries = np.array([[1, 0, 0, 0, 0, 0], [-1, 0, 0, 0, 0, 0]])
    with LiveIndex.open(tmp_path / "i", write=True) as index:
        index.delete(["d0", "d1"])
        # Found by the first answer, after doubling, after more of it, by scoring everything.
        for deleted in (5, 40, 200, 900):
            index.delete([f"d{999 - i}" for i in range(deleted)])
            wanted = [f"d{999 - deleted - i}" for i in range(3)]
            assert index.search(queries, 3)[1].tolist() == [wanted, ["d1000", "d1001", "d1002"]]


def test_texts_of_changes_are_kept(tmp_path):
    exact(tmp_path / "i")
    assert LiveIndex.open(tmp_path / "i").documents(["d1"]) == {}
    with LiveIndex.open(tmp_path / "i", write=True) as index:
        vectors = dict(zip(["new", "d1", "gone"], np.eye(3, DIM), strict=True))
        assert add(index, vectors) == 3
        assert add(index, {"new": vectors["new"]}, "zweite Fassung ü\0") == 4
        assert index.delete(["gone"]).sequence == 5
        for _ in range(2):
            found = index.documents(["new", "d1", "gone", "d2", "d1"])
            assert found == {
                "new": Document("new", "title new", "text new zweite Fassung ü\0"),
                "d1": Document("d1", "title d1", "text d1 "),
            }
            index.compact()
    assert LiveIndex.open(tmp_path / "i").documents(["d1"]).keys() == {"d1"}


def test_a_reader_takes_up_what_another_process_changes(tmp_path):
    exact(tmp_path / "i")
    far = np.eye(1, DIM, dtype=np.float32) * 100
    reader = LiveIndex.open(tmp_path / "i")
    before = reader.search_documents(far, 1)
    assert before.version == "1.0"
    assert before.documents == {}
    with LiveIndex.open(tmp_path / "i", write=True) as index:
        for note, factor in (("first", 100), ("second", 200)):
            add(index, {"new": far[0] * factor}, note)
            found = reader.search_documents(far, 1)
            assert found.doc_ids.tolist() == [["new"]]
            assert found.scores.tolist() == [[1e4 * factor]]
            assert found.documents["new"].text == f"text new {note}"
            assert found.version == index.version
        index.compact()
        index.delete(["new"])
        found = reader.search_documents(far, 1)
        assert found.doc_ids.tolist() == before.doc_ids.tolist()
        assert found.version == index.version == "2.3"
        assert reader.search(far, 1)[1].tolist() == before.doc_ids.tolist()


def test_a_reader_forgets_what_came_and_went_before_a_compaction(tmp_path):
    exact(tmp_path / "i")
    far = np.eye(1, DIM, dtype=np.float32) * 100
    reader = LiveIndex.open(tmp_path / "i")
    before = reader.search_documents(far, 1).doc_ids.tolist()
    with LiveIndex.open(tmp_path / "i", write=True) as index:
        add(index, {"new": far[0]})
        assert reader.search_documents(far, 1).doc_ids.tolist() == [["new"]]
        index.delete(["new"])
        assert index.compact()
        assert not index.compact()
        assert reader.search_documents(far, 1).doc_ids.tolist() == before
        add(index, {"other": -far[0]})
        assert reader.search_documents(far, 1).doc_ids.tolist() == before


@pytest.mark.parametrize("attempts", [10, 1, 0])
def test_a_text_is_that_of_the_vector_that_was_scored(tmp_path, monkeypatch, attempts):
    """Texts and vectors tell their version; searches never mix two, in writer or reader.

    With few attempts many end where changes come faster than searches end.
    """
    monkeypatch.setattr(live_index, "_ATTEMPTS", attempts)
    query, done = np.eye(1, DIM, dtype=np.float32), threading.Event()
    doc_ids = [f"d{i}" for i in range(5)]
    ExactIndex.build(np.zeros((5, DIM), np.float32), doc_ids).save(tmp_path / "i")

    def search(index):
        checked = 0
        while not done.is_set():
            found = index.search_documents(query, 5)
            for doc_id, score in zip(found.doc_ids[0], found.scores[0], strict=True):
                text = found.documents[doc_id].text if doc_id in found.documents else " 0"
                assert int(text.rpartition(" ")[2]) == score, found
                checked += 1
        return checked

    with LiveIndex.open(tmp_path / "i", write=True) as index, ThreadPoolExecutor(4) as threads:
        readers = [index, index, LiveIndex.open(tmp_path / "i"), LiveIndex.open(tmp_path / "i")]
        searches = [threads.submit(search, reader) for reader in readers]
        try:
            for version in range(1, 150):
                vectors = np.full((5, DIM), version, np.float32)
                index.add(documents_of(doc_ids, str(version)), vectors, fingerprint="")
                if version % 50 == 0:
                    index.compact()
        finally:
            done.set()
        assert all(search.result() > 5 for search in searches)


def test_searches_and_readers_go_on_during_changes_and_compactions(tmp_path):
    """Each document's vector tells its version; a search must see whole batches, all or none."""
    count, version = 30, 1
    doc_ids = [f"d{i}" for i in range(count)]
    ExactIndex.build(np.ones((count, DIM), np.float32), doc_ids).save(tmp_path / "i")
    index = LiveIndex.open(tmp_path / "i", write=True)
    query, done = np.eye(1, DIM, dtype=np.float32), threading.Event()

    def search(opened):
        last = 1.0
        while not done.is_set():
            scores, found = opened().search(query, count)
            assert sorted(found[0]) == sorted(doc_ids)
            assert set(scores[0]) == {scores[0, 0]}
            assert scores[0, 0] >= last
            last = scores[0, 0]
        return last

    def compact():
        refused = set()
        while not done.is_set():
            try:
                index.compact()
            except ConfigError as error:
                refused.add(str(error))
        return refused

    with ThreadPoolExecutor(8) as threads:
        searched = [lambda: index, lambda: index, lambda: LiveIndex.open(tmp_path / "i")]
        searches = [threads.submit(search, opened) for opened in searched]
        compactions = [threads.submit(compact) for _ in range(2)]
        try:
            while version < 25 or index.status().generation < 8:
                version += 1
                vectors = np.full((count, DIM), version, np.float32)
                index.add(documents_of(doc_ids), vectors, fingerprint="")
                np.testing.assert_array_equal(index.search(query, 1)[0], [[version]])  # at once
        finally:
            done.set()
    assert all(other.result() in range(2, version + 1) for other in searches)
    refused = compactions[0].result() | compactions[1].result()
    assert refused == {f"{tmp_path}/i: a compaction of this index is under way."}
    index.close()
    reopened = LiveIndex.open(tmp_path / "i").search(query, count)[0]
    np.testing.assert_array_equal(reopened, np.full((1, count), version))


def test_status_and_when_a_compaction_is_advised(tmp_path):
    exact(tmp_path / "i", rows=2000)
    with LiveIndex.open(tmp_path / "i", write=True) as index:
        assert not index.compact()
        index.delete([f"d{i}" for i in range(500)])
        add(index, {f"n{i}": np.ones(DIM) for i in range(499)})
        status = index.status()
        assert (status.documents, status.base_rows, status.base_deleted) == (1999, 2000, 500)
        assert (status.added, status.sequence, status.generation) == (499, 999, 1)
        assert (status.compact_from, status.compaction_advised) == (1000, False)
        add(index, {"n999": np.ones(DIM)})
        assert index.status().compaction_advised
        files = [tmp_path / "i" / name for name in ("doc_ids.txt", "vectors.npy")]
        assert index.status().index_bytes == sum(file.stat().st_size for file in files)
        assert index.status().changes_bytes > 500 * 4 * DIM
        assert index.compact()
        status = index.status()
        assert (status.documents, status.base_rows, status.generation) == (2000, 2000, 2)
        assert (status.base_deleted, status.added, status.sequence) == (0, 0, 1000)
    names = {file.name for file in (tmp_path / "i").iterdir()}
    assert names == {".lock", "changes.acknowledged", "changes.sqlite", "generations"}
    assert [file.name for file in (tmp_path / "i/generations").iterdir()] == ["0002"]


def test_what_opens_after_changes(tmp_path):
    expected = exact(tmp_path / "i")
    assert type(load_index(tmp_path / "i")) is ExactIndex
    versions = [index_version(tmp_path / "i")]
    with LiveIndex.open(tmp_path / "i", write=True) as index:
        assert type(load_index(tmp_path / "i")) is ExactIndex
        assert index_version(tmp_path / "i") == versions[0]
        index.delete(["d0"])
        versions.append(index_version(tmp_path / "i"))
        add(index, {"d1": np.ones(DIM)})
        versions.append(index_version(tmp_path / "i"))
        live = load_index(tmp_path / "i")
        assert type(live) is LiveIndex
        assert live.doc_ids.tolist() == [*list(expected)[2:], "d1"]
        index.compact()
        versions.append(index_version(tmp_path / "i"))
        assert live.search(np.ones((1, DIM)), 50)[1].shape == (1, 39)  # its files are gone by now
        add(index, {"guest": np.ones(DIM)})
        index.delete(["guest"])
        assert type(load_index(tmp_path / "i")) is LiveIndex
        assert index.compact()
    compacted = load_index(tmp_path / "i")
    assert type(compacted) is ExactIndex
    assert compacted.doc_ids.tolist() == live.doc_ids.tolist()
    assert compacted.fingerprint == "f"
    assert len(set(versions)) == 4


def test_bad_changes_are_refused_and_change_nothing(tmp_path):
    expected = exact(tmp_path / "i")
    ones = np.ones((2, DIM))
    two = documents_of(["x", "y"])
    index = LiveIndex.open(tmp_path / "i", write=True)
    with pytest.raises(MismatchError, match=r"made with model f, not with model other; doc"):
        index.add(two, ones, fingerprint="other")
    with pytest.raises(MismatchError, match=r"made with model f, not with model unknown"):
        index.add(two, ones, fingerprint="")
    with pytest.raises(MismatchError, match=r"must be \(documents, 6\).*Received: shape \(2, 5\)"):
        index.add(two, ones[:, :5], fingerprint="f")
    with pytest.raises(MismatchError, match=r"each of the 2 vectors\. Received: 1 ids"):
        index.add(two[:1], ones, fingerprint="f")
    with pytest.raises(ConfigError, match=r"`embeddings` must be finite\. Received: row 1"):
        index.add(two, [[1.0] * DIM, [1e300] * DIM], fingerprint="f")
    with pytest.raises(ConfigError, match=r"`embeddings` must not be empty"):
        index.add([], np.empty((0, DIM)), fingerprint="f")
    with pytest.raises(DataError, match=r"doc_ids:2: .*unique\. Received: 'x'"):
        index.add([two[0], two[0]], ones, fingerprint="f")
    with pytest.raises(DataError, match=r"doc_ids:2: .*without white space\. Received: 'a b'"):
        index.add(documents_of(["x", "a b"]), ones, fingerprint="f")
    with pytest.raises(DataError, match=r"documents:2: a document's text must be Unicode text"):
        index.add([two[0], Document("y", "", "\ud800")], ones, fingerprint="f")
    with pytest.raises(DataError, match=r"documents:1: a document's title must be"):
        index.add([Document("x", None, ""), two[1]], ones, fingerprint="f")
    with pytest.raises(DataError, match=r"doc_ids:2: a document id must be UTF-8 text"):
        index.add(documents_of(["x", "\ud800"]), ones, fingerprint="f")
    with pytest.raises(DataError, match=r"doc_ids:2: .*Received: 7"):
        index.delete(["d1", 7])
    with pytest.raises(ConfigError, match=r"`doc_ids` must be a list of ids\. Received: 'd1'"):
        index.delete("d1")
    with pytest.raises(ConfigError, match=r"`k` must be at least 1\. Received: 0"):
        index.search(ones, 0)
    with pytest.raises(MismatchError, match=r"must be \(queries, 6\)"):
        index.search(ones[:, :5], 1)
    assert index.status().sequence == 0
    index.close()
    for change in (lambda: index.delete(["d1"]), lambda: add(index, {"x": ones[0]}), index.compact):
        with pytest.raises(ConfigError, match=r"i: must be open for writing: LiveIndex\.open"):
            change()
    assert_answers_like(LiveIndex.open(tmp_path / "i"), expected, ones)


def test_all_deleted(tmp_path):
    expected = exact(tmp_path / "i", rows=5)
    with LiveIndex.open(tmp_path / "i", write=True) as index:
        index.delete(list(expected))
        assert index.search(np.ones((2, DIM)), 3)[1].shape == (2, 0)
        with pytest.raises(ConfigError, match=r"i: all documents are deleted, .* at least one"):
            index.compact()
        new = {"x": np.ones(DIM, np.float32)}
        add(index, new)
        assert_answers_like(index, new, np.ones((1, DIM)))
        assert index.compact()
        assert_answers_like(index, new, np.ones((1, DIM)))
        assert index.search(np.empty((0, DIM)), 3)[1].shape == (0, 1)


def test_one_writer_at_a_time(tmp_path):
    exact(tmp_path / "i")
    message = r"i: another process \(pid \d+\) is changing this index\.$"
    with LiveIndex.open(tmp_path / "i", write=True):
        with pytest.raises(ConfigError, match=message):
            LiveIndex.open(tmp_path / "i", write=True)
        with pytest.raises(ConfigError, match=message):  # as `tfde build-index --overwrite` does
            ExactIndex.build(np.eye(2), ["a", "b"]).save(tmp_path / "i", overwrite=True)
        LiveIndex.open(tmp_path / "i")
    LiveIndex.open(tmp_path / "i", write=True).close()
    ExactIndex.build(np.eye(2), ["a", "b"]).save(tmp_path / "i", overwrite=True)
    assert LiveIndex.open(tmp_path / "i").doc_ids.tolist() == ["a", "b"]
    with pytest.raises(FileNotFoundError, match=r"nowhere: no index\.json there"):
        LiveIndex.open(tmp_path / "nowhere", write=True)
    assert not (tmp_path / "nowhere").exists()


def test_what_a_killed_writer_left_is_removed(tmp_path):
    expected = exact(tmp_path / "i")
    vectors = np.stack(list(expected.values()))
    left = ["generations/0002", "generations/.0003.0123456789ab.tmp", "generations/0009"]

    def leave(*more):
        for name in [*left, *more]:
            ExactIndex.build(vectors[:3], list("abc")).save(tmp_path / "i" / name, overwrite=True)
        (tmp_path / "i/.changes.sqlite.0123456789ab.tmp.sqlite").write_bytes(b"half")

    leave()
    with LiveIndex.open(tmp_path / "i", write=True) as index:
        assert not any((tmp_path / "i/generations").iterdir())
        index.delete(["d0"])
        assert index.compact()
        del expected["d0"]
    left.remove("generations/0002")
    leave(".old")
    for name in ("index.json", "vectors.npy"):  # killed before all of the first base was removed
        (tmp_path / "i/.old" / name).rename(tmp_path / "i" / name)
    assert_answers_like(LiveIndex.open(tmp_path / "i"), expected, vectors[:2])
    with LiveIndex.open(tmp_path / "i", write=True) as index:
        assert [file.name for file in (tmp_path / "i/generations").iterdir()] == ["0002"]
        assert not (tmp_path / "i/index.json").exists()
        assert not (tmp_path / "i/vectors.npy").exists()
        assert not list((tmp_path / "i").glob(".changes*"))
        assert_answers_like(index, expected, vectors[:2])


def test_what_is_no_document_or_no_list_is_refused(tmp_path):
    exact(tmp_path / "index")
    with LiveIndex.open(tmp_path / "index", write=True) as index:
        assert len(index) == 40
        add(index, {"new": np.ones(DIM, np.float32)})
        assert len(index) == 41
        assert list(index.documents(["new"])) == ["new"]
        with pytest.raises(ConfigError, match=r"`doc_ids` must be a list of ids\. Rec"):
            index.documents("new")
        for wrong in ("x", {"_id": "x", "text": "y"}):
            with pytest.raises(
                DataError, match=r"documents:1: must be a tfde.Document\(doc_id, ti"
            ):
                index.add([wrong], np.ones((1, DIM)), fingerprint="f")


@pytest.mark.parametrize("compacted", [False, True])
def test_an_index_that_was_changed_is_not_read_as_it_was_built(tmp_path, compacted):
    exact(tmp_path / "i", rows=5)
    assert len(ExactIndex.load(tmp_path / "i")) == 5
    with LiveIndex.open(tmp_path / "i", write=True) as index:
        index.delete(["d1"])
        if compacted:
            index.compact()
    with pytest.raises(MismatchError, match=r"was changed since it was built; `tfde\.LiveIndex"):
        ExactIndex.load(tmp_path / "i")
