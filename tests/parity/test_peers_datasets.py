"""What the library `datasets` writes, we read as it does; its readers give the expected rows."""

import importlib

import pytest

from tfde.cli.main import main
from tfde.data.dataset_directory import DatasetDirectory
from tfde.data.formats.csv_rows import read_rows, table_files
from tfde.storage.intake import Intake

pytestmark = pytest.mark.peers


@pytest.fixture(scope="module")
def peer(tmp_path_factory):
    """The library, offline, with a cache of this run."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HF_HUB_OFFLINE", "1")
        patch.setenv("HF_DATASETS_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield importlib.import_module("datasets")


@pytest.fixture(scope="module")
def scifact(peer, data_dir):
    """SciFact's judged claims with their abstracts, as a set of two splits."""
    dataset = DatasetDirectory(data_dir / "scifact")
    store = dataset.document_store()
    splits = {}
    for split in dataset.splits:
        texts = {query.query_id: query.text for query in dataset.queries(split)}
        rows = [
            {"anchor": texts[q], "positive": store[d].text, "title": store[d].title, "label": 1}
            for q, judged in dataset.qrels(split).items()
            for d in judged
        ]
        splits[split] = peer.Dataset.from_list(rows)
    return peer.DatasetDict(splits)


def rows_of(folder):
    rows = {}
    for file, split in table_files(folder):
        rows.setdefault(split, []).extend(map(dict, read_rows(file, Intake())))
    return rows


def test_saved_to_disk_in_several_files(peer, scifact, tmp_path):
    scifact.save_to_disk(tmp_path / "set", num_shards={"train": 3, "test": 2})
    theirs = peer.load_from_disk(tmp_path / "set")
    assert rows_of(tmp_path / "set") == {split: list(theirs[split]) for split in theirs}


def test_shuffled_and_selected_rows_are_those_that_it_shows(peer, scifact, tmp_path):
    chosen = scifact["test"].shuffle(seed=3).select(range(50))
    chosen.save_to_disk(tmp_path / "set")
    assert rows_of(tmp_path / "set") == {"": list(chosen)}


@pytest.mark.parametrize("kind", ["parquet", "json", "csv"])
def test_files_of_a_repository(peer, scifact, tmp_path, kind):
    for split in scifact:
        getattr(scifact[split], f"to_{kind}")(str(tmp_path / f"{split}-00000-of-00001.{kind}"))
    theirs = peer.load_dataset(str(tmp_path))
    ours = rows_of(tmp_path)
    for split in scifact:
        expected = [{name: str(cell) for name, cell in row.items()} for row in theirs[split]]
        received = [{name: str(cell) for name, cell in row.items()} for row in ours[split]]
        assert received == expected


def test_classes(peer, tmp_path):
    features = peer.Features(
        {"sentence": peer.Value("string"), "label": peer.ClassLabel(names=["no", "yes"])}
    )
    saved = peer.Dataset.from_dict({"sentence": ["a", "b"], "label": [1, 0]}, features=features)
    saved.save_to_disk(tmp_path / "arrow")
    (tmp_path / "parquet").mkdir()
    saved.to_parquet(tmp_path / "parquet" / "part.parquet")
    names = [saved.features["label"].int2str(row["label"]) for row in saved]
    for folder in ("arrow", "parquet"):
        assert [row["label"] for row in rows_of(tmp_path / folder)[""]] == names


def test_converts(peer, scifact, tmp_path, capsys):
    scifact.save_to_disk(tmp_path / "set")
    output = str(tmp_path / "out")
    command = ["convert", "--format", "datasets", "--input", str(tmp_path / "set")]
    assert main([*command, "--output", output]) == 0
    dataset = DatasetDirectory(output)
    texts = {query.query_id: query.text for query in dataset.queries()}
    store = dataset.document_store()
    for split in scifact:
        received = {
            (texts[q], store[d].title, store[d].text)
            for q, judged in dataset.qrels(split).items()
            for d in judged
        }
        rows = scifact[split]
        assert received == {(row["anchor"], row["title"], row["positive"]) for row in rows}
