"""How the commands fail: what each of them says in one line, and with which exit code."""

import signal
import subprocess
import sys

import pytest

from tfde.cli.main import COMMANDS, main, run_command
from tfde.errors import MismatchError


@pytest.mark.parametrize("command", COMMANDS)
def test_wrong_usage_is_one_line(command, capsys):
    with pytest.raises(SystemExit) as caught:
        main([command, "--no_such_option", "1"])
    assert caught.value.code == 2
    error = capsys.readouterr().err
    assert error.startswith(f"tfde {command}: ")
    assert error.endswith(f" (tfde {command} --help shows the options)\n")
    assert error.count("\n") == 1


@pytest.mark.parametrize(
    ("error", "line"),
    [
        (ValueError("a rule"), "a rule"),
        (MismatchError("two models"), "two models"),
        (FileNotFoundError("no file"), "no file"),
        (ModuleNotFoundError("no module"), "no module"),
        # Bugs: a bare 'x' would tell nobody anything.
        (KeyError("x"), "KeyError: 'x' (TFDE_TRACEBACK=1 shows where)"),
        (TypeError("x"), "TypeError: x (TFDE_TRACEBACK=1 shows where)"),
        (RuntimeError("x"), "RuntimeError: x (TFDE_TRACEBACK=1 shows where)"),
    ],
)
def test_errors_are_told_from_bugs(error, line, capsys):
    def run(_):
        raise error

    assert run_command("tfde train", run, None) == 1
    assert capsys.readouterr().err == f"tfde train: {line}\n"


@pytest.mark.parametrize("golden", [-1, 1001])
def test_golden_queries_are_bounded(golden, capsys, tmp_path):
    arguments = ["--model", "m", "--output", str(tmp_path / "b"), "--golden", str(golden)]
    assert main(["export", *arguments]) == 1
    error = capsys.readouterr().err
    assert "`--golden` must be in [0, 1000]" in error
    assert error.endswith(f"Received: {golden}\n")
    assert error.count("\n") == 1


def test_a_port_that_is_none_is_refused(capsys):
    assert main(["serve", "nowhere", "--port", "99999"]) == 1
    assert capsys.readouterr().err == (
        "tfde serve: `--port` must be in [0, 65535]. Received: 99999\n"
    )


def test_a_negative_number_may_have_an_exponent(capsys):
    given = ["mine-negatives", "--dataset", "nowhere", "--from", "bm25", "--output", "o"]
    assert main([*given, "--score_margin", "-1e-3"]) == 1
    assert "`score_margin` must be at least 0. Received: -0.001" in capsys.readouterr().err


def test_a_missing_file_is_named_with_its_reason(capsys):
    assert main(["evaluate", "--dataset", "nowhere", "--run_file", "nosuch.trec"]) == 1
    line = capsys.readouterr().err
    assert line.startswith("tfde evaluate: nowhere")
    assert line.count("\n") == 1


def test_a_field_that_is_misspelled_is_answered_with_the_nearest(capsys, tmp_path):
    recipe = tmp_path / "r.yaml"
    recipe.write_text("model: {backbone: m}\nstages: {ft: {data: d, steps: 1, bach_size: 8}}\n")
    with pytest.raises(SystemExit):
        main(["train", "--run", str(recipe), "--output", str(tmp_path / "out")])
    line = capsys.readouterr().err
    assert "stages.ft: Option 'bach_size' is not accepted" in line
    assert line.endswith("; did you mean batch_size? (tfde train --help shows the options)\n")
    recipe.write_text("model: {kind: siamese, backbone: m, pool: mean}\ndata: {data: d}\n")
    with pytest.raises(SystemExit):
        main(["train-matcher", "--run", str(recipe), "--output", str(tmp_path / "out")])
    line = capsys.readouterr().err
    assert "run has no field 'model.pool'; did you mean pooling?" in line
    recipe.write_text("base: {seed: 1}\naxis: {size: {small: {model: {sharing: sde}}}}\n")
    with pytest.raises(SystemExit):
        main(["study", "--run", str(recipe), "--output", str(tmp_path / "out")])
    line = capsys.readouterr().err
    assert "run has no field 'axis'; did you mean axes?" in line


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ("steps: many", "stages.two: steps: must be a whole number. Received: many"),
        ("optimizer: {learning_rate: x}", "stages.two: optimizer.learning_rate: must be a number."),
        ("mixture: [{data: d}, {data: e, weight: x}]", "stages.two: mixture: weight: must be a"),
        ("validation: {every: 3}", "stages.two: validation: Option 'every' is not accepted."),
        ("split: [a, b]", "stages.two: split: must be a string. Received: ['a', 'b']"),
        ("lora: true", "stages.two: lora: must be a mapping of its fields. Received: True"),
        ("mixture: [3]", "stages.two: mixture: must be a mapping of its fields. Received: 3"),
        ("start_shares: [x]", "stages.two: start_shares: must be a number. Received: x"),
        ("optimizer: adamw", "stages.two: optimizer: must be a mapping of its fields. Received: a"),
    ],
)
def test_a_stage_with_a_wrong_value_is_named(capsys, tmp_path, wrong, said):
    recipe = tmp_path / "r.yaml"
    stages = f"  one: {{data: d, steps: 1}}\n  two:\n    data: d\n    {wrong}\n"
    recipe.write_text(f"model: {{backbone: m}}\nstages:\n{stages}")
    with pytest.raises(SystemExit):
        main(["train", "--run", str(recipe), "--output", str(tmp_path / "out")])
    assert f"{recipe}: {said}" in capsys.readouterr().err


def test_a_model_that_is_no_mapping(capsys, tmp_path):
    recipe = tmp_path / "r.yaml"
    recipe.write_text("model: minilm\nstages: {a: {data: d, steps: 1}}\n")
    with pytest.raises(SystemExit):
        main(["train", "--run", str(recipe), "--output", str(tmp_path / "out")])
    rule = f"{recipe}: model must be a mapping of its fields, or a file of them. Received: 'minilm'"
    assert rule in capsys.readouterr().err
    recipe.write_text("model: {backbone: 3}\nstages: {a: {data: d, steps: 1}}\n")
    with pytest.raises(SystemExit):
        main(["train", "--run", str(recipe), "--output", str(tmp_path / "out")])
    rule = f"{recipe}: model.backbone: must be a string or a mapping. Received: 3"
    assert rule in capsys.readouterr().err


@pytest.mark.parametrize("option", ["--epochs", "--lr"])
def test_a_field_that_is_given_as_an_option(capsys, tmp_path, option):
    recipe = tmp_path / "r.yaml"
    recipe.write_text("model: {backbone: m}\nstages: {a: {data: d, steps: 1}}\n")
    with pytest.raises(SystemExit):
        main(["train", "--run", str(recipe), "--output", str(tmp_path / "out"), option, "3"])
    field = {"--epochs": "epochs", "--lr": "optimizer.learning_rate"}[option]
    told = f"unrecognized arguments: {option} 3; did you mean --run.stages.a.{field}? "
    assert told in capsys.readouterr().err


@pytest.mark.parametrize(
    ("stages", "code", "told"),
    [
        ("[]", 2, "stages"),
        ("null", 2, "stages"),
        ("{a: []}", 2, "stages.a"),
        ("3", 2, "stages"),
        ("{a: {optimizer: 3}}", 2, "`optimizer` must be a mapping of its fields"),
    ],
)
def test_stages_that_are_none(capsys, tmp_path, stages, code, told):
    recipe = tmp_path / "r.yaml"
    recipe.write_text(f"model: {{backbone: m}}\nstages: {stages}\n")
    with pytest.raises(SystemExit) as ended:
        raise SystemExit(main(["train", "--run", str(recipe), "--output", str(tmp_path / "out")]))
    assert ended.value.code == code
    line = capsys.readouterr().err
    assert told in line
    assert line.count("\n") == 1


@pytest.mark.parametrize(
    ("given", "meant"),
    [
        ("--modl", "; did you mean --model?"),
        ("--run_f", "; did you mean --run_file?"),
        ("--zz", ""),
    ],
)
def test_an_option_must_be_written_out(given, meant, capsys):
    with pytest.raises(SystemExit):
        main(["evaluate", "--dataset", "d", given, "x"])
    assert capsys.readouterr().err == (
        f"tfde evaluate: unrecognized arguments: {given} x{meant}"
        " (tfde evaluate --help shows the options)\n"
    )


@pytest.mark.parametrize(
    ("given", "line"),
    [
        (
            ("fuse", "a", "b"),
            "tfde fuse: unrecognized arguments: a b; a value follows its option, such as"
            " --run_file, --output (tfde fuse --help shows the options)",
        ),
        (
            ("index", "add", "x"),
            "tfde index add: the following arguments are required: --model, --input"
            " (tfde index add --help shows the options)",
        ),
    ],
)
def test_what_an_argument_needs_is_said_by_its_option(given, line, capsys):
    with pytest.raises(SystemExit):
        main(list(given))
    assert capsys.readouterr().err == f"{line}\n"


def test_a_recipe_that_is_not_there_is_said_to_be_missing(capsys, tmp_path):
    with pytest.raises(SystemExit):
        main(["train", "--run", "nosuch.yaml", "--output", str(tmp_path / "out")])
    assert "run must be a file. Received: 'nosuch.yaml' (" in capsys.readouterr().err


def test_a_value_that_is_none_of_the_choices_is_answered_with_them(capsys, tmp_path):
    (tmp_path / "recipe.yaml").write_text("stages: {a: {optimizer: {name: sgd}}}\n")
    with pytest.raises(SystemExit):
        main(["train", "--run", str(tmp_path / "recipe.yaml"), "--output", str(tmp_path / "run")])
    line = capsys.readouterr().err
    assert "optimizer.name" in line
    assert "must be one of 'adafactor', 'adamw'. Received: sgd" in line


def test_types_are_told_in_the_words_of_a_recipe(capsys, tmp_path):
    with pytest.raises(SystemExit):
        main(
            ["mine-negatives", "--dataset", "d", "--from", "bm25", "--count", "0", "--output", "o"]
        )
    assert "count: must be above 0. Received: 0 (" in capsys.readouterr().err
    (tmp_path / "study.yaml").write_text("base: {seed: 1}\nseeds: 1\n")
    with pytest.raises(SystemExit):
        main(["study", "--run", str(tmp_path / "study.yaml"), "--output", str(tmp_path / "out")])
    assert "seeds: must be a list. Received: 1 (" in capsys.readouterr().err


def test_a_stage_that_is_misspelled_is_answered_with_the_nearest(capsys, tmp_path):
    (tmp_path / "recipe.yaml").write_text(
        "model: {backbone: m}\nstages: {finetune: {data: d, steps: 1}}\n"
    )
    recipe = ["train", "--run", str(tmp_path / "recipe.yaml"), "--output", str(tmp_path / "run")]
    assert main([*recipe, "--run.stages.finetun.temperature", "0.02"]) == 1
    assert capsys.readouterr().err == (
        "tfde train: `stages.finetun` has neither `data` nor `mixture`; did you mean"
        " `stages.finetune`?\n"
    )


def test_the_help_of_train_names_the_fields_of_a_stage(capsys):
    with pytest.raises(SystemExit):
        main(["train", "--help"])
    shown = " ".join(capsys.readouterr().out.split())
    assert "fields of a stage: data, split, dataset, mixture, homogeneous" in shown
    assert "fields of its optimizer: name, learning_rate" in shown
    assert "fields of its refresh: count, min_rank" in shown
    assert "Only the first so many layers of a checkpoint; `null` for all." in shown
    assert "<class" not in shown


TERMINATED = """
import os, signal, sys
from tfde.cli.main import run_command
from tfde.storage.atomic import atomic_directory, atomic_file, temporary_directory

def work(args):
    with (
        atomic_directory("folder") as folder,
        atomic_file("file") as file,
        temporary_directory("file") as other,
    ):
        (folder / "x").write_text("half")
        (other / "x").write_text("half")
        file.write_text("half")
        os.kill(os.getpid(), signal.SIGTERM)
        print("still there")
run_command("tfde test", work, None)
"""


def test_sigterm_leaves_nothing_half_written(tmp_path):
    command = [sys.executable, "-c", TERMINATED]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == -signal.SIGTERM
    assert (done.stdout, done.stderr) == ("", "")
    assert list(tmp_path.iterdir()) == []


def test_a_command_that_was_probably_meant(capsys):
    assert main(["trian"]) == 2
    assert "unknown command 'trian'; did you mean train?" in capsys.readouterr().err
    assert main(["report"]) == 2
    assert "unknown command 'report'; did you mean evaluate?" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        main(["train", "--tabel", "my.csv", "--model", "m", "--output", "o"])
    told = "tfde train: unrecognized arguments: --tabel; did you mean --table? (tfde train"
    assert capsys.readouterr().err.startswith(told)
    with pytest.raises(SystemExit):
        main(["train", "my.csv", "--output", "run"])
    assert "unrecognized arguments: my.csv; did you mean --table my.csv?" in capsys.readouterr().err
    assert main(["xyz"]) == 2
    assert "unknown command 'xyz'; `tfde --help` lists the commands" in capsys.readouterr().err
