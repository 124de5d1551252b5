"""Tables as the library `datasets` keeps them; test_peers_datasets.py has it write them itself."""

import json

import pyarrow
import pytest
from pyarrow import ipc, parquet

from tfde.cli.main import main
from tfde.data.dataset_directory import DatasetDirectory
from tfde.data.formats import datasets
from tfde.data.formats.csv_rows import read_rows, split_of_name, table_files
from tfde.data.formats.records import Judgement, Source
from tfde.errors import ConfigError, DataError
from tfde.storage.intake import Intake
from tfde.types import Document, Query

ROWS = [{"query": "q 1", "answer": "a 1"}, {"query": "q 2", "answer": "a 2"}]


def write_arrow(path, rows, *, stream=True, features=None):
    table = pyarrow.Table.from_pylist(rows)
    if features:
        described = {"huggingface": json.dumps({"info": {"features": features}})}
        table = table.replace_schema_metadata(described)
    path.parent.mkdir(parents=True, exist_ok=True)
    with (ipc.new_stream if stream else ipc.new_file)(str(path), table.schema) as file:
        file.write_table(table)


def rows_of(path):
    return [dict(row) for row in read_rows(path, Intake())]


@pytest.mark.parametrize("stream", [True, False])
def test_arrow_of_both_kinds(tmp_path, stream):
    write_arrow(tmp_path / "a.arrow", ROWS, stream=stream)
    assert rows_of(tmp_path / "a.arrow") == ROWS


@pytest.mark.parametrize("text", [json.dumps(ROWS, indent=1), "\n".join(map(json.dumps, ROWS))])
def test_json_is_an_array_or_lines(tmp_path, text):
    (tmp_path / "a.json").write_text(text)
    assert rows_of(tmp_path / "a.json") == ROWS


def test_a_numbered_class_is_its_name(tmp_path):
    """Else an entailment, the first of three, would be a document that is not relevant."""
    features = {"label": {"names": ["entailment", "neutral"], "_type": "ClassLabel"}}
    rows = [{"query": "q", "answer": "a", "label": label} for label in (0, 1, -1)]
    write_arrow(tmp_path / "a.arrow", rows, features=features)
    assert [row["label"] for row in rows_of(tmp_path / "a.arrow")] == ["entailment", "neutral", -1]
    source = Source("rows", tmp_path / "a.arrow", "train")
    with pytest.raises(DataError, match=r"a\.arrow:1: column 'label' must hold grades.*entailment"):
        list(datasets.read([source], Intake()))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", r"a\.arrow: must be a whole arrow file"),
        (b"no arrow at all", r"a\.arrow: must be a whole arrow file"),
        (b"version https://git-lfs.github.com/spec/v1\noid 1", r"a\.arrow: is a Git LFS pointer"),
    ],
)
def test_what_is_no_arrow_is_told(tmp_path, content, message):
    (tmp_path / "a.arrow").write_bytes(content)
    with pytest.raises(DataError, match=message):
        rows_of(tmp_path / "a.arrow")


def test_a_cut_file_gives_what_stands_before_the_cut_when_bad_is_skipped(tmp_path):
    table = pyarrow.Table.from_pylist(ROWS * 500)
    with ipc.new_stream(str(tmp_path / "a.arrow"), table.schema) as file:
        file.write_table(table, max_chunksize=100)
    content = (tmp_path / "a.arrow").read_bytes()
    (tmp_path / "a.arrow").write_bytes(content[: len(content) // 2])
    intake = Intake(skip_bad=True)
    rows = list(read_rows(tmp_path / "a.arrow", intake))
    assert 100 <= len(rows) < 1000
    assert rows[:2] == ROWS
    assert intake.skipped == 1


@pytest.mark.parametrize(
    ("name", "split"),
    [
        ("train-00000-of-00002.parquet", "train"),
        ("validation.jsonl", "dev"),
        ("my.val.csv", "dev"),
        ("values.csv", ""),
        ("testimonials.csv", ""),
        ("developers.csv", ""),
        ("device_faq.csv", ""),
        ("trainers.csv", ""),
        ("trainset.csv", "train"),
        ("test2.csv", "test"),
        ("beir/scifact/test", "test"),
        ("msmarco-passage/dev/small", "dev"),
    ],
)
def test_split_of_a_name(name, split):
    assert split_of_name(name) == split


def save(folder, names, **state):
    """Writes a folder in the layout of `Dataset.save_to_disk`."""
    for name in names:
        write_arrow(folder / name, ROWS)
    record = {"_data_files": [{"filename": name} for name in names], **state}
    (folder / "state.json").write_text(json.dumps(record))
    (folder / "dataset_info.json").write_text("{}")


def test_folder_of_one_saved_set(tmp_path):
    """The order is that of `state.json`; other files are none of the set."""
    save(tmp_path, ["data-1.arrow", "data-0.arrow"])
    write_arrow(tmp_path / "cache-17.arrow", ROWS)
    assert table_files(tmp_path) == [
        (tmp_path / "data-1.arrow", ""),
        (tmp_path / "data-0.arrow", ""),
    ]


def test_folder_of_a_saved_set_of_splits(tmp_path):
    (tmp_path / "dataset_dict.json").write_text('{"splits": ["train", "validation", "extra"]}')
    for split in ("train", "validation", "extra"):
        save(tmp_path / split, ["data-0.arrow"])
    assert [split for _, split in table_files(tmp_path)] == ["train", "dev", "extra"]


def test_folder_of_a_repository(tmp_path):
    for name in ("data/train-0-of-2.csv", "data/train-1-of-2.csv", "test/part.csv", "README.md"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("query,answer\n")
    found = [(str(file.relative_to(tmp_path)), split) for file, split in table_files(tmp_path)]
    assert found == [
        ("data/train-0-of-2.csv", "train"),
        ("data/train-1-of-2.csv", "train"),
        ("test/part.csv", "test"),
    ]


def test_folders_that_cannot_be_meant(tmp_path):
    with pytest.raises(ConfigError, match=r"a folder that holds \.jsonl, \.json, \.csv"):
        table_files(tmp_path)
    for name in ("train.csv", "other.csv"):
        (tmp_path / name).write_text("query,answer\n")
    with pytest.raises(ConfigError, match=r"all files or of none.*Received: other\.csv"):
        table_files(tmp_path)
    save(tmp_path / "selected", ["data-0.arrow"], _indices_data_files=[{"filename": "indices"}])
    with pytest.raises(DataError, match=r"state\.json: must be of a dataset whose rows are writ"):
        table_files(tmp_path / "selected")
    (tmp_path / "dataset_dict.json").write_text('{"splits": "train"}')
    with pytest.raises(DataError, match=r"dataset_dict\.json: field 'splits' must be a list"):
        table_files(tmp_path)


def three_tables(folder):
    for name in ("corpus", "queries", "qrels"):
        (folder / name).mkdir(parents=True)
    corpus = [{"_id": 1, "text": "one", "title": ""}, {"_id": 2, "text": "", "title": "Two"}]
    parquet.write_table(pyarrow.Table.from_pylist(corpus), folder / "corpus" / "part-0.parquet")
    queries = pyarrow.Table.from_pylist([{"_id": "q", "text": "which?", "lang": "en"}])
    parquet.write_table(queries, folder / "queries" / "queries-0.parquet")
    judged = [{"query-id": "q", "corpus-id": "2", "score": 2.0}]
    parquet.write_table(pyarrow.Table.from_pylist(judged), folder / "qrels" / "test-0.parquet")


def test_three_tables_as_on_the_hub(tmp_path, capsys):
    """The layout of MTEB's and NanoBEIR's repositories: a folder of parquet for each part."""
    three_tables(tmp_path / "set")
    parts = [f"{name}={tmp_path / 'set' / name}" for name in ("corpus", "queries", "qrels")]
    inputs = [word for part in parts for word in ("--input", part)]
    output = str(tmp_path / "out")
    assert main(["convert", "--format", "datasets", *inputs, "--output", output]) == 0
    shown = capsys.readouterr()
    assert "queries-0.parquet: query_id from '_id'; query from 'text'; metadata from 'lang'" in (
        shown.err
    )
    assert "2 documents, 1 queries (test 1)" in shown.out
    dataset = DatasetDirectory(tmp_path / "out")
    assert list(dataset.documents()) == [Document("1", "", "one"), Document("2", "Two", "")]
    assert list(dataset.queries()) == [Query("q", "which?", {"lang": "en"})]
    assert dataset.qrels("test") == {"q": {"2": 2}}


def test_names_of_columns_hold_in_the_tables_that_have_them(tmp_path):
    (tmp_path / "c.jsonl").write_text('{"nr": 7, "Text": "one"}\n')
    (tmp_path / "j.csv").write_text("qid,nr\nq,7\n")
    given = ["id=nr", "document=Text"]
    records = list(
        datasets.read(
            [Source("corpus", tmp_path / "c.jsonl"), Source("qrels", tmp_path / "j.csv", "dev")],
            Intake(),
            columns=given,
        )
    )
    assert records == [Document("7", "", "one"), Judgement("dev", "q", "7", 1)]


@pytest.mark.parametrize(
    ("role", "row", "message"),
    [
        ("corpus", {"text": "x"}, r"f\.jsonl:1: column '_id' \(or id, doc_id.* is missing.*text"),
        ("queries", {"_id": "q", "text": " "}, r"f\.jsonl:1: field 'text' must not be empty"),
        ("queries", {"_id": "a b", "text": "x"}, r"f\.jsonl:1: field '_id' must not hold white"),
        (
            "qrels",
            {"qid": "q", "pid": "d", "score": 0.5},
            r"f\.jsonl:1: column 'score' must hold whole numbers. Received: 0\.5",
        ),
    ],
)
def test_bad_rows_are_told(tmp_path, role, row, message):
    (tmp_path / "f.jsonl").write_text(json.dumps(row) + "\n")
    source = Source(role, tmp_path / "f.jsonl", "test")
    with pytest.raises(DataError, match=message):
        list(datasets.read([source], Intake()))
    intake = Intake(skip_bad=True)
    assert list(datasets.read([source], intake)) == []
    assert intake.skipped == 1


def test_rows_stand_alone(tmp_path):
    sources = [Source("rows", tmp_path / "a"), Source("corpus", tmp_path / "b")]
    with pytest.raises(ConfigError, match=r"rows hold queries and documents.*rows, corpus"):
        list(datasets.read(sources, Intake()))


def test_a_folder_that_holds_its_splits_takes_no_other(tmp_path, capsys):
    for split in ("train", "test"):
        (tmp_path / f"{split}.jsonl").write_text("\n".join(map(json.dumps, ROWS)))
    command = ["convert", "--format", "datasets", "--input", str(tmp_path)]
    assert main([*command, "--split", "dev", "--output", str(tmp_path / "out")]) == 1
    assert "or hold their splits themselves. Received: 'dev'" in capsys.readouterr().err
    assert main([*command, "--output", str(tmp_path / "out")]) == 0
    shown = capsys.readouterr()
    assert shown.err.count("query from 'query'; document from 'answer'") == 1  # for both files
    assert "2 documents, 2 queries (test 2, train 2)" in shown.out
