"""`tfde export`: its formats and their options."""

import json

import pytest
import tiny

from tfde.cli.main import main


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
        ("precision", "int8"),
    ],
)
def test_options_of_bundles_are_refused(option, value, tmp_path, capsys):
    assert export("--model", "m", "--output", tmp_path / "out", f"--{option}", value) == 1
    error = capsys.readouterr().err
    assert error.startswith(f"tfde: export: `--{option}` belongs to bundles: ")
    assert error.rstrip().lower().endswith(f"received: {value}")
    assert error.count("\n") == 1
    assert not (tmp_path / "out").exists()


def test_an_unknown_format_is_one_line(tmp_path, capsys):
    with pytest.raises(SystemExit) as caught:
        main(["export", "--model", "m", "--output", str(tmp_path / "o"), "--format", "onnx"])
    assert caught.value.code == 2
    error = capsys.readouterr().err
    assert "onnx" in error
    assert error.count("\n") == 1


def test_an_output_that_exists_is_refused_before_the_model_is_read(tmp_path, capsys):
    (tmp_path / "file").write_text("")
    assert export("--model", "nosuch", "--output", tmp_path) == 1
    assert "the output exists and is not empty" in capsys.readouterr().err
