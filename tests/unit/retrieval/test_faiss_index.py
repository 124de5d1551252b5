"""A faiss index answers as faiss itself does on the same vectors, and faiss opens its file."""

import json
import resource
import subprocess
import sys

import faiss
import numpy as np
import pytest

from tfde.errors import ConfigError, CorruptError, MismatchError
from tfde.retrieval.exact_index import ExactIndex
from tfde.retrieval.faiss_index import FaissIndex, FaissParameters
from tfde.retrieval.index import open_index

ROWS, DIM = 3000, 16
CHOICES = [
    FaissParameters(),
    FaissParameters("HNSW32"),
    FaissParameters("IVF32,Flat", search="nprobe=4"),
    FaissParameters("IVF32,PQ8x4fs,RFlat", search="nprobe=8,k_factor_rf=10"),
    FaissParameters("SQ8"),
]


def unit(rows, seed=0, dim=DIM):
    vectors = np.random.default_rng(seed).standard_normal((rows, dim)).astype(np.float32)
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


def ids(rows):
    return [f"d{i}" for i in range(rows)]


VECTORS, QUERIES = unit(ROWS), unit(50, 1)


@pytest.fixture(scope="module", params=CHOICES, ids=lambda choice: choice.factory or "default")
def saved(request, tmp_path_factory):
    """An index of each kind, in memory and on the disk."""
    index = FaissIndex.build(VECTORS, ids(ROWS), fingerprint="f", parameters=request.param)
    path = tmp_path_factory.mktemp("faiss") / "index"
    index.save(path)
    return index, path


def test_faiss_itself_opens_the_file_and_finds_the_same(saved):
    index, path = saved
    own = faiss.read_index(str(path / "structure.faiss"))
    assert (own.ntotal, own.d, own.metric_type) == (ROWS, DIM, faiss.METRIC_INNER_PRODUCT)
    faiss.ParameterSpace().set_index_parameters(own, index.parameters.search)
    scores, positions = own.search(QUERIES, 10)
    for form in (index, FaissIndex.load(path), open_index(path, verify=False)):
        found_scores, found = form.search(QUERIES, 10)
        assert found.tolist() == [[f"d{p}" for p in row] for row in positions]
        np.testing.assert_array_equal(found_scores, scores)
        assert form.fingerprint == "f"
        np.testing.assert_array_equal(form.vectors(), VECTORS)
    assert not list(path.rglob("*.pkl"))


def test_an_index_that_faiss_built_alone_agrees(tmp_path):
    alone = faiss.IndexHNSWFlat(DIM, 32, faiss.METRIC_INNER_PRODUCT)
    alone.hnsw.efConstruction, alone.hnsw.efSearch = 200, 64
    threads = faiss.omp_get_max_threads()
    faiss.omp_set_num_threads(1)  # else the graph depends on who comes first
    try:
        alone.add(VECTORS)
        ours = FaissIndex.build(VECTORS, ids(ROWS), parameters=FaissParameters("HNSW32"))
    finally:
        faiss.omp_set_num_threads(threads)
    scores, positions = alone.search(QUERIES, 20)
    found_scores, found = ours.search_positions(QUERIES, 20)
    np.testing.assert_array_equal(found, positions)
    np.testing.assert_array_equal(found_scores, scores)


def test_k_results_come_whatever_the_lists_hold(saved):
    index, _ = saved
    for k in (1, 400, ROWS, ROWS + 5):
        scores, doc_ids = index.search(QUERIES[:3], k)
        assert doc_ids.shape == (3, min(k, ROWS))
        assert all(len(set(row)) == len(row) for row in doc_ids.tolist())
        assert np.isfinite(scores).all()
        assert (np.diff(scores, axis=1) <= 0).all()
    assert index.search(QUERIES[:0], 3)[1].shape == (0, 3)


def test_the_size_decides_what_is_not_asked_for():
    """Source: docs/search.md."""
    resolved = FaissParameters().resolved
    assert resolved(19_999) == FaissParameters("Flat", "", "")
    assert resolved(20_000) == FaissParameters("HNSW32", "efConstruction=200", "efSearch=64")
    assert FaissParameters("IVF8,Flat").resolved(9) == FaissParameters("IVF8,Flat", "", "")
    asked = FaissParameters("HNSW32", search="efSearch=200").resolved(9)
    assert (asked.build, asked.search) == ("efConstruction=200", "efSearch=200")
    small = FaissIndex.build(VECTORS[:50], ids(50))
    assert small.parameters_for(50_000).resolved(50_000).factory == "HNSW32"
    kept = FaissIndex.build(VECTORS[:50], ids(50), parameters=FaissParameters("SQ8"))
    assert kept.parameters_for(50_000).resolved(50_000).factory == "SQ8"


def test_parameters_reach_faiss():
    graph = FaissParameters("HNSW16", build="efConstruction=77", search="efSearch=99")
    index = FaissIndex.build(VECTORS, ids(ROWS), parameters=graph)
    hnsw = index._structure.hnsw
    assert (hnsw.efConstruction, hnsw.efSearch) == (77, 99)
    assert hnsw.nb_neighbors(1) == 16


def test_recall_is_one_for_flat_and_less_for_one_list():
    assert FaissIndex.build(VECTORS, ids(ROWS)).recall(10, sample=100).recall == 1
    narrow = FaissParameters("IVF64,Flat", search="nprobe=1")
    poor = FaissIndex.build(VECTORS, ids(ROWS), parameters=narrow)
    wanted = ExactIndex.build(VECTORS, ids(ROWS)).search(QUERIES, 10)[1]
    found = poor.search(QUERIES, 10)[1]
    share = np.mean([len(set(a) & set(b)) / 10 for a, b in zip(wanted, found, strict=True)])
    assert 0.05 < share < 0.9
    assert poor.recall(10, query_embeddings=QUERIES).recall == pytest.approx(share, abs=1e-9)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"factory": "nonsense"}, r"cannot build 'nonsense' .*could not parse index string"),
        (
            {"factory": "IVF4096,Flat"},
            r"of 3000 vectors of 16 .*: Number of training points",
        ),
        ({"factory": "PQ7"}, r"cannot build 'PQ7' of 3000 vectors of 16 numbers"),
        ({"factory": "LSH"}, r"cannot build 'LSH'"),
        ({"factory": "Flat", "search": "efSearch=9"}, r"could not set parameter efSearch"),
        ({"factory": 3}, r"`factory` must be a text\. Received: 3"),
    ],
)
def test_impossible_parameters(fields, message):
    with pytest.raises(ConfigError, match=message):
        FaissIndex.build(VECTORS, ids(ROWS), parameters=FaissParameters(**fields))


def test_damage_is_named(tmp_path):
    FaissIndex.build(VECTORS[:50], ids(50)).save(tmp_path / "i")
    structure = tmp_path / "i/structure.faiss"
    content = structure.read_bytes()
    structure.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    with pytest.raises(CorruptError, match=r"structure\.faiss: differs from what was written"):
        FaissIndex.load(tmp_path / "i")
    structure.write_bytes(b"none" + content[4:])
    with pytest.raises(CorruptError, match=r"structure\.faiss: .*not recognized"):
        FaissIndex.load(tmp_path / "i", verify=False)
    FaissIndex.build(VECTORS[:49], ids(49)).save(tmp_path / "other")
    manifest = tmp_path / "i/index.json"
    fields = json.loads(manifest.read_text())
    other = tmp_path / "other/structure.faiss"
    structure.write_bytes(other.read_bytes())
    fields["files"]["structure.faiss"]["bytes"] = other.stat().st_size
    manifest.write_text(json.dumps(fields))
    with pytest.raises(CorruptError, match=r"must index \(50, 16\)\. Received: \(49, 16\)"):
        FaissIndex.load(tmp_path / "i", verify=False)
    with pytest.raises(MismatchError, match=r"must be an index of kind exact\. Received: 'faiss'"):
        ExactIndex.load(tmp_path / "i")


def test_a_full_disk_is_told_and_leaves_nothing(tmp_path):
    index = FaissIndex.build(VECTORS, ids(ROWS), parameters=FaissParameters("HNSW32"))
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (VECTORS.nbytes + 1000, hard))
    try:
        with pytest.raises(OSError, match=r"files of faiss cannot be written \(.*i'$"):
            index.save(tmp_path / "i")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert not list(tmp_path.iterdir())


MEMORY = """
import sys
from pathlib import Path
from tfde.retrieval.faiss_index import FaissIndex

def of(name):
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(name))

FaissIndex.load(sys.argv[2], verify=False)  # the libraries
before = of("RssAnon")
index = FaissIndex.load(sys.argv[1], verify=False)
print(of("RssAnon") - before, index.shape[0])
"""


def test_a_graph_is_searched_from_the_disk(tmp_path):
    """Less memory of its own than a quarter of the vectors, which the file holds."""
    vectors = unit(4000, dim=1024)
    FaissIndex.build(VECTORS[:9], ids(9)).save(tmp_path / "small")
    index = FaissIndex.build(vectors, ids(4000), parameters=FaissParameters("HNSW8", "", ""))
    index.save(tmp_path / "i")
    paths = (str(tmp_path / "i"), str(tmp_path / "small"))
    command = [sys.executable, "-c", MEMORY, *paths]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    kib, rows = map(int, done.stdout.split())
    assert rows == 4000
    assert kib * 1024 < vectors.nbytes / 4
