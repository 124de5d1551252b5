import json
import resource

import numpy as np
import pytest

from tfde.errors import ConfigError, CorruptError, MismatchError
from tfde.retrieval.exact_index import ExactIndex
from tfde.retrieval.recall import sample_queries
from tfde.retrieval.scann_index import ScannIndex
from tfde.retrieval.scann_parameters import ScannParameters


def clustered(rows, dim, seed=0, clusters=40):
    generator = np.random.default_rng(seed)
    centers = generator.standard_normal((clusters, dim))
    noise = generator.standard_normal((rows, dim))
    vectors = centers[generator.integers(0, clusters, rows)] + 0.6 * noise
    return (vectors / np.linalg.norm(vectors, axis=1, keepdims=True)).astype(np.float32)


def ids(rows):
    return [f"d{i}" for i in range(rows)]


HASH = ScannParameters(kind="hash")
TREE = ScannParameters(kind="tree", num_leaves=20, num_leaves_to_search=20)


@pytest.mark.parametrize(
    ("rows", "kind", "leaves"),
    [
        (1, "exact", None),
        (19_999, "exact", None),
        (20_000, "hash", None),
        (100_000, "hash", None),
        (100_001, "tree", 632),
        (1_000_000, "tree", 2000),
    ],
)
def test_size_decides(rows, kind, leaves):
    resolved = ScannParameters().resolved(rows, 64)
    assert (resolved.kind, resolved.num_leaves) == (kind, leaves)


def test_naming_leaves_means_a_tree():
    resolved = ScannParameters(num_leaves=7).resolved(100, 8)
    assert (resolved.kind, resolved.num_leaves, resolved.num_leaves_to_search) == ("tree", 7, 1)


@pytest.mark.parametrize("parameters", [None, HASH, TREE])
def test_all_kinds_agree_with_exact_search(parameters):
    vectors = clustered(500, 16)
    queries = clustered(30, 16, seed=1)
    index = ScannIndex.build(vectors, ids(500), parameters=parameters)
    scores, positions = index.search_positions(queries, 5, pre_reorder_num_neighbors=500)
    order = np.argsort(-(queries @ vectors.T), axis=1)[:, :5]
    np.testing.assert_array_equal(positions, order)
    np.testing.assert_allclose(scores, np.take_along_axis(queries @ vectors.T, order, 1), atol=1e-5)


@pytest.mark.parametrize(
    "parameters",
    [
        None,
        HASH,
        TREE,
        ScannParameters(kind="tree", num_leaves=20, num_leaves_to_search=1, reorder=5),
        ScannParameters(kind="tree", num_leaves=20, num_leaves_to_search=1, reorder=0),
    ],
)
def test_k_results_come_whatever_the_leaves_hold(parameters):
    vectors = clustered(300, 8)
    index = ScannIndex.build(vectors, ids(300), parameters=parameters)
    for k in (1, 40, 299, 300, 1000):
        scores, doc_ids = index.search(vectors[:4], k)
        assert doc_ids.shape == (4, min(k, 300))
        assert all(len(set(row)) == len(row) for row in doc_ids.tolist())
        assert np.isfinite(scores).all()
        assert (np.diff(scores, axis=1) <= 0).all()


@pytest.mark.parametrize("rows", [1, 3, 15, 16, 17])
@pytest.mark.parametrize("kind", [None, "hash", "tree"])
def test_fewer_vectors_than_training_wants(rows, kind):
    vectors = clustered(rows, 8)
    index = ScannIndex.build(vectors, ids(rows), parameters=ScannParameters(kind=kind))
    _, doc_ids = index.search(vectors, 10)
    assert doc_ids.shape == (rows, min(rows, 10))
    assert doc_ids[:, 0].tolist() == ids(rows)


def test_a_dimension_that_no_block_divides():
    vectors = clustered(200, 7)
    parameters = ScannParameters(kind="hash", dimensions_per_block=3)
    index = ScannIndex.build(vectors, ids(200), parameters=parameters)
    assert index.search(vectors, 1)[1][:, 0].tolist() == ids(200)


def test_more_queries_than_one_thread_takes():
    vectors = clustered(400, 8)
    index = ScannIndex.build(vectors, ids(400), parameters=TREE)
    queries = clustered(1100, 8, seed=3)
    together = index.search(queries, 3)[1]
    one_by_one = [index.search(queries[i : i + 1], 3)[1][0].tolist() for i in range(0, 1100, 50)]
    assert together[::50].tolist() == one_by_one
    assert index.search(queries[:0], 3)[1].shape == (0, 3)


@pytest.mark.parametrize("parameters", [None, HASH, TREE, ScannParameters(kind="hash", reorder=0)])
def test_save_move_and_load(tmp_path, parameters):
    vectors = clustered(300, 8)
    index = ScannIndex.build(vectors, ids(300), fingerprint="f00", parameters=parameters)
    index.save(tmp_path / "first")
    (tmp_path / "first").rename(tmp_path / "moved")
    loaded = ScannIndex.load(tmp_path / "moved")
    assert loaded.fingerprint == "f00"
    assert loaded.parameters == index.parameters
    assert loaded.shape == (300, 8)
    expected, received = index.search(vectors[:9], 20), loaded.search(vectors[:9], 20)
    np.testing.assert_array_equal(received[0], expected[0])
    assert received[1].tolist() == expected[1].tolist()
    np.testing.assert_array_equal(loaded.vectors(), vectors)
    assert not list(tmp_path.rglob("*.pkl"))
    names = {str(file.relative_to(tmp_path / "moved")) for file in tmp_path.rglob("*.npy")}
    assert len(names & {"vectors.npy", "scann/dataset.npy"}) == 1


def test_damage_and_pickles_are_refused(tmp_path):
    ScannIndex.build(clustered(50, 8), ids(50)).save(tmp_path / "i")
    (tmp_path / "i/scann/scann_docids.pkl").write_bytes(b"whatever")
    with pytest.raises(CorruptError, match="holds a pickle, which is never read"):
        ScannIndex.load(tmp_path / "i")
    (tmp_path / "i/scann/scann_docids.pkl").unlink()
    data = tmp_path / "i/scann/dataset.npy"
    content = data.read_bytes()
    data.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    with pytest.raises(CorruptError, match=r"dataset\.npy: differs from what was written"):
        ScannIndex.load(tmp_path / "i")
    data.unlink()
    with pytest.raises(CorruptError, match=r"dataset\.npy: is missing"):
        ScannIndex.load(tmp_path / "i")
    manifest = tmp_path / "i/index.json"
    fields = json.loads(manifest.read_text())
    assert {"kind", "rows", "dim", "fingerprint", "parameters", "files"} <= set(fields)


def test_recall_is_one_for_exact_and_less_for_one_leaf():
    vectors = clustered(2000, 16)
    exact = ScannIndex.build(vectors, ids(2000)).recall(10, sample=200)
    assert exact.recall == 1
    assert (exact.k, exact.num_queries) == (10, 200)
    assert exact.seconds_per_query > 0
    narrow = ScannParameters(kind="tree", num_leaves=200, num_leaves_to_search=1, reorder=10)
    poor = ScannIndex.build(vectors, ids(2000), parameters=narrow)
    assert poor.recall(10, sample=200).recall < 0.9
    # Against the definition: share of the exact top 10 by id.
    queries = clustered(100, 16, seed=5)
    wanted = ExactIndex.build(vectors, ids(2000)).search(queries, 10)[1]
    found = poor.search(queries, 10)[1]
    share = np.mean([len(set(a) & set(b)) / 10 for a, b in zip(wanted, found, strict=True)])
    assert poor.recall(10, query_embeddings=queries).recall == pytest.approx(share, abs=1e-9)


def test_equal_vectors_stand_for_one_another():
    vectors = np.repeat(clustered(20, 8), 30, axis=0)
    index = ScannIndex.build(vectors, ids(600), parameters=HASH)
    assert index.recall(10, sample=50).recall == 1


def test_sampled_queries_lie_at_cosine_08_of_stored_vectors():
    vectors = clustered(400, 64)
    queries = sample_queries(vectors * 3, 400, seed=1)
    np.testing.assert_allclose(np.linalg.norm(queries, axis=1), 1, atol=1e-5)
    assert np.einsum("ij,ij->i", queries, vectors).mean() == pytest.approx(0.8, abs=0.02)
    np.testing.assert_array_equal(queries, sample_queries(vectors * 3, 400, seed=1))
    assert not np.array_equal(queries, sample_queries(vectors * 3, 400, seed=2))


def test_a_full_disk_is_told_and_leaves_nothing(tmp_path):
    index = ScannIndex.build(clustered(50, 8), ids(50), parameters=HASH)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (250, hard))  # enough for the ids
    try:
        with pytest.raises(OSError, match=r"files of scann cannot be written \(.*i'$"):
            index.save(tmp_path / "i")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert not list(tmp_path.iterdir())


def test_bad_input_is_named():
    vectors = clustered(50, 8)
    index = ScannIndex.build(vectors, ids(50))
    with pytest.raises(MismatchError, match=r"must be \(queries, 8\).*Received: shape \(2, 9\)"):
        index.search(np.ones((2, 9)), 3)
    with pytest.raises(ConfigError, match="`k` must be at least 1"):
        index.search(vectors, 0)
    with pytest.raises(ConfigError, match=r"`query_embeddings` must be finite"):
        index.search(np.full((1, 8), np.nan), 3)
    with pytest.raises(ConfigError, match="recall needs queries"):
        index.recall(query_embeddings=np.empty((0, 8)))
    with pytest.raises(ConfigError, match="`embeddings` must not be empty"):
        ScannIndex.build(np.empty((0, 8)), [])
    with pytest.raises(ConfigError, match=r"`embeddings` must be finite\. Received: row 0"):
        ScannIndex.build(np.full((1, 8), np.inf), ["a"])


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"kind": "flat"}, "`kind` must be exact, hash or tree. Received: 'flat'"),
        ({"num_leaves": 0}, "`num_leaves` must be at least 1. Received: 0"),
        ({"kind": "hash", "num_leaves": 3}, "`num_leaves` belongs to kind tree"),
        ({"training_sample_size": 15}, "`training_sample_size` must be at least 16"),
        ({"dimensions_per_block": 0}, "`dimensions_per_block` must be at least 1"),
        ({"reorder": -1}, "`reorder` must be at least 0. Received: -1"),
    ],
)
def test_impossible_parameters(fields, message):
    with pytest.raises(ConfigError, match=message):
        ScannParameters(**fields)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"num_leaves": 101}, "`num_leaves` must be at most 100, the vectors. Received: 101"),
        (
            {"num_leaves": 50, "training_sample_size": 49},
            "`num_leaves` must be at most 49, the training samples. Received: 50",
        ),
        (
            {"num_leaves": 10, "num_leaves_to_search": 11},
            "`num_leaves_to_search` must be at most 10, the leaves. Received: 11",
        ),
        (
            {"kind": "hash", "dimensions_per_block": 9},
            "`dimensions_per_block` must be at most 8, the dimension. Received: 9",
        ),
    ],
)
def test_parameters_that_do_not_fit_the_vectors(fields, message):
    with pytest.raises(ConfigError, match=message):
        ScannParameters(**fields).resolved(100, 8)


def test_what_follows_from_the_size_follows_from_a_new_one():
    """Source of the numbers: 2 sqrt(N) leaves, 250 vectors a leaf to learn them from."""
    vectors, ids = np.eye(40, 8, dtype=np.float32), [str(i) for i in range(40)]
    open_ = ScannIndex.build(vectors, ids)
    assert open_.parameters.kind == "exact"
    tree = open_.parameters_for(10_000_000).resolved(10_000_000, 8)
    assert (tree.kind, tree.num_leaves, tree.training_sample_size) == ("tree", 6325, 250 * 6325)
    asked = ScannParameters(kind="tree", num_leaves=8, training_sample_size=30, reorder=7)
    kept = ScannIndex.build(vectors, ids, parameters=asked).parameters_for(1000).resolved(1000, 8)
    assert (kept.kind, kept.num_leaves, kept.training_sample_size) == ("tree", 8, 30)
    assert kept.reorder == 7
    few = ScannParameters(kind="tree", training_sample_size=30)
    grown = ScannIndex.build(vectors, ids, parameters=few).parameters_for(10_000)
    assert grown.resolved(10_000, 8).num_leaves == 200  # more than samples were asked for


@pytest.mark.parametrize("threshold", [None, 0.0, 0.2, 0.5])
def test_the_threshold_of_the_codes_is_kept(tmp_path, threshold):
    """`None` is plain quantization, which ScaNN calls NaN."""
    vectors = np.random.default_rng(3).normal(size=(400, 16)).astype(np.float32)
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    asked = ScannParameters(kind="hash", anisotropic_quantization_threshold=threshold)
    ids = [str(number) for number in range(len(vectors))]
    ScannIndex.build(vectors, ids, parameters=asked).save(tmp_path / "i")
    index = ScannIndex.load(tmp_path / "i")
    assert index.parameters.anisotropic_quantization_threshold == threshold
    assert index.recall(10, query_embeddings=vectors[:50]).recall > 0.95
    for wrong in (1.0, -0.1, float("nan")):
        with pytest.raises(ConfigError, match=r"threshold` must be null, or in \[0, 1\)"):
            ScannParameters(anisotropic_quantization_threshold=wrong)
