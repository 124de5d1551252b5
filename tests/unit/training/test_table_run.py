"""`tfde train --table`: a table becomes a data set, a recipe and a model."""

import csv
import json

import pytest
import tiny

from tfde.cli.main import main
from tfde.data.dataset_directory import DatasetDirectory
from tfde.errors import ConfigError
from tfde.towers.dual_encoder import DualEncoder
from tfde.training.table_run import prepare_table


def write_table(path, rows=100, *, header=("question", "answer")):
    texts = tiny.document_texts()[:rows]
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(header)
        writer.writerows((" ".join(text.split()[1::-1]), text) for text in texts)
    return path


def test_a_model_by_one_command(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_table(tmp_path / "my.csv")
    tiny.dual_encoder().save_to_preset(tmp_path / "start")
    tiny.write_dataset(tmp_path / "away", documents=30)
    (tmp_path / "away" / "qrels" / "dev.tsv").rename(tmp_path / "away" / "qrels" / "test.tsv")
    command = ["train", "--table", "my.csv", "--model", "start", "--output", "run"]
    assert main([*command, "--guard", "away"]) == 0
    out = capsys.readouterr().out
    assert "recipe: run/recipe.yaml" in out
    assert "best on the dev split: run/best_model" in out
    rows = [line.split() for line in out.splitlines() if "nDCG@10" in line]
    assert [row[0] for row in rows] == ["nDCG@10", "away"]
    assert all(float(row[-2]) - float(row[-3]) == pytest.approx(float(row[-1])) for row in rows)
    counts = {s: len(DatasetDirectory("run/data").qrels(s)) for s in ("train", "dev", "test")}
    assert counts == {"train": 81, "dev": 9, "test": 10}
    history = list(map(json.loads, (tmp_path / "run/history.jsonl").read_text().splitlines()))
    measured = [line["step"] for line in history if "nDCG@10" in line]
    assert measured == [0, 8]
    assert "away nDCG@10" in history[0]
    DualEncoder.load("run/best_model")
    # The same again finds all done; the recipe alone trains the same.
    assert main([*command, "--guard", "away"]) == 0
    assert main(["train", "--run", "run/recipe.yaml", "--output", "other"]) == 0
    models = [DualEncoder.load(f"{name}/model").fingerprint() for name in ("run", "other")]
    assert models[0] == models[1]
    write_table(tmp_path / "my.csv", rows=90)
    assert main(command) == 1
    message = "run/recipe.yaml: was written for another table; choose another output."
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(("rows", "steps", "every"), [(12, 1, 10), (560, 43, 15)])
def test_the_recipe_grows_with_the_table(tmp_path, rows, steps, every):
    table = write_table(tmp_path / "t.csv", rows=rows)
    recipe = prepare_table(table, tmp_path / "run", model="m", guards={}).read_text()
    assert f"steps: {steps}\n" in recipe
    assert f"every_steps: {every}\n" in recipe
    assert "guards" not in recipe


def test_columns_of_other_names(tmp_path):
    table = write_table(tmp_path / "t.csv", header=("frage", "antwort"))
    columns = ["query=frage", "document=antwort"]
    prepare_table(table, tmp_path / "run", model="m", guards={}, columns=columns)
    assert DatasetDirectory(tmp_path / "run" / "data").num_documents == 100


def test_too_few_rows_leave_nothing_behind(tmp_path):
    table = write_table(tmp_path / "t.csv", rows=2)
    with pytest.raises(ConfigError, match=r"2 queries leave none for"):
        prepare_table(table, tmp_path / "run", model="m", guards={})
    assert list((tmp_path / "run").iterdir()) == []


def test_what_is_missing(tmp_path, capsys):
    with pytest.raises(SystemExit):
        main(["train", "--table", "x.csv", "--output", "o"])
    assert "the following arguments are required: model" in capsys.readouterr().err
    assert main(["train", "--table", "x.csv", "--model", "m", "--output", "o"]) == 1
    assert "x.csv: `table` must be a file or a folder that exists." in capsys.readouterr().err
