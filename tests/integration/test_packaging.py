"""What is released: the wheel, the source, the pins with checksums, and how make finds Python."""

import os
import re
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

import tfde

ROOT = Path(__file__).parents[2]
SCRIPT = """
import tfde
vocabulary = tfde.train_sentencepiece(
    ["letters of the alphabet make many words, and words make a text"] * 9,
    "spiece.model", vocabulary_size=28,
)
model = tfde.DualEncoder.from_backbone(
    tfde.BagOfWordsConfig(vocabulary_size=28, embedding_dim=8, hidden_dim=8),
    tokenizer=tfde.SentencePieceTokenizer(vocabulary.read_bytes()), sharing="sde", embedding_dim=8,
)
model.save_to_preset("model")
model = tfde.DualEncoder.from_preset("model")
documents = [tfde.Document("a", "", "many words"), tfde.Document("b", "", "the alphabet")]
index = tfde.ExactIndex.build(model.encode_documents(documents), ["a", "b"])
print(index.search(model.encode_queries(["the alphabet"]), k=1)[1][0][0])
"""


def run(*command, **options):
    done = subprocess.run(
        [str(part) for part in command], capture_output=True, text=True, **options
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    return done.stdout


def pins(path):
    """The versions of a requirements file by name, and how many checksums each has."""
    found = {}
    for line in path.read_text("utf-8").splitlines():
        pin = re.match(r"([\w.-]+)==([^\s;]+)", line)
        if pin:
            name = re.sub(r"[-_.]+", "-", pin[1]).lower()
            found[name] = [pin[2], 0]
        elif "--hash=sha256:" in line:
            found[name][1] += 1
    return found


def test_pins_with_checksums_are_the_constraints():
    constraints, hashed = pins(ROOT / "constraints.txt"), pins(ROOT / "requirements-hashed.txt")
    # pip itself may bring another of these.
    assert {
        name: pin for name, (pin, _) in hashed.items() if name not in ("setuptools", "wheel")
    } == {
        name: constraints.get(name, ["no pin"])[0]
        for name in hashed
        if name not in ("setuptools", "wheel")
    }
    assert all(count > 0 for _, count in hashed.values())
    for name in ("tensorflow", "tensorflow-text", "scann"):
        # Three versions of Python on two machines.
        assert hashed[name][1] >= 6, name


def makefile_python(path):
    """What make would call, and what it says when it would call nothing."""
    make = shutil.which("make")
    env = {"PATH": str(path)}
    done = subprocess.run(
        [make, "-f", ROOT / "Makefile", "VENV=venv", "venv/.installed"],
        capture_output=True, text=True, env=env, cwd=path,
    )  # fmt: skip
    return done.returncode, done.stdout + done.stderr


@pytest.mark.skipif(shutil.which("make") is None, reason="make is not installed")
def test_make_takes_an_interpreter_that_runs_and_says_what_it_wants(tmp_path):
    for name in ("sh", "dirname", "env"):
        (tmp_path / name).symlink_to(shutil.which(name))
    for name in ("setup.cfg", "setup.py", "pyproject.toml", "constraints.txt"):
        (tmp_path / name).touch()
    code, said = makefile_python(tmp_path)
    assert code == 2
    assert "make needs Python 3.11, 3.12 or 3.13, with venv; PYTHON=/path/to/python names" in said
    assert "Received: none of these on the PATH" in said
    # A shim that stands for nothing, one that is too old, and one that runs.
    shims = {"python3.11": "exit 127", "python3.13": "exit 1", "python3": 'echo "used $*"; exit 0'}
    for name, body in shims.items():
        (tmp_path / name).write_text(f"#!/bin/sh\n{body}\n")
        (tmp_path / name).chmod(0o755)
    _, said = makefile_python(tmp_path)
    assert "python3 -m venv venv" in said
    assert "used -m venv venv" in said


@pytest.mark.slow  # builds, and installs TensorFlow
def test_wheel_and_source_install_and_run_in_an_empty_environment(tmp_path):
    source = tmp_path / "source"
    files = run("git", "-C", ROOT, "ls-files", "-co", "--exclude-standard").splitlines()
    for file in files:
        if (ROOT / file).is_file():
            (source / file).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / file, source / file)
    tools = tmp_path / "tools"
    run(sys.executable, "-m", "venv", tools)
    run(tools / "bin/pip", "install", "-q", "build")
    # As released: the wheel is built from the source distribution.
    run(tools / "bin/python", "-m", "build", "--outdir", tmp_path / "dist", source)
    run(tools / "bin/python", "-m", "build", "--wheel", "--outdir", tmp_path / "direct", source)
    (archive,) = (tmp_path / "dist").glob("*.tar.gz")
    (wheel,) = (tmp_path / "dist").glob("*.whl")
    (direct,) = (tmp_path / "direct").glob("*.whl")
    with zipfile.ZipFile(wheel) as one, zipfile.ZipFile(direct) as other:
        names = set(one.namelist())
        assert names == set(other.namelist())
        for name in names - {name for name in names if name.endswith(("RECORD", "WHEEL"))}:
            assert one.read(name) == other.read(name), name
    assert {
        "tfde/py.typed",
        "tfde/protos/ssl_config_pb2.py",
        "tfde/protos/ssl_config.proto",
    } <= names
    assert "tfde/serving/application/page.html" in names
    assert not any(name.startswith(("tests/", "benchmarks/")) for name in names)
    with tarfile.open(archive) as held:
        inside = {name.partition("/")[2] for name in held.getnames()}
    assert {"tfde/protos/ssl_config.proto", "tests/tiny.py", "constraints.txt"} <= inside
    assert not any(name.endswith("_pb2.py") for name in inside)

    venv = tmp_path / "venv"
    run(sys.executable, "-m", "venv", venv)
    run(venv / "bin/pip", "install", "-q", "-c", ROOT / "constraints.txt", wheel)
    empty = tmp_path / "empty"
    empty.mkdir()
    env = {"PATH": os.environ["PATH"], "TF_CPP_MIN_LOG_LEVEL": "2"}
    assert "commands:" in run(venv / "bin/tfde", "--help", env=env, cwd=empty)
    assert run(venv / "bin/tfde", "--version", env=env) == f"tfde {tfde.__version__}\n"
    assert run(venv / "bin/python", "-c", SCRIPT, env=env, cwd=empty).split() == ["b"]
    lacking = subprocess.run(
        [venv / "bin/tfde-model-server", "--help"], capture_output=True, text=True, env=env
    )
    assert lacking.returncode == 1
    (line,) = lacking.stderr.splitlines()
    assert "needs the extra 'serve': pip install 'tfde[serve]'. Received: " in line
