"""`tfde index add|delete|compact|status` with a real dual encoder, and what reads the index."""

import gzip
import json
import re
import shutil

import faiss
import numpy as np
import pytest
import tensorflow as tf
import tiny

from tfde.cli.main import main
from tfde.config.model import ParentConfig
from tfde.data.dataset_directory import DatasetDirectory
from tfde.retrieval.encode_corpus import encode_corpus
from tfde.retrieval.exact_index import ExactIndex
from tfde.retrieval.faiss_index import FaissIndex
from tfde.retrieval.live.load_index import load_index
from tfde.retrieval.retrieve import retrieve
from tfde.retrieval.runs import read_run
from tfde.retrieval.scann_index import ScannIndex
from tfde.types import Document


@pytest.fixture(scope="module")
def model():
    return tiny.dual_encoder()


@pytest.fixture(scope="module")
def work(tmp_path_factory, model):
    directory = tmp_path_factory.mktemp("work")
    dataset = DatasetDirectory(tiny.write_dataset(directory / "data", documents=300))
    model.save_to_preset(directory / "model")
    tiny.dual_encoder(seed=2).save_to_preset(directory / "other")
    first = list(dataset.documents())[:200]
    ScannIndex.from_embeddings(encode_corpus(model, first, directory / "e")).save(directory / "i")
    return directory


def tfde(capsys, *args):
    code = main([str(arg) for arg in args])
    out, error = capsys.readouterr()
    return code, out, error


def write(path, documents):
    lines = [json.dumps({"_id": d.doc_id, "title": d.title, "text": d.text}) for d in documents]
    with gzip.open(path, "wt") as file:
        file.write("\n".join(lines))
    return path


def status(capsys, work):
    return json.loads(tfde(capsys, "index", "status", work / "i", "--json")[1])


def assert_finds(work, model, documents):
    """The index gives what comparing with every document gives."""
    queries = list(DatasetDirectory(work / "data").queries())[::20]
    run = retrieve(model, load_index(work / "i"), queries, 500)
    similarity = (
        model.encode_queries([q.text for q in queries]) @ model.encode_documents(documents).T
    )
    for query, row in zip(queries, similarity, strict=True):
        expected = {d.doc_id: score for d, score in zip(documents, row, strict=True)}
        assert run[query.query_id] == pytest.approx(expected, abs=1e-5)


def test_the_road_of_a_live_index(work, model, capsys):
    documents = {d.doc_id: d for d in DatasetDirectory(work / "data").documents()}
    first, new = list(documents.values())[:200], list(documents.values())[200:]
    swapped = [d._replace(text=documents[f"d{i + 1}"].text) for i, d in enumerate(first[:5])]

    add = ["index", "add", work / "i", "--model", work / "model", "--input"]
    file = write(work / "new.jsonl.gz", [*new, *swapped])
    code, out, error = tfde(capsys, *add, file, "--batch_size", 2)
    assert (code, error) == (0, "")
    assert re.fullmatch(r".*/i: 105 documents added or replaced, [\d.]+ s\ndocuments 300\n", out)
    live = [*first[5:], *new, *swapped]
    assert_finds(work, model, live)

    code, out, error = tfde(capsys, "index", "delete", work / "i", "--ids", "d7", "x", "d0", "d7")
    assert (code, error) == (0, "")
    assert out == f"{work}/i: 2 documents deleted, 1 were not there\ndocuments 298\n"
    (work / "ids.txt").write_text("d250\n\nd251\r\n")
    code, out, _ = tfde(capsys, "index", "delete", work / "i", "--ids_file", work / "ids.txt")
    assert out == f"{work}/i: 2 documents deleted\ndocuments 296\n"
    live = [d for d in live if d.doc_id not in ("d0", "d7", "d250", "d251")]
    assert_finds(work, model, live)
    now = status(capsys, work)
    assert (now["documents"], now["base_deleted"], now["added"]) == (296, 6, 102)
    code, _, error = tfde(
        capsys, "retrieve", "--model", work / "model", "--index", work / "i", "--queries",
        work / "data/queries.jsonl", "--output", work / "run.trec", "-k", 500,
    )  # fmt: skip
    assert (code, error) == (0, "")
    run = read_run(work / "run.trec")
    assert {frozenset(results) for results in run.values()} == {frozenset(d.doc_id for d in live)}

    export = ["export", "--model", work / "model", "--index", work / "i", "--output", work / "b"]
    code, _, error = tfde(capsys, *export)
    assert code == 1
    assert error == (
        f"tfde export: {work}/i: was changed since it was built; run"
        f" `tfde index compact {work}/i` before the export.\n"
    )
    code, out, error = tfde(capsys, "index", "compact", work / "i")
    assert code == 0
    assert re.fullmatch(r".*/i: built anew in [\d.]+ s\ndocuments 296\n", out)
    assert_finds(work, model, live)
    now = status(capsys, work)
    assert (now["documents"], now["base_deleted"], now["added"]) == (296, 0, 0)
    assert (now["generation"], now["sequence"], now["kind"]) == (2, 109, "scann")
    out = tfde(capsys, "index", "compact", work / "i")[1]
    assert out == f"{work}/i: nothing to compact\ndocuments 296\n"
    # Texts are the index's own; one that neither it nor the dataset has is told before any work.
    code, out, error = tfde(capsys, *export, "--dataset", work / "data", "--scann", "false")
    assert (code, error) == (0, "")
    texts = tf.saved_model.load(str(work / "b/models/documents/1")).signatures["serving_default"]
    found = texts(doc_ids=tf.constant([d.doc_id for d in live]))["texts"].numpy()
    assert [text.decode() for text in found] == [d.text for d in live]
    write_only = shutil.copytree(work / "data", work / "part")
    (write_only / "corpus.jsonl").write_text('{"_id": "d9", "title": "", "text": "x"}\n')
    export[-1] = work / "none"
    code, _, error = tfde(capsys, *export, "--dataset", write_only)
    assert (code, "none with id 'd" in error) == (1, True)
    code, out, _ = tfde(capsys, "index", "status", work / "i")
    assert code == 0
    assert "scann, dimension 6, model " in out
    assert "generation 2\nindex 296 documents (" in out
    assert "\nadded 0 documents (" in out


def test_another_engine_takes_the_same_road(work, model, capsys):
    """Expected: what faiss finds of the same vectors, and what comparing with all of them gives."""
    build = ["build-index", "--embeddings", work / "e", "--output", work / "f", "--engine", "faiss"]
    options = ["--options.factory", "IVF4,Flat", "--options.search", "nprobe=2"]
    code, out, error = tfde(capsys, *build, *options)
    assert (code, error) == (0, "")
    assert "200 x 6, faiss, IVF4,Flat nprobe=2, built in" in out
    assert "recall@10 0.9" in out
    code, _, error = tfde(
        capsys, "retrieve", "--model", work / "model", "--index", work / "f", "--queries",
        work / "data/queries.jsonl", "--output", work / "faiss.trec", "-k", 5,
    )  # fmt: skip
    assert (code, error) == (0, "")
    own = faiss.read_index(str(work / "f/structure.faiss"))
    own.nprobe = 2
    queries = list(DatasetDirectory(work / "data").queries())[:40]
    scores, positions = own.search(model.encode_queries([q.text for q in queries]), 5)
    run = read_run(work / "faiss.trec")
    for query, row, found in zip(queries, scores, positions, strict=True):
        expected = {f"d{p}": score for p, score in zip(found, row, strict=True)}
        assert run[query.query_id] == pytest.approx(expected, abs=1e-5)
    code, out, _ = tfde(
        capsys, "evaluate", "--dataset", work / "data", "--split", "dev", "--run_file",
        work / "faiss.trec", "--json",
    )  # fmt: skip
    assert code == 0
    changes = [
        ["add", work / "f", "--model", work / "model", "--input"],
        ["delete", work / "f", "--ids", "d0"],
        ["compact", work / "f"],
    ]
    documents = list(DatasetDirectory(work / "data").documents())
    changes[0].append(write(work / "more.jsonl.gz", documents[200:]))
    for change in changes:
        assert tfde(capsys, "index", *change)[0] == 0
    now = json.loads(tfde(capsys, "index", "status", work / "f", "--json")[1])
    assert (now["kind"], now["documents"], now["generation"]) == ("faiss", 299, 2)
    export = ["export", "--model", work / "model", "--index", work / "f", "--scann", "false"]
    code, _, error = tfde(capsys, *export, "--shard", "1/3", "--output", work / "fb")
    assert (code, error) == (0, "")
    retriever = tf.saved_model.load(str(work / "fb/models/retriever/1"))
    answer = retriever.signatures["serving_default"](
        text=tf.constant([queries[7].text]), k=tf.constant(3)
    )
    part = documents[1::3]
    similarity = model.encode_queries([queries[7].text]) @ model.encode_documents(part).T
    best = np.argsort(-similarity[0])[:3]
    np.testing.assert_allclose(answer["scores"][0], similarity[0][best], atol=1e-5)
    assert answer["doc_ids"][0, 0].numpy().decode() == part[best[0]].doc_id


def test_options_of_one_engine_are_refused_by_another(work, capsys):
    build = ["build-index", "--embeddings", work / "e", "--output", work / "none", "--engine"]
    for options, message in (
        (
            ["faiss", "--num_leaves", 3],
            "`--num_leaves` belongs to --engine scann; what faiss takes",
        ),
        (["exact", "--target_recall", 0.9], "`--target_recall` belongs to --engine scann"),
        (["faiss", "--options.speed", 3], "`speed` must be an option of faiss, which has factory,"),
        (["exact", "--options.speed", 3], "`speed` must be an option of exact, which has none"),
        (["faiss", "--options.factory", "IVF"], "faiss cannot build 'IVF' of 200 vectors of 6"),
    ):
        code, _, error = tfde(capsys, *build, *options)
        assert (code, message in error) == (1, True), error
        assert error.count("\n") == 1
    assert not (work / "none").exists()


@pytest.mark.parametrize("kind", [ExactIndex, ScannIndex, FaissIndex])
def test_documents_are_added_with_the_share_of_their_parents(work, model, kind, capsys):
    parents = ParentConfig(weight=0.25, max_length_tokens=16)
    pages = [Document(f"page{i}.{j}", f"t{i}", f"w{i} w{j}") for i in range(40) for j in range(3)]
    index = work / f"parents_{kind.__name__}"
    encoded = encode_corpus(model, pages[:60], work / f"{index}_e", parents=parents)
    kind.from_embeddings(encoded).save(index)
    all_at_once = encode_corpus(model, pages, work / f"{index}_all", parents=parents)

    add = ["index", "add", index, "--model", work / "model", "--input"]
    file = write(work / "pages.jsonl.gz", pages[60:])
    code, _, error = tfde(capsys, *add, file, "--batch_size", 1)  # pages fall in several batches
    assert (code, error) == (0, "")
    np.testing.assert_allclose(load_index(index).vectors(), all_at_once.read(), atol=1e-5)
    code, _, error = tfde(capsys, *add, write(work / "alone.jsonl.gz", [Document("x", "", "w1")]))
    assert code == 1
    assert "must have an id PARENT.PART. Received: 'x'" in error
    assert tfde(capsys, "index", "compact", index)[0] == 0  # which is built of them and knows too
    assert load_index(index).parents == parents
    assert tfde(capsys, *add, file)[0] == 0
    np.testing.assert_allclose(load_index(index).vectors(), all_at_once.read(), atol=1e-5)


def test_what_is_refused_changes_nothing(work, capsys):
    before = status(capsys, work)
    add = ["index", "add", work / "i", "--input", work / "data", "--model"]
    code, _, error = tfde(capsys, *add, work / "other")
    assert code == 1
    assert re.fullmatch(
        r"tfde index add: the index was made with model \w+, not with model \w+; .*\n", error
    )
    (work / "ids.txt").write_text("d1\nd 2\n")
    code, _, error = tfde(capsys, "index", "delete", work / "i", "--ids_file", work / "ids.txt")
    assert code == 1
    assert f"{work}/ids.txt:2: a document id must be UTF-8 text without white space." in error
    for wrong in ([], ["--ids", "a", "--ids_file", "b"]):
        code, _, error = tfde(capsys, "index", "delete", work / "i", *wrong)
        assert code == 1
        assert error == "tfde index delete: `--ids` or `--ids_file` must be given, and not both.\n"
    for action in ("compact", "status"):
        code, _, error = tfde(capsys, "index", action, work / "nowhere")
        assert (code, error) == (1, f"tfde index {action}: {work}/nowhere: no index.json there.\n")
    assert status(capsys, work) == before


def test_what_stands_before_a_bad_line_is_added_and_counted(work, capsys):
    before = status(capsys, work)
    documents = list(DatasetDirectory(work / "data").documents())
    file = write(work / "twice.jsonl.gz", [documents[0], documents[1], documents[0]])
    add = ["index", "add", work / "i", "--input", file, "--model", work / "model"]
    code, said, error = tfde(capsys, *add)
    assert code == 1
    assert f"{file}:3: field '_id' must be unique; line 1 has it too." in error
    assert said == f"{work}/i: 2 documents added or replaced, those before the fault\n"
    assert status(capsys, work)["sequence"] == before["sequence"] + 2  # one a document


@pytest.mark.parametrize(
    ("args", "named"),
    [
        ([], "subcommand"),
        (["grow"], "grow"),
        (["compact"], "compact: the following arguments are required: index ("),
        (["add", "i", "--input", "f"], "add: the following arguments are required: --model ("),
        (["status", "i", "--jsn"], "--jsn"),
    ],
)
def test_a_wrong_command_line_is_one_line(args, named, capsys):
    with pytest.raises(SystemExit) as caught:
        main(["index", *args])
    assert caught.value.code == 2
    error = capsys.readouterr().err
    assert error.startswith("tfde index")
    assert error.endswith(" --help shows the options)\n")
    assert named in error
    assert error.count("\n") == 1
