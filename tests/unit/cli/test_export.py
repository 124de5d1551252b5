"""`tfde export`: its formats and their options."""

import json

import numpy as np
import pytest
import tiny

from tfde.cli.export import _part_of
from tfde.cli.main import main
from tfde.data.dataset_directory import DatasetDirectory
from tfde.data.dataset_writer import write_dataset
from tfde.retrieval.encode_corpus import encode_corpus
from tfde.retrieval.exact_index import ExactIndex
from tfde.retrieval.scann_index import ScannIndex
from tfde.retrieval.scann_parameters import ScannParameters
from tfde.types import Document


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    directory = tmp_path_factory.mktemp("models") / "model"
    tiny.dual_encoder(tiny.BERT).save_to_preset(directory)
    return directory


def export(*options):
    return main(["export", "--format", "sentence-transformers", *map(str, options)])


def test_it_says_how_to_load_and_what_differs(model, tmp_path, capsys):
    assert export("--model", model, "--output", tmp_path / "out") == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == f"sentence-transformers directory: {tmp_path / 'out'}"
    assert lines[1].startswith("note: sentence-transformers cuts queries at 16 tokens")
    assert lines[2].endswith(f"model = SentenceTransformer('{tmp_path / 'out'}')")
    assert len(lines) == 3
    modules = json.loads((tmp_path / "out" / "modules.json").read_text())
    assert modules[0]["type"] == "sentence_transformers.models.Transformer"


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("index", "i"),
        ("embeddings", "e"),
        ("dataset", "d"),
        ("version", "2"),
        ("golden", "3"),
        ("scann", "false"),
        ("retriever_dtype", "int8"),
        ("target_recall", "0.9"),
        ("precision", "int8"),
    ],
)
def test_options_of_bundles_are_refused(option, value, tmp_path, capsys):
    assert export("--model", "m", "--output", tmp_path / "out", f"--{option}", value) == 1
    error = capsys.readouterr().err
    assert error.startswith(f"tfde export: `--{option}` belongs to bundles: ")
    assert error.rstrip().lower().endswith(f"received: {value}")
    assert error.count("\n") == 1
    assert not (tmp_path / "out").exists()


def test_what_needs_an_index(tmp_path, capsys):
    arguments = ["export", "--model", "m", "--output", str(tmp_path / "out")]
    for name, value in (("target_recall", "0.9"), ("shard", "1/2")):
        assert main([*arguments, f"--{name}", value]) == 1
        rule = f"tfde export: `--{name}` needs `--index` or `--embeddings`."
        assert capsys.readouterr().err == f"{rule} Received: {value} alone\n"


def test_an_unknown_format_is_one_line(tmp_path, capsys):
    with pytest.raises(SystemExit) as caught:
        main(["export", "--model", "m", "--output", str(tmp_path / "o"), "--format", "tflite"])
    assert caught.value.code == 2
    error = capsys.readouterr().err
    assert "tflite" in error
    assert error.count("\n") == 1


def test_an_output_that_exists_is_refused_before_the_model_is_read(tmp_path, capsys):
    (tmp_path / "file").write_text("")
    assert export("--model", "nosuch", "--output", tmp_path) == 1
    assert "the output exists and is not empty" in capsys.readouterr().err


def test_shards_are_all_of_the_index(capsys):
    vectors = np.arange(20, dtype=np.float32).reshape(10, 2)
    index = ExactIndex.build(vectors, [f"d{i}" for i in range(10)], fingerprint="f")
    parts = [_part_of(index, f"{number}/3") for number in (1, 2, 3)]
    assert [len(part.doc_ids) for part in parts] == [4, 3, 3]
    assert sorted(doc_id for part in parts for doc_id in part.doc_ids) == sorted(index.doc_ids)
    for part in parts:
        assert part.fingerprint == "f"
        for doc_id, vector in zip(part.doc_ids, part.vectors(), strict=True):
            np.testing.assert_array_equal(vector, vectors[int(doc_id[1:])])
    assert capsys.readouterr().out.splitlines()[0] == "shard 1/3: 4 of 10 documents"
    with pytest.raises(ValueError, match=r"the index has 10 documents\. Received: 11/11"):
        _part_of(index, "11/11")


def test_a_shard_is_searched_as_the_index_is():
    asked = ScannParameters(kind="tree", num_leaves=5, num_leaves_to_search=2, reorder=9)
    vectors, ids = np.eye(60, 8, dtype=np.float32), [str(i) for i in range(60)]
    part = _part_of(ScannIndex.build(vectors, ids, fingerprint="f", parameters=asked), "2/3")
    assert list(part.doc_ids) == ids[1::3]
    assert (part.parameters.kind, part.parameters.reorder) == ("tree", 9)
    assert (part.parameters.num_leaves, part.parameters.num_leaves_to_search) == (5, 2)


@pytest.mark.parametrize("shard", ["0/3", "4/3", "1", "a/b", "1/0"])
def test_wrong_shards(shard, capsys):
    assert main(["export", "--model", "m", "--output", "o", "--index", "i", "--shard", shard]) == 1
    assert f"`--shard` must be as 1/3, 2/3 or 3/3. Received: '{shard}'" in capsys.readouterr().err


@pytest.mark.parametrize("dtype", ["float32", "int8"])
def test_a_shard_of_embeddings_is_all_that_is_held(tmp_path, dtype):
    made = tiny.dual_encoder()
    documents = [Document(f"d{n}", "", f"apple {n}") for n in range(25)]
    embeddings = encode_corpus(made, documents, tmp_path / "e", shard_size=7, dtype=dtype)
    part = _part_of(embeddings, "2/4")
    assert list(part.doc_ids) == [f"d{n}" for n in range(1, 25, 4)]
    np.testing.assert_array_equal(part.vectors(), embeddings.read()[1::4])
    base = part.vectors()
    while base.base is not None:
        base = base.base
    assert base.nbytes == part.vectors().nbytes


def test_a_corpus_without_queries_has_no_golden_ones(tmp_path):
    write_dataset(tmp_path / "data", [Document(f"d{n}", "", f"apple {n}") for n in range(30)])
    made = tiny.dual_encoder(tiny.BERT)
    made.save_to_preset(tmp_path / "model")
    encode_corpus(made, DatasetDirectory(tmp_path / "data").documents(), tmp_path / "e")
    given = {"model": "model", "embeddings": "e", "dataset": "data", "output": "bundle"}
    options = [text for name, path in given.items() for text in (f"--{name}", tmp_path / path)]
    assert main(["export", *map(str, options), "--scann", "false", "--target_recall", "0.9"]) == 0
    manifest = json.loads((tmp_path / "bundle" / "manifest.json").read_text())
    assert manifest["golden_queries"] == []
    assert manifest["retrievers"]["retriever_partitioned"]["sampled_queries"]
