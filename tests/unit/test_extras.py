"""The core alone: a folder that holds what it asks for, and nothing that an extra brings."""

import json
import os
import re
import subprocess
import sys
from importlib.metadata import distribution
from pathlib import Path

import pytest
from packaging.utils import canonicalize_name
from without_packages import without_packages

import tfde
from tfde.cli.main import COMMANDS
from tfde.environment import require_extra, requirements
from tfde.errors import MissingExtraError

# What a name or a command needs beyond the core; every other must be there without any.
NAMES = {"Client": "serve", "ShardedClient": "serve"}
LINES = {
    "tfde serve bundle": "serve",
    "tfde query words": "serve",
    "tfde demo --output demo": "demo",
    "tfde mine-negatives --dataset data --from bm25 --output pairs.jsonl": "bm25",
    "tfde evaluate --dataset data --split test --bm25": "bm25",
    "tfde build-index --embeddings embeddings --output index --kind tree": "scann",
    "tfde build-index --embeddings embeddings --output index --engine faiss": "faiss",
    "tfde phrases index --model model --dataset data --output index": "scann",
    "tfde phrases evaluate --model model --dataset data --bm25": "bm25",
    "tfde make-pages --input pages --output pages.jsonl": "pages",
    "tfde evaluate --dataset data --split test --run_file run.trec --report page": "figures",
    "tfde convert --format sentence-transformers --input a.parquet --columns query answer"
    " --split train --output out": "parquet",
    "tfde convert --format ir_datasets --input beir/scifact/test --output out": "ir_datasets",
    "tfde-model-server --port=0": "serve",
}
CORE = """
import contextlib, io, json, sys
from pathlib import Path
import numpy as np
import tfde
from tfde.cli.main import COMMANDS, main, model_server

def ran(call, *args):
    out = io.StringIO()
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(out):
        try:
            code = call(*args)
        except SystemExit as stop:
            code = stop.code
    return [code, out.getvalue()]

def error(call):
    try:
        call()
    except Exception as error:
        return f"{type(error).__name__}: {error}"

Path("data/qrels").mkdir(parents=True)
Path("data/corpus.jsonl").write_text('{"_id": "d", "title": "", "text": "some words"}\\n')
Path("data/queries.jsonl").write_text('{"_id": "q", "text": "words"}\\n')
for split in ("train", "test"):
    Path(f"data/qrels/{split}.tsv").write_text("query-id\\tcorpus-id\\tscore\\nq\\td\\t1\\n")
Path("run.trec").write_text("q Q0 d 1 1.0 run\\n")
Path("a.parquet").write_bytes(b"PAR1")
Path("pages").mkdir()
Path("pages/page.html").write_text("<p>some words</p>")
vectors = np.random.default_rng(0).normal(size=(200, 8)).astype("float32")
found = {name: error(lambda: getattr(tfde, name)) for name in tfde.__all__}
words = "letters of the alphabet make many words, and words make a text"
vocabulary = tfde.train_sentencepiece([words] * 9, "spiece.model", vocabulary_size=28)
tokenizer = tfde.SentencePieceTokenizer(vocabulary.read_bytes())
config = tfde.BagOfWordsConfig(vocabulary_size=28, embedding_dim=8, hidden_dim=8)
model = tfde.DualEncoder.from_backbone(
    config, tokenizer=tokenizer, sharing="sde", embedding_dim=8
)
documents = [tfde.Document(f"d{i}", "", f"text {i}") for i in range(200)]
embeddings = tfde.encode_corpus(model, documents, "embeddings")
uses = {
    "exact": error(lambda: tfde.ExactIndex.build(vectors, [str(i) for i in range(200)])),
    "scann": error(lambda: tfde.ScannIndex.build(vectors, [str(i) for i in range(200)])),
    "bm25": error(lambda: tfde.Bm25Index.build(documents)),
    "serve": error(lambda: tfde.export_bundle(model, None, "bundle")),
}
helps = {name: ran(main, [name, "--help"])[0] for name in COMMANDS}
lines = {}
for line in json.loads(sys.argv[1]):
    program, *args = line.split()
    lines[line] = ran(main if program == "tfde" else model_server, args)
doctor = io.StringIO()
with contextlib.redirect_stdout(doctor):
    main(["doctor", "--all"])
print(json.dumps([found, uses, helps, lines, doctor.getvalue()]))
"""


def core_distributions():
    """Yields every distribution that an installation without extras has."""
    seen, open_ = set(), requirements("tfde")
    while open_:
        requirement = open_.pop()
        name = canonicalize_name(requirement.name)
        for extra in ("", *requirement.extras):
            if (name, extra) not in seen:
                seen.add((name, extra))
                open_ += requirements(name, extra)
    return {distribution(name) for name, _ in seen}


@pytest.fixture(scope="module")
def core_folder(tmp_path_factory):
    """A folder of links to the packages of the core, tfde among them."""
    folder = tmp_path_factory.mktemp("core")
    # Ours is linked by hand: it may be installed as a link to its sources.
    tops = {Path(tfde.__file__).parent, Path(distribution("tfde")._path)}
    for found in core_distributions():
        for file in found.files:
            top = file.parts[0]
            if top not in ("..", "__pycache__") and not top.endswith(".pth"):
                tops.add(Path(found.locate_file(top)))
    for top in tops:
        (folder / top.name).symlink_to(top)
    return folder


def test_without_extras_all_that_needs_none_works_and_the_rest_names_its_extra(
    core_folder, tmp_path
):
    env = {"PYTHONPATH": str(core_folder), "PATH": os.environ["PATH"], "TF_CPP_MIN_LOG_LEVEL": "2"}
    done = subprocess.run(
        [sys.executable, "-S", "-c", CORE, json.dumps(list(LINES))],
        capture_output=True,
        text=True,
        env=env,
        cwd=tmp_path,
    )
    assert done.returncode == 0, done.stderr
    found, uses, helps, lines, doctor = json.loads(done.stdout.splitlines()[-1])
    assert {name: error for name, error in found.items() if error and name not in NAMES} == {}
    for name, extra in NAMES.items():
        assert f"needs the extra '{extra}': pip install 'tfde[{extra}]'" in found[name]
    assert uses.pop("exact") is None
    for extra, error in uses.items():
        assert error.startswith("MissingExtraError: "), error
        assert f" needs the extra '{extra}': pip install 'tfde[{extra}]'. Received: " in error
    # Two say what they lack before they say their options.
    assert helps == {name: int(name in ("query", "serve")) for name in COMMANDS}
    for line, extra in LINES.items():
        code, text = lines[line]
        assert code == 1, (line, text)
        said = text.strip().splitlines()[-1]
        assert f"needs the extra '{extra}': pip install 'tfde[{extra}]'" in said, (line, text)
        assert "Traceback" not in text
    assert re.search(
        r"note  extra serve: .*tensorflow-serving-api.* pip install 'tfde\[serve\]'", doctor
    )
    assert doctor.splitlines()[-1].endswith(", 0 to mend")


def test_an_extra_that_is_there_is_passed_and_one_that_is_not_names_its_packages(monkeypatch):
    require_extra("figures", "a figure")
    without_packages(monkeypatch, "matplotlib")
    message = (
        r"^a figure needs the extra 'figures': pip install 'tfde\[figures\]'\."
        r" Received: matplotlib not installed$"
    )
    with pytest.raises(MissingExtraError, match=message):
        require_extra("figures", "a figure")
