"""`tfde train --table`: a table becomes a data set, a recipe and a model."""

import contextlib
import csv
import gzip
import json
import shutil
from pathlib import Path

import pytest
import tiny
import yaml

from tfde.cli.main import main
from tfde.cli.train import build_parser
from tfde.data.dataset_directory import DatasetDirectory
from tfde.errors import ConfigError
from tfde.storage.atomic import directory_lock
from tfde.storage.intake import Intake
from tfde.towers.dual_encoder import DualEncoder
from tfde.training.table_run import describe_run, prepare_table


@pytest.fixture(autouse=True)
def starts(tmp_path_factory, monkeypatch):
    """Models `m` and `n`, for what looks no further than whether there are some."""
    folder = tmp_path_factory.mktemp("starts")
    for name in ("m", "n"):
        (folder / name).mkdir()
        (folder / name / "config.json").write_text("{}")
    monkeypatch.chdir(folder)


def write_table(path, rows=100, *, header=("question", "answer")):
    texts = tiny.document_texts()[:rows]
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(header)
        writer.writerows((" ".join(text.split()[1::-1]), text) for text in texts)
    return path


@pytest.mark.parametrize(("negatives", "expected"), [(0, 0), (100, 1)])
def test_a_column_of_negatives_may_be_empty(tmp_path, negatives, expected):
    table = write_table(tmp_path / "my.csv")
    rows = list(csv.reader(table.read_text().splitlines()))
    with table.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow([*rows[0], "negative"])
        writer.writerows(
            [*row, "something else" if number < negatives else ""]
            for number, row in enumerate(rows[1:])
        )
    prepare_table(table, tmp_path / "run", model="m", guards={})
    recipe = yaml.safe_load((tmp_path / "run/recipe.yaml").read_text())
    assert recipe["stages"]["finetune"].get("negatives_per_query", 0) == expected


def test_a_model_by_one_command(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_table(tmp_path / "my.csv")
    tiny.dual_encoder().save(tmp_path / "start.keras")
    tiny.write_dataset(tmp_path / "away", documents=30)
    (tmp_path / "away" / "qrels" / "dev.tsv").rename(tmp_path / "away" / "qrels" / "test.tsv")
    command = ["train", "--table", "my.csv", "--model", "start.keras", "--output", "run"]
    assert main([*command, "--guard", "away"]) == 0
    out = capsys.readouterr().out
    assert "recipe: run/recipe.yaml" in out
    assert "kept by the dev split: run/best_model" in out
    rows = [line.split() for line in out.splitlines() if "nDCG@10" in line]
    assert [row[0] for row in rows] == ["nDCG@10", "away"]
    assert all(float(row[-2]) - float(row[-3]) == pytest.approx(float(row[-1])) for row in rows)
    counts = {s: len(DatasetDirectory("run/data").qrels(s)) for s in ("train", "dev", "test")}
    assert counts == {"train": 81, "dev": 9, "test": 10}
    history = list(map(json.loads, (tmp_path / "run/history.jsonl").read_text().splitlines()))
    measured = [(x["step"], x.get("averaged")) for x in history if "nDCG@10" in x]
    means = [(4, f"with {share} of the start") for share in (0.25, 0.5)]
    assert measured == [(0, None), (4, None), *means]
    assert "away nDCG@10" in history[0]
    DualEncoder.load("run/best_model")
    # The same again finds all done; the recipe alone trains the same.
    assert main([*command, "--guard", "away"]) == 0
    assert main(["train", "--run", "run/recipe.yaml", "--output", "other"]) == 0
    models = [DualEncoder.load(f"{name}/model").fingerprint() for name in ("run", "other")]
    assert models[0] == models[1]
    capsys.readouterr()
    assert main(command) == 1
    message = "run: the run there was begun with another `guards`; choose another output."
    assert message in capsys.readouterr().err
    write_table(tmp_path / "my.csv", rows=90)
    assert main([*command, "--guard", "away"]) == 1
    assert (
        "another `table`, or other rows in it; choose another output. Received: 'my.csv'"
        in capsys.readouterr().err
    )


def test_the_recipe_of_a_dataset_is_that_of_a_table():
    """pipelines/recipes/finetune.yaml, for as many pairs as it says."""
    path = Path(__file__).parents[3] / "pipelines" / "recipes" / "finetune.yaml"
    expected = yaml.safe_load(path.read_text())
    assert describe_run("${DATASET}", "${START}", {}, pairs=21_334) == expected


def prepare(table, output, **options):
    return prepare_table(table, output, **{"model": "m", "guards": {}, **options})


def test_what_somebody_has_there_stays(tmp_path):
    table = write_table(tmp_path / "t.csv")
    mine = tmp_path / "project" / "data" / "notes.txt"
    mine.parent.mkdir(parents=True)
    mine.write_text("mine")
    with pytest.raises(ConfigError, match=r"project: the output exists and is not empty"):
        prepare(table, tmp_path / "project")
    assert mine.read_text() == "mine"


def test_before_training_another_command_begins_anew(tmp_path):
    table = write_table(tmp_path / "t.csv")
    assert "backbone: m\n" in prepare(table, tmp_path / "run").read_text()
    assert "backbone: n\n" in prepare(table, tmp_path / "run", model="n").read_text()
    write_table(table, rows=50)
    prepare(table, tmp_path / "run", model="n")
    assert DatasetDirectory(tmp_path / "run" / "data").num_documents == 50


@pytest.mark.parametrize("file", ["data/mine.jsonl", ".git/config", "best_model/config.json"])
def test_what_was_added_to_a_run_is_not_replaced(tmp_path, file):
    table = write_table(tmp_path / "t.csv")
    mine = prepare(table, tmp_path / "run").parent / file
    mine.parent.mkdir(exist_ok=True)
    mine.write_text("mine")
    with pytest.raises(ConfigError, match=r"another `model`; choose another output"):
        prepare(table, tmp_path / "run", model="n")
    assert mine.read_text() == "mine"


def test_a_recipe_that_somebody_changed_is_not_replaced(tmp_path):
    table = write_table(tmp_path / "t.csv")
    recipe = prepare(table, tmp_path / "run")
    changed = recipe.read_text().replace("learning_rate: 5.0e-05", "learning_rate: 1.0e-05")
    assert changed != recipe.read_text()
    recipe.write_text(changed)
    assert prepare(table, tmp_path / "run") == recipe
    with pytest.raises(ConfigError, match=r"another `model`; choose another output"):
        prepare(table, tmp_path / "run", model="n")
    assert recipe.read_text() == changed


def test_a_run_at_work_is_not_replaced(tmp_path):
    table = write_table(tmp_path / "t.csv")
    prepare(table, tmp_path / "run")
    with (
        directory_lock(tmp_path / "run", "training into it"),
        pytest.raises(ConfigError, match=r"another process \(pid \d+\) is training into it"),
    ):
        prepare(table, tmp_path / "run", model="n")


def test_a_folder_of_tables(tmp_path):
    folder = tmp_path / "tables"
    folder.mkdir()
    write_table(folder / "a.csv", rows=40)
    prepare(folder, tmp_path / "run")
    assert DatasetDirectory(tmp_path / "run" / "data").num_documents == 40
    (folder / "a.csv").rename(folder / "train.csv")
    write_table(folder / "test.csv", rows=10)
    with pytest.raises(ConfigError, match=r"tables without splits, .* Received: the split 't"):
        prepare(folder, tmp_path / "other")


def test_guards_are_there_and_have_names_of_their_own(tmp_path, capsys):
    table = write_table(tmp_path / "t.csv")
    with pytest.raises(ConfigError, match=r"nowhere: a dataset directory .* must stand here"):
        prepare(table, tmp_path / "run", guards={"nowhere": str(tmp_path / "nowhere")})
    command = ["train", "--table", str(table), "--model", "m", "--output", str(tmp_path / "run")]
    assert main([*command, "--guard", "a/x", "--guard", "b/x"]) == 1
    message = "`--guard` must be NAME=DATASET, each name once. Received: 'b/x'"
    assert message in capsys.readouterr().err
    assert not (tmp_path / "run").exists()


FIELD = "--run.stages.finetune"


@pytest.mark.parametrize(
    ("changes", "steps", "gone"),
    [
        ({"limit": 640}, 30, set()),
        ({"batch_size": 128}, 47, set()),
        ({"epochs": 10}, None, {"steps"}),
        ({"optimizer.name": "adafactor"}, 94, {"start_decay"}),
        ({"start_shares": []}, 94, {"min_gain_kept"}),
        ({"lora.rank": 4}, 94, {"start_shares", "min_gain_kept"}),
    ],
)
def test_what_depends_on_a_field_follows(changes, steps, gone):
    """And what does not go with it is left out: the recipe can be trained by."""
    given = {f"stages.finetune.{name}": value for name, value in changes.items()}
    plain = describe_run("d", "m", {}, pairs=2000)["stages"]["finetune"]
    run = describe_run("d", "m", {}, pairs=2000, changes=given)
    stage = run["stages"]["finetune"]
    assert stage.get("steps") == steps
    fields = [{*part, *part["optimizer"]} for part in (plain, stage)]
    assert fields[0] - fields[1] == gone
    parser = build_parser()
    parser.instantiate(parser.parse_object({"run": run, "output": "o"}))
    if "epochs" in changes:
        assert stage["validation"]["every_steps"] == 157  # of 313 steps


def test_a_run_of_a_version_without_changes_goes_on(tmp_path):
    table = write_table(tmp_path / "t.csv")
    recipe = prepare(table, tmp_path / "run")
    text = recipe.read_text()
    recipe.write_text(text.replace(', "changes": {}', ""))
    assert recipe.read_text() != text
    (tmp_path / "run" / "checkpoint.safetensors").write_text("")  # it has begun
    assert prepare(table, tmp_path / "run") == recipe


def test_a_run_that_was_copied_or_is_given_elsewhere_is_told_from_its_data(tmp_path, monkeypatch):
    model = str(Path("m").absolute())
    monkeypatch.chdir(tmp_path)
    table = write_table(tmp_path / "t.csv")
    prepare(table, "run", model=model)
    shutil.copytree("run", "copy")
    with pytest.raises(ConfigError, match=r"must name copy/data as its data: .* 'run/data'"):
        prepare(table, "copy", model=model)
    monkeypatch.chdir(tmp_path / "run")
    with pytest.raises(ConfigError, match=r"give the command where the run was begun"):
        prepare(table, "../run", model=model)


def test_fields_of_the_recipe_stand_in_it(tmp_path, capsys, monkeypatch):
    """And what depends on them follows; the same command goes on, another one is refused."""
    monkeypatch.chdir(tmp_path)
    write_table(tmp_path / "my.csv")
    tiny.dual_encoder().save(tmp_path / "start.keras")
    command = ["train", "--table", "my.csv", "--model", "start.keras", "--output", "run"]
    fields = [f"{FIELD}.steps=40", f"{FIELD}.optimizer.learning_rate", "1e-3", "--run.seed", "3"]
    fields += [f"{FIELD}.start_shares", "[]", f"{FIELD}.min_gain_kept=null"]
    assert main([*command, *fields]) == 0
    recipe = yaml.safe_load((tmp_path / "run" / "recipe.yaml").read_text())
    stage = recipe["stages"]["finetune"]
    assert (recipe["seed"], stage["steps"], stage["start_shares"]) == (3, 40, [])
    assert (stage["optimizer"]["learning_rate"], stage["optimizer"]["warmup_steps"]) == (1e-3, 4)
    assert stage["validation"]["every_steps"] == 20
    assert main([*command, *fields]) == 0
    capsys.readouterr()
    assert main([*command, *fields, f"{FIELD}.log_every_steps=7"]) == 1
    said = capsys.readouterr().err
    assert "with another `stages.finetune.log_every_steps`; choose another output. Rec" in said


@pytest.mark.parametrize(
    ("field", "message"),
    [
        ([f"{FIELD}.stepz", "5"], "stepz"),
        ([f"{FIELD}.steps", "many"], "steps: must be a whole number. Received: many"),
        ([f"{FIELD}.steps=0"], "must be at least 1. Received: 0"),
        ([f"{FIELD}.steps"], f"{FIELD}.steps: expected one argument"),
        (["--run.seed.x", "5"], "`seed.x` must be a field, but `seed` has none. Received: 5"),
        (["--run.seed", "[1"], "seed: must be a whole number. Received: [1"),
        (["--run.seed", "null"], "argument --run.seed: must not be null"),
        ([f"{FIELD}.split", "--skip_bad"], f"{FIELD}.split: expected one argument"),
        (["--steps", "5"], "arguments: --steps; did you mean --run.stages.finetune.steps?"),
        (["--lr=1e-4"], "did you mean --run.stages.finetune.optimizer.learning_rate?"),
        (["--batch-size", "8"], "did you mean --run.stages.finetune.batch_size?"),
        ([f"{FIELD}.learning_rate", "1e-4"], "it is a field of another part"),
        ([f"{FIELD}.optimizer", "adam"], "optimizer: must be a mapping of its fields. Received: a"),
        (["--run.steps", "5"], "; those of a stage stand at stages.NAME"),
        (
            ["--run.stages.train.steps", "5"],
            "`data` nor `mixture`; did you mean `stages.finetune`?",
        ),
        (["--run", "recipe.yaml"], "give --run or --table"),
    ],
)
def test_a_field_that_cannot_be_is_told_before_data_are_written(tmp_path, capsys, field, message):
    table = write_table(tmp_path / "t.csv")
    command = ["train", "--table", str(table), "--model", "m", "--output", str(tmp_path / "run")]
    with contextlib.suppress(SystemExit):  # of the command line
        assert main([*command, *field]) == 1
    assert message in capsys.readouterr().err
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("pairs", "documents"), [(8, 500), (2001, 500), (3000, 750), (12_000, 3000), (500_000, 3000)]
)
def test_a_validation_stays_small_beside_the_steps(pairs, documents):
    validation = describe_run("d", "m", {}, pairs=pairs)["stages"]["finetune"]["validation"]
    assert validation["max_documents"] == documents


@pytest.mark.parametrize(("rows", "steps", "every"), [(12, 3, 10), (560, 22, 11)])
def test_the_recipe_grows_with_the_table(tmp_path, rows, steps, every):
    table = write_table(tmp_path / "t.csv", rows=rows)
    recipe = prepare(table, tmp_path / "run").read_text()
    assert f"steps: {steps}\n" in recipe
    assert f"every_steps: {every}\n" in recipe
    assert "guards:" not in recipe


def test_a_batch_larger_than_the_table_leaves_nothing_behind(tmp_path):
    table = write_table(tmp_path / "t.csv", rows=50)
    rule = "t.csv: `stages.finetune.batch_size` must be at most the number of pairs .* Received: 64"
    with pytest.raises(ConfigError, match=rule):
        prepare(table, tmp_path / "run", changes={"stages.finetune.batch_size": 64})
    assert [file.name for file in tmp_path.iterdir()] == ["t.csv"]


def test_help_tells_the_values_of_the_recipe_of_a_table(capsys):
    with pytest.raises(SystemExit):
        main(["train", "--table", "t.csv", f"{FIELD}.optimizer.help"])
    said = capsys.readouterr().out
    assert "learning_rate: 5.0e-05" in said.partition("stages.finetune.optimizer: ")[0]
    assert "start_decay" in said


def test_negatives_of_the_table_are_trained_with(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    texts = tiny.document_texts()[:40]
    rows = [
        (" ".join(t.split()[1::-1]), t, other)
        for t, other in zip(texts, texts[3:] + texts[:3], strict=True)
    ]
    rows[5] = (*rows[5][:2], "")
    with open("t.csv", "w", newline="") as file:
        csv.writer(file).writerows([("question", "answer", "negative"), *rows])
    tiny.dual_encoder().save(tmp_path / "start.keras")
    command = ["train", "--table", "t.csv", "--model", "start.keras", "--output", "run"]
    assert main([*command, "--run.stages.finetune.steps", "3"]) == 0
    assert "negatives from 'negative'" in capsys.readouterr().out
    stage = yaml.safe_load(Path("run/recipe.yaml").read_text())["stages"]["finetune"]
    assert stage["negatives_per_query"] == 1
    assert stage["data"] == "run/data/pairs/train.jsonl.gz"
    dataset = DatasetDirectory("run/data")
    with gzip.open(dataset.pair_file("train"), "rt") as lines:
        pairs = {(row["query_id"], row["positive"]): row for row in map(json.loads, lines)}
    judged = {(q, d) for q, found in dataset.qrels("train").items() for d in found}
    assert set(pairs) == judged
    assert sum(map(len, (row.get("negatives", ()) for row in pairs.values()))) >= len(pairs) - 1


def test_a_table_with_negatives_is_made_anew_before_training(tmp_path):
    rows = [(f"q {n}", f"d {n}", f"e {n}") for n in range(30)]
    with (tmp_path / "t.csv").open("w", newline="") as file:
        csv.writer(file).writerows([("question", "answer", "negative"), *rows])
    given = {"model": "m", "guards": {}}
    prepare_table(tmp_path / "t.csv", tmp_path / "run", **given)
    prepare_table(
        tmp_path / "t.csv", tmp_path / "run", **given, changes={"stages.finetune.steps": 2}
    )


def test_columns_of_other_names(tmp_path):
    table = write_table(tmp_path / "t.csv", header=("frage", "antwort"))
    columns = ["query=frage", "document=antwort"]
    prepare(table, tmp_path / "run", columns=columns)
    assert DatasetDirectory(tmp_path / "run" / "data").num_documents == 100


def test_questions_without_an_answer_are_left_out_and_counted(tmp_path):
    table, intake = write_table(tmp_path / "t.csv"), Intake()
    lines = table.read_text().splitlines()
    labels = ["label", *("0" if row % 4 == 0 else "1" for row in range(100))]
    table.write_text("\n".join(map(",".join, zip(lines, labels, strict=True))))
    prepare(table, tmp_path / "run", intake=intake)
    dataset = DatasetDirectory(tmp_path / "run" / "data")
    assert dataset.num_documents == 100
    assert sum(len(dataset.qrels(split)) for split in dataset.splits) == 75
    assert intake.left_out["questions without a relevant answer"] == 25


def test_too_few_rows_leave_nothing_behind(tmp_path):
    table = write_table(tmp_path / "t.csv", rows=2)
    rule = r"t\.csv: has too few questions: 2 queries leave none for"
    with pytest.raises(ConfigError, match=rule):
        prepare(table, tmp_path / "run")
    assert [file.name for file in tmp_path.iterdir()] == ["t.csv"]


def test_what_a_recipe_lacks_is_named_by_its_place(tmp_path, capsys):
    (tmp_path / "r.yaml").write_text("stages: {one: {data: d, steps: 1}}\nmodel: {sharing: sde}\n")
    with pytest.raises(SystemExit):
        main(["train", "--run", str(tmp_path / "r.yaml"), "--output", "o"])
    assert "arguments are required: --run.model.backbone (" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        main(["train"])
    assert "arguments are required: --run, --output (" in capsys.readouterr().err


def test_what_is_missing(tmp_path, capsys):
    with pytest.raises(SystemExit):
        main(["train", "--table", "x.csv", "--output", "o"])
    assert "the following arguments are required: --model" in capsys.readouterr().err
    assert main(["train", "--table", "x.csv", "--model", "m", "--output", "o"]) == 1
    assert "x.csv: `table` must be a file or a folder that exists." in capsys.readouterr().err


@pytest.mark.parametrize("model", ["no_such_preset", "no_such_preset,other"])
def test_a_model_that_no_hub_knows_is_told_before_anything_is_written(model, tmp_path):
    (tmp_path / "t.csv").write_text(
        "question,answer\n" + "".join(f"q {i},a {i}\n" for i in range(20))
    )
    with pytest.raises(ConfigError, match=r"keras-hub preset.* Received: 'no_such_preset'"):
        prepare_table(tmp_path / "t.csv", tmp_path / "out", model=model, guards={})
    assert not (tmp_path / "out").exists()
